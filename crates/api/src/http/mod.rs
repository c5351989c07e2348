//! HTTP: the ledger's API in `ledger/`, the rules' in `route/`, and here the operators' pages `/metrics` (Prometheus, with
//! etcd's names too: `etcd_metrics.rs`), `/livez` (the
//! process runs) and `/readyz` (it can serve: there is a leader, the state is not far behind, and the tables are loaded).
//!
//! What the faces' APIs share: `extract.rs` and `lists.rs` parse requests, `problem.rs` renders errors, `charge.rs`
//! charges requests with their bodies, `connections.rs` serves the port, `time.rs` writes times, `document.rs` has the OpenAPI document, which is generated from the handlers and
//! their models, so it says what they do; `/docs` shows it, from files in the binary.

mod answer;
mod charge;
mod connections;
mod document;
mod etcd_metrics;
mod extract;
mod ledger;
mod lists;
mod problem;
mod route;

pub(super) use connections::serve;

use crate::budget::Budget;
use crate::error::Error;
use crate::grpc::route::Route;
use crate::ledger::Book;
use crate::life::Life;
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use quoin_engine::Engine;
use quoin_library::Library;
use std::sync::Arc;
use utoipa_swagger_ui::SwaggerUi;

/// A replica further behind than this is not ready.
const READY_LAG_MS_MAX: u64 = 5_000;
/// Maximum tables that `/readyz` names.
const TABLES_NAMED_MAX: usize = 10;

/// The operators' pages of a node.
pub(super) fn routes(engine: Engine, library: Arc<Library>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state((engine, library))
}

/// The faces' APIs, under `/v1`.
pub(super) fn api(book: Book, route: Route, life: Life) -> Router {
    ledger::routes(book, life)
        .merge(route::routes(route))
        .layer(DefaultBodyLimit::max(extract::BODY_BYTES_MAX))
        .merge(SwaggerUi::new("/docs").url("/v1/openapi.json", document::document()))
        .method_not_allowed_fallback(extract::no_such_method)
        .fallback(extract::nothing_here)
}

/// The document of the faces' APIs.
#[cfg(test)]
pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    document::document()
}

/// Whether the answer of a page goes on for as long as the client listens.
pub(super) fn tells_on(path: &str) -> bool {
    matches!(path, "/v1/events" | "/v1/rules/events")
}

/// The answer to a request that may not be made.
pub(super) fn refused(error: Error) -> Response {
    problem::Problem::from(error).into_response()
}

/// The pages of `routes`, with the bytes of requests charged to the node's budget.
pub(super) fn charged(budget: Budget, routes: Router) -> Router {
    routes.layer(axum::middleware::from_fn_with_state(budget, charge::charge))
}

async fn metrics(State((engine, library)): State<(Engine, Arc<Library>)>) -> impl IntoResponse {
    let mut page = engine.metrics_page();
    library.append_metrics(&engine.latest().memory().tables, &mut page);
    etcd_metrics::append(&engine, &mut page);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page)
}

async fn ready(State((engine, library)): State<(Engine, Arc<Library>)>) -> impl IntoResponse {
    let status = engine.status();
    let why = not_ready(status.raft.leader, status.lag_ms)
        .or_else(|| tables_missing(&library.not_loaded(&engine.latest().memory().tables)));
    match why {
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
        None => (StatusCode::OK, "ok\n".into()),
    }
}

/// Why a replica cannot serve that knows this `leader`, 0 for none, and was last known to be up to date `lag_ms` ago.
fn not_ready(leader: u64, lag_ms: Option<u64>) -> Option<String> {
    match lag_ms {
        _ if leader == 0 => Some("no leader".into()),
        None => Some("no leader has said yet what is committed".into()),
        Some(lag_ms) => (lag_ms > READY_LAG_MS_MAX).then(|| format!("{lag_ms} ms behind the leader")),
    }
}

/// Why a replica cannot serve on which the active versions of these tables are not loaded.
fn tables_missing(tables: &[(String, u64)]) -> Option<String> {
    let named: Vec<String> =
        tables.iter().take(TABLES_NAMED_MAX).map(|(name, version)| format!("{name} {version}")).collect();
    let more = match tables.len().saturating_sub(TABLES_NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!tables.is_empty())
        .then(|| format!("tables whose active version is not loaded yet: {}{more}", named.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, Bytes};
    use axum::extract::Request;
    use axum::routing::post;
    use std::time::Duration;
    use tower_service::Service;

    #[test]
    fn the_pages_that_tell_on_are_known() {
        let document = serde_json::to_value(openapi()).unwrap();
        for (path, operations) in document["paths"].as_object().unwrap() {
            assert_eq!(tells_on(path), operations.to_string().contains("text/event-stream"), "{path}");
        }
    }

    #[test]
    fn missing_tables_are_named_a_few_of_them() {
        assert_eq!(tables_missing(&[]), None);
        let tables = |count: u64| (0..count).map(|number| (format!("t{number}"), number)).collect::<Vec<_>>();
        assert_eq!(
            tables_missing(&tables(2)).unwrap(),
            "tables whose active version is not loaded yet: t0 0, t1 1"
        );
        assert!(tables_missing(&tables(12)).unwrap().ends_with("t9 9 and 2 more"));
    }

    /// A few clients that sent the heads of requests, and nothing of their bodies, had all others refused.
    #[tokio::test]
    async fn a_request_whose_body_does_not_come_is_given_up() {
        let budget = Budget::of_bytes(1000);
        let mut pages = charged(budget, Router::new().route("/", post(|_: Bytes| async { "done" })));
        let mut ask = async |body| {
            let request = Request::post("/").body(body).unwrap();
            // It never ends without the bound.
            tokio::time::timeout(Duration::from_secs(60), pages.call(request))
                .await
                .unwrap()
                .unwrap()
                .status()
        };
        let (_kept, pieces) = tokio::sync::mpsc::channel::<Result<Bytes, axum::BoxError>>(1);
        let never = Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(pieces));
        assert_eq!(ask(never).await, StatusCode::BAD_REQUEST);
        assert_eq!(ask(Body::from("whole")).await, StatusCode::OK);
    }

    /// A replica that had just started, and had heard of a leader and not of what it has committed, was ready.
    #[test]
    fn a_replica_is_ready_once_it_knows_that_it_is_not_far_behind() {
        assert_eq!(not_ready(1, Some(0)), None);
        assert_eq!(not_ready(1, Some(5_000)), None);
        assert_eq!(not_ready(1, Some(5_001)).unwrap(), "5001 ms behind the leader");
        assert_eq!(not_ready(1, None).unwrap(), "no leader has said yet what is committed");
        for lag_ms in [None, Some(0)] {
            assert_eq!(not_ready(0, lag_ms).unwrap(), "no leader");
        }
    }
}
