//! Queries for transfers, the same on both wires.

use super::book::Book;
use super::cursor::Query;
use crate::commands::long_read;
use crate::error::Error;
use quoin_core::ledger::{self, Filter, Index, IndexRow, Outcome, Place, READS_MAX, Search};
use quoin_core::{Order, Revision};
use quoin_engine::ReadView;
use tokio::sync::Semaphore;

/// Maximum queries at once that may read the journal from one end to the other; others wait.
const SCANS_MAX: usize = 4;
static SCANS: Semaphore = Semaphore::const_new(SCANS_MAX);

/// A query for a page of transfers.
pub(crate) struct TransferQuery {
    pub(crate) filter: Filter,
    pub(crate) order: Order,
    pub(crate) limit: usize,
    /// That of the page before, or empty.
    pub(crate) cursor: String,
    /// Instead of a cursor, the place to go on after.
    pub(crate) after: Option<Place>,
}

/// A page of transfers.
pub(crate) struct TransferPage<T> {
    pub(crate) found: T,
    /// Where the next page goes on; `None` at the end.
    pub(crate) next: Option<(Place, String)>,
}

/// A page of transfers, each as `shown` in the state that `view` shows.
///
/// # Errors
/// The filter or the cursor is wrong, or the store failed.
pub(crate) async fn query_transfers<T: Send + 'static>(
    book: &Book,
    view: ReadView,
    query: TransferQuery,
    shown: impl FnOnce(&ReadView, Vec<ledger::TransferView>) -> Result<T, quoin_core::StoreError> + Send + 'static,
) -> Result<TransferPage<T>, Error> {
    let TransferQuery { filter, order, limit, cursor, after } = query;
    check(&filter)?;
    let cursors = Query::new(book.engine().cluster(), &(&filter, order));
    let after = match cursors.key(&cursor)? {
        Some(key) => Some(place(&key)?),
        None => after,
    };
    // Few transfers are one account's.
    let turn = match filter.account {
        Some(_) => None,
        None => Some(SCANS.acquire().await.expect("nobody closes the semaphore")),
    };
    let search = Search { filter, order, after, limit, reads_max: READS_MAX };
    let read = long_read(move || {
        // A client that leaves does not end the work.
        let _turn = turn;
        let found = ledger::search(view.view(), view.progress(), &search)?;
        Ok((shown(&view, found.transfers)?, found.next))
    });
    let (found, next) = read.await?;
    Ok(TransferPage { found, next: next.map(|place| (place, cursors.cursor(&key(place)))) })
}

/// A page of an index's rows, and the cursor of the next one. Without an index, of the histories of accounts.
///
/// # Errors
/// The cursor is wrong, or the store failed.
pub(crate) async fn index_rows(
    book: &Book,
    view: ReadView,
    index: Option<Index>,
    limit: usize,
    cursor: &str,
) -> Result<(Vec<IndexRow>, Option<String>), Error> {
    let cursors = Query::new(book.engine().cluster(), &("index", index));
    let after = cursors.key(cursor)?;
    let read = long_read(move || ledger::index_rows(view.view(), index, after.as_deref(), limit));
    let page = read.await?;
    Ok((page.rows, page.next.map(|place| cursors.cursor(&place))))
}

fn check(filter: &Filter) -> Result<(), Error> {
    if filter.side.is_some() && filter.account.is_none() {
        return Err(Error::invalid("side: is a side of an account; name the account"));
    }
    if filter.account.is_some() && filter.outcome == Some(Outcome::Refused) {
        return Err(Error::invalid(
            "status: a refused transfer changed no account; leave one of the two out",
        ));
    }
    Ok(())
}

fn key((revision, position): Place) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&revision.0.to_be_bytes());
    key[8..].copy_from_slice(&position.to_be_bytes());
    key
}

fn place(key: &[u8]) -> Result<Place, Error> {
    let split =
        key.split_first_chunk().and_then(|(revision, position)| Some((*revision, position.try_into().ok()?)));
    let (revision, position) =
        split.ok_or_else(|| Error::invalid("cursor: it is of another kind of query"))?;
    Ok((Revision(u64::from_be_bytes(revision)), u32::from_be_bytes(position)))
}
