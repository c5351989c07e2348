//! Which indexes of transfers are kept.

use super::desk::Desk;
use super::model::{Fresh, IndexName, IndexSince, IndexStates, NewIndexes};
use crate::http::extract::{Body, NoParams, Params};
use crate::http::problem::Problem;
use axum::Json;
use axum::extract::State;
use quoin_core::Revision;
use quoin_core::ledger::{Index, Indexes, SetIndexes};

/// Which indexes of transfers are kept, besides those by id and by account
#[utoipa::path(get, path = "/v1/indexes", operation_id = "get_indexes", tag = "transfers", params(Fresh),
    responses((status = 200, body = IndexStates), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(
    State(desk): State<Desk>,
    Params(fresh): Params<Fresh>,
) -> Result<Json<IndexStates>, Problem> {
    let view = desk.read(fresh.local, fresh.lag_entries_max, fresh.lag_ms_max).await?;
    Ok(Json(shown(&Indexes::read(view.view())?, view.progress().revision)))
}

/// Switch indexes on or off, and the uniqueness of references
///
/// An index holds the transfers recorded from then on. What is found does not depend on it, only how fast.
#[utoipa::path(put, path = "/v1/indexes", operation_id = "set_indexes", tag = "transfers", request_body = NewIndexes,
    responses((status = 200, body = IndexStates), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put(
    State(desk): State<Desk>,
    _: NoParams,
    Body(wanted): Body<NewIndexes>,
) -> Result<Json<IndexStates>, Problem> {
    let on = wanted.on.into_iter().map(|name| index(name) as u32).collect();
    let wanted = SetIndexes { on, unique_references: wanted.unique_references };
    let (indexes, revision) = desk.book.set_indexes(wanted).await?;
    Ok(Json(shown(&indexes, revision)))
}

const NAMES: [IndexName; 5] = [
    IndexName::Reference,
    IndexName::UserData128,
    IndexName::UserData64,
    IndexName::UserData32,
    IndexName::Code,
];

fn index(name: IndexName) -> Index {
    match name {
        IndexName::Reference => Index::Reference,
        IndexName::UserData128 => Index::UserData128,
        IndexName::UserData64 => Index::UserData64,
        IndexName::UserData32 => Index::UserData32,
        IndexName::Code => Index::Code,
    }
}

fn shown(indexes: &Indexes, newest: Revision) -> IndexStates {
    let since =
        |name: IndexName| Some(IndexSince { index: name, since_revision: indexes.since(index(name))?.0 });
    IndexStates {
        on: NAMES.into_iter().filter_map(since).collect(),
        unique_references_since: indexes.unique_references().map(|since| since.0),
        revision: newest.0,
    }
}
