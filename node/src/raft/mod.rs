//! Consensus: the log, the replica loop, the connections to other replicas.
//!
//! Reading order: `replica.rs` (the loop, without I/O), `storage.rs` (the log as the library sees it), `log/`
//! (what is durable), `message.rs` (what replicas say), `greeting.rs` (to whom), `transport.rs` (how it gets there). Only this folder
//! names the `raft` crate's protocol; the threads that drive it are in `engine/`.

#![allow(
    clippy::field_reassign_with_default,
    reason = "the library's messages are made empty and then set, field by field"
)]

pub mod greeting;
pub mod log;
pub mod message;
pub mod replica;
mod storage;
pub mod transport;

/// One log with its machines. A node may host several; this version hosts one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

/// The one group of this version.
pub const GROUP: GroupId = GroupId(1);
