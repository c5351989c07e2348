//! How a watcher takes its events.

use super::history::{self, HistoryError};
use super::hub::Hub;
use super::interest::Interest;
use super::mark::Mark;
use super::piece::Piece;
use super::registry::WatcherId;
use quoin_consensus::mutants;
use quoin_core::{Event, Revision, StoreError};
use std::sync::Arc;

/// Why a watch ended.
#[derive(Debug, thiserror::Error)]
pub enum WatchEnd {
    /// What comes next has been compacted. The watcher must read the present state and watch from there.
    #[error("required revision has been compacted (compacted up to {compacted})")]
    Compacted {
        /// The oldest revision that can be watched from.
        compacted: Revision,
    },
    /// The node is stopping. Another one can go on from the same revision.
    #[error("node is stopping")]
    Stopped,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<HistoryError> for WatchEnd {
    fn from(error: HistoryError) -> Self {
        match error {
            HistoryError::Compacted { compacted } => Self::Compacted { compacted },
            HistoryError::Store(error) => Self::Store(error),
        }
    }
}

/// One watch: a position in the order of revisions. Dropping it ends the watch.
pub struct Watcher {
    hub: Arc<Hub>,
    interest: Arc<Interest>,
    mark: Arc<Mark>,
    id: WatcherId,
    /// Everything up to here was returned or is of no interest.
    taken: u64,
    /// From here on there may be something to return. 0: there is nothing up to the newest revision.
    examine_from: u64,
}

impl Hub {
    /// Watches `interest` from revision `from`, which may be in the past, if it is not compacted, or in the
    /// future.
    pub fn watch(self: &Arc<Self>, interest: Interest, from: Revision) -> Watcher {
        let (interest, mark) = (Arc::new(interest), Arc::new(Mark::default()));
        let id = self.register(&interest, &mark);
        let hub = Arc::clone(self);
        Watcher { hub, interest, mark, id, taken: from.0.saturating_sub(1), examine_from: from.0.max(1) }
    }
}

impl Watcher {
    /// The next events, each with only the changes of interest, in revision order. Waits until there are
    /// some.
    ///
    /// Safe to cancel: what was not returned is returned next time.
    ///
    /// # Errors
    /// See [`WatchEnd`]. The watch is over.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event>>, WatchEnd> {
        loop {
            if let Some(events) = self.next_ready().await? {
                return Ok(events);
            }
            self.mark.changed.notified().await;
        }
    }

    /// As [`Self::next`], but `None` instead of waiting if there is nothing up to the newest revision.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_ready(&mut self) -> Result<Option<Vec<Arc<Event>>>, WatchEnd> {
        self.next_ready_to(Revision(u64::MAX)).await
    }

    /// As [`Self::next_ready`], but returns nothing above the revision `to`.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_ready_to(&mut self, to: Revision) -> Result<Option<Vec<Arc<Event>>>, WatchEnd> {
        loop {
            if self.hub.is_stopped() {
                return Err(WatchEnd::Stopped);
            }
            let newest = self.take_mark();
            let from = self.examine_from.max(self.taken + 1);
            if self.examine_from == 0 || from > newest.min(to.0) {
                return Ok(None);
            }
            let piece = self.examine(from, newest.min(to.0)).await?;
            self.taken = piece.examined_to;
            self.examine_from = if piece.examined_to < newest { piece.examined_to + 1 } else { 0 };
            if !piece.events.is_empty() {
                return Ok(Some(piece.events));
            }
        }
    }

    /// Everything up to here was returned or is of no interest. Only meaningful between calls of
    /// [`Self::next`].
    pub fn position(&self) -> Revision {
        let newest = self.hub.newest().0;
        if mutants::is("watch-position-ahead") {
            return Revision(newest);
        }
        let pending = match (self.examine_from, self.mark.get()) {
            // A watch of the future has nothing to return before it begins.
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

    /// Whether the watch has begun (it does not begin in the future) and what it has not returned yet is in
    /// memory. Only meaningful between calls of [`Self::next`].
    pub fn is_live(&self) -> bool {
        let newest = self.hub.newest().0;
        let next = self.position().0 + 1;
        self.taken <= newest && (next > newest || self.hub.ring_reaches(next))
    }

    /// Takes the mark over; returns the newest revision of the same moment.
    fn take_mark(&mut self) -> u64 {
        let (marked, newest) = self.hub.take_mark(&self.mark);
        if marked != 0 && (self.examine_from == 0 || marked < self.examine_from) {
            self.examine_from = marked;
        }
        newest
    }

    async fn examine(&self, from: u64, newest: u64) -> Result<Piece, WatchEnd> {
        if let Some(piece) = self.hub.read_ring(&self.interest, from, newest) {
            return Ok(piece);
        }
        if self.hub.is_inline() {
            return Ok(history::read(&**self.hub.source(), &self.interest, from, newest)?);
        }
        let (source, interest) = (Arc::clone(self.hub.source()), Arc::clone(&self.interest));
        let reading = tokio::task::spawn_blocking(move || history::read(&*source, &interest, from, newest));
        // The runtime drops blocking work only when it ends itself.
        let Ok(piece) = reading.await else { return Err(WatchEnd::Stopped) };
        Ok(piece?)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.hub.unregister(&self.interest, self.id);
    }
}
