//! The ledger over HTTP/JSON, under `/v1`: for people, scripts and every language without gRPC.
//!
//! `model.rs` is what goes over the wire, `extract.rs` takes requests apart, `problem.rs` says why one was not done,
//! `accounts.rs`, `transfers.rs` and `events.rs` do them. The OpenAPI document is made from these files, so it cannot
//! say anything else than they do; `/docs` shows it, with everything that the page needs in the binary.

mod accounts;
mod events;
mod extract;
mod model;
mod problem;
mod time;
mod transfers;
mod units;

use super::Book;
use crate::api::Life;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use problem::Problem;
use quoin_core::Revision;
use quoin_core::ledger::{self, Currency};
use utoipa::OpenApi;
use utoipa_swagger_ui::SwaggerUi;

use super::ACCOUNTS_MAX;

/// Items of a page at most, and if no number is given.
const PAGE_MAX: u32 = 1000;
const PAGE_USUAL: u32 = 100;

/// What handlers work with.
#[derive(Clone)]
struct Desk {
    book: Book,
    life: Life,
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

impl Desk {
    /// The id of an account that is named by its id or its number.
    async fn account(&self, name: &str, field: &str) -> Result<u128, Problem> {
        if let Ok(id) = uuid::Uuid::parse_str(name)
            && !id.is_nil()
        {
            return Ok(id.as_u128());
        }
        if let Some(code) = name.strip_prefix("@world/")
            && let Ok(currency) = code.parse()
        {
            return Ok(ledger::world_account(currency).0);
        }
        let found = match ledger::account_by_number(self.book.engine().latest().view(), name)? {
            Some(id) => Some(id),
            // It may be newer than what this replica has.
            None => ledger::account_by_number(self.book.view(false).await?.view(), name)?,
        };
        let missing = || {
            let shown: String = name.chars().take(64).collect();
            let detail =
                format!("{shown:?} is neither an account's id, a UUID, nor the number of an account");
            Problem::not_found("account_unknown", detail).named(field)
        };
        found.ok_or_else(missing)
    }

    /// A currency's number of decimal places.
    async fn scale(&self, currency: Currency) -> Result<Option<u32>, Problem> {
        match ledger::currency_scale(self.book.engine().latest().view(), currency)? {
            Some(scale) => Ok(Some(scale)),
            None => Ok(ledger::currency_scale(self.book.view(false).await?.view(), currency)?),
        }
    }
}

fn page_size(limit: Option<u32>) -> Result<usize, Problem> {
    match limit.unwrap_or(PAGE_USUAL) {
        limit @ 1..=PAGE_MAX => Ok(limit as usize),
        limit => {
            Err(Problem::field("limit", format!("is {limit}; between 1 and {PAGE_MAX} are given at once")))
        }
    }
}

/// A place in the order of all transfers, `REVISION.POSITION`.
fn place(text: &str, field: &str) -> Result<(Revision, u32), Problem> {
    let parts = text
        .split_once('.')
        .and_then(|(revision, position)| Some((Revision(revision.parse().ok()?), position.parse().ok()?)));
    // The largest revisions name no place, and what comes after them no number.
    parts.filter(|(revision, _)| revision.0 < u64::MAX / 2).ok_or_else(|| {
        let shown: String = text.chars().take(64).collect();
        Problem::field(field, format!("{shown:?} is not what a page's next says, as 17.0"))
    })
}

/// An answer about what was made, with its location.
fn created(status: StatusCode, location: &str, body: &impl serde::Serialize) -> Response {
    let mut response = (status, Json(body)).into_response();
    if let Ok(location) = HeaderValue::from_str(location) {
        response.headers_mut().insert("location", location);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_openapi_3_1_and_has_every_path() {
        let document = serde_json::to_value(document()).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.len(), 13);
        assert!(document["components"]["schemas"]["Problem"]["properties"]["type"].is_object());
        let text = document.to_string();
        assert!(!text.contains("\"type\":\"number\""), "amounts are never floats");
    }
}
