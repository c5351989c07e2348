//! Who is told of changes. The apply thread publishes; watchers come and take.
//!
//! A watcher is a place in the order of revisions. While that place is in the ring of recent events it reads
//! there, else from the store's history, in bounded pieces, until it has caught up. There is no queue per watcher,
//! so a slow one costs nobody anything, and one that never reads costs its own few bytes.
//!
//! **Invariant (no gap, no duplicate).** Before the newest revision is made visible, every watcher that an event
//! concerns is marked with the event's revision. So a watcher that has no mark has nothing to read up to the
//! newest revision, and one that has a mark reads on from it. A mark is taken together with the newest revision,
//! never in the midst of a publication: one that finds an older mark in its place leaves none of its own.
//!
//! **Bounds.** The ring is bounded in events and bytes ([`Options`]); a watcher takes at most
//! [`BATCH_EVENTS_MAX`] events and about [`BATCH_BYTES_MAX`] at a time.

mod interest;
#[cfg(test)]
mod tests;

pub use interest::Interest;

use interest::Registry;
use parking_lot::RwLock;
use quoin_core::{Event, Progress, Revision, Store, StoreError, View, history};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use tokio::sync::Notify;

/// Events in one batch at most.
pub const BATCH_EVENTS_MAX: usize = 1024;
/// Bytes in one batch, about: the event that exceeds it is the last.
pub const BATCH_BYTES_MAX: usize = 1 << 20;
/// Events looked at in one piece, of interest or not.
const EXAMINED_MAX: u64 = 16 * 1024;

/// How much of the recent past is kept in memory.
#[derive(Clone, Debug)]
pub struct Options {
    /// Events.
    pub ring_events_max: usize,
    /// Bytes of keys and values.
    pub ring_bytes_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { ring_events_max: 65_536, ring_bytes_max: 64 << 20 }
    }
}

/// The newest applied state, for those who catch up.
pub trait Source: Send + Sync + 'static {
    /// Store and progress, and a guard that keeps what is readable now from being forgotten.
    fn latest(&self) -> (Arc<dyn Store>, Progress, Box<dyn Any + Send>);
}

/// Why a watch ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchEnd {
    /// What it would read next is forgotten. The watcher must list again and watch from there.
    #[error("required revision has been compacted (compacted up to {compacted})")]
    Compacted {
        /// The oldest revision that can be watched from.
        compacted: Revision,
    },
    /// The node stops. The watch goes on at the same revision on another one.
    #[error("node is stopping")]
    Stopped,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
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

#[derive(Default)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
}

impl Ring {
    fn push(&mut self, event: Arc<Event>, options: &Options) {
        self.bytes += event_bytes(&event);
        self.events.push_back(event);
        while self.events.len() > options.ring_events_max || self.bytes > options.ring_bytes_max {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= event_bytes(&oldest);
        }
    }

    /// The events from `from` on, if none before the ring's first is missing: revisions have no gaps.
    fn from(&self, from: u64) -> Option<impl Iterator<Item = &Arc<Event>>> {
        let skip = from.checked_sub(self.events.front()?.revision.0)?;
        Some(self.events.range((skip as usize).min(self.events.len())..))
    }
}

fn event_bytes(event: &Event) -> usize {
    let change = |change: &quoin_core::Change| {
        change.key.len() + change.value.as_ref().map_or(0, bytes::Bytes::len) + 64
    };
    event.changes.iter().map(change).sum::<usize>() + 64
}

/// What hub and watcher share: the first revision of interest that the watcher has not taken, 0 for none.
#[derive(Default)]
struct Mark {
    revision: AtomicU64,
    changed: Notify,
}

impl Mark {
    fn set(&self, revision: u64) {
        // Marks only come later in the order, so an older one stands.
        let _ = self.revision.compare_exchange(0, revision, SeqCst, SeqCst);
    }
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

    /// Makes `events`, the newest of which is `newest`, known. By the apply thread, after they can be read.
    pub fn publish(&self, events: Vec<Event>, newest: Revision) {
        let mut concerned = Vec::new();
        {
            let registry = self.registry.read();
            for event in &events {
                registry.concerned(event, &mut concerned);
            }
            let mut ring = self.ring.write();
            for event in events {
                ring.push(Arc::new(event), &self.options);
            }
            // Marks before the revision, and both while nobody can register or take its mark in between.
            for (mark, revision) in &concerned {
                mark.set(*revision);
            }
            self.newest.store(newest.0, SeqCst);
        }
        for (mark, _) in concerned {
            mark.changed.notify_one();
        }
    }

    /// A snapshot has replaced the store: the ring has a gap now, so everybody goes on from history.
    pub fn reset(&self, newest: Revision) {
        let registry = self.registry.read();
        let mut ring = self.ring.write();
        *ring = Ring::default();
        let known = self.newest.load(SeqCst);
        registry.all(|mark| mark.set(known + 1));
        self.newest.store(newest.0, SeqCst);
        registry.all(|mark| mark.changed.notify_one());
    }

    /// Ends all watches.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        self.registry.read().all(|mark| mark.changed.notify_one());
    }

    /// Watches `interest` from `from` on, which may be in the past, if it is not compacted, or in the future.
    pub fn watch(self: &Arc<Self>, interest: Interest, from: Revision) -> Watcher {
        let mark = Arc::new(Mark::default());
        let interest = Arc::new(interest);
        self.registry.write().add(&interest, &mark);
        Watcher {
            hub: Arc::clone(self),
            interest,
            mark,
            taken: from.0.saturating_sub(1),
            examine_from: from.0.max(1),
        }
    }

    /// The newest revision that watchers can have been told of.
    pub fn newest(&self) -> Revision {
        Revision(self.newest.load(SeqCst))
    }

    /// The newest applied state, as those who catch up see it.
    pub fn latest(&self) -> (Arc<dyn Store>, Progress, Box<dyn Any + Send>) {
        self.source.latest()
    }

    /// How many watches there are.
    pub fn watchers(&self) -> usize {
        self.registry.read().len()
    }
}

