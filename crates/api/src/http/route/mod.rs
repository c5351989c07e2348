//! Routing rules and the objects around them over HTTP/JSON, under `/v1/rules`, `/v1/vpcs`, `/v1/gateway-clusters` and
//! `/v1/nodes`: for people, scripts and every language without gRPC.
//!
//! `model.rs` has the bodies and parameters, `rules.rs` writes and reads rules, `list.rs` lists them, as JSON or as CSV,
//! `events.rs` follows their changes, `objects.rs` and `object_model.rs` have the objects. All of them go the ways of `quoin.route.v1` (`grpc/route/`).

mod events;
mod list;
mod model;
mod object_model;
mod objects;
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
        .route("/v1/rules/batch", post(rules::batch))
        .route("/v1/rules/lookup", post(rules::lookup))
        .route("/v1/rules/events", get(events::follow))
        .route("/v1/vpcs", get(objects::list_vpcs))
        .route("/v1/vpcs/{name}", get(objects::get_vpc).put(objects::put_vpc).delete(objects::delete_vpc))
        .route("/v1/gateway-clusters", get(objects::list_gateway_clusters))
        .route(
            "/v1/gateway-clusters/{name}",
            get(objects::get_gateway_cluster)
                .put(objects::put_gateway_cluster)
                .delete(objects::delete_gateway_cluster),
        )
        .route("/v1/nodes", get(objects::list_nodes))
        .route("/v1/nodes/{name}", get(objects::get_node).put(objects::put_node).delete(objects::delete_node))
        .route("/v1/nodes/{name}/heartbeat", post(objects::heartbeat))
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
    rules::batch,
    list::list,
    events::follow,
    objects::put_vpc,
    objects::get_vpc,
    objects::delete_vpc,
    objects::list_vpcs,
    objects::put_gateway_cluster,
    objects::get_gateway_cluster,
    objects::delete_gateway_cluster,
    objects::list_gateway_clusters,
    objects::put_node,
    objects::get_node,
    objects::delete_node,
    objects::list_nodes,
    objects::heartbeat
))]
pub(super) struct Document;
