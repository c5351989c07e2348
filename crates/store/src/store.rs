//! One group's store, as its callers see it.
//!
//! **Invariant: Whole entries.** Memtables are sealed only in [`LsmStore::batch_applied`] and
//! [`LsmStore::flush`], between log entries, and flushed in order, each atomically. So the disk always holds
//! the effects of whole entries together with their progress record, and the log is needed only from there
//! on.

use crate::open::{self, StoreOpenError};
use crate::options::StoreOptions;
use crate::record;
use crate::retention::{Collector, Forgotten, Pin, Retention};
use crate::shared::Shared;
use crate::stats::StoreStats;
use crate::threads::{self, Threads};
use bytes::Bytes;
use lsm_tree::{InternalValue, Slice};
use quoin_core::limits::STORE_KEY_BYTES_MAX;
use quoin_core::store::{Order, Pair, Scan, Version, Versions, prefix_end};
use quoin_core::{Index, Sequence, Store, StoreError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

/// One group's store in a folder of its own. Share it in an `Arc`; its threads end when the last clone is
/// dropped.
///
/// Dropping it writes nothing, exactly like a crash. Call [`LsmStore::flush`] first for a quick restart.
pub struct LsmStore {
    pub(crate) shared: Arc<Shared>,
    group: u32,
    _threads: Threads,
    // Dropped last: the folder may only be removed when nothing uses the store any more.
    folder: Folder,
}

/// A store's folder, which is removed along with the store if the store was retired.
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
            tracing::warn!(%path, %error, "cannot remove a replaced store; the next start will");
        }
    }
}

impl LsmStore {
    /// Opens the store in `folder`, which is created if it does not exist.
    ///
    /// # Errors
    /// A file is missing or damaged: the error names it.
    pub fn open(folder: &Path, group: u32, options: StoreOptions) -> Result<Self, StoreOpenError> {
        let shared = Arc::new(open::open(folder, options)?);
        let threads = Threads::start(&shared).map_err(StoreOpenError::Thread)?;
        let folder = Folder { path: folder.to_path_buf(), retired: AtomicBool::new(false) };
        let store = Self { shared, group, _threads: threads, folder };
        let progress = quoin_core::machines::read_progress(&store).map_err(StoreOpenError::Progress)?;
        store.set_persisted(progress.index);
        Ok(store)
    }

    /// Marks this store as replaced: its folder is removed when its last user drops it.
    pub fn retire(&self) {
        self.folder.retired.store(true, Release);
    }

    /// Takes [`LsmStore::retire`] back.
    pub(crate) fn reinstate(&self) {
        self.folder.retired.store(false, Release);
    }

    /// Notes that the effects of all log entries up to `index` are on disk.
    pub(crate) fn set_persisted(&self, index: Index) {
        self.shared.applied.store(index.0, Release);
        self.shared.persisted.store(index.0, Release);
    }

    /// Call this after each log entry is applied and before the next one begins. Seals a full or old
    /// memtable, and waits while flushing or compaction is too far behind.
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

    /// Writes everything applied so far to disk and waits until it is there. Do not call this while an entry
    /// is being applied.
    ///
    /// # Errors
    /// As [`LsmStore::batch_applied`].
    pub fn flush(&self) -> Result<(), StoreError> {
        self.shared.flush()
    }

    /// Asks for everything applied so far to be written out and merged, which gives back to the disk what
    /// deletions and compaction have freed. The writer's next [`LsmStore::batch_applied`] or
    /// [`LsmStore::between_entries`] begins it; the rest is background work that rewrites the whole store, and
    /// takes as much disk again as is left of it. Returns the request's number.
    pub fn ask_reclaim(&self) -> u64 {
        self.shared.reclaim.ask()
    }

    /// What came of a request of [`LsmStore::ask_reclaim`]; `None` until it is done. It fails where the disk
    /// has no room for it, the store was closed, or as [`LsmStore::batch_applied`].
    pub fn reclaimed(&self, number: u64) -> Option<Result<(), StoreError>> {
        self.shared.reclaim.outcome(number)
    }

    /// Whether a request of [`LsmStore::ask_reclaim`] waits or runs.
    pub fn is_reclaiming(&self) -> bool {
        self.shared.reclaim.is_pending()
    }

    /// Does some of what the background has to do, in a store that is [stepped](StoreOptions::stepped): writes out a
    /// memtable that is sealed, merges what is due.
    pub fn work_background(&self) {
        if self.shared.options.stepped {
            threads::take_turns(&self.shared);
        }
    }

    /// The writer says that no entry is being applied. Cheap.
    pub fn between_entries(&self) {
        self.shared.between_entries();
    }

    /// As [`LsmStore::ask_reclaim`], for the writer itself, which waits for it.
    ///
    /// # Errors
    /// As [`LsmStore::reclaimed`].
    pub fn compact_fully(&self) -> Result<(), StoreError> {
        let number = self.shared.reclaim.ask();
        self.shared.between_entries();
        while self.shared.options.stepped && self.shared.reclaim.outcome(number).is_none() {
            self.shared.signals.health()?;
            threads::take_turns(&self.shared);
        }
        self.shared.reclaim.wait(number)
    }

