//! The journal as it grows: read from the store from any revision, and awaited at its end.
//!
//! The journal is never compacted, so a feed can begin anywhere. The hub only says that there is more to
//! read.

use crate::commands::long_read;
use crate::error::Error;
use quoin_core::Revision;
use quoin_core::ledger::{self, Journal};
use quoin_engine::Engine;
use quoin_engine::watch::{Interest, WatchEnd, Watcher};

/// Maximum parts of the journal in a piece; a part has up to 64 transfers.
const PARTS_MAX: usize = 64;

/// A position in the journal.
pub(crate) struct Feed {
    engine: Engine,
    watcher: Watcher,
    next: (Revision, u16),
}

/// Parts that were read together.
pub(crate) struct Piece {
    /// In order.
    pub(crate) parts: Vec<Journal>,
    /// Everything up to this revision has been read, now or before.
    pub(crate) complete_to: Revision,
}

impl Feed {
    /// A feed that begins with the revision `from`.
    pub(crate) fn new(engine: &Engine, from: Revision) -> Self {
        Self { engine: engine.clone(), watcher: watch_from_now(engine), next: (from, 0) }
    }

    /// The next piece. At the end of the journal it waits for more, and may then be empty, which says how far
    /// all is read.
    ///
    /// # Errors
    /// The node is stopping, or its store failed.
    pub(crate) async fn next(&mut self) -> Result<Piece, Error> {
        let piece = self.read().await?;
        if !piece.parts.is_empty() {
            return Ok(piece);
        }
        self.wait().await?;
        self.read().await
    }

    /// The next piece without waiting; it may be empty.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub(crate) async fn read(&mut self) -> Result<Piece, Error> {
        let (view, from) = (self.engine.latest(), self.next);
        let (parts, newest) = long_read(move || {
            let parts = ledger::entries(view.view(), from).take(PARTS_MAX).collect::<Result<Vec<_>, _>>()?;
            Ok((parts, view.progress().revision))
        })
        .await?;
        if let Some((revision, part, _)) = parts.last() {
            self.next = (*revision, part + 1);
        }
        let whole = parts.len() < PARTS_MAX;
        let complete_to = if whole { newest } else { Revision(self.next.0.0.saturating_sub(1)) };
        Ok(Piece { parts: parts.into_iter().map(|(_, _, journal)| journal).collect(), complete_to })
    }

    async fn wait(&mut self) -> Result<(), Error> {
        match self.watcher.next().await {
            Ok(_) => Ok(()),
            // Events were missed, so there is something to read.
            Err(WatchEnd::Compacted { .. }) => {
                self.watcher = watch_from_now(&self.engine);
                Ok(())
            }
            Err(end) => Err(Error::from(end)),
        }
    }
}

fn watch_from_now(engine: &Engine) -> Watcher {
    let (from, to) = ledger::journal_range(Revision(0));
    let hub = engine.hub();
    hub.watch(Interest::range(from, to), hub.newest().next())
}
