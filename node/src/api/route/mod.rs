//! `quoin.route.v1`: rules by (VNI, IP). `write.rs` writes them, `lookup.rs` finds them, `feed.rs` and `live.rs` tell of
//! their changes; `translate.rs` and `text.rs` read what clients send, `encode.rs` writes what is sent most.
//!
//! What is deliberately absent: what a rule means. The agents know.

mod encode;
mod feed;
mod live;
mod lookup;
#[cfg(test)]
mod tests;
mod text;
mod translate;
mod write;

use crate::api::commands::{check_space, long_read, pinned};
use crate::api::kv::{consistency, header, header_at};
use crate::api::{Life, error};
use crate::engine::Engine;
use feed::Feed;
use live::Live;
use quoin_core::route::{self, Operation, RuleKey, Scope};
use quoin_core::{Revision, StoreError};
use quoin_proto::Encoded;
use quoin_proto::quoin::kv::v1 as kv;
use quoin_proto::quoin::route::encoded::route_server;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::list_request::Of;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Entries of a page, where nothing is said.
const PAGE: u32 = 1_000;
/// Entries of a page at most.
const PAGE_MAX: u32 = 10_000;
/// How long a heartbeat holds, where nothing is said, in milliseconds.
const HEARTBEAT_MS: u64 = 30_000;
/// Bounds on how long a heartbeat may hold, in milliseconds.
const HEARTBEAT_MS_MIN: u64 = 100;
const HEARTBEAT_MS_MAX: u64 = 86_400_000;

/// The service.
pub(crate) struct Route {
    engine: Engine,
    life: Life,
    live: Live,
}

impl Route {
    pub(crate) fn new(engine: Engine, life: Life) -> Self {
        Self { engine, life, live: Live::default() }
    }

    fn header(&self, revision: Revision) -> Option<kv::Header> {
        Some(header(&self.engine, revision, self.engine.raft().term))
    }
}

#[tonic::async_trait]
impl route_server::Route for Route {
    async fn put(&self, request: Request<pb::PutRequest>) -> Result<Response<pb::PutResponse>, Status> {
        let write::Written { revision, statuses, .. } =
            write::put(&self.engine, request.into_inner()).await?;
        let newest =
            if revision == 0 { self.engine.latest().progress().revision } else { Revision(revision) };
        let revision = translate::signed(revision);
        Ok(Response::new(pb::PutResponse { header: self.header(newest), revision, statuses }))
    }

    async fn put_stream(
        &self,
        request: Request<Streaming<pb::PutRequest>>,
    ) -> Result<Response<pb::PutStreamResponse>, Status> {
        let done = write::put_stream(&self.engine, request.into_inner()).await?;
        let header = self.header(self.engine.latest().progress().revision);
        Ok(Response::new(pb::PutStreamResponse { header, ..done }))
    }

    async fn delete(
        &self,
        request: Request<pb::DeleteRequest>,
    ) -> Result<Response<pb::DeleteResponse>, Status> {
        let (revision, deleted) = write::delete(&self.engine, request.into_inner()).await?;
        Ok(Response::new(pb::DeleteResponse { header: self.header(revision), deleted }))
    }

    async fn get(&self, request: Request<pb::GetRequest>) -> Result<Response<Encoded>, Status> {
        Ok(Response::new(lookup::get(&self.engine, request.into_inner()).await?))
    }

    type GetStreamStream = ReceiverStream<Result<Encoded, Status>>;

    async fn get_stream(
        &self,
        request: Request<Streaming<pb::GetRequest>>,
    ) -> Result<Response<Self::GetStreamStream>, Status> {
        Ok(Response::new(lookup::stream(self.engine.clone(), self.life.clone(), request.into_inner())))
    }

