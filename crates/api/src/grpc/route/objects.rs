//! The objects around rules: VPCs, gateway clusters, nodes with their heartbeats.

use super::translate::{self, PAGE};
use super::write::{deleted, header_now, operation};
use crate::commands::{check_space, long_read};
use crate::consistency;
use crate::error::Error;
use crate::grpc::kv::header_at;
use quoin_core::route::{self, ObjectKind, Operation};
use quoin_engine::Engine;
use quoin_proto::quoin::route::v1 as pb;

/// How long a heartbeat holds by default, in milliseconds.
const HEARTBEAT_MS: u64 = 30_000;
/// Bounds on how long a heartbeat may hold, in milliseconds.
const HEARTBEAT_MS_MIN: u64 = 100;
const HEARTBEAT_MS_MAX: u64 = 86_400_000;

pub(super) async fn put(
    engine: &Engine,
    request: pb::PutObjectRequest,
) -> Result<pb::PutObjectResponse, Error> {
    check_space(engine)?;
    let object = request.object.unwrap_or_default();
    let (kind, name, body) = translate::object(object).map_err(Error::invalid)?;
    let put = route::PutObject { kind: kind as u32, name, body };
    let (revision, _) = operation(engine, Operation::PutObject(put)).await?;
    Ok(pb::PutObjectResponse { header: header_now(engine, revision) })
}

pub(super) async fn get(
    engine: &Engine,
    request: pb::GetObjectRequest,
) -> Result<pb::GetObjectResponse, Error> {
    let wanted = request.object.unwrap_or_default();
    let (kind, name) = object_name(&wanted)?;
    let view = consistency::view(engine, request.consistency.as_ref()).await?;
    let found = route::object(view.view(), kind, name.as_bytes())?;
    let object = found.ok_or_else(|| Error::not_found(format_args!("no such object: {name:?}")))?;
    let object = Some(translate::shown_object(object)?);
    Ok(pb::GetObjectResponse { header: Some(header_at(engine, view.progress())), object })
}

pub(super) async fn list(
    engine: &Engine,
    request: pb::ListObjectsRequest,
) -> Result<pb::ListObjectsResponse, Error> {
    let (kind, limit) = (translate::kind(request.kind)?, PAGE.of_field(request.limit)?);
    let view = consistency::view(engine, request.consistency.as_ref()).await?;
    let header = Some(header_at(engine, view.progress()));
    let listed = long_read(move || {
        let after = (!request.after.is_empty()).then_some(request.after.as_bytes());
        let mut found = route::objects(view.view(), kind, after);
        let objects = found.by_ref().take(limit).collect::<Result<Vec<_>, _>>()?;
        let more = found.next().transpose()?.is_some();
        Ok((objects, more))
    });
    let (objects, more) = listed.await?;
    let objects = objects.into_iter().map(translate::shown_object).collect::<Result<_, _>>()?;
    Ok(pb::ListObjectsResponse { header, objects, more })
}

pub(super) async fn delete(
    engine: &Engine,
    request: pb::DeleteObjectRequest,
) -> Result<pb::DeleteObjectResponse, Error> {
    let wanted = request.object.unwrap_or_default();
    let (kind, name) = object_name(&wanted)?;
    let delete = route::DeleteObject { kind: kind as u32, name: name.to_owned().into() };
    let done = operation(engine, Operation::DeleteObject(delete)).await?;
    let (revision, count, _) = deleted(done)?;
    Ok(pb::DeleteObjectResponse { header: header_now(engine, revision), deleted: count > 0 })
}

pub(super) async fn heartbeat(
    engine: &Engine,
    request: pb::HeartbeatRequest,
) -> Result<pb::HeartbeatResponse, Error> {
    let ttl_ms = if request.ttl_ms == 0 { HEARTBEAT_MS } else { request.ttl_ms };
    if !(HEARTBEAT_MS_MIN..=HEARTBEAT_MS_MAX).contains(&ttl_ms) {
        return Err(Error::invalid(format_args!(
            "ttl_ms: {ttl_ms} is not between {HEARTBEAT_MS_MIN} and {HEARTBEAT_MS_MAX}"
        )));
    }
    let node = translate::name(&request.node).map_err(Error::invalid)?.to_owned().into();
    let applied_revision = translate::revision("applied_revision", request.applied_revision)?;
    let heartbeat = route::Heartbeat { node, ttl_ms, applied_revision };
    let (revision, _) = operation(engine, Operation::Heartbeat(heartbeat)).await?;
    Ok(pb::HeartbeatResponse { header: header_now(engine, revision) })
}

pub(super) async fn nodes(engine: &Engine, request: &pb::NodesRequest) -> Result<pb::NodesResponse, Error> {
    let view = consistency::view(engine, request.consistency.as_ref()).await?;
    let header = Some(header_at(engine, view.progress()));
    let (objects, statuses) = long_read(move || {
        let objects = route::objects(view.view(), ObjectKind::Node, None);
        Ok((objects.collect::<Result<Vec<_>, _>>()?, route::node_statuses(view.view())?))
    })
    .await?;
    let mut nodes = Vec::with_capacity(objects.len());
    for object in objects {
        let status = statuses.binary_search_by(|status| status.name.cmp(&object.name)).ok();
        let status = status.map(|position| translate::shown_status(&statuses[position]));
        let node = match translate::shown_object(object)?.object {
            Some(pb::object::Object::Node(node)) => Some(node),
            _ => None,
        };
        nodes.push(pb::NodeState { node, status });
    }
    Ok(pb::NodesResponse { header, nodes })
}

fn object_name(name: &pb::ObjectName) -> Result<(ObjectKind, &str), Error> {
    Ok((translate::kind(name.kind)?, translate::name(&name.name).map_err(Error::invalid)?))
}
