//! The ledger over HTTP/JSON, under `/v1`: for people, scripts and every language without gRPC.
//!
//! `model.rs` has the bodies and parameters, `extract.rs` and `lists.rs` parse requests, `problem.rs` renders errors;
//! `accounts.rs`, `transfers.rs` and `events.rs` are the handlers. The OpenAPI document is generated from
//! these files, so it says what they do; `/docs` shows it, from files in the binary.

mod accounts;
mod answer;
mod desk;
mod events;
mod extract;
mod lists;
mod model;
mod problem;
#[cfg(test)]
mod tests;
mod time;
mod transfers;
mod units;

pub(super) use extract::BODY_BYTES_MAX;

use crate::ledger::Book;
use crate::life::Life;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use desk::Desk;
use utoipa::OpenApi;
use utoipa_swagger_ui::SwaggerUi;

/// The answer to a request that exceeds what all together may have.
pub(super) fn too_many_requests() -> Response {
    problem::too_many_requests().into_response()
}

/// The ledger's pages.
pub(crate) fn routes(book: Book, life: Life) -> Router {
    Router::new()
        .route("/v1/accounts", post(accounts::create).get(accounts::list))
        .route("/v1/accounts/batch", post(accounts::create_many))
        .route("/v1/accounts/{account}", get(accounts::get).patch(accounts::patch))
        .route("/v1/accounts/{account}/statement", get(accounts::statement))
        .route("/v1/currencies/{code}", get(accounts::get_currency).put(accounts::put_currency))
        .route("/v1/transfers", post(transfers::create).get(transfers::list))
        .route("/v1/transfers/batch", post(transfers::create_many))
        .route("/v1/transfers/{id}", get(transfers::get))
        .route("/v1/transfers/{id}/post", post(transfers::post))
        .route("/v1/transfers/{id}/void", post(transfers::void))
        .route("/v1/deposits", post(transfers::deposit))
        .route("/v1/withdrawals", post(transfers::withdraw))
        .route("/v1/events", get(events::follow))
        .layer(DefaultBodyLimit::max(extract::BODY_BYTES_MAX))
        .with_state(Desk { book, life })
        .merge(SwaggerUi::new("/docs").url("/v1/openapi.json", document()))
        .method_not_allowed_fallback(extract::no_such_method)
        .fallback(extract::nothing_here)
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Quoin: the ledger",
        description = "Accounts, and transfers between them, double-entry. An id of your choice makes every request \
            safe to send again, forever. Amounts are decimal texts. A refusal is recorded like everything else."
    ),
    paths(
        accounts::create,
        accounts::create_many,
        accounts::get,
        accounts::list,
        accounts::patch,
        accounts::statement,
        accounts::get_currency,
        accounts::put_currency,
        transfers::create,
        transfers::create_many,
        transfers::get,
        transfers::list,
        transfers::post,
        transfers::void,
        transfers::deposit,
        transfers::withdraw,
        events::follow
    )
)]
struct Document;

/// The OpenAPI document.
fn document() -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    document
}
