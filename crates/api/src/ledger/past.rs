//! Reads of past revisions, the same on both wires.

use crate::commands::long_read;
use crate::error::{Error, Kind};
use quoin_core::ledger::{self, Account, AccountCode};
use quoin_core::{Progress, Revision};
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
    found.ok_or_else(|| Error::not_found(format_args!("the account did not exist at revision {at}")))
}
