//! Events from the store, for watchers that have fallen behind the ring.

use super::interest::Interest;
use super::piece::Piece;
use quoin_core::{Progress, Revision, Store, StoreError, View, history};
use std::any::Any;
use std::sync::Arc;

/// The newest applied state.
pub trait Source: Send + Sync + 'static {
    /// Store and progress, and a guard that keeps readable what is readable now.
    fn latest(&self) -> (Arc<dyn Store>, Progress, Box<dyn Any + Send>);
}

/// Why there are no events.
pub(super) enum HistoryError {
    /// The revision is older than what is kept.
    Compacted { compacted: Revision },
    /// The store failed.
    Store(StoreError),
}

/// What is of `interest` from `from` to `newest`.
pub(super) fn read(
    source: &dyn Source,
    interest: &Interest,
    from: u64,
    newest: u64,
) -> Result<Piece, HistoryError> {
    let (store, progress, _pin) = source.latest();
    check_compacted(&progress, from)?;
    let view = View::new(&*store, progress.sequence);
    let events = history::events(view, Revision(from), Revision(newest), |key| interest.contains(key));
    let events = events.map(|event| {
        let event = event?;
        let revision = event.revision.0;
        Ok((revision, (!event.changes.is_empty()).then(|| Arc::new(event))))
    });
    let piece = Piece::gather(from, newest, events).map_err(HistoryError::Store)?;
    // If it was compacted meanwhile, some of what was read may have been missing.
    check_compacted(&source.latest().1, from)?;
    Ok(piece)
}

fn check_compacted(progress: &Progress, from: u64) -> Result<(), HistoryError> {
    let compacted = progress.compacted;
    if from < compacted.0 { Err(HistoryError::Compacted { compacted }) } else { Ok(()) }
}
