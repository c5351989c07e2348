//! The ledger over HTTP/JSON, under `/v1`: for people, scripts and every language without gRPC.
//!
//! `model.rs` has the bodies and parameters, `ids.rs` parses ids, keys and amounts, `refusal.rs` renders refusals;
//! `accounts.rs`, `transfers.rs`, `transactions.rs` and `events.rs` are the handlers, `adapter.rs` those of another service's
//! paths.

mod accounts;
mod adapter;
mod desk;
mod directory;
mod events;
mod ids;
mod indexes;
mod lookup;
mod model;
mod query;
mod refusal;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_more;
mod transactions;
mod transfers;
mod units;

pub(super) use model::Transfer;

use crate::ledger::Book;
use crate::life::Life;
use axum::Router;
use axum::routing::{get, post};
use desk::Desk;
use utoipa::OpenApi;

/// The ledger's pages.
pub(super) fn routes(book: Book, life: Life) -> Router {
    let adapter = match book.engine().settings().ledger.rt_balance {
        true => adapter::routes(),
        false => Router::new(),
    };
    adapter
        .route("/v1/accounts", post(accounts::create).get(directory::list))
        .route("/v1/accounts/lookup", post(lookup::accounts))
        .route("/v1/indexes", get(indexes::get).put(indexes::put))
        .route("/v1/balances", get(directory::sums))
        .route("/v1/accounts/batch", post(accounts::create_many))
        .route("/v1/accounts/{account}", get(accounts::get).patch(accounts::patch))
        .route("/v1/accounts/{account}/statement", get(accounts::statement))
        .route("/v1/currencies/{code}", get(accounts::get_currency).put(accounts::put_currency))
        .route("/v1/transfers", post(transfers::create).get(query::transfers))
        .route("/v1/transfers/lookup", post(lookup::transfers))
        .route("/v1/transfers/batch", post(transfers::create_many))
        .route("/v1/transfers/{id}", get(transfers::get))
        .route("/v1/transfers/{id}/post", post(transfers::post))
        .route("/v1/transfers/{id}/void", post(transfers::void))
        .route("/v1/transfers/{id}/revert", post(transfers::revert))
        .route("/v1/transactions", post(transactions::create))
        .route("/v1/deposits", post(transfers::deposit))
        .route("/v1/withdrawals", post(transfers::withdraw))
        .route("/v1/events", get(events::follow))
        .with_state(Desk { book, life })
}

/// The ledger's part of the OpenAPI document.
#[derive(OpenApi)]
#[openapi(paths(
    accounts::create,
    accounts::create_many,
    accounts::get,
    directory::list,
    directory::sums,
    accounts::patch,
    accounts::statement,
    accounts::get_currency,
    accounts::put_currency,
    indexes::get,
    indexes::put,
    lookup::accounts,
    lookup::transfers,
    transfers::create,
    transfers::create_many,
    transfers::get,
    query::transfers,
    transfers::post,
    transfers::void,
    transfers::revert,
    transactions::create,
    transfers::deposit,
    transfers::withdraw,
    events::follow
))]
pub(super) struct Document;
