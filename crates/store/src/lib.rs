//! Quoin's store: an LSM tree whose write-ahead log is the Raft log.
//!
//! It uses the engine of the crate `lsm-tree` without a journal: the Raft log replays whatever a crash takes
//! from memory. No other crate names `lsm-tree`.
//!
//! Reading order, from the surface down:
//! - [`store`] and [`options`]: what callers see.
//! - [`record`]: the layout of keys and values.
//! - [`shared`]: reads, writes and back-pressure, over [`layers`], [`memtable`] and [`scan`] (what a reader searches),
//!   [`rows`] (recently read values), [`retention`] (what may be dropped), [`published`], [`tree`] and [`signals`].
//! - [`threads`], [`flusher`] and [`compactor`]: the background; [`reclaim`] and [`room`]: how it gives space
//!   back, and what it does where there is little; [`scrub`]: reading files again.
//! - [`open`] and [`damage`]: opening a store, and naming the damaged file if that fails.
//! - [`mod@inspect`]: a stopped node's store, not changed.
//! - [`snapshot`], [`export`], [`folder`] and [`import`]: moving a store's state into another one.
//!
//! What this crate deliberately does not do: sync a write, undo one, or know what the keys mean.

mod compactor;
mod damage;
mod export;
mod flusher;
mod folder;
mod import;
mod inspect;
mod layers;
mod memtable;
mod open;
mod options;
mod published;
mod reclaim;
mod record;
mod retention;
mod room;
mod rows;
mod scan;
mod scrub;
mod shared;
mod signals;
mod snapshot;
mod stats;
mod store;
#[cfg(test)]
mod tests;
mod threads;
mod tree;

pub use damage::TableError;
pub use export::Export;
pub use folder::{FolderError, StoreFolder};
pub use import::{ImportError, Importer};
pub use inspect::{Inspected, inspect};
pub use open::StoreOpenError;
pub use options::StoreOptions;
pub use retention::{Forgotten, Pin};
pub use scrub::ScrubbedTable;
pub use snapshot::{CHUNK_BYTES, CHUNK_BYTES_MAX, SnapshotError, check_snapshot, read_chunk};
pub use stats::StoreStats;
pub use store::LsmStore;
