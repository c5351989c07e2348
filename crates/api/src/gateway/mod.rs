//! What etcd serves over HTTP/1 on its client port: the JSON gateway (`/v3/...`, here) and its pages (`pages.rs`).
//!
//! A path of the gateway stands for an RPC. Its JSON becomes the message (`decode.rs`), the message goes to the very
//! services that gRPC's clients reach, in this process, and the answer becomes JSON (`encode.rs`); all of it by
//! descriptors (`schema.rs`), none of it by method. So an RPC behaves the same over both, its limits included.
//! `split.rs` finds the objects of a body, `body.rs` bounds them, `call.rs` calls, `answer.rs` says what went wrong in
//! etcd's words.
//!
//! Deliberately absent: CORS. A node without users trusts whoever reaches it, so a page of some web site must not reach the
//! gateway through the browser of somebody inside: requests from pages of other origins are refused.

mod answer;
mod body;
pub(crate) mod call;
mod decode;
mod encode;
pub(crate) mod pages;
mod schema;
mod split;
#[cfg(test)]
mod tests;

use crate::budget::Budget;
use crate::grpc;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::Response;
use quoin_engine::Engine;
use schema::Schema;
use std::sync::Arc;
use tonic::Status;
use tonic::service::Routes;

/// The packages whose services have paths.
const PACKAGES: &[&str] = &["etcdserverpb", "mvccpb", "authpb", "v3lockpb", "v3electionpb"];

/// etcd's paths, and the RPCs that they stand for.
const PATHS: &[(&str, &str)] = &[
    ("/v3/kv/range", "/etcdserverpb.KV/Range"),
    ("/v3/kv/put", "/etcdserverpb.KV/Put"),
    ("/v3/kv/deleterange", "/etcdserverpb.KV/DeleteRange"),
    ("/v3/kv/txn", "/etcdserverpb.KV/Txn"),
    ("/v3/kv/compaction", "/etcdserverpb.KV/Compact"),
    ("/v3/watch", "/etcdserverpb.Watch/Watch"),
    ("/v3/lease/grant", "/etcdserverpb.Lease/LeaseGrant"),
    ("/v3/lease/revoke", "/etcdserverpb.Lease/LeaseRevoke"),
    ("/v3/kv/lease/revoke", "/etcdserverpb.Lease/LeaseRevoke"),
    ("/v3/lease/keepalive", "/etcdserverpb.Lease/LeaseKeepAlive"),
    ("/v3/lease/timetolive", "/etcdserverpb.Lease/LeaseTimeToLive"),
    ("/v3/kv/lease/timetolive", "/etcdserverpb.Lease/LeaseTimeToLive"),
    ("/v3/lease/leases", "/etcdserverpb.Lease/LeaseLeases"),
    ("/v3/kv/lease/leases", "/etcdserverpb.Lease/LeaseLeases"),
    ("/v3/cluster/member/add", "/etcdserverpb.Cluster/MemberAdd"),
    ("/v3/cluster/member/remove", "/etcdserverpb.Cluster/MemberRemove"),
    ("/v3/cluster/member/update", "/etcdserverpb.Cluster/MemberUpdate"),
    ("/v3/cluster/member/list", "/etcdserverpb.Cluster/MemberList"),
    ("/v3/cluster/member/promote", "/etcdserverpb.Cluster/MemberPromote"),
    ("/v3/maintenance/alarm", "/etcdserverpb.Maintenance/Alarm"),
    ("/v3/maintenance/status", "/etcdserverpb.Maintenance/Status"),
    ("/v3/maintenance/defragment", "/etcdserverpb.Maintenance/Defragment"),
    ("/v3/maintenance/hash", "/etcdserverpb.Maintenance/Hash"),
    ("/v3/maintenance/hashkv", "/etcdserverpb.Maintenance/HashKV"),
    ("/v3/maintenance/snapshot", "/etcdserverpb.Maintenance/Snapshot"),
    ("/v3/maintenance/transfer-leadership", "/etcdserverpb.Maintenance/MoveLeader"),
    ("/v3/maintenance/downgrade", "/etcdserverpb.Maintenance/Downgrade"),
    ("/v3/auth/enable", "/etcdserverpb.Auth/AuthEnable"),
    ("/v3/auth/disable", "/etcdserverpb.Auth/AuthDisable"),
    ("/v3/auth/status", "/etcdserverpb.Auth/AuthStatus"),
    ("/v3/auth/authenticate", "/etcdserverpb.Auth/Authenticate"),
    ("/v3/auth/user/add", "/etcdserverpb.Auth/UserAdd"),
    ("/v3/auth/user/get", "/etcdserverpb.Auth/UserGet"),
    ("/v3/auth/user/list", "/etcdserverpb.Auth/UserList"),
    ("/v3/auth/user/delete", "/etcdserverpb.Auth/UserDelete"),
    ("/v3/auth/user/changepw", "/etcdserverpb.Auth/UserChangePassword"),
    ("/v3/auth/user/grant", "/etcdserverpb.Auth/UserGrantRole"),
    ("/v3/auth/user/revoke", "/etcdserverpb.Auth/UserRevokeRole"),
    ("/v3/auth/role/add", "/etcdserverpb.Auth/RoleAdd"),
    ("/v3/auth/role/get", "/etcdserverpb.Auth/RoleGet"),
    ("/v3/auth/role/list", "/etcdserverpb.Auth/RoleList"),
    ("/v3/auth/role/delete", "/etcdserverpb.Auth/RoleDelete"),
    ("/v3/auth/role/grant", "/etcdserverpb.Auth/RoleGrantPermission"),
    ("/v3/auth/role/revoke", "/etcdserverpb.Auth/RoleRevokePermission"),
    ("/v3/election/campaign", "/v3electionpb.Election/Campaign"),
    ("/v3/election/proclaim", "/v3electionpb.Election/Proclaim"),
    ("/v3/election/leader", "/v3electionpb.Election/Leader"),
    ("/v3/election/observe", "/v3electionpb.Election/Observe"),
    ("/v3/election/resign", "/v3electionpb.Election/Resign"),
    ("/v3/lock/lock", "/v3lockpb.Lock/Lock"),
    ("/v3/lock/unlock", "/v3lockpb.Lock/Unlock"),
];

