//! Where log and store meet at a start.
//!
//! **Invariant: Store before log.** A received snapshot replaces the store before the log restarts behind it.
//! So a store may be ahead of its log, and is repaired here; a log that begins after its store's end is
//! refused.
//!
//! **Invariant: Founding.** Founders begin with a store at entry 1 and an empty log, which is the same case:
//! their logs restart behind entry 1. So no log holds what a later member would need from the beginning, and
//! it gets the state.

use super::error::LogError;
use super::record::{Base, HardState, Record};
use super::segmented::Log;
use crate::group::GroupId;

/// Why log and store cannot be joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Entries between the end of the store and the beginning of the log are missing.
    #[error(
        "the log begins after entry {base} and the store has applied only up to {applied}: the store's folder \
         is older than the log's. Restore both from one backup, or delete the data folder and add the member anew"
    )]
    Gap {
        /// The log begins after this index.
        base: u64,
        /// The newest entry that the store has applied.
        applied: u64,
    },
    /// The log failed.
    #[error("log: {0}")]
    Log(#[from] LogError),
}

/// Joins `log` to a store whose newest applied entry is at `applied`, of `term`. A store that is ahead of its
/// log comes from a snapshot or the founding, and the log does not have its mark yet: it restarts behind the
/// store's end.
///
/// # Errors
/// See [`JoinError`].
pub fn join(log: &Log, group: GroupId, applied: u64, term: u64) -> Result<(), JoinError> {
    let base = log.base(group);
    if base.index > applied {
        return Err(JoinError::Gap { base: base.index, applied });
    }
    if applied > log.last_index(group) {
        let known = log.hard_state(group).unwrap_or(HardState { term: 0, vote: 0, commit: 0 });
        let vote = if known.term >= term { known.vote } else { 0 };
        let hard = HardState { term: known.term.max(term), vote, commit: applied };
        log.append(&[Record::Base(group, Base { index: applied, term }), Record::HardState(group, hard)])?;
    }
    Ok(())
}
