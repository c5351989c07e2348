//! Consensus: replicas that agree on a log, the log on disk, and the connections between them.
//!
//! Reading order: `replica/` (the protocol loop, without I/O), `storage.rs` (the log as the library sees it),
//! `log/` (what is durable), `message.rs` and `frame.rs` (what replicas say, and its bytes), `greeting.rs`
//! (to whom), `stream.rs` (over TLS or not), `transport/` (how it gets there). `testscripts/` show replicas at work, message by message.
//!
//! This is the only crate that names the `raft` crate, and none of its types are in this crate's API. What
//! this crate does not do: run threads for a replica, apply entries, or serve clients.

#![allow(
    clippy::field_reassign_with_default,
    reason = "the library's messages are made empty and then set, field by field"
)]

mod configuration;
mod entries;
#[cfg(any(test, feature = "fuzzing"))]
mod exercise;
pub mod frame;
pub mod greeting;
mod group;
pub mod guarded;
pub mod log;
pub mod message;
pub use quoin_core::mutants;
pub mod replica;
#[cfg(test)]
mod script;
mod storage;
mod stream;
pub mod transport;

/// What the fuzz targets drive.
#[cfg(feature = "fuzzing")]
pub mod fuzz {
    pub use super::exercise::frames;
}

pub use configuration::{Change, Configuration};
pub use group::{GROUP, GroupId};
pub use stream::PeerStream;
