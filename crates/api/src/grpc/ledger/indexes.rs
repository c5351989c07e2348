//! Which indexes of transfers are kept, and what is in them.

use crate::consistency;
use crate::error::Error;
use crate::ledger::{Book, index_rows};
use crate::page::PageSizes;
use quoin_core::Revision;
use quoin_core::ledger::{Index, IndexRow, Indexes, SetIndexes};
use quoin_proto::quoin::ledger::v1 as pb;

const PAGE: PageSizes = PageSizes { default: 1000, max: 1000 };

pub(super) async fn get(book: &Book, request: pb::GetIndexesRequest) -> Result<pb::IndexesResponse, Error> {
    let view = book.view(consistency::of(request.consistency.as_ref())).await?;
    Ok(shown(&Indexes::read(view.view())?, view.progress().revision))
}

pub(super) async fn set(book: &Book, request: pb::SetIndexesRequest) -> Result<pb::IndexesResponse, Error> {
    let number = |number: &i32| match index(*number)? {
        Some(index) => Ok(index as u32),
        None => Err(Error::invalid("on: the histories of accounts are always kept; leave them out")),
    };
    let on = request.on.iter().map(number).collect::<Result<_, Error>>()?;
    let wanted = SetIndexes { on, unique_references: request.unique_references };
    let (indexes, revision) = book.set_indexes(wanted).await?;
    Ok(shown(&indexes, revision))
}

pub(super) async fn rows(book: &Book, request: pb::IndexRowsRequest) -> Result<pb::IndexRowsResponse, Error> {
    let (index, limit) = (index(request.index)?, PAGE.of_field(request.limit)?);
    let view = book.view(consistency::of(request.consistency.as_ref())).await?;
    let revision = view.progress().revision.0;
    let (rows, cursor) = index_rows(book, view, index, limit, &request.cursor).await?;
    let row =
        |IndexRow { value, revision, positions }| pb::IndexRow { value, revision: revision.0, positions };
    let rows = rows.into_iter().map(row).collect();
    Ok(pb::IndexRowsResponse { rows, cursor: cursor.unwrap_or_default(), revision })
}

/// The index with a number on the wire; `None` for the histories of accounts.
fn index(number: i32) -> Result<Option<Index>, Error> {
    let known = u8::try_from(number).ok().and_then(Index::of_number);
    if known.is_none() && number != pb::Index::Account as i32 {
        return Err(Error::invalid(format_args!("index: {number} is none of its values")));
    }
    Ok(known)
}

fn shown(indexes: &Indexes, newest: Revision) -> pb::IndexesResponse {
    let since = |index: Index| {
        let since_revision = indexes.since(index)?.0;
        Some(pb::IndexSince { index: i32::from(index as u8), since_revision })
    };
    pb::IndexesResponse {
        on: Index::ALL.into_iter().filter_map(since).collect(),
        unique_references_since: indexes.unique_references().unwrap_or_default().0,
        revision: newest.0,
    }
}
