//! The node's store: an LSM tree whose write-ahead log is the Raft log.
//!
//! The tree is the engine of the crate `lsm-tree`, used without a journal: what a crash takes from memory, the
//! log gives back. Reading order: this file, [`layers`] (what readers see), [`rows`] (what they read lately),
//! [`record`] (what is stored), [`retention`] (what may be dropped), [`background`] (flushing and compaction), [`open`], [`snapshot`] and
//! [`folder`] (a store sent to another node, and put in place there).
//!
//! **Invariant (whole entries).** Memtables are exchanged only in [`LsmStore::batch_applied`] and
//! [`LsmStore::flush`], between log entries, and flushed in order, each atomically. So the disk holds the effects
//! of whole entries with the progress record that belongs to them, and the log is needed only from there on.
//!
//! What it deliberately does not do: sync a write, undo one, or know what the keys mean.

mod background;
mod folder;
mod layers;
mod open;
mod record;
mod retention;
mod rows;
mod scan;
mod snapshot;
#[cfg(test)]
mod tests;

pub use folder::{FolderError, Importer, StoreFolder};
pub use layers::TableError;
pub use open::StoreOpenError;
pub use retention::{Forgotten, Pin};
pub use snapshot::{CHUNK_BYTES, CHUNK_BYTES_MAX, Export, SnapshotError, read_chunk};

use background::{Shared, Threads};
use lsm_tree::Slice;
use quoin_core::store::{Order, Scan, Version, Versions};
use quoin_core::{Index, Sequence, Store, StoreError};
use retention::{Collector, Retention};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

/// Settings of a store. Sizes in bytes.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Memory for blocks read from tables; a quarter as much besides is for values that were read lately.
    pub cache_bytes: u64,
    /// A memtable is exchanged when it holds this much. Up to `memtables_sealed_max + 1` exist at once.
    pub memtable_bytes: u64,
    /// Memtables that may wait for the flusher; with more, applying waits.
    pub memtables_sealed_max: usize,
    /// A memtable is exchanged when it is this old, so that the log can be purged.
    pub flush_after: Duration,
    /// Unmerged flushes from which on applying is slowed down, a little per entry.
    pub first_level_slow: usize,
    /// Unmerged flushes from which on applying waits for the compactor.
    pub first_level_stop: usize,
    /// Size of the tables that compaction writes.
    pub table_bytes: u64,
    /// Unit of reading from a table and of the cache.
    pub block_bytes: u32,
    /// Table files held open.
    pub files_open_max: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 256 << 20,
            memtable_bytes: 64 << 20,
            memtables_sealed_max: 3,
            flush_after: Duration::from_secs(60),
            first_level_slow: 12,
            first_level_stop: 24,
            table_bytes: 64 << 20,
            block_bytes: 4096,
            files_open_max: 512,
        }
    }
}

/// One group's store in a folder of its own. Share it in an `Arc`; its threads end when the last one is dropped.
///
/// Dropping it writes nothing: that is what a crash leaves. [`LsmStore::flush`] first for a quick restart.
pub struct LsmStore {
    shared: Arc<Shared>,
    group: u32,
    _threads: Threads,
    // Last: nothing of the store is in use any more when its folder goes.
    folder: Folder,
}

/// A store's folder: removed with the store, once another one has taken its place.
struct Folder {
    path: PathBuf,
    retired: AtomicBool,
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.retired.load(Acquire)
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            let path = self.path.display();
            tracing::warn!(%path, %error, "a replaced store's folder stays until the next start");
        }
    }
}

/// What a store is made of at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Bytes of all table files.
    pub disk_bytes: u64,
    /// Bytes in memtables, those that wait for the flusher included.
    pub memtable_bytes: u64,
    /// Memtables that wait for the flusher.
    pub memtables_sealed: usize,
    /// Flushes not merged yet.
    pub first_level_runs: usize,
    /// Table files.
    pub tables: usize,
    /// Entries in tables, old versions and deletions included.
    pub table_entries: u64,
    /// Flushes since the store was opened.
    pub flushes: u64,
    /// Compactions since the store was opened.
    pub compactions: u64,
    /// Microseconds that applying had to wait since the store was opened.
    pub waited_us: u64,
}

impl LsmStore {
    /// Opens the store in `folder`, which is created if it is not there.
    ///
    /// # Errors
    /// A file that is missing or damaged, by name.
    pub fn open(folder: &Path, group: u32, options: StoreOptions) -> Result<Self, StoreOpenError> {
        let shared = Arc::new(open::open(folder, options)?);
        let threads = Threads::start(&shared)
            .map_err(|source| StoreOpenError::Io { path: folder.to_path_buf(), source })?;
        let folder = Folder { path: folder.to_path_buf(), retired: AtomicBool::new(false) };
        let store = Self { shared, group, _threads: threads, folder };
        let progress = quoin_core::machines::read_progress(&store).map_err(StoreOpenError::Progress)?;
        store.restored(progress.index);
        Ok(store)
    }

    /// Another store is, or will be, the live one: this one's folder goes when its last user has let go of it.
    pub fn retire(&self) {
        self.folder.retired.store(true, Release);
    }

    /// The store holds on disk what the log's entries up to `index` did.
    fn restored(&self, index: Index) {
        self.shared.applied.store(index.0, Release);
        self.shared.persisted.store(index.0, Release);
    }