/// An object's text may have twice the bytes of the largest message: base64 takes a third more, names the rest.
const TEXT_PER_MESSAGE: usize = 2;

/// What the gateway works with.
struct Gateway {
    schema: Schema,
    /// The services.
    routes: Routes,
    budget: Budget,
    /// Maximum bytes of an object's text.
    text_bytes_max: usize,
}

/// The RPC that a path stands for.
pub(crate) fn call_of(path: &str) -> Option<&'static str> {
    PATHS.iter().find(|(known, _)| *known == path).map(|(_, rpc)| *rpc)
}

/// The answer to a call that failed.
pub(crate) fn failed(status: &Status) -> tonic::codegen::http::Response<tonic::body::Body> {
    answer::failed(status).map(tonic::body::Body::new)
}

/// Serves the gateway with the services of `routes`; requests are charged to `budget`.
pub(super) fn routes(engine: &Engine, routes: Routes, budget: Budget) -> Router {
    let gateway = Gateway {
        schema: Schema::of(quoin_proto::FILE_DESCRIPTOR_SET, PACKAGES),
        routes,
        budget,
        text_bytes_max: grpc::request_bytes_max(engine) * TEXT_PER_MESSAGE,
    };
    Router::new().fallback(serve).with_state(Arc::new(gateway))
}

async fn serve(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    if is_grpc(request.headers()) {
        return Status::unimplemented("").into_http();
    }
    let Some(rpc) = call_of(request.uri().path()) else {
        return answer::not_found();
    };
    if request.method() != Method::POST {
        return answer::wrong_method();
    }
    if is_foreign(request.headers()) {
        return answer::foreign();
    }
    let body = request.into_body();
    match call::call(gateway, rpc, body).await {
        Ok(response) => response,
        Err(status) => answer::failed(&status),
    }
}

/// Whether it is a call over gRPC, of no service that there is. With TLS other clients speak HTTP/2 too.
fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Whether a browser sends the request for a page that did not come from this port.
fn is_foreign(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let own = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    own.is_none() || own != host
}

/// A JSON answer.
fn json(status: StatusCode, body: impl Into<Body>) -> Response {
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    response.body(body.into()).expect("a status and a header")
}
