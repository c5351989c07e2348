//! The journal as it grows: read from the store, from any revision on, and waited for at its end.
//!
//! The journal is never compacted, so neither is this feed. The hub only says that there is more.

use crate::api::error;
use crate::engine::Engine;
use crate::watch::{Interest, WatchEnd, Watcher};
use quoin_core::ledger::{self, Journal};
use quoin_core::{Revision, StoreError};
use tonic::Status;

/// Parts of the journal in one piece at most, each of up to 64 transfers.
const PARTS_MAX: usize = 64;

/// A place in the journal.
pub(crate) struct Feed {
    engine: Engine,
    watcher: Watcher,
    next: (Revision, u16),
}

/// What was read at once.
pub(crate) struct Piece {
    /// In order.
    pub(crate) parts: Vec<Journal>,
    /// Everything up to this revision was read, now or before.
    pub(crate) complete_to: Revision,
}

impl Feed {
    /// From `from` on.
    pub(crate) fn new(engine: &Engine, from: Revision) -> Self {
        Self { engine: engine.clone(), watcher: watch_what_comes(engine), next: (from, 0) }
    }

    /// The next piece; waits at the end until there is one. The first piece may be empty: it says how far all is read.
    ///
    /// # Errors
    /// The node stops, or its store failed.
    pub(crate) async fn next(&mut self) -> Result<Piece, Status> {
        let piece = self.read().await?;
        if !piece.parts.is_empty() {
            return Ok(piece);
        }
        self.wait().await?;
        self.read().await
    }

    /// What there is now, which may be nothing.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub(crate) async fn read(&mut self) -> Result<Piece, Status> {
        let (view, from) = (self.engine.latest(), self.next);
        let reading = tokio::task::spawn_blocking(move || -> Result<_, StoreError> {
            let parts = ledger::entries(view.view(), from).take(PARTS_MAX).collect::<Result<Vec<_>, _>>()?;
            Ok((parts, view.progress().revision))
        });
        let read = reading.await.map_err(|error| error::fault(&error))?;
        let (parts, newest) = read.map_err(error::store)?;
        if let Some((revision, part, _)) = parts.last() {
            self.next = (*revision, part + 1);
        }
        let whole = parts.len() < PARTS_MAX;
        let complete_to = if whole { newest } else { Revision(self.next.0.0.saturating_sub(1)) };
        Ok(Piece { parts: parts.into_iter().map(|(_, _, journal)| journal).collect(), complete_to })
    }

    async fn wait(&mut self) -> Result<(), Status> {
        match self.watcher.next().await {
            Ok(_) => Ok(()),
            // It was away for long: there is something to read, and it waits for what comes after.
            Err(WatchEnd::Compacted { .. }) => {
                self.watcher = watch_what_comes(&self.engine);
                Ok(())
            }
            Err(end) => Err(error::watch_end(end)),
        }
    }
}

fn watch_what_comes(engine: &Engine) -> Watcher {
    let (from, to) = ledger::journal_range(Revision(0));
    let hub = engine.hub();
    hub.watch(Interest::range(from, to), hub.newest().next())
}