    async fn list(&self, request: Request<pb::ListRequest>) -> Result<Response<pb::ListResponse>, Status> {
        let request = request.into_inner();
        let (scope, limit) = (list_scope(&request)?, page_limit(request.limit)?);
        let after = request.after.as_ref().map(list_after).transpose()?;
        let revision = translate::revision("revision", request.revision)?;
        let view = self.engine.read(consistency(request.consistency.as_ref())).await?;
        let shown_at = if revision == 0 { view.progress().revision } else { Revision(revision) };
        let term = view.progress().term.0;
        let bytes_max = self.engine.limits().response_bytes_max;
        let newest = revision == 0 || Revision(revision) == view.progress().revision;
        if let (Scope::Group(group), true) = (&scope, newest) {
            let table = view.routes().look();
            // Unless the table is further already than the state that the header names.
            if table.revision() <= shown_at {
                let members = table.group(group, after, limit + 1);
                drop(table);
                let rules = members.rules().map(|rule| rule.map(|rule| translate::shown(&rule)));
                let (rules, more) = page(rules, limit, bytes_max).map_err(error::store)?;
                return Ok(list_response(&self.engine, shown_at, term, rules, more));
            }
        }
        let listed = long_read(move || {
            let (_pin, at) = match pinned(&view, shown_at)? {
                Ok(pinned) => pinned,
                Err(unavailable) => return Ok(Err(error::revision_unavailable(unavailable))),
            };
            let rules = route::rules(view.view().at(at), &scope, after);
            page(rules.map(|rule| rule.map(|rule| translate::shown(&rule.as_ref()))), limit, bytes_max)
                .map(Ok)
        });
        let (rules, more) = listed.await??;
        Ok(list_response(&self.engine, shown_at, term, rules, more))
    }

    type WatchStream = ReceiverStream<Result<Encoded, Status>>;