/// One watch: a place in the order of revisions. Dropping it ends the watch.
pub struct Watcher {
    hub: Arc<Hub>,
    interest: Arc<Interest>,
    mark: Arc<Mark>,
    /// Everything up to here was taken or is of no interest.
    taken: u64,
    /// From here on there may be something to take; 0 where there is nothing up to the newest.
    examine_from: u64,
}

/// What one piece held.
struct Piece {
    events: Vec<Arc<Event>>,
    examined_to: u64,
}

impl Watcher {
    /// The next events, each with only the changes of interest, in revision order; waits until there are some.
    ///
    /// Safe to cancel: what was not returned is returned next time.
    ///
    /// # Errors
    /// See [`WatchEnd`]; the watch is over.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event>>, WatchEnd> {
        loop {
            if let Some(events) = self.next_ready().await? {
                return Ok(events);
            }
            self.mark.changed.notified().await;
        }
    }

    /// As [`Self::next`], but `None` instead of waiting where there is nothing up to the newest revision.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_ready(&mut self) -> Result<Option<Vec<Arc<Event>>>, WatchEnd> {
        loop {
            if self.hub.stopped.load(SeqCst) {
                return Err(WatchEnd::Stopped);
            }
            let newest = self.take_mark();
            let from = self.examine_from.max(self.taken + 1);
            if self.examine_from == 0 || from > newest {
                return Ok(None);
            }
            let piece = self.examine(from, newest).await?;
            self.taken = piece.examined_to;
            self.examine_from = if piece.examined_to < newest { piece.examined_to + 1 } else { 0 };
            if !piece.events.is_empty() {
                return Ok(Some(piece.events));
            }
        }
    }

    /// Everything up to here was returned or is of no interest. Only meaningful between calls of [`Self::next`].
    pub fn position(&self) -> Revision {
        let newest = self.hub.newest.load(SeqCst);
        let pending = match (self.examine_from, self.mark.revision.load(SeqCst)) {
            // A watch of the future has taken nothing yet of what is to come.
            (0, 0) => return Revision(newest),
            (0, revision) | (revision, 0) => revision,
            (one, other) => one.min(other),
        };
        Revision((pending - 1).max(self.taken).min(newest))
    }

    /// Whether everything up to the newest revision was returned.
    pub fn is_synced(&self) -> bool {
        self.position() >= self.hub.newest()
    }

    /// Takes the mark over and reads the newest revision, both of the same moment: see the module's invariant.
    fn take_mark(&mut self) -> u64 {
        let _no_publication = self.hub.ring.read();
        let marked = self.mark.revision.swap(0, SeqCst);
        if marked != 0 && (self.examine_from == 0 || marked < self.examine_from) {
            self.examine_from = marked;
        }
        self.hub.newest.load(SeqCst)
    }

    async fn examine(&self, from: u64, newest: u64) -> Result<Piece, WatchEnd> {
        if let Some(piece) = self.read_ring(from, newest) {
            return Ok(piece);
        }
        let (source, interest) = (Arc::clone(&self.hub.source), Arc::clone(&self.interest));
        let reading = tokio::task::spawn_blocking(move || read_history(&*source, &interest, from, newest));
        // The runtime drops blocking work only when it ends itself.
        reading.await.unwrap_or(Err(WatchEnd::Stopped))
    }

    fn read_ring(&self, from: u64, newest: u64) -> Option<Piece> {
        let ring = self.hub.ring.read();
        let mut gathered = Gathered::default();
        let mut examined_to = newest;
        for event in ring.from(from)?.take_while(|event| event.revision.0 <= newest) {
            gathered.take(self.interest.restrict(event));
            if gathered.is_full() || event.revision.0 - from >= EXAMINED_MAX {
                examined_to = event.revision.0;
                break;
            }
        }
        Some(Piece { events: gathered.events, examined_to })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.hub.registry.write().remove(&self.interest, &self.mark);
    }
}

#[derive(Default)]
struct Gathered {
    events: Vec<Arc<Event>>,
    bytes: usize,
}

impl Gathered {
    fn take(&mut self, event: Option<Arc<Event>>) {
        if let Some(event) = event {
            self.bytes += event_bytes(&event);
            self.events.push(event);
        }
    }

    fn is_full(&self) -> bool {
        self.events.len() >= BATCH_EVENTS_MAX || self.bytes >= BATCH_BYTES_MAX
    }
}

fn read_history(source: &dyn Source, interest: &Interest, from: u64, newest: u64) -> Result<Piece, WatchEnd> {
    let (store, progress, _pin) = source.latest();
    check_compacted(&progress, from)?;
    let view = View::new(&*store, progress.sequence);
    let mut gathered = Gathered::default();
    let mut examined_to = newest;
    for event in history::events(view, Revision(from), Revision(newest), |key| interest.contains(key)) {
        let event = event?;
        let revision = event.revision.0;
        gathered.take((!event.changes.is_empty()).then(|| Arc::new(event)));
        if gathered.is_full() || revision - from >= EXAMINED_MAX {
            examined_to = revision;
            break;
        }
    }
    // Compacted while we read: what was read may have been dropped under our hands.
    check_compacted(&source.latest().1, from)?;
    Ok(Piece { events: gathered.events, examined_to })
}

fn check_compacted(progress: &Progress, from: u64) -> Result<(), WatchEnd> {
    let compacted = progress.compacted;
    if from < compacted.0 { Err(WatchEnd::Compacted { compacted }) } else { Ok(()) }
}
