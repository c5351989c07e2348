//! The journal as it grows: read from the store from any revision, and awaited at its end.
//!
//! The journal is never compacted, so a feed can begin anywhere. The hub only says that there is more to
//! read.
//!
//! **Invariant: Bounded.** A piece has about as many bytes as its reader wants, at most [`PIECE_BYTES`], however large the
//! accounts in it are.

use super::token::Place;
use crate::commands::long_read;
use crate::error::Error;
use quoin_core::ledger::{self, Journal};
use quoin_core::{Revision, Stamp};
use quoin_engine::Engine;
use quoin_engine::watch::{Interest, WatchEnd, Watcher};

/// Maximum parts of the journal in a piece; a part has up to 64 transfers.
const PARTS_MAX: usize = 64;
/// Maximum bytes after which a piece takes no more parts. The last one may exceed it: it has what one command created.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// A position in the journal.
pub(crate) struct Feed {
    engine: Engine,
    watcher: Watcher,
    next: (Revision, u16),
    piece_bytes: usize,
    /// Whether the last piece reached the end of the journal.
    at_end: bool,
}

/// Parts that were read together.
pub(crate) struct Piece {
    /// In order.
    pub(crate) parts: Vec<Journal>,
    /// Everything up to this revision has been read, now or before.
    pub(crate) complete_to: Revision,
    /// When the newest part of the journal up to there was recorded; 0 if there is none.
    pub(crate) recorded: Stamp,
}

impl Feed {
    /// A feed that begins with the revision `from`, in pieces of about `piece_bytes`.
    pub(crate) fn new(engine: &Engine, from: Revision, piece_bytes: usize) -> Self {
        let watcher = watch_from_now(engine);
        Self { engine: engine.clone(), watcher, next: (from, 0), piece_bytes, at_end: false }
    }

    /// The next piece. Once one has said that all is read, it waits for more. It may be empty, and then says how
    /// far all is read.
    ///
    /// # Errors
    /// The node is stopping, or its store failed.
    pub(crate) async fn next(&mut self) -> Result<Piece, Error> {
        // A piece that was full may have had the journal's last part, and did not say that all is read.
        let at_end = self.at_end;
        let piece = self.read().await?;
        if !piece.parts.is_empty() || !at_end {
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
        let (view, from, piece_bytes) = (self.engine.latest(), self.next, self.piece_bytes.min(PIECE_BYTES));
        let (parts, at_end, complete_to, recorded) = long_read(move || {
            let mut entries = ledger::entries(view.view(), from);
            let (mut parts, mut bytes) = (Vec::new(), 0);
            let mut at_end = false;
            while !at_end && parts.len() < PARTS_MAX && bytes < piece_bytes {
                let part = entries.next().transpose()?;
                at_end = part.is_none();
                bytes += part.as_ref().map_or(0, |(_, _, journal)| journal.bytes());
                parts.extend(part);
            }
            let complete_to = match parts.last() {
                Some((revision, _, _)) if !at_end => Revision(revision.0.saturating_sub(1)),
                _ => view.progress().revision,
            };
            let newest = parts.iter().rev().find(|(revision, _, _)| *revision <= complete_to);
            let recorded = match newest.and_then(|(_, _, journal)| journal.stamp()) {
                Some(stamp) => stamp,
                // What was read before is not here any more, so it is looked up.
                None => ledger::recorded_at(view.view(), complete_to)?,
            };
            Ok((parts, at_end, complete_to, recorded))
        })
        .await?;
        if let Some((revision, part, _)) = parts.last() {
            self.next = (*revision, part + 1);
        }
        self.at_end = at_end;
        let parts = parts.into_iter().map(|(_, _, journal)| journal).collect();
        Ok(Piece { parts, complete_to, recorded })
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

/// The events of a part of the journal: where each of them is, in their order.
pub(crate) fn places(part: &Journal) -> Vec<(Revision, Place)> {
    match part {
        Journal::Transfers(entries) => {
            entries.iter().map(|entry| (entry.revision, Place::Other(entry.position))).collect()
        }
        Journal::Accounts(revision, _, accounts) => {
            (0..).map(|place| (*revision, Place::Account(place))).take(accounts.len()).collect()
        }
        Journal::Currency(revision, ..) => vec![(*revision, Place::Other(0))],
    }
}

fn watch_from_now(engine: &Engine) -> Watcher {
    let (from, to) = ledger::journal_range(Revision(0));
    let hub = engine.hub();
    hub.watch(Interest::range(from, to), hub.newest().next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::alone;
    use quoin_core::ledger::{NewAccount, Operation};

    /// A piece had 64 parts, each with up to a command's worth of accounts, and a slow client had several pieces.
    #[test]
    fn a_piece_of_the_journal_is_bounded_in_bytes_and_the_rest_follows() {
        const ACCOUNTS: u128 = 20;
        alone(|engine| async move {
            let large = "x".repeat(PIECE_BYTES / 4);
            for id in 1..=ACCOUNTS {
                let (currency, user_data) = ("EUR".into(), large.clone());
                let account = NewAccount { currency, user_data, ..NewAccount::default() }.with_id(id);
                engine.propose(Operation::create_accounts(vec![account]).into_command()).await.unwrap();
            }
            let newest = engine.latest().progress().revision;
            let mut feed = Feed::new(&engine, Revision(0), PIECE_BYTES);
            let mut ids = Vec::new();
            loop {
                let piece = feed.read().await.unwrap();
                let bytes: usize = piece.parts.iter().map(Journal::bytes).sum();
                assert!(bytes < PIECE_BYTES + PIECE_BYTES / 3, "{bytes} bytes, to {}", piece.complete_to);
                if piece.parts.is_empty() {
                    break assert_eq!(piece.complete_to, newest);
                }
                assert!(piece.complete_to <= newest);
                for part in piece.parts {
                    let Journal::Accounts(_, _, accounts) = part else { panic!("{part:?}") };
                    let own = accounts.iter().map(|account| account.id()).filter(|id| *id <= ACCOUNTS);
                    ids.extend(own);
                }
            }
            assert!(ids.into_iter().eq(1..=ACCOUNTS));
        });
    }

    /// It waited for a part that nobody wrote, and whoever asked for all up to a revision waited with it.
    #[test]
    fn a_journal_of_just_one_full_piece_is_said_to_be_read() {
        alone(|engine| async move {
            let entries = |engine: &Engine| ledger::entries(engine.latest().view(), (Revision(0), 0)).count();
            for id in 1.. {
                let account = NewAccount { currency: "EUR".into(), ..NewAccount::default() }.with_id(id);
                engine.propose(Operation::create_accounts(vec![account]).into_command()).await.unwrap();
                if entries(&engine) == PARTS_MAX {
                    break;
                }
            }
            let newest = engine.latest().progress().revision;
            let mut feed = Feed::new(&engine, Revision(0), PIECE_BYTES);
            let full = feed.read().await.unwrap();
            assert_eq!((full.parts.len(), full.complete_to < newest), (PARTS_MAX, true));
            let next = tokio::time::timeout(std::time::Duration::from_secs(30), feed.next()).await;
            assert_eq!(next.expect("the end is said").unwrap().complete_to, newest);
        });
    }
}
