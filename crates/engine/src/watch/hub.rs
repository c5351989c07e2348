//! Where the apply thread and the watchers meet.
//!
//! **Invariant: Marks.** Before the newest revision becomes visible, every watcher that an event concerns is
//! marked with the first revision that does, unless an older mark stands. A watcher takes its mark and the newest
//! revision at one moment, never in the midst of a publication. So a watcher without a mark has nothing to
//! read up to the newest revision, one with a mark reads on from it, and no event falls between.
//!
//! **Invariant: Bounded.** The ring is bounded in events and bytes ([`Options`]). Beyond that the oldest
//! events leave it, and watchers that have not read them go on from history.

use super::history::Source;
use super::interest::Interest;
use super::mark::Mark;
use super::piece::Piece;
use super::registry::{Registry, WatcherId};
use super::ring::{Entry, Ring};
use parking_lot::{Mutex, RwLock};
use quoin_core::{Event, Progress, Revision, Store};
use std::any::Any;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// How much of the recent past is kept in memory.
#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum events.
    pub ring_events_max: usize,
    /// Maximum bytes of keys and values, about.
    pub ring_bytes_max: usize,
    /// Watchers read history where they are polled, not on a thread of the runtime's: for simulations.
    pub inline: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { ring_events_max: 65_536, ring_bytes_max: 64 << 20, inline: false }
    }
}

/// The meeting place of the apply thread and the watchers.
pub struct Hub {
    source: Arc<dyn Source>,
    options: Options,
    ring: RwLock<Ring>,
    newest: AtomicU64,
    registry: Mutex<Registry>,
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
            registry: Mutex::default(),
            stopped: AtomicBool::new(false),
        })
    }

    /// Publishes `events`, those of one log entry, of which the newest has revision `newest`. Called by the
    /// apply thread once they can be read.
    pub fn publish(&self, events: Vec<Event>, newest: Revision) {
        let mut registry = self.registry.lock();
        let concerned = registry.concerned(&events);
        let entry = Entry::of(events);
        let mut ring = self.ring.write();
        let Options { ring_events_max, ring_bytes_max, .. } = self.options;
        let dropped = entry.map(|entry| ring.push(entry, ring_events_max, ring_bytes_max));
        // Invariant: Marks. The lock keeps watchers from taking their marks.
        for (group, revision) in &concerned {
            group.marks().for_each(|mark| mark.set(*revision));
        }
        self.newest.store(newest.0, SeqCst);
        drop(ring);
        for (group, _) in concerned {
            group.marks().for_each(|mark| mark.changed.notify_one());
        }
        drop(registry);
        // Unlocked: there may be many.
        drop(dropped);
    }

    /// A snapshot has replaced the store. The ring would have a gap, so all watchers go on from history.
    pub fn reset(&self, newest: Revision) {
        let registry = self.registry.lock();
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
        self.registry.lock().for_each(|mark| mark.changed.notify_one());
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
        self.registry.lock().len()
    }

    pub(super) fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    pub(super) fn is_inline(&self) -> bool {
        self.options.inline
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    pub(super) fn register(&self, interest: &Interest, mark: &Arc<Mark>) -> WatcherId {
        self.registry.lock().add(interest, mark)
    }

    pub(super) fn unregister(&self, interest: &Interest, id: WatcherId) {
        self.registry.lock().remove(interest, id);
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

    /// What is of `interest` from `from` on, at most to `newest`, if the ring reaches back that far.
    pub(super) fn read_ring(&self, interest: &Interest, from: u64, newest: u64) -> Option<Piece> {
        // What is of interest is found without the lock, so that a publication does not wait for it.
        let entries = self.ring.read().read(from)?;
        let newest = entries.last().map_or(newest, |entry| entry.last().min(newest));
        let events = entries.iter().flat_map(Entry::events);
        let events = events.filter(|event| (from..=newest).contains(&event.revision.0));
        let events = events.map(|event| Ok::<_, Infallible>((event.revision.0, interest.restrict(event))));
        let Ok(piece) = Piece::gather(from, newest, events);
        Some(piece)
    }
}
