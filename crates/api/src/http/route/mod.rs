//! Routing rules over HTTP/JSON, under `/v1/rules`: for people, scripts and every language without gRPC.
//!
//! `model.rs` has the bodies and parameters, `rules.rs` writes and reads rules, `list.rs` lists them, as JSON or as CSV,
//! `events.rs` follows their changes. All of them go the ways of `quoin.route.v1` (`grpc/route/`).

mod events;
mod list;
mod model;
mod rules;
#[cfg(test)]
mod tests;

use crate::grpc::route::Route;
use axum::Router;
use axum::routing::{get, post};
use utoipa::OpenApi;

/// The rules' pages.
pub(super) fn routes(route: Route) -> Router {
    Router::new()
        .route("/v1/rules", get(list::list).delete(rules::delete_all))
        .route("/v1/rules/{vni}/{ip}", get(rules::get).put(rules::put).delete(rules::delete))
        .route("/v1/rules/lookup", post(rules::lookup))
        .route("/v1/rules/events", get(events::follow))
        .with_state(route)
}

/// The rules' part of the OpenAPI document.
#[derive(OpenApi)]
#[openapi(paths(
    rules::get,
    rules::put,
    rules::delete,
    rules::delete_all,
    rules::lookup,
    list::list,
    events::follow
))]
pub(super) struct Document;
