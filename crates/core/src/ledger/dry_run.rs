//! Dry runs: how transfers would be answered at the state of a view. Nothing is recorded, and nothing is proposed: a dry
//! run is a read.
//!
//! The transfers are judged by the same code as real ones, in a run of their own that never ends: it has its own cache
//! of accounts, and only the end of a run writes. What is due by then expires first, as in a real batch.

use super::hot::Hot;
use super::indexes::Indexes;
use super::machine::{EXPIRIES_PER_BATCH_MAX, decode_transfers, is_same_request, release};
use super::record;
use super::reply::{Response, TransferReply};
use super::run::Run;
use super::stretch::Stretch;
use super::transfer::{Decoded, Transfers};
use crate::expiry::ExpiryIndex;
use crate::history::Recorder;
use crate::store::{StoreError, View};
use crate::tx::Tx;
use crate::types::{Progress, Revision, Sequence, Stamp};

/// The response that `transfers` would get at the state of `view`, were they applied at `now`. A reply to a new id has
/// no place: its revision and position are 0. What was recorded keeps its own.
///
/// # Errors
/// The store failed.
pub fn dry_run(
    view: View<'_>,
    progress: &Progress,
    now: Stamp,
    transfers: Transfers,
) -> Result<Response, StoreError> {
    let bytes = transfers.into_bytes();
    let Some(Decoded { balances, members, key, .. }) = decode_transfers(&bytes) else {
        return Ok(Response::Malformed);
    };
    if let Some(key) = key
        && is_same_request(view, key)? == Some(false)
    {
        return Ok(Response::KeyConflict);
    }
    // A transaction reads at the sequence after that of its progress.
    let sequence = Sequence(view.sequence().0.saturating_sub(1));
    let (progress, mut recorder) = (Progress { sequence, stamp: now, ..*progress }, Recorder::default());
    let mut tx = Tx::begin(view.store(), &progress, &mut recorder);
    let (mut hot, mut stretch) = (Hot::default(), Stretch::open(view, now)?);
    let mut expiries = ExpiryIndex::open(view, record::EXPIRIES)?;
    let due = expiries.take_due(view, now, EXPIRIES_PER_BATCH_MAX)?;
    let indexes = Indexes::read(view)?;
    let mut run = Run::new(&mut tx, &mut hot, &mut stretch, &mut expiries, indexes, balances, members.len());
    release(&mut run, &due)?;
    let before = run.replies.len();
    for group in members.chunk_by(|(one, _), _| one.linked) {
        run.group(group)?;
    }
    let newest = progress.revision;
    Ok(Response::Transfers(run.replies.drain(before..).map(|reply| without_place(reply, newest)).collect()))
}

/// The reply, without a place that only a record would have.
fn without_place(reply: TransferReply, newest: Revision) -> TransferReply {
    if reply.revision <= newest {
        reply
    } else {
        TransferReply { revision: Revision(0), position: 0, ..reply }
    }
}
