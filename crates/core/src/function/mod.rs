//! Libraries of functions in Lua, which clients of Redis's protocol load once and call by name.
//!
//! `command.rs` is what changes them, `record.rs` what is stored, `machine.rs` applies, `libraries.rs` is what readers
//! see.
//!
//! Deliberately absent: Lua. A library was run, and its functions were listed, where it was loaded; here it is a text
//! with names. Nothing here has a revision: watchers are not told of libraries.

mod command;
mod libraries;
mod machine;
mod record;
mod reply;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod script;

pub use command::{Existing, Load, Operation};
pub use libraries::Libraries;
pub use machine::Machine;
pub(crate) use record::FACE;
pub use record::{
    ALLOW_CROSS_SLOT_KEYS, ALLOW_OOM, ALLOW_STALE, FLAGS, Function, Library, NO_CLUSTER, NO_WRITES,
};
pub use record::{CODE_BYTES_MAX, is_name};
pub use reply::{Refusal, Reply};
