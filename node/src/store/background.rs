//! The two threads behind the store, and what they share with the writer.
//!
//! The flusher turns sealed memtables into tables, oldest first. The compactor merges tables, drops what nobody
//! may read any more, and unlinks files that were replaced, so that no reader pays for that.
//!
//! **Invariant (faults stop).** After a fault of either thread no entry is taken any more: [`Shared::health`].

use super::layers::{Layers, Sealed, Tables};
use super::record::{self, SEQNO_BASE};
use super::retention::{Collector, Retentions};
use super::rows::{Known, Rows};
use super::{StoreOptions, StoreStats};
use arc_swap::ArcSwap;
use lsm_tree::compaction::{CompactionStrategy, Leveled};
use lsm_tree::{AbstractTree, AnyTree, InternalValue, Memtable, SequenceNumberCounter, Slice};
use parking_lot::{Condvar, Mutex};
use quoin_core::{Index, Sequence, StoreError};
use std::io::ErrorKind::StorageFull;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two tries on a full disk.
const DISK_FULL_PAUSE: Duration = Duration::from_secs(1);

/// What applying waits, per entry and unmerged flush above the limit, while the compactor is behind.
const SLOW_STEP: Duration = Duration::from_micros(500);

/// State shared by the writer, the readers and the two threads.
pub(super) struct Shared {
    pub(super) tree: AnyTree,
    /// The engine's own numbering of manifests; see [`SEQNO_BASE`].
    pub(super) manifest_seqno: SequenceNumberCounter,
    pub(super) layers: ArcSwap<Layers>,
    pub(super) rows: Rows,
    pub(super) retentions: Arc<Retentions>,
    pub(super) options: StoreOptions,
    pub(super) applied: AtomicU64,
    pub(super) persisted: AtomicU64,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) memtable_ids: AtomicU64,
    pub(super) counters: Counters,
    pub(super) failure: Mutex<Option<Arc<Failure>>>,
    /// The layers that were replaced, until nobody uses them. Locked while `layers` takes the tree's newest tables,
    /// so that no older list replaces a newer one.
    pub(super) retired: Mutex<Vec<Arc<Layers>>>,
    pub(super) signals: Signals,
}

#[derive(Default)]
pub(super) struct Counters {
    flushes: AtomicU64,
    compactions: AtomicU64,
    waited_us: AtomicU64,
}

/// Who waits for what. The mutex guards the decision to wait; the state itself is elsewhere.
#[derive(Default)]
pub(super) struct Signals {
    lock: Mutex<CompactorWork>,
    flusher: Condvar,
    compactor: Condvar,
    writer: Condvar,
}

#[derive(Default)]
struct CompactorWork {
    wanted: bool,
}

/// Why the store takes no more entries.
#[derive(Debug, thiserror::Error)]
#[error("{thread} stopped: {cause}")]
pub(super) struct Failure {
    thread: &'static str,
    cause: String,
}

/// The running threads; dropping it ends them.
pub(super) struct Threads {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    pub(super) fn start(shared: &Arc<Shared>) -> std::io::Result<Self> {
        let mut threads = Self { shared: shared.clone(), handles: Vec::new() };
        threads.spawn("store-flush", Shared::run_flusher)?;
        threads.spawn("store-compact", Shared::run_compactor)?;
        Ok(threads)
    }

    fn spawn(&mut self, name: &'static str, run: fn(&Shared) -> Result<(), String>) -> std::io::Result<()> {
        let shared = self.shared.clone();
        self.handles
            .push(std::thread::Builder::new().name(name.into()).spawn(move || shared.guard(name, run))?);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stop.store(true, Release);
        self.shared.signals.wake_all();
        for handle in self.handles.drain(..) {
            // A thread that panicked has recorded it as the store's failure.
            let _ = handle.join();
        }
    }
}

impl Signals {
    fn wake_all(&self) {
        let _lock = self.lock.lock();
        self.flusher.notify_all();
        self.compactor.notify_all();
        self.writer.notify_all();
    }
}

