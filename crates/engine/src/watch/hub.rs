//! Where the apply thread and the watchers meet.
//!
//! **Invariant: Marks.** Before the newest revision becomes visible, every watcher that an event concerns is
//! marked with that event's revision, unless an older mark stands. A watcher takes its mark and the newest
//! revision at one moment, never in the midst of a publication. So a watcher without a mark has nothing to
//! read up to the newest revision, one with a mark reads on from it, and no event falls between.
//!
//! **Invariant: Bounded.** The ring is bounded in events and bytes ([`Options`]). Beyond that the oldest
//! events leave it, and watchers that have not read them go on from history.

use super::history::Source;
use super::interest::Interest;
use super::mark::Mark;
use super::piece::Piece;
use super::registry::Registry;
use super::ring::Ring;
use parking_lot::RwLock;
use quoin_core::{Event, Progress, Revision, Store};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// How much of the recent past is kept in memory.
#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum events.
    pub ring_events_max: usize,
    /// Maximum bytes of keys and values, about.
    pub ring_bytes_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { ring_events_max: 65_536, ring_bytes_max: 64 << 20 }
    }
}

/// The meeting place of the apply thread and the watchers.
pub struct Hub {
    source: Arc<dyn Source>,
    options: Options,
    ring: RwLock<Ring>,
    newest: AtomicU64,
    registry: RwLock<Registry>,
    stopped: AtomicBool,
}

impl Hub {
    /// A hub whose watchers catch up from `source`.
    pub fn new(source: Arc<dyn Source>, options: Options) -> Arc<Self> {
        let newest = source.latest().1.revision.0;
        Arc::new(Self {
            source,
            options,
            ring: RwLock::default(),
            newest: AtomicU64::new(newest),
            registry: RwLock::default(),
            stopped: AtomicBool::new(false),
        })
    }

    /// Publishes `events`, of which the newest has revision `newest`. Called by the apply thread once they
    /// can be read.
    pub fn publish(&self, events: Vec<Event>, newest: Revision) {
        let mut concerned = Vec::new();
        {
            let registry = self.registry.read();
            for event in &events {
                registry.concerned(event, &mut concerned);
            }
            let mut ring = self.ring.write();
            for event in events {
                ring.push(event, self.options.ring_events_max, self.options.ring_bytes_max);
            }
            // Invariant: Marks. The locks keep watchers from registering and from taking their marks.
            for (mark, revision) in &concerned {
                mark.set(*revision);
            }
            self.newest.store(newest.0, SeqCst);
        }
        for (mark, _) in concerned {
            mark.changed.notify_one();
        }
    }

    /// A snapshot has replaced the store. The ring would have a gap, so all watchers go on from history.
    pub fn reset(&self, newest: Revision) {
        let registry = self.registry.read();
        let mut ring = self.ring.write();
        *ring = Ring::default();
        let known = self.newest.load(SeqCst);
        registry.for_each(|mark| mark.set(known + 1));
        self.newest.store(newest.0, SeqCst);
        registry.for_each(|mark| mark.changed.notify_one());
    }

    /// Ends all watches.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        self.registry.read().for_each(|mark| mark.changed.notify_one());
    }

    /// The newest revision that watchers can have seen.
    pub fn newest(&self) -> Revision {
        Revision(self.newest.load(SeqCst))
    }

    /// The newest applied state, as watchers that catch up see it.
    pub fn latest(&self) -> (Arc<dyn Store>, Progress, Box<dyn Any + Send>) {
        self.source.latest()
    }

    /// How many watches there are.
    pub fn watchers(&self) -> usize {
        self.registry.read().len()
    }

    pub(super) fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    pub(super) fn register(&self, interest: &Interest, mark: &Arc<Mark>) {
        self.registry.write().add(interest, mark);
    }

    pub(super) fn unregister(&self, interest: &Interest, mark: &Arc<Mark>) {
        self.registry.write().remove(interest, mark);
    }

    /// Takes the mark, and the newest revision of the same moment.
    pub(super) fn take_mark(&self, mark: &Mark) -> (u64, u64) {
        let _no_publication = self.ring.read();
        (mark.take(), self.newest.load(SeqCst))
    }

    /// Whether the ring reaches back to `from`.
    pub(super) fn ring_reaches(&self, from: u64) -> bool {
        self.ring.read().reaches(from)
    }

    /// What is of `interest` from `from` to `newest`, if the ring reaches back that far.
    pub(super) fn read_ring(&self, interest: &Interest, from: u64, newest: u64) -> Option<Piece> {
        self.ring.read().read(interest, from, newest)
    }
}
