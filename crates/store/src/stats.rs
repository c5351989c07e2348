//! What a store reports about itself.

use std::sync::atomic::AtomicU64;

/// Sizes of a store at one moment, and counts since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Bytes of all table files.
    pub disk_bytes: u64,
    /// Bytes in memtables, sealed ones included.
    pub memtable_bytes: u64,
    /// Memtables that wait for the flusher.
    pub memtables_sealed: usize,
    /// Flushes not merged yet.
    pub first_level_runs: usize,
    /// Number of table files.
    pub tables: usize,
    /// Entries in table files, old versions and deletions included.
    pub table_entries: u64,
    /// Flushes since the store was opened.
    pub flushes: u64,
    /// Compactions since the store was opened.
    pub compactions: u64,
    /// Microseconds for which back-pressure delayed applying since the store was opened.
    pub waited_us: u64,
}

/// The counts behind [`StoreStats`].
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) flushes: AtomicU64,
    pub(crate) compactions: AtomicU64,
    pub(crate) waited_us: AtomicU64,
}
