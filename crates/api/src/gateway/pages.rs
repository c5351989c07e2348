//! The pages that etcd serves on its client port, for probes, dashboards and clients that ask for a version: `/health`
//! and `/version` as etcd's. `/livez`, `/readyz` and `/metrics` are those of the HTTP port.

use super::json;
use crate::commands::read;
use crate::consistency;
use crate::grpc::API_VERSION;
use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use quoin_core::system::{self, AlarmKind};
use quoin_engine::Engine;
use serde_json::json;

/// The pages that the HTTP port does not have.
pub(crate) fn routes(engine: Engine) -> Router {
    Router::new().route("/health", get(health)).route("/version", get(version)).with_state(engine)
}

async fn version() -> Response {
    let versions = json!({ "etcdserver": API_VERSION, "etcdcluster": API_VERSION, "storage": API_VERSION });
    json(StatusCode::OK, versions.to_string())
}

async fn health(State(engine): State<Engine>, Query(query): Query<Vec<(String, String)>>) -> Response {
    let asked = |name: &str, value: &str| query.iter().any(|(n, v)| n == name && v == value);
    let reason = unhealthy(&engine, |alarm| asked("exclude", alarm), asked("serializable", "true")).await;
    let status = if reason.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    // As in etcd, a text and not a boolean.
    let health = reason.is_none().to_string();
    json(status, json!({ "health": health, "reason": reason.unwrap_or_default() }).to_string())
}

/// Why the node is not healthy, as etcd says it: an alarm that is not excluded, no leader, or a read that fails.
async fn unhealthy(engine: &Engine, excluded: impl Fn(&str) -> bool, serializable: bool) -> Option<String> {
    let failed = |error: &dyn std::fmt::Display| Some(format!("RANGE ERROR:{error}"));
    let alarms = match system::alarms(engine.latest().view()) {
        Ok(alarms) => alarms,
        Err(error) => return failed(&error),
    };
    let name = |kind| match kind {
        AlarmKind::None => "NONE",
        AlarmKind::Nospace => "NOSPACE",
        AlarmKind::Corrupt => "CORRUPT",
    };
    let mut raised = alarms.iter().map(|alarm| name(alarm.kind()));
    if let Some(alarm) = raised.find(|alarm| !excluded(alarm)) {
        return Some(format!("ALARM {alarm}"));
    }
    if engine.raft().leader == 0 && !serializable {
        return Some("RAFT NO LEADER".into());
    }
    match read(engine, consistency::of_flag(serializable)).await {
        Ok(_) => None,
        Err(error) => failed(&error),
    }
}
