//! A store's settings.

use std::time::Duration;

/// Settings of a store. Sizes are in bytes.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Cache for blocks of table files. Recently read values get another quarter of this on top.
    pub cache_bytes: u64,
    /// A memtable is sealed when it reaches this size. All memtables together hold up to
    /// `memtables_sealed_max + 1` times as much.
    pub memtable_bytes: u64,
    /// Sealed memtables that may wait for the flusher; beyond this, applying waits.
    pub memtables_sealed_max: usize,
    /// A memtable is sealed when it reaches this age, so that the log can be purged.
    pub flush_after: Duration,
    /// From this many unmerged flushes on, the writer is slowed down, by the byte.
    pub first_level_slow: usize,
    /// From this many unmerged flushes on, applying waits for the compactor.
    pub first_level_stop: usize,
    /// Target size of the table files that compaction writes.
    pub table_bytes: u64,
    /// Size of a block: the unit of reading and caching.
    pub block_bytes: u32,
    /// Merging stops while the disk has fewer bytes free: they are left to the log. Sealed memtables are
    /// written all the same. 0 leaves nothing.
    pub free_bytes_min: u64,
    /// Maximum number of open table files.
    pub files_open_max: usize,
    /// No threads: whoever waits for the background does its work, and [`crate::LsmStore::work_background`] does the
    /// rest. Nothing is sealed by its age. For simulations, in which the order of steps is drawn.
    pub stepped: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 256 << 20,
            memtable_bytes: 64 << 20,
            memtables_sealed_max: 3,
            flush_after: Duration::from_secs(60),
            // Merging many at once writes the next level less often.
            first_level_slow: 18,
            first_level_stop: 24,
            table_bytes: 64 << 20,
            block_bytes: 4096,
            free_bytes_min: 0,
            files_open_max: 512,
            stepped: false,
        }
    }
}
