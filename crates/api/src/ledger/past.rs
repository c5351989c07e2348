//! Reads of past revisions, the same on both wires.

use crate::commands::long_read;
use crate::error::{Error, Kind};
use crate::time;
use quoin_core::ledger::{self, Account, AccountCode};
use quoin_core::{Progress, Revision, Stamp};
use quoin_engine::ReadView;

/// Refuses a `revision` that the state has not reached yet: what it will show is not known.
///
/// # Errors
/// It is in the future.
pub(crate) fn check_past(progress: &Progress, revision: Revision, field: &str) -> Result<(), Error> {
    let newest = progress.revision;
    if revision <= newest {
        return Ok(());
    }
    Err(Error::Refused(
        Kind::OutOfRange,
        format!("{field}: {revision} is in the future, the newest revision is {newest}"),
    ))
}

/// How far ahead of this node a client's clock may be.
const AHEAD_MS_MAX: u64 = 60_000;

/// The newest revision whose ledger state is that of `moment`, which must not be in the future: what it will show is not
/// known.
///
/// # Errors
/// It is in the future, or the store failed.
pub(crate) fn revision_at(view: &ReadView, moment: Stamp, field: &str) -> Result<Revision, Error> {
    let now = view.now();
    if moment.0 > now.0.saturating_add(AHEAD_MS_MAX) {
        let (moment, now) = (time::format(moment.0), time::format(now.0));
        let detail = format!("{field}: {moment} is in the future, it is {now} here");
        return Err(Error::Refused(Kind::OutOfRange, detail));
    }
    Ok(ledger::revision_at(view.view(), view.progress(), moment)?)
}

/// An account as of a revision, by default the newest: `u64::MAX`.
///
/// # Errors
/// It does not exist, or did not exist then; or the store failed.
pub(crate) async fn account_at(view: ReadView, id: u128, at: Revision) -> Result<Account, Error> {
    if at == Revision(u64::MAX) {
        return ledger::account(view.view(), id)?.ok_or_else(|| AccountCode::Unknown.into());
    }
    // The past that a version without an index has changed takes long.
    let found = long_read(move || ledger::account_at(view.view(), id, at)).await?;
    found.ok_or_else(|| Error::not_found(format_args!("the account did not exist then, at revision {at}")))
}
