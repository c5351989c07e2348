//! The table face: which version of a lookup table answers, and the changes that lie over it. The files themselves are the
//! node's; the log carries only their manifest, so that all replicas switch at one index.
//!
//! `command.rs` is what may be asked, `machine.rs` what it does, `record.rs` the bytes in the store, `live.rs` what lookups see,
//! `query.rs` what is exported.

mod command;
mod live;
mod machine;
pub mod query;
mod record;
#[cfg(test)]
mod script;

pub use command::{
    Activate, Command, Drop, Failed, Operation, Publish, Ready, Rollback, Shape, Upsert, Write,
};
pub use live::{Live, Look, TableState};
pub use machine::{Machine, Refusal, Reply, VERSIONS_KEPT};
pub use record::{Failure, Table, Version};
