//! HTTP: the ledger's API in `ledger/`, and here the operators' pages `/metrics` (Prometheus), `/livez` (the
//! process runs) and `/readyz` (it can serve: there is a leader, and the state is not far behind).

mod charge;
pub(crate) mod ledger;

use crate::budget::Budget;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use quoin_engine::Engine;

/// A replica further behind than this is not ready.
const READY_LAG_MS_MAX: u64 = 5_000;

/// The operators' pages of a node.
pub(super) fn routes(engine: Engine) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(engine)
}

/// The pages of `routes`, with the bytes of requests charged to the node's budget.
pub(super) fn charged(budget: Budget, routes: Router) -> Router {
    routes.layer(axum::middleware::from_fn_with_state(budget, charge::charge))
}

async fn metrics(State(engine): State<Engine>) -> impl IntoResponse {
    let page = engine.metrics_page();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page)
}

async fn ready(State(engine): State<Engine>) -> impl IntoResponse {
    let status = engine.status();
    let refuse = |why: String| (StatusCode::SERVICE_UNAVAILABLE, why);
    if status.raft.leader == 0 {
        return refuse("not ready: no leader\n".into());
    }
    match status.lag_ms {
        None => refuse("not ready: no leader has said yet what is committed\n".into()),
        Some(lag_ms) if lag_ms > READY_LAG_MS_MAX => {
            refuse(format!("not ready: {lag_ms} ms behind the leader\n"))
        }
        Some(_) => (StatusCode::OK, "ok\n".into()),
    }
}
