//! VPCs, gateway clusters, and nodes with their heartbeats.

use super::model::{Deleted, signed, unsigned};
use super::object_model::{
    GatewayCluster, GatewayClusterFields, GatewayClusterPage, Heartbeat, Newest, Node, NodeFields, NodePage,
    NodeStatus, ObjectAt, ObjectList, Shown, Vpc, VpcFields, VpcList, VpcPage,
};
use crate::commands::long_read;
use crate::error::{Error, Kind};
use crate::grpc::route::{Route, objects, translate::PAGE};
use crate::http::extract::{self, Body, BodyOrNone, Named, NoParams, Params, Unconditional};
use crate::http::problem::Problem;
use axum::Json;
use axum::extract::State;
use quoin_core::route;
use quoin_proto::quoin::route::v1 as pb;

type Answer<T> = Result<Json<T>, Problem>;
/// What every write of an object takes.
type Writing = (State<Route>, Unconditional, NoParams);

/// Write a VPC
///
/// Creates it, or replaces it as a whole. 409 names the VPC that has its network.
#[utoipa::path(put, path = "/v1/vpcs/{name}", tag = "objects", request_body = VpcFields, params(("name" = String, Path)),
    responses((status = 200, body = Vpc), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put_vpc(route: Writing, name: Named, body: Body<VpcFields>) -> Answer<Vpc> {
    put(route, name, body).await
}

/// Read a VPC
#[utoipa::path(get, path = "/v1/vpcs/{name}", tag = "objects", params(("name" = String, Path), ObjectAt),
    responses((status = 200, body = Vpc), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get_vpc(route: State<Route>, name: Named, at: Params<ObjectAt>) -> Answer<Vpc> {
    get(route, name, at).await.map(Json)
}

/// Delete a VPC
///
/// Deleting an absent one is no error.
#[utoipa::path(delete, path = "/v1/vpcs/{name}", tag = "objects", params(("name" = String, Path)),
    responses((status = 200, body = Deleted), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn delete_vpc(route: Writing, name: Named) -> Answer<Deleted> {
    delete::<Vpc>(route, name).await
}

/// List VPCs, or find the one of a network
#[utoipa::path(get, path = "/v1/vpcs", tag = "objects", params(VpcList),
    responses((status = 200, body = VpcPage), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list_vpcs(State(route): State<Route>, Params(list): Params<VpcList>) -> Answer<VpcPage> {
    let VpcList { vni, after, limit, local } = list;
    let Some(vpc_vni) = vni else {
        let (vpcs, next) = page(&route, ObjectList { after, limit, local }).await?;
        return Ok(Json(VpcPage { vpcs, next }));
    };
    if vpc_vni == 0 {
        return Err(Problem::field("vni", "0 is no network"));
    }
    let consistency = extract::asked_consistency(local, None, None)?;
    let request = pb::GetObjectRequest { object: None, vpc_vni, consistency };
    let vpcs = match objects::get(route.engine(), request).await {
        Ok(found) => vec![Vpc::of(found.object.unwrap_or_default())?],
        Err(Error::Refused(Kind::NotFound, _)) => Vec::new(),
        Err(error) => return Err(problem(error, "vpc_")),
    };
    Ok(Json(VpcPage { vpcs, next: None }))
}

/// Write a gateway cluster
///
/// Creates it, or replaces it as a whole.
#[utoipa::path(put, path = "/v1/gateway-clusters/{name}", tag = "objects", request_body = GatewayClusterFields,
    params(("name" = String, Path)),
    responses((status = 200, body = GatewayCluster), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put_gateway_cluster(
    route: Writing,
    name: Named,
    body: Body<GatewayClusterFields>,
) -> Answer<GatewayCluster> {
    put(route, name, body).await
}

/// Read a gateway cluster
#[utoipa::path(get, path = "/v1/gateway-clusters/{name}", tag = "objects", params(("name" = String, Path), ObjectAt),
    responses((status = 200, body = GatewayCluster), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get_gateway_cluster(
    route: State<Route>,
    name: Named,
    at: Params<ObjectAt>,
) -> Answer<GatewayCluster> {
    get(route, name, at).await.map(Json)
}

/// Delete a gateway cluster
///
/// Deleting an absent one is no error.
#[utoipa::path(delete, path = "/v1/gateway-clusters/{name}", tag = "objects", params(("name" = String, Path)),
    responses((status = 200, body = Deleted), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn delete_gateway_cluster(route: Writing, name: Named) -> Answer<Deleted> {
    delete::<GatewayCluster>(route, name).await
}

/// List gateway clusters
#[utoipa::path(get, path = "/v1/gateway-clusters", tag = "objects", params(ObjectList),
    responses((status = 200, body = GatewayClusterPage), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list_gateway_clusters(
    State(route): State<Route>,
    Params(list): Params<ObjectList>,
) -> Answer<GatewayClusterPage> {
    let (gateway_clusters, next) = page(&route, list).await?;
    Ok(Json(GatewayClusterPage { gateway_clusters, next }))
}

/// Write a node
///
/// Creates it, or replaces it as a whole; its status stays.
#[utoipa::path(put, path = "/v1/nodes/{name}", tag = "objects", request_body = NodeFields, params(("name" = String, Path)),
    responses((status = 200, body = Node), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put_node(route: Writing, name: Named, body: Body<NodeFields>) -> Answer<Node> {
    put(route, name, body).await
}

/// Read a node and its status
#[utoipa::path(get, path = "/v1/nodes/{name}", tag = "objects", params(("name" = String, Path), ObjectAt),
    responses((status = 200, body = Node), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get_node(route: State<Route>, name: Named, at: Params<ObjectAt>) -> Answer<Node> {
    let node = get(State(route.0.clone()), name, at).await?;
    let mut nodes = with_statuses(&route, vec![node]).await?;
    Ok(Json(nodes.pop().expect("one went in")))
}

/// Delete a node, and its status with it
///
/// Deleting an absent one is no error.
#[utoipa::path(delete, path = "/v1/nodes/{name}", tag = "objects", params(("name" = String, Path)),
    responses((status = 200, body = Deleted), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn delete_node(route: Writing, name: Named) -> Answer<Deleted> {
    delete::<Node>(route, name).await
}

/// List nodes with their status
#[utoipa::path(get, path = "/v1/nodes", tag = "objects", params(ObjectList),
    responses((status = 200, body = NodePage), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list_nodes(
    State(route): State<Route>,
    Params(list): Params<ObjectList>,
) -> Answer<NodePage> {
    let (nodes, next) = page(&route, list).await?;
    Ok(Json(NodePage { nodes: with_statuses(&route, nodes).await?, next }))
}

/// Report that a node is alive
#[utoipa::path(post, path = "/v1/nodes/{name}/heartbeat", tag = "objects", request_body = Heartbeat,
    params(("name" = String, Path)),
    responses((status = 200, body = Newest), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn heartbeat(
    State(route): State<Route>,
    Named(node): Named,
    _: NoParams,
    BodyOrNone(beat): BodyOrNone<Heartbeat>,
) -> Answer<Newest> {
    if beat.ttl_ms == Some(0) {
        return Err(Problem::field("ttl_ms", "0 is not between 100 and 86400000"));
    }
    let applied_revision = signed(beat.applied_revision, "applied_revision")?;
    let request = pb::HeartbeatRequest { node, ttl_ms: beat.ttl_ms.unwrap_or(0), applied_revision };
    let done = objects::heartbeat(route.engine(), request).await;
    let done = done.map_err(|error| Problem::of_request(error).renamed("node", "name"))?;
    Ok(Json(Newest { revision: done.header.map_or(0, |header| unsigned(header.revision)) }))
}

async fn put<T: Shown>(
    (State(route), ..): Writing,
    Named(name): Named,
    Body(fields): Body<T::Fields>,
) -> Answer<T> {
    let object = pb::Object { object: Some(T::wire(name, fields)), revision: 0 };
    let request = pb::PutObjectRequest { object: Some(object.clone()) };
    let done = objects::put(route.engine(), request).await.map_err(|error| problem(error, T::PREFIX))?;
    let revision = done.header.map_or(0, |header| header.revision);
    T::of(pb::Object { revision, ..object }).map(Json)
}

async fn get<T: Shown>(
    State(route): State<Route>,
    Named(name): Named,
    Params(at): Params<ObjectAt>,
) -> Result<T, Problem> {
    let consistency = extract::asked_consistency(at.local, None, None)?;
    let object = Some(pb::ObjectName { kind: T::KIND.into(), name });
    let request = pb::GetObjectRequest { object, consistency, vpc_vni: 0 };
    match objects::get(route.engine(), request).await {
        Ok(found) => T::of(found.object.unwrap_or_default()),
        Err(Error::Refused(Kind::NotFound, detail)) => Err(Problem::not_found("object_unknown", detail)),
        Err(error) => Err(problem(error, "object.")),
    }
}

async fn delete<T: Shown>((State(route), ..): Writing, Named(name): Named) -> Answer<Deleted> {
    let object = Some(pb::ObjectName { kind: T::KIND.into(), name });
    let request = pb::DeleteObjectRequest { object };
    let done = objects::delete(route.engine(), request).await.map_err(|error| problem(error, "object."))?;
    let revision = done.header.map_or(0, |header| unsigned(header.revision));
    Ok(Json(Deleted { deleted: u64::from(done.deleted), revision }))
}

/// A page of objects, and the `after` of the next one.
async fn page<T: Shown>(route: &Route, list: ObjectList) -> Result<(Vec<T>, Option<String>), Problem> {
    let limit = u32::try_from(extract::page_size(&PAGE, list.limit)?).expect("page sizes are small");
    let request = pb::ListObjectsRequest {
        kind: T::KIND.into(),
        limit,
        after: list.after.unwrap_or_default(),
        consistency: extract::asked_consistency(list.local, None, None)?,
    };
    let page = objects::list(route.engine(), request).await.map_err(Problem::of_request)?;
    let next = page.objects.last().filter(|_| page.more).map(name_of);
    let objects = page.objects.into_iter().map(T::of).collect::<Result<_, _>>()?;
    Ok((objects, next))
}

fn name_of(object: &pb::Object) -> String {
    match &object.object {
        Some(pb::object::Object::Vpc(vpc)) => vpc.name.clone(),
        Some(pb::object::Object::GatewayCluster(cluster)) => cluster.name.clone(),
        Some(pb::object::Object::Node(node)) => node.name.clone(),
        None => String::new(),
    }
}

/// Nodes with what is known of their lives now.
async fn with_statuses(route: &Route, mut nodes: Vec<Node>) -> Result<Vec<Node>, Problem> {
    let view = route.engine().latest();
    let known = long_read(move || {
        for node in &mut nodes {
            let status = route::node_status(view.view(), node.name().as_bytes())?;
            node.status = status.as_ref().map(NodeStatus::of);
        }
        Ok(nodes)
    });
    Ok(known.await?)
}

/// An error, whose fields have no `prefix` here.
fn problem(error: Error, prefix: &str) -> Problem {
    let own = |text: String| text.strip_prefix(prefix).map(str::to_owned).unwrap_or(text);
    match error {
        Error::Refused(Kind::AlreadyExists, text) => match own(text).split_once(": ") {
            Some((field, detail)) => {
                Problem::from(Error::Refused(Kind::AlreadyExists, detail.to_owned())).named(field)
            }
            None => Problem::from(Error::Refused(Kind::AlreadyExists, "it exists".to_owned())),
        },
        Error::Refused(kind, text) => Problem::of_request(Error::Refused(kind, own(text))),
        error => error.into(),
    }
}
