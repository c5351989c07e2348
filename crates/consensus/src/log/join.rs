//! Where log and store meet at a start.
//!
//! **Invariant: Store before log.** A received snapshot replaces the store before the log restarts behind
//! it. So a store may be ahead of its log, or at an entry in whose place the log has one that was never
//! committed: that is repaired here. A log that begins after its store's end is refused, and so is one
//! that has committed another entry than the store has applied.
//!
//! **Invariant: Founding.** Founders begin with a store at entry 1 and an empty log, which is the same case:
//! their logs restart behind entry 1. So no log holds what a later member would need from the beginning, and
//! it gets the state.

use super::error::LogError;
use super::record::{Base, HardState, Record};
use super::segmented::Log;
use crate::group::GroupId;
use crate::mutants;

/// Why log and store cannot be joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Entries between the end of the store and the beginning of the log are missing.
    #[error(
        "the log begins after entry {base} and the store has applied only up to {applied}: the store's \
        folder is older than the log's. Put back the folder that belongs to the log, or delete the data \
        folder, remove this member and add it anew"
    )]
    Gap {
        /// The log begins after this index.
        base: u64,
        /// The newest entry that the store has applied.
        applied: u64,
    },
    /// The store is ahead of a log that cannot have asked for its snapshot.
    #[error(
        "the store has applied entry {applied} of term {term}, and the log ends at entry {last} in term \
        {known}: the end of the log is lost. Delete the data folder, remove this member and add it anew"
    )]
    Ahead {
        /// The newest entry that the store has applied.
        applied: u64,
        /// Its term.
        term: u64,
        /// The newest entry of the log.
        last: u64,
        /// The newest term that the log knows.
        known: u64,
    },
    /// Log and store have different entries at one index, and neither can be right.
    #[error(
        "the store has applied entry {index} of term {applied}, and the log has {index} of term {logged} \
        in its place: they are not of one replica. Put back what belongs together, or delete the data \
        folder, remove this member and add it anew"
    )]
    Conflict {
        /// The index.
        index: u64,
        /// Term of the entry that the store has applied.
        applied: u64,
        /// Term of the entry in the log.
        logged: u64,
    },
    /// The log failed.
    #[error("log: {0}")]
    Log(#[from] LogError),
}

/// How a log and a store fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The log goes on from the store's end, or has it.
    Joined,
    /// The log is to restart behind the store's end.
    Restarts,
}

/// Whether `log` fits a store whose newest applied entry is at `applied`, of `term`.
///
/// A store that is ahead of its log comes from a snapshot or the founding, and the log does not have its
/// mark yet: it restarts behind the store's end. If the log is not empty, its hard state must prove that:
/// a replica that takes a snapshot has written the leader's term before.
///
/// A log with an entry of an older term at `applied` restarts too: what the store has applied is
/// committed, so that entry and all after it never were.
///
/// # Errors
/// See [`JoinError`].
pub fn fit(log: &Log, group: GroupId, applied: u64, term: u64) -> Result<Fit, JoinError> {
    let base = log.base(group);
    if base.index > applied {
        return Err(JoinError::Gap { base: base.index, applied });
    }
    let known = known(log, group);
    match log.term(group, applied) {
        None if applied == 0 => Ok(Fit::Joined),
        None if log.hard_state(group).is_some() && known.term < term => {
            let last = log.last_index(group);
            Err(JoinError::Ahead { applied, term, last, known: known.term })
        }
        None => Ok(Fit::Restarts),
        Some(logged) if logged == term || mutants::is("joined-by-index") => Ok(Fit::Joined),
        // What the log knows to be committed is what every store has applied.
        Some(logged) if logged > term || applied == base.index || applied <= known.commit => {
            Err(JoinError::Conflict { index: applied, applied: term, logged })
        }
        Some(_) => Ok(Fit::Restarts),
    }
}

fn known(log: &Log, group: GroupId) -> HardState {
    log.hard_state(group).unwrap_or(HardState { term: 0, vote: 0, commit: 0 })
}

/// Joins `log` to a store as [`fit`] says.
///
/// # Errors
/// See [`JoinError`].
pub fn join(log: &Log, group: GroupId, applied: u64, term: u64) -> Result<(), JoinError> {
    if fit(log, group, applied, term)? == Fit::Joined {
        return Ok(());
    }
    if let Some(logged) = log.term(group, applied) {
        tracing::warn!(index = applied, logged, term, "the log restarts behind an installed snapshot");
    }
    let known = known(log, group);
    let vote = if known.term >= term { known.vote } else { 0 };
    let hard = HardState { term: known.term.max(term), vote, commit: applied };
    log.append(&[Record::Base(group, Base { index: applied, term }), Record::HardState(group, hard)])?;
    Ok(())
}
