//! The table face: which version of a lookup table is active, and the changes over it. The files themselves
//! are not here: the log carries only their manifest, so that all replicas switch at one index.
//!
//! `command.rs` and `reply.rs` are what clients ask and are answered, `machine.rs` is what a command does,
//! `live.rs` what lookups see, `query.rs` what is exported, `record.rs` the bytes in the store.

mod command;
mod live;
mod machine;
mod query;
mod record;
mod reply;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod script;

pub(crate) use command::is_report;
pub use command::{
    Activate, Command, Drop, Failed, Forget, Operation, Publish, Ready, Rollback, Shape, Upsert, Write,
};
pub use live::{CHANGE_BYTES, Live, Look, TableState};
pub use machine::{Machine, PATCHES_MAX, VERSIONS_KEPT, VERSIONS_KEPT_MAX, failure_reason};
pub use query::{active, changes};
pub(crate) use record::FACE;
pub use record::{Era, Failure, NAME_BYTES_MAX, Table, Version};
pub use reply::{Refusal, Reply};
