//! One replica of Quoin.
//!
//! Reading order, along a write: `api/` (wire to command), `engine/` (propose, apply, answer), `raft/` (the
//! replica loop, the log, the peers), `store/` (the LSM tree), `watch/` (who is told).
//! `table/` holds lookup tables' files beside it.

pub mod api;
pub mod config;
pub mod engine;
pub mod identity;
pub mod metrics;
mod node;
pub mod raft;
mod restore;
pub mod store;
pub mod table;
pub mod watch;

pub use config::Config;
pub use engine::{Consistency, Engine};
pub use node::{Node, StartError};
pub use restore::restore;

/// The store's settings out of the node's.
pub(crate) fn store_options(config: &Config) -> store::StoreOptions {
    store::StoreOptions {
        cache_bytes: config.store.cache_bytes,
        memtable_bytes: config.store.memtable_bytes,
        ..store::StoreOptions::default()
    }
}