    async fn watch(&self, request: Request<pb::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        let from = translate::revision("from_revision", request.from_revision)?;
        let options = feed::Options {
            scopes: translate::scopes(&request)?,
            from,
            snapshot_if_compacted: request.snapshot_if_compacted,
            progress_ms: request.progress_ms,
        };
        let (responses, receiver) = mpsc::channel(feed::RESPONSES_MAX);
        let (hub, tables) = (Arc::clone(self.engine.hub()), Arc::new(self.engine.clone()));
        let feed = Feed::new(hub, tables, self.live.clone(), options, responses);
        tokio::spawn(feed.run(self.life.clone()));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn put_object(
        &self,
        request: Request<pb::PutObjectRequest>,
    ) -> Result<Response<pb::PutObjectResponse>, Status> {
        check_space(&self.engine)?;
        let object = request.into_inner().object.unwrap_or_default();
        let (kind, name, body) = translate::object(object).map_err(error::invalid)?;
        let put = route::PutObject { kind: kind as u32, name, body };
        let (revision, _) = write::operation(&self.engine, Operation::PutObject(put)).await?;
        Ok(Response::new(pb::PutObjectResponse { header: self.header(revision) }))
    }

    async fn get_object(
        &self,
        request: Request<pb::GetObjectRequest>,
    ) -> Result<Response<pb::GetObjectResponse>, Status> {
        let request = request.into_inner();
        let wanted = request.object.unwrap_or_default();
        let (kind, name) = object_name(&wanted)?;
        let view = self.engine.read(consistency(request.consistency.as_ref())).await?;
        let found = route::object(view.view(), kind, name.as_bytes()).map_err(error::store)?;
        let object = found.ok_or_else(|| Status::not_found(format!("quoin: no such object: {name:?}")))?;
        let object = Some(translate::shown_object(object)?);
        Ok(Response::new(pb::GetObjectResponse {
            header: Some(header_at(&self.engine, view.progress())),
            object,
        }))
    }

    async fn list_objects(
        &self,
        request: Request<pb::ListObjectsRequest>,
    ) -> Result<Response<pb::ListObjectsResponse>, Status> {
        let request = request.into_inner();
        let (kind, limit) = (translate::kind(request.kind)?, page_limit(request.limit)?);
        let view = self.engine.read(consistency(request.consistency.as_ref())).await?;
        let header = Some(header_at(&self.engine, view.progress()));
        let listed = long_read(move || {
            let after = (!request.after.is_empty()).then_some(request.after.as_bytes());
            let mut found = route::objects(view.view(), kind, after);
            let objects = found.by_ref().take(limit).collect::<Result<Vec<_>, _>>()?;
            let more = found.next().transpose()?.is_some();
            Ok((objects, more))
        });
        let (objects, more) = listed.await?;
        let objects = objects.into_iter().map(translate::shown_object).collect::<Result<_, _>>()?;
        Ok(Response::new(pb::ListObjectsResponse { header, objects, more }))
    }

    async fn delete_object(
        &self,
        request: Request<pb::DeleteObjectRequest>,
    ) -> Result<Response<pb::DeleteObjectResponse>, Status> {
        let wanted = request.into_inner().object.unwrap_or_default();
        let (kind, name) = object_name(&wanted)?;
        let delete = route::DeleteObject { kind: kind as u32, name: name.to_owned().into() };
        let done = write::operation(&self.engine, Operation::DeleteObject(delete)).await?;
        let (revision, count, _) = write::deleted(done)?;
        Ok(Response::new(pb::DeleteObjectResponse { header: self.header(revision), deleted: count > 0 }))
    }

    async fn heartbeat(
        &self,
        request: Request<pb::HeartbeatRequest>,
    ) -> Result<Response<pb::HeartbeatResponse>, Status> {
        let request = request.into_inner();
        let ttl_ms = if request.ttl_ms == 0 { HEARTBEAT_MS } else { request.ttl_ms };
        if !(HEARTBEAT_MS_MIN..=HEARTBEAT_MS_MAX).contains(&ttl_ms) {
            return Err(error::invalid(format_args!(
                "ttl_ms: {ttl_ms} is not between {HEARTBEAT_MS_MIN} and {HEARTBEAT_MS_MAX}"
            )));
        }
        let node = translate::name(&request.node).map_err(error::invalid)?.to_owned().into();
        let applied_revision = translate::revision("applied_revision", request.applied_revision)?;
        let heartbeat = route::Heartbeat { node, ttl_ms, applied_revision };
        let (revision, _) = write::operation(&self.engine, Operation::Heartbeat(heartbeat)).await?;
        Ok(Response::new(pb::HeartbeatResponse { header: self.header(revision) }))
    }

    async fn nodes(&self, request: Request<pb::NodesRequest>) -> Result<Response<pb::NodesResponse>, Status> {
        let view = self.engine.read(consistency(request.into_inner().consistency.as_ref())).await?;
        let header = Some(header_at(&self.engine, view.progress()));
        let (objects, statuses) = long_read(move || {
            let objects = route::objects(view.view(), route::ObjectKind::Node, None);
            Ok((objects.collect::<Result<Vec<_>, _>>()?, route::node_statuses(view.view())?))
        })
        .await?;
        let mut nodes = Vec::with_capacity(objects.len());
        for object in objects {
            let status = statuses.binary_search_by(|status| status.name.cmp(&object.name)).ok();
            let status = status.map(|place| translate::shown_status(&statuses[place]));
            let node = match translate::shown_object(object)?.object {
                Some(pb::object::Object::Node(node)) => Some(node),
                _ => None,
            };
            nodes.push(pb::NodeState { node, status });
        }
        Ok(Response::new(pb::NodesResponse { header, nodes }))
    }
}

fn list_response(
    engine: &Engine,
    shown_at: Revision,
    term: u64,
    rules: Vec<pb::Rule>,
    more: bool,
) -> Response<pb::ListResponse> {
    let header = Some(header(engine, shown_at, term));
    Response::new(pb::ListResponse { header, rules, more })
}

fn list_scope(request: &pb::ListRequest) -> Result<Scope, Status> {
    let (groups, vnis) = match &request.of {
        Some(Of::Group(group)) => (vec![group.clone()], Vec::new()),
        Some(Of::Vni(vni)) => (Vec::new(), vec![*vni]),
        None => return Err(error::invalid("a list of nothing: give a group or a vni")),
    };
    let scopes = translate::scopes(&pb::WatchRequest { groups, vnis, ..pb::WatchRequest::default() })?;
    Ok(scopes.into_iter().next().expect("one was given"))
}

fn list_after(after: &pb::RuleKey) -> Result<RuleKey, Status> {
    translate::rule_key(after.vni, &after.ip)
        .map_err(|problem| error::invalid(format_args!("after.{problem}")))
}

fn object_name(name: &pb::ObjectName) -> Result<(route::ObjectKind, &str), Status> {
    Ok((translate::kind(name.kind)?, translate::name(&name.name).map_err(error::invalid)?))
}

fn page_limit(limit: u32) -> Result<usize, Status> {
    match limit {
        0 => Ok(PAGE as usize),
        1..=PAGE_MAX => Ok(limit as usize),
        _ => Err(error::invalid(format_args!("limit: {limit} is too large, at most {PAGE_MAX}"))),
    }
}

/// Up to `limit` rules, and no more once they have `bytes_max` bytes of user data; and whether there are more.
fn page(
    rules: impl Iterator<Item = Result<pb::Rule, StoreError>>,
    limit: usize,
    bytes_max: usize,
) -> Result<(Vec<pb::Rule>, bool), StoreError> {
    let mut page = Vec::new();
    let mut bytes = 0;
    for rule in rules {
        let rule = rule?;
        if page.len() == limit || bytes > bytes_max {
            return Ok((page, true));
        }
        bytes += rule.user_data.len() + rule.group.len() + 128;
        page.push(rule);
    }
    Ok((page, false))
}