    /// To be called after each log entry was applied, before the next one begins: exchanges a full memtable, and
    /// waits while flushing or compaction are too far behind.
    ///
    /// # Errors
    /// A background thread met a fault: the node must stop.
    pub fn batch_applied(&self, index: Index) -> Result<(), StoreError> {
        self.shared.batch_applied(index)
    }

    /// The last log entry whose effects are on disk: the log may be purged up to and including it.
    pub fn persisted_index(&self) -> Index {
        Index(self.shared.persisted.load(Acquire))
    }

    /// Writes all that was applied to disk and waits for it. To be called while no entry is being applied.
    ///
    /// # Errors
    /// As [`LsmStore::batch_applied`].
    pub fn flush(&self) -> Result<(), StoreError> {
        self.shared.flush()
    }

    /// Merges all tables into the last level and waits for it: frees what history no longer needs at once,
    /// at the price of rewriting everything.
    ///
    /// # Errors
    /// As [`LsmStore::batch_applied`].
    pub fn compact_fully(&self) -> Result<(), StoreError> {
        self.shared.flush()?;
        self.shared.compact_fully()
    }

    /// Holds what is readable now, for a reader at `at` that takes long: a snapshot, a long scan, a watch that
    /// catches up.
    ///
    /// # Errors
    /// `at` is forgotten already.
    pub fn pin(&self, at: Sequence) -> Result<Pin, Forgotten> {
        self.shared.retentions.pin(at)
    }

    /// Holds what is readable now.
    pub fn pin_now(&self) -> Pin {
        self.shared.retentions.pin_now()
    }

    /// The fault that a background thread met, if one did. The store takes no more entries then.
    ///
    /// # Errors
    /// That fault.
    pub fn health(&self) -> Result<(), StoreError> {
        self.shared.health()
    }

    /// Bytes of all table files.
    pub fn disk_bytes(&self) -> u64 {
        self.shared.layers.load().tables.bytes
    }

    /// Bytes in memtables.
    pub fn memtable_bytes(&self) -> u64 {
        self.stats().memtable_bytes
    }

    /// For metrics.
    pub fn stats(&self) -> StoreStats {
        self.shared.stats()
    }

    fn key(&self, key: &[u8]) -> Slice {
        record::tree_key(self.group, key)
    }

    /// Where scans that have no upper bound end; `None` for the last group there can be.
    fn end(&self, to: &[u8]) -> Option<Slice> {
        match to {
            [] => self.group.checked_add(1).map(|next| record::tree_key(next, b"")),
            to => Some(self.key(to)),
        }
    }
}

impl Store for LsmStore {
    fn get(&self, key: &[u8], at: Sequence) -> Result<Option<bytes::Bytes>, StoreError> {
        let stored = self.shared.get(self.key(key), at)?;
        Ok(stored.map(record::decode).transpose()?.flatten())
    }

    fn scan<'a>(&'a self, from: &[u8], to: &[u8], at: Sequence, order: Order) -> Scan<'a> {
        let (from, to) = (self.key(from), self.end(to));
        if to.as_ref().is_some_and(|to| *to <= from) {
            return Box::new(std::iter::empty());
        }
        let merge = self.shared.layers.load_full().merge(&from, to.as_ref(), record::seqno_limit(at), order);
        Box::new(merge.filter_map(|entry| live_pair(entry).transpose()))
    }

    fn versions<'a>(&'a self, at: Sequence) -> Versions<'a> {
        // Whatever may go by now is left out; what is left out later by compaction is still in these layers.
        let mut collector = Collector::new(self.shared.retentions.effective(), false);
        let layers = self.shared.layers.load_full();
        let (from, to) = (self.key(b""), self.end(b""));
        let merge = layers.merge(&from, to.as_ref(), record::seqno_limit(at), Order::Ascending);
        Box::new(merge.every_version().filter_map(move |entry| version(entry, &mut collector).transpose()))
    }

    fn put(&self, key: &[u8], value: bytes::Bytes, at: Sequence) {
        self.shared.insert(record::entry(self.key(key), Some(&value), at), at);
    }

    fn delete(&self, key: &[u8], at: Sequence) {
        self.shared.insert(record::entry(self.key(key), None, at), at);
    }

    fn forget(&self, before: Sequence, dead_from: &[u8], dead_to: &[u8]) {
        let dead = match dead_to {
            [] => Default::default(),
            _ => (self.key(dead_from), self.key(dead_to)),
        };
        self.shared.retentions.raise(Retention { before, dead });
        self.shared.wake_compactor();
    }
}

fn live_pair(
    entry: Result<lsm_tree::InternalValue, StoreError>,
) -> Result<Option<quoin_core::store::Pair>, StoreError> {
    let entry = entry?;
    let key = bytes::Bytes::from(entry.key.user_key).slice(4..);
    Ok(record::decode(entry.value)?.map(|value| (key, value)))
}

fn version(
    entry: Result<lsm_tree::InternalValue, StoreError>,
    collector: &mut Collector,
) -> Result<Option<Version>, StoreError> {
    let entry = entry?;
    let (sequence, live, length) = record::header(&entry.value)?;
    if !collector.keeps(&entry.key.user_key, sequence, live) {
        return Ok(None);
    }
    let key = bytes::Bytes::from(entry.key.user_key).slice(4..);
    Ok(Some((key, sequence, live.then(|| bytes::Bytes::from(entry.value).slice(length..)))))
}