impl Shared {
    /// Adds an entry to the active memtable.
    pub(super) fn insert(&self, entry: InternalValue, at: Sequence) {
        let (key, stored) = (entry.key.user_key.clone(), entry.value.clone());
        self.layers.load().active.insert(entry);
        self.rows.wrote(&key, at, &stored);
    }

    /// What is stored of `key` as of `at`, its header included.
    pub(super) fn get(&self, key: Slice, at: Sequence) -> Result<Option<Slice>, StoreError> {
        match self.rows.get(&key) {
            Known::Row(newest, stored) if newest <= at => return Ok(Some(stored)),
            Known::Row(..) => {}
            Known::Nothing(ticket) => {
                let Some(stored) = self.layers.load().find(&key, u64::MAX)? else { return Ok(None) };
                let (newest, ..) = record::header(&stored)?;
                if newest <= at {
                    self.rows.keep(&ticket, key, newest, &stored);
                    return Ok(Some(stored));
                }
            }
        }
        self.layers.load().find(&key, record::seqno_limit(at))
    }

    pub(super) fn batch_applied(&self, index: Index) -> Result<(), StoreError> {
        self.applied.store(index.0, Release);
        let layers = self.layers.load();
        let full = layers.active.size() >= self.options.memtable_bytes;
        if full || (layers.since.elapsed() >= self.options.flush_after && !layers.active.is_empty()) {
            drop(layers);
            self.rotate(index);
        }
        self.health()?;
        self.hold_back()
    }

    pub(super) fn flush(&self) -> Result<(), StoreError> {
        if !self.layers.load().active.is_empty() {
            self.rotate(Index(self.applied.load(Acquire)));
        }
        self.wait_until(|layers| layers.sealed.is_empty())
    }

    pub(super) fn health(&self) -> Result<(), StoreError> {
        match &*self.failure.lock() {
            Some(failure) => Err(StoreError::new("background", failure.clone())),
            None => Ok(()),
        }
    }

    pub(super) fn wake_compactor(&self) {
        self.signals.lock.lock().wanted = true;
        self.signals.compactor.notify_one();
    }

    pub(super) fn stats(&self) -> StoreStats {
        let layers = self.layers.load();
        StoreStats {
            disk_bytes: layers.tables.bytes,
            memtable_bytes: layers.active.size()
                + layers.sealed.iter().map(|sealed| sealed.memtable.size()).sum::<u64>(),
            memtables_sealed: layers.sealed.len(),
            first_level_runs: layers.tables.first_level_runs,
            tables: layers.tables.iter().count(),
            table_entries: layers.tables.iter().map(|table| table.metadata.item_count).sum(),
            flushes: self.counters.flushes.load(Relaxed),
            compactions: self.counters.compactions.load(Relaxed),
            waited_us: self.counters.waited_us.load(Relaxed),
        }
    }

    fn rotate(&self, index: Index) {
        let fresh = Arc::new(Memtable::new(self.memtable_ids.fetch_add(1, Relaxed)));
        self.layers.rcu(|layers| {
            let mut next = Layers::clone(layers);
            next.sealed.push(Arc::new(Sealed { memtable: layers.active.clone(), index }));
            next.active = fresh.clone();
            next.since = Instant::now();
            next
        });
        let _lock = self.signals.lock.lock();
        self.signals.flusher.notify_one();
    }

    /// Back-pressure: a full stop where memory or reads would suffer, and a slowdown before it comes to that.
    fn hold_back(&self) -> Result<(), StoreError> {
        let StoreOptions { memtables_sealed_max, first_level_slow, first_level_stop, .. } = self.options;
        let runs = {
            let layers = self.layers.load();
            if layers.sealed.len() <= memtables_sealed_max
                && layers.tables.first_level_runs < first_level_slow
            {
                return Ok(());
            }
            layers.tables.first_level_runs
        };
        let started = Instant::now();
        if let Some(excess @ 1..) = (runs + 1).checked_sub(first_level_slow) {
            std::thread::sleep(SLOW_STEP * u32::try_from(excess).unwrap_or(u32::MAX).min(10));
        }
        let outcome = self.wait_until(|layers| {
            layers.sealed.len() <= memtables_sealed_max && layers.tables.first_level_runs < first_level_stop
        });
        let waited = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.counters.waited_us.fetch_add(waited, Relaxed);
        outcome
    }

