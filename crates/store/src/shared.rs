//! What the writer, the readers and the background threads share, and what happens in the foreground: reads,
//! writes, and back-pressure on the writer.

use crate::layers::Layers;
use crate::options::StoreOptions;
use crate::published::Published;
use crate::reclaim::Reclaim;
use crate::record;
use crate::retention::Retentions;
use crate::room::Room;
use crate::rows::{Lookup, Rows};
use crate::signals::Signals;
use crate::stats::{Counters, StoreStats};
use crate::threads;
use crate::tree::Tree;
use lsm_tree::{InternalValue, Slice};
use quoin_core::{Index, Sequence, StoreError};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// How long the writer pauses per byte, for each unmerged flush from `first_level_slow` on: with the first it writes at most
/// 70 MB/s, with the sixth 12 MB/s, which is about what merging takes where keys are at random.
const SLOW_NS_PER_BYTE: u64 = 14;
/// Shorter pauses are gathered: a thread that sleeps wakes up a little late.
const PAUSE_NS_MIN: u64 = 1_000_000;

/// State of an open store.
pub(crate) struct Shared {
    pub(crate) options: StoreOptions,
    pub(crate) tree: Tree,
    pub(crate) layers: Published,
    pub(crate) retentions: Arc<Retentions>,
    pub(crate) signals: Signals,
    pub(crate) counters: Counters,
    /// Index of the last log entry that was applied.
    pub(crate) applied: AtomicU64,
    /// Index of the last log entry whose effects are on disk.
    pub(crate) persisted: AtomicU64,
    pub(crate) reclaim: Reclaim,
    pub(crate) room: Room,
    rows: Rows,
    /// Bytes of the active memtable that have been slowed down for.
    slowed: AtomicU64,
    /// Nanoseconds that the writer has yet to pause.
    owed_ns: AtomicU64,
}

impl Shared {
    /// State over an opened tree whose compaction filter uses `retentions` and the stop flag of `signals`.
    pub(crate) fn new(
        tree: Tree,
        retentions: Arc<Retentions>,
        signals: Signals,
        room: Room,
        options: StoreOptions,
    ) -> Self {
        Self {
            layers: Published::new(&tree, options.memtable_bytes),
            rows: Rows::new(options.cache_bytes / 4),
            options,
            tree,
            retentions,
            signals,
            counters: Counters::default(),
            applied: AtomicU64::default(),
            persisted: AtomicU64::default(),
            reclaim: Reclaim::default(),
            room,
            slowed: AtomicU64::default(),
            owed_ns: AtomicU64::default(),
        }
    }

    /// Adds an entry to the active memtable.
    pub(crate) fn insert(&self, entry: InternalValue, at: Sequence) {
        let (key, stored) = (entry.key.user_key.clone(), entry.value.clone());
        self.layers.load().active.insert(entry);
        self.rows.written(&key, at, &stored);
    }

    /// The stored value of `key` as of `at`, header included.
    pub(crate) fn get(&self, key: Slice, at: Sequence) -> Result<Option<Slice>, StoreError> {
        match self.rows.get(&key) {
            Lookup::Hit(newest, stored) if newest <= at => return Ok(Some(stored)),
            Lookup::Hit(..) => {}
            Lookup::Miss(ticket) => {
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

    /// Called between two log entries: seals a full or old memtable, then applies back-pressure.
    pub(crate) fn batch_applied(&self, index: Index) -> Result<(), StoreError> {
        // Invariant: One step. The entry is whole, with its progress record, before a memtable may be sealed.
        self.applied.store(index.0, Release);
        let layers = self.layers.load();
        let size = layers.active.size();
        let slowed = self.slowed.swap(size, Relaxed);
        let written = size.checked_sub(slowed).unwrap_or(size);
        let full = size >= self.options.memtable_bytes;
        let old = || !self.options.stepped && layers.since.elapsed() >= self.options.flush_after;
        if full || (old() && !layers.active.is_empty()) {
            drop(layers);
            self.seal(index);
        }
        self.between_entries();
        self.signals.health()?;
        self.hold_back(written)
    }

    /// To be called by the writer while no entry is being applied: seals what was applied, if somebody waits
    /// for it to be written out.
    pub(crate) fn between_entries(&self) {
        if !self.reclaim.wants_seal() {
            return;
        }
        self.reclaim.seal(|| {
            // Invariant: Whole entries. The entries up to this one are applied, and no other has begun.
            let applied = Index(self.applied.load(Acquire));
            if !self.layers.load().active.is_empty() {
                self.seal(applied);
            }
            self.layers.load().sealed.last().cloned()
        });
        self.signals.wake_compactor();
    }

    /// Seals what was applied and waits until the flusher has written it.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        if !self.layers.load().active.is_empty() {
            self.seal(Index(self.applied.load(Acquire)));
        }
        self.wait_until(|layers| layers.sealed.is_empty())
    }

    fn seal(&self, index: Index) {
        self.layers.seal(index);
        self.signals.wake_flusher();
    }

    /// Back-pressure: slows the writer down while unmerged flushes pile up, and stops it where memory or
    /// reads would suffer.
    // Invariant: Bounded. Sealed memtables and first-level runs are the store's queues; a full one stops the
    // writer.
    fn hold_back(&self, written: u64) -> Result<(), StoreError> {
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
        if !self.options.stepped {
            let owed = self.owed_ns.load(Relaxed) + pause_ns(written, runs, first_level_slow);
            let pause = if owed < PAUSE_NS_MIN { 0 } else { owed };
            self.owed_ns.store(owed - pause, Relaxed);
            std::thread::sleep(Duration::from_nanos(pause));
        }
        let outcome = self.wait_until(|layers| {
            layers.sealed.len() <= memtables_sealed_max && layers.tables.first_level_runs < first_level_stop
        });
        let waited = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.counters.waited_us.fetch_add(waited, Relaxed);
        outcome
    }

    /// Waits until the layers are as `enough` wants them.
    pub(crate) fn wait_until(&self, enough: impl Fn(&Layers) -> bool) -> Result<(), StoreError> {
        while self.options.stepped && !enough(&self.layers.load()) {
            self.signals.health()?;
            threads::take_turns(self);
        }
        self.signals.wait_until(|| enough(&self.layers.load()))
    }

    /// Sizes and counts.
    pub(crate) fn stats(&self) -> StoreStats {
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
}

/// How long the writer pauses for so many bytes while so many flushes are unmerged. In bytes, so that small entries are
/// not slowed down for large ones, and large ones not let through until nothing goes on at all.
fn pause_ns(written: u64, runs: usize, first_level_slow: usize) -> u64 {
    let steps = (runs + 1).saturating_sub(first_level_slow) as u64;
    written.saturating_mul(SLOW_NS_PER_BYTE).saturating_mul(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry of 8,190 transfers was paused for as long as one of one put: nothing at all, until the store was full of
    /// unmerged flushes, and the next one waited for twelve seconds.
    #[test]
    fn the_writer_is_slowed_down_by_the_byte() {
        assert_eq!(pause_ns(1 << 20, 11, 13), 0);
        assert_eq!(pause_ns(0, 20, 12), 0);
        assert_eq!(pause_ns(1000, 12, 12), 14_000);
        assert_eq!(pause_ns(3_000_000, 23, 18), 252_000_000);
    }
}
