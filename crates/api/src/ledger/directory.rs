//! Accounts by number, and their sums, the same on both wires.

use super::book::Book;
use super::cursor::Query;
use super::past::check_past;
use crate::commands::long_read;
use crate::error::{Error, Kind};
use bytes::Bytes;
use quoin_core::Revision;
use quoin_core::ledger::{self, ACCOUNTS_EXAMINED_MAX, Account, AccountFilter, Sums};
use quoin_engine::ReadView;

/// A page of accounts, and the cursor of the next one.
///
/// # Errors
/// The cursor is wrong, or the store failed.
pub(crate) async fn query_accounts(
    book: &Book,
    view: ReadView,
    filter: AccountFilter,
    limit: usize,
    cursor: &str,
) -> Result<(Vec<Account>, Option<String>), Error> {
    let cursors = Query::new(book.engine().cluster(), &("accounts", &filter));
    let after = cursors.key(cursor)?;
    let read = long_read(move || {
        ledger::find_accounts(
            view.view(),
            &filter,
            Revision(u64::MAX),
            after.as_deref(),
            limit,
            ACCOUNTS_EXAMINED_MAX,
        )
    });
    let found = read.await?;
    Ok((found.accounts, found.next.map(|place| cursors.cursor(&place))))
}

/// The sums of a page of accounts, the revision that they are of, and the cursor of the next page.
///
/// # Errors
/// The prefix is empty, the revision is in the future, the cursor is wrong, a sum is too large, or the store failed.
pub(crate) async fn sum_balances(
    book: &Book,
    view: ReadView,
    prefix: String,
    revision: Option<u64>,
    cursor: &str,
) -> Result<(Sums, Revision, Option<String>), Error> {
    if prefix.is_empty() {
        return Err(Error::invalid("prefix: it is empty; say how the numbers begin"));
    }
    let cursors = Query::new(book.engine().cluster(), &("sums", &prefix, revision));
    let key = cursors.key(cursor)?;
    let place = key.as_deref().and_then(<[u8]>::split_first_chunk);
    let (at, after) = match place {
        // All pages show one state.
        Some((revision, place)) => {
            (Revision(u64::from_be_bytes(*revision)), Some(Bytes::copy_from_slice(place)))
        }
        None => (revision.map_or(view.progress().revision, Revision), None),
    };
    check_past(view.progress(), at, if after.is_some() { "cursor" } else { "revision" })?;
    let read =
        long_read(move || ledger::sums(view.view(), &prefix, at, after.as_deref(), ACCOUNTS_EXAMINED_MAX));
    let too_large = || {
        let detail = "all debits or credits together exceed 2^128 minor units: add up longer prefixes";
        Error::Refused(Kind::FailedPrecondition, detail.into())
    };
    let sums = read.await?.ok_or_else(too_large)?;
    let next = sums.next.as_ref().map(|place| cursors.cursor(&[&at.0.to_be_bytes()[..], place].concat()));
    Ok((sums, at, next))
}