    /// Keeps what is readable now, for a slow reader at `at`: a snapshot, a long scan, a watch that catches
    /// up.
    ///
    /// # Errors
    /// `at` is compacted already.
    pub fn pin(&self, at: Sequence) -> Result<Pin, Forgotten> {
        self.shared.retentions.pin(at)
    }

    /// Keeps everything that is readable now.
    pub fn pin_now(&self) -> Pin {
        self.shared.retentions.pin_now()
    }

    /// Fails once a background thread has met a fault; the store then takes no more entries.
    ///
    /// # Errors
    /// That fault.
    pub fn health(&self) -> Result<(), StoreError> {
        self.shared.signals.health()
    }

    /// Where files without names may be written beside the store's own, as far as [`LsmStore::check_room`] lets them.
    pub fn scratch_folder(&self) -> &Path {
        &self.folder.path
    }

    /// Checks that the disk has more room than merging must leave free.
    ///
    /// # Errors
    /// `StorageFull`.
    pub fn check_room(&self) -> std::io::Result<()> {
        self.shared.room.check_merge()
    }

    /// Bytes of all table files.
    pub fn disk_bytes(&self) -> u64 {
        self.shared.layers.load().tables.bytes
    }

    /// Bytes in memtables, sealed ones included.
    pub fn memtable_bytes(&self) -> u64 {
        self.stats().memtable_bytes
    }

    /// Sizes and counts, for metrics.
    pub fn stats(&self) -> StoreStats {
        self.shared.stats()
    }

    /// As [`Store::versions`], without borrowing the store.
    pub(crate) fn versions_owned(&self, at: Sequence) -> Versions<'static> {
        // Skips what may be dropped by now. Compaction may drop more later, but these layers still hold it.
        let mut collector = Collector::new(self.shared.retentions.effective(), false);
        let layers = self.shared.layers.load_full();
        let (from, to) = (self.key(b""), self.end(b""));
        let merge = layers.merge(&from, to.as_ref(), record::seqno_limit(at), Order::Ascending);
        Box::new(merge.every_version().filter_map(move |entry| version(entry, &mut collector).transpose()))
    }

    fn key(&self, key: &[u8]) -> Slice {
        record::tree_key(self.group, key)
    }

    /// The first tree key that may hold what is at or above `key`, which may be longer than any key that is
    /// stored. `None` is above all of them.
    fn bound(&self, key: &[u8]) -> Option<Slice> {
        let Some((front, [_, ..])) = key.split_at_checked(STORE_KEY_BYTES_MAX) else {
            return Some(self.key(key));
        };
        // Of all keys that begin with `front` only `front` itself is short enough, and it is below `key`.
        let above = prefix_end(&self.key(front));
        (!above.is_empty()).then(|| Slice::from(above))
    }

    /// The tree key at which a scan to `to` ends. An empty `to` means the end of the group, which for the
    /// largest group number is no bound at all: `None`.
    fn end(&self, to: &[u8]) -> Option<Slice> {
        match to {
            [] => self.group.checked_add(1).map(|next| record::tree_key(next, b"")),
            to => self.bound(to),
        }
    }
}

impl Store for LsmStore {
    fn get(&self, key: &[u8], at: Sequence) -> Result<Option<Bytes>, StoreError> {
        if key.len() > STORE_KEY_BYTES_MAX {
            return Ok(None);
        }
        let stored = self.shared.get(self.key(key), at)?;
        Ok(stored.map(record::decode).transpose()?.flatten())
    }

    fn scan<'a>(&'a self, from: &[u8], to: &[u8], at: Sequence, order: Order) -> Scan<'a> {
        let Some(from) = self.bound(from) else { return Box::new(std::iter::empty()) };
        let to = self.end(to);
        if to.as_ref().is_some_and(|to| *to <= from) {
            return Box::new(std::iter::empty());
        }
        let merge = self.shared.layers.load_full().merge(&from, to.as_ref(), record::seqno_limit(at), order);
        Box::new(merge.filter_map(|entry| live_pair(entry).transpose()))
    }

    fn versions<'a>(&'a self, at: Sequence) -> Versions<'a> {
        self.versions_owned(at)
    }

    fn put(&self, key: &[u8], value: Bytes, at: Sequence) {
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
        self.shared.signals.wake_compactor();
    }
}

fn live_pair(entry: Result<InternalValue, StoreError>) -> Result<Option<Pair>, StoreError> {
    let entry = entry?;
    let key = Bytes::from(entry.key.user_key).slice(record::GROUP_BYTES..);
    Ok(record::decode(entry.value)?.map(|value| (key, value)))
}

fn version(
    entry: Result<InternalValue, StoreError>,
    collector: &mut Collector,
) -> Result<Option<Version>, StoreError> {
    let entry = entry?;
    let (sequence, live, length) = record::header(&entry.value)?;
    if !collector.keeps(&entry.key.user_key, sequence, live) {
        return Ok(None);
    }
    let key = Bytes::from(entry.key.user_key).slice(record::GROUP_BYTES..);
    Ok(Some((key, sequence, live.then(|| Bytes::from(entry.value).slice(length..)))))
}
