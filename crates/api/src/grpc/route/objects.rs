//! The objects around rules: VPCs, gateway clusters, nodes with their heartbeats.

use super::object;
use super::translate::{self, PAGE};
use super::write::{deleted, header_now, operation};
use crate::commands::{check_space, long_read};
use crate::consistency;
use crate::error::{Error, Kind};
use crate::grpc::kv::header_at;
use quoin_core::route::{self, ObjectKind, Operation};
use quoin_engine::{Engine, ReadView};
use quoin_proto::quoin::route::v1 as pb;

/// How long a heartbeat holds by default, in milliseconds.
const HEARTBEAT_MS: u64 = 30_000;
/// Bounds on how long a heartbeat may hold, in milliseconds.
const HEARTBEAT_MS_MIN: u64 = 100;
const HEARTBEAT_MS_MAX: u64 = 86_400_000;
/// Bytes of objects after which a page ends. With one more, clients with gRPC's usual bound of 4 MiB can read it.
const PAGE_BYTES_MAX: usize = 2 << 20;

pub(crate) async fn put(
    engine: &Engine,
    request: pb::PutObjectRequest,
) -> Result<pb::PutObjectResponse, Error> {
    check_space(engine)?;
    let object = request.object.unwrap_or_default();
    let put = object::put(object).map_err(Error::invalid)?;
    let (revision, _) = operation(engine, Operation::PutObject(put)).await?;
    Ok(pb::PutObjectResponse { header: header_now(engine, revision) })
}

pub(crate) async fn get(
    engine: &Engine,
    request: pb::GetObjectRequest,
) -> Result<pb::GetObjectResponse, Error> {
    let view = consistency::view(engine, request.consistency.as_ref()).await?;
    let object = match (request.object, request.vpc_vni) {
        (Some(_), 1..) => return Err(Error::invalid("vpc_vni: give either object or vpc_vni, not both")),
        (None, vni @ 1..) => vpc_of(&view, vni)?,
        (wanted, 0) => {
            let wanted = wanted.unwrap_or_default();
            let (kind, name) = object_name(&wanted)?;
            let found = route::object(view.view(), kind, name.as_bytes())?;
            let found = found.ok_or_else(|| Error::not_found(format_args!("no such object: {name:?}")));
            translate::shown_object(found?)?
        }
    };
    Ok(pb::GetObjectResponse { header: Some(header_at(engine, view.progress())), object: Some(object) })
}

/// The VPC of a network.
fn vpc_of(view: &ReadView, vni: u32) -> Result<pb::Object, Error> {
    translate::check_vni("vpc_vni", vni).map_err(Error::invalid)?;
    let names = view.memory().vpcs.of(vni);
    let name = match &names[..] {
        [] => None,
        [name] => Some(name),
        several => {
            let names: Vec<_> = several.iter().map(|name| translate::lossy(name)).collect();
            return Err(Error::precondition(format_args!(
                "vpc_vni: {vni} is the network of several VPCs, which an earlier version let be: {names:?}; delete all \
                 but one, or give them others"
            )));
        }
    };
    let found = match name {
        Some(name) => route::object(view.view(), ObjectKind::Vpc, name)?,
        None => None,
    };
    let found = found.map(translate::shown_object).transpose()?;
    // What is in memory may be newer than the view, which then has no such VPC yet, or another network for it.
    let is_of =
        |object: &pb::Object| matches!(&object.object, Some(pb::object::Object::Vpc(vpc)) if vpc.vni == vni);
    found.filter(is_of).ok_or_else(|| Error::not_found(format_args!("no VPC has the network {vni}")))
}

pub(crate) async fn list(
    engine: &Engine,
    request: pb::ListObjectsRequest,
) -> Result<pb::ListObjectsResponse, Error> {
    let (kind, limit) = (translate::kind("kind", request.kind)?, PAGE.of_field(request.limit)?);
    let view = consistency::view(engine, request.consistency.as_ref()).await?;
    let header = Some(header_at(engine, view.progress()));
    let listed = long_read(move || {
        let after = (!request.after.is_empty()).then_some(request.after.as_bytes());
        let (mut objects, mut bytes) = (Vec::new(), 0);
        for object in route::objects(view.view(), kind, after) {
            let object = object?;
            if objects.len() == limit || bytes >= PAGE_BYTES_MAX {
                return Ok((objects, true));
            }
            bytes += object.name.len() + object.body.len();
            objects.push(object);
        }
        Ok((objects, false))
    });
    let (objects, more) = listed.await?;
    let objects = objects.into_iter().map(translate::shown_object).collect::<Result<_, _>>()?;
    Ok(pb::ListObjectsResponse { header, objects, more })
}