    pub(super) fn wait_until(&self, enough: impl Fn(&Layers) -> bool) -> Result<(), StoreError> {
        let mut lock = self.signals.lock.lock();
        loop {
            self.health()?;
            if enough(&self.layers.load()) {
                return Ok(());
            }
            self.signals.writer.wait(&mut lock);
        }
    }

    /// Runs a thread's body; its end by fault or panic becomes the store's failure.
    fn guard(&self, thread: &'static str, run: fn(&Self) -> Result<(), String>) {
        yield_to_others();
        let outcome = catch_unwind(AssertUnwindSafe(|| run(self))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown cause");
            Err(format!("panic: {text}"))
        });
        if let Err(cause) = outcome {
            if !self.stopping() {
                tracing::error!(thread, cause, "the store met a fault and takes no more entries");
                self.failure.lock().get_or_insert_with(|| Arc::new(Failure { thread, cause }));
            }
            self.signals.wake_all();
        }
    }

    fn stopping(&self) -> bool {
        self.stop.load(Acquire)
    }

    /// Does `work`, again and again while the disk is full: the tree is as it was before each try, and the log
    /// takes no entries meanwhile either.
    fn while_disk_full<T>(
        &self,
        what: &'static str,
        work: impl Fn() -> lsm_tree::Result<T>,
    ) -> lsm_tree::Result<T> {
        let mut told = false;
        loop {
            match work() {
                Err(lsm_tree::Error::Io(error)) if error.kind() == StorageFull && !self.stopping() => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::error!(what, "the disk is full: the store tries again until there is room");
                    }
                    std::thread::sleep(DISK_FULL_PAUSE);
                }
                done => return done,
            }
        }
    }

    fn run_flusher(&self) -> Result<(), String> {
        while let Some(sealed) = self.next_sealed() {
            self.while_disk_full("flushing", || self.flush_one(&sealed))
                .map_err(|error| self.explain(&error))?;
            self.install(Some(&sealed));
            self.persisted.store(sealed.index.0, Release);
            self.counters.flushes.fetch_add(1, Relaxed);
            self.signals.wake_all_writers();
            self.wake_compactor();
        }
        Ok(())
    }

    fn next_sealed(&self) -> Option<Arc<Sealed>> {
        let mut lock = self.signals.lock.lock();
        loop {
            if self.stopping() {
                return None;
            }
            if let Some(oldest) = self.layers.load().sealed.first() {
                return Some(oldest.clone());
            }
            self.signals.flusher.wait(&mut lock);
        }
    }

    fn flush_one(&self, sealed: &Sealed) -> lsm_tree::Result<()> {
        let mut collector = Collector::new(self.retentions.effective(), false);
        let entries = sealed.memtable.items.iter().filter_map(|entry| {
            if self.stopping() {
                return Some(Err(lsm_tree::Error::Io(std::io::ErrorKind::Interrupted.into())));
            }
            let (sequence, live, _) = record::header(entry.value()).expect("we encoded it");
            collector
                .keeps(&entry.key().user_key, sequence, live)
                .then(|| Ok(InternalValue { key: entry.key().clone(), value: entry.value().clone() }))
        });
        let mut entries = entries.peekable();
        if entries.peek().is_none() {
            return Ok(());
        }
        let _engine = self.tree.get_flush_lock();
        if let Some((tables, blobs)) = self.tree.flush_to_tables(entries)? {
            self.tree.register_tables(&tables, blobs.as_deref(), None, &[], SEQNO_BASE)?;
            self.manifest_seqno.set(0);
        }
        Ok(())
    }

    /// Shows readers the tree's newest tables, and no longer the memtable that became some of them.
    fn install(&self, flushed: Option<&Arc<Sealed>>) {
        let mut retired = self.retired.lock();
        let tables = Arc::new(Tables::of(&self.tree));
        let old = self.layers.rcu(|layers| {
            let mut next = Layers::clone(layers);
            next.tables = tables.clone();
            if let Some(flushed) = flushed {
                next.sealed.retain(|sealed| !Arc::ptr_eq(sealed, flushed));
            }
            next
        });
        retired.push(old);
    }

    fn run_compactor(&self) -> Result<(), String> {
        let strategy: Arc<dyn CompactionStrategy> =
            Arc::new(Leveled::default().with_table_target_size(self.options.table_bytes));
        while self.next_compaction() {
            loop {
                let before = self.tree.current_version().id();
                let compact = || self.tree.compact(strategy.clone(), SEQNO_BASE);
                let done = self.while_disk_full("compacting", compact);
                if self.stopping() {
                    return Ok(());
                }
                done.map_err(|error| self.explain(&error))?;
                if !self.compacted_since(before) {
                    break;
                }
            }
            self.drop_dead_tables().map_err(|error| self.explain(&error))?;
            self.unlink_retired();
        }
        Ok(())
    }

    fn next_compaction(&self) -> bool {
        let mut lock = self.signals.lock.lock();
        while !lock.wanted && !self.stopping() {
            self.signals.compactor.wait(&mut lock);
        }
        lock.wanted = false;
        !self.stopping()
    }

    fn compacted_since(&self, version: u64) -> bool {
        self.manifest_seqno.set(0);
        if self.tree.current_version().id() == version {
            return false;
        }
        self.counters.compactions.fetch_add(1, Relaxed);
        self.install(None);
        self.signals.wake_all_writers();
        self.unlink_retired();
        true
    }

    /// Dead keys ascend and are never written again, so no compaction touches tables that hold nothing else.
    fn drop_dead_tables(&self) -> lsm_tree::Result<()> {
        let (from, to) = self.retentions.effective().dead;
        if from < to && self.layers.load().tables.any_within(&from, &to) {
            let before = self.tree.current_version().id();
            self.tree.drop_range(from..to)?;
            self.compacted_since(before);
        }
        Ok(())
    }

    pub(super) fn compact_fully(&self) -> Result<(), StoreError> {
        let before = self.tree.current_version().id();
        self.tree
            .major_compact(self.options.table_bytes, SEQNO_BASE)
            .map_err(|error| StoreError::new("compact", self.explain(&error)))?;
        self.compacted_since(before);
        Ok(())
    }

    /// Drops replaced layers that nobody reads any more, and with the last of a table's layers, its file.
    pub(super) fn unlink_retired(&self) {
        let unused = {
            let mut retired = self.retired.lock();
            // Nobody can take a new hold on replaced layers, so a count of one stays one.
            let (unused, used) =
                retired.drain(..).partition::<Vec<_>, _>(|layers| Arc::strong_count(layers) == 1);
            *retired = used;
            unused
        };
        drop(unused);
    }

    fn explain(&self, error: &lsm_tree::Error) -> String {
        let damaged = super::open::damaged_tables(self.layers.load().tables.iter());
        match damaged.as_slice() {
            [] => error.to_string(),
            files => format!("{error}; damaged: {}", files.join(", ")),
        }
    }
}

impl Signals {
    fn wake_all_writers(&self) {
        let _lock = self.lock.lock();
        self.writer.notify_all();
    }
}

/// Background work gives way to threads that somebody waits for; back-pressure sees to it that it still keeps up.
#[cfg(target_os = "linux")]
fn yield_to_others() {
    #[allow(unsafe_code, reason = "the standard library has no call for a thread's priority")]
    // SAFETY: the call takes plain numbers; 0 names the calling thread. A refusal changes nothing.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 10);
    }
}

#[cfg(not(target_os = "linux"))]
fn yield_to_others() {}