pub(crate) async fn delete(
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

pub(crate) async fn heartbeat(
    engine: &Engine,
    request: pb::HeartbeatRequest,
) -> Result<pb::HeartbeatResponse, Error> {
    let ttl_ms = if request.ttl_ms == 0 { HEARTBEAT_MS } else { request.ttl_ms };
    if !(HEARTBEAT_MS_MIN..=HEARTBEAT_MS_MAX).contains(&ttl_ms) {
        return Err(Error::invalid(format_args!(
            "ttl_ms: {ttl_ms} is not between {HEARTBEAT_MS_MIN} and {HEARTBEAT_MS_MAX}"
        )));
    }
    let name = object::name("node", &request.node).map_err(Error::invalid)?;
    let applied_revision = translate::revision("applied_revision", request.applied_revision)?;
    let heartbeat = route::Heartbeat { node: name.to_owned().into(), ttl_ms, applied_revision };
    let (revision, _) =
        operation(engine, Operation::Heartbeat(heartbeat)).await.map_err(|error| match error {
            Error::Refused(Kind::NotFound, _) => {
                Error::not_found(format_args!("no such node: {name:?}; put it before its first heartbeat"))
            }
            error => error,
        })?;
    Ok(pb::HeartbeatResponse { header: header_now(engine, revision) })
}

pub(crate) async fn nodes(engine: &Engine, request: &pb::NodesRequest) -> Result<pb::NodesResponse, Error> {
    let view = consistency::view(engine, request.consistency.as_ref()).await?;
    let header = Some(header_at(engine, view.progress()));
    let bytes_max = engine.limits().response_bytes_max;
    let (objects, statuses) = long_read(move || {
        let (mut objects, mut bytes) = (Vec::new(), 0);
        for object in route::objects(view.view(), ObjectKind::Node, None) {
            let object = object?;
            bytes += object.name.len() + object.body.len();
            if bytes > bytes_max {
                return Ok(Err(Error::response_too_large(bytes_max)));
            }
            objects.push(object);
        }
        Ok(Ok((objects, route::node_statuses(view.view())?)))
    })
    .await??;
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
    Ok((
        translate::kind("object.kind", name.kind)?,
        object::name("object.name", &name.name).map_err(Error::invalid)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pb::object::Object as Of;

    async fn write(engine: &Engine, name: &str, vni: u32) -> Result<(), Error> {
        let vpc = pb::Vpc { name: name.into(), vni, ..pb::Vpc::default() };
        let object = Some(pb::Object { object: Some(Of::Vpc(vpc)), revision: 0 });
        put(engine, pb::PutObjectRequest { object }).await.map(drop)
    }

    async fn name_of(engine: &Engine, vpc_vni: u32) -> Result<String, Kind> {
        let request = pb::GetObjectRequest { vpc_vni, ..Default::default() };
        match get(engine, request).await.map(|found| found.object.unwrap().object) {
            Ok(Some(Of::Vpc(vpc))) => Ok(vpc.name),
            Err(Error::Refused(kind, _)) => Err(kind),
            other => panic!("{other:?}"),
        }
    }

    /// A page of large objects took as much memory as there were of them.
    #[test]
    fn a_page_of_objects_is_bounded_in_bytes() {
        crate::testing::alone(|engine| async move {
            for number in 0..5 {
                let (name, segment) = (number.to_string(), "s".repeat(PAGE_BYTES_MAX / 2));
                let vpc = pb::Vpc { name, segment, ..pb::Vpc::default() };
                let object = Some(pb::Object { object: Some(Of::Vpc(vpc)), revision: 0 });
                put(&engine, pb::PutObjectRequest { object }).await.unwrap();
            }
            let mut pages = Vec::new();
            for after in ["", "1", "3"] {
                let kind = pb::ObjectKind::Vpc.into();
                let request = pb::ListObjectsRequest { kind, after: after.into(), ..Default::default() };
                let page = list(&engine, request).await.unwrap();
                pages.push((page.objects.len(), page.more));
            }
            assert_eq!(pages, [(2, true), (2, true), (1, false)]);
        });
    }

    /// Two VPCs had one network, and which one its packets were of was anyone's guess.
    #[test]
    fn a_network_has_one_vpc_and_finds_it() {
        crate::testing::alone(|engine| async move {
            write(&engine, "a", 7).await.unwrap();
            match write(&engine, "b", 7).await {
                Err(Error::Refused(Kind::AlreadyExists, text)) => {
                    assert!(text.starts_with("vpc.vni: 7 ") && text.contains("\"a\""), "{text}");
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(name_of(&engine, 7).await.as_deref(), Ok("a"));
            write(&engine, "a", 8).await.unwrap();
            write(&engine, "b", 7).await.unwrap();
            assert_eq!(name_of(&engine, 7).await.as_deref(), Ok("b"));
            assert_eq!(name_of(&engine, 9).await, Err(Kind::NotFound));
            assert_eq!(name_of(&engine, 1 << 24).await, Err(Kind::InvalidArgument));
            // As the version before wrote it.
            let vpc = pb::Vpc { name: "c".into(), vni: 7, ..pb::Vpc::default() };
            let object = pb::Object { object: Some(Of::Vpc(vpc)), revision: 0 };
            let old = route::PutObject { alone: false, ..object::put(object).unwrap() };
            operation(&engine, Operation::PutObject(old)).await.unwrap();
            assert_eq!(name_of(&engine, 7).await, Err(Kind::FailedPrecondition));
        });
    }
}
