//! `quoin.route.v1`: rules by (VNI, IP). `write.rs` and `batch.rs` write them, `lookup.rs` and `list.rs` read them,
//! `objects.rs` has the objects and nodes around them, `object.rs` what may be said of one. A watch is a `feed.rs`, which
//! begins with a `snapshot.rs`, shares its live events with others through `live.rs`, and is changed by `subscribe.rs`.
//! `translate.rs` and `text.rs` read what clients send, `encode.rs` writes
//! what they get most.
//!
//! Deliberately absent: what a rule means. The agents know.

pub(crate) mod batch;
mod encode;
mod feed;
pub(crate) mod list;
mod live;
pub(crate) mod lookup;
mod object;
pub(crate) mod objects;
mod snapshot;
mod subscribe;
#[cfg(test)]
mod tests;
mod text;
pub(crate) mod translate;
pub(crate) mod write;

use super::outbound::{self, AnswerStream};
use crate::error::Error;
use crate::life::Life;
use feed::Feed;
use live::Live;
use quoin_engine::Engine;
use quoin_proto::Encoded;
use quoin_proto::quoin::route::encoded::route_server;
use quoin_proto::quoin::route::v1 as pb;
use std::sync::Arc;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

/// The service.
#[derive(Clone)]
pub(crate) struct Route {
    engine: Engine,
    life: Life,
    live: Live,
}

impl Route {
    pub(crate) fn new(engine: Engine, life: Life) -> Self {
        Self { engine, life, live: Live::default() }
    }

    /// What a watch sends: encoded `WatchResponse`s.
    ///
    /// # Errors
    /// The request is invalid, or begins in the future or in another cluster; otherwise as every read.
    pub(crate) async fn feed(&self, request: &pb::WatchRequest) -> Result<AnswerStream<Encoded>, Error> {
        let options = feed::Options::of(&self.engine, request).await?;
        let (hub, tables) = (Arc::clone(self.engine.hub()), Arc::new(self.engine.clone()));
        let live = self.live.clone();
        Ok(outbound::spawn(&self.life, feed::RESPONSES_MAX, |responses| {
            // Nobody changes it.
            let (_, changes) = mpsc::channel(1);
            Feed::new(hub, tables, live, options, changes, responses).run()
        }))
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }
}

#[tonic::async_trait]
impl route_server::Route for Route {
    async fn put(&self, request: Request<pb::PutRequest>) -> Result<Response<pb::PutResponse>, Status> {
        Ok(Response::new(write::put(&self.engine, request.into_inner()).await?))
    }

    async fn write(&self, request: Request<pb::WriteRequest>) -> Result<Response<pb::WriteResponse>, Status> {
        Ok(Response::new(batch::write(&self.engine, request.into_inner()).await?))
    }

    async fn put_stream(
        &self,
        request: Request<Streaming<pb::PutRequest>>,
    ) -> Result<Response<pb::PutStreamResponse>, Status> {
        Ok(Response::new(write::put_stream(&self.engine, request.into_inner()).await?))
    }

    async fn delete(
        &self,
        request: Request<pb::DeleteRequest>,
    ) -> Result<Response<pb::DeleteResponse>, Status> {
        Ok(Response::new(write::delete(&self.engine, request.into_inner()).await?))
    }

    async fn get(&self, request: Request<pb::GetRequest>) -> Result<Response<Encoded>, Status> {
        Ok(Response::new(lookup::get(&self.engine, request.into_inner()).await?))
    }

    type GetStreamStream = AnswerStream<Encoded>;

    async fn get_stream(
        &self,
        request: Request<Streaming<pb::GetRequest>>,
    ) -> Result<Response<Self::GetStreamStream>, Status> {
        Ok(Response::new(lookup::stream(self.engine.clone(), &self.life, request.into_inner())))
    }

    async fn list(&self, request: Request<pb::ListRequest>) -> Result<Response<pb::ListResponse>, Status> {
        Ok(Response::new(list::list(&self.engine, request.into_inner()).await?))
    }

    async fn group_revisions(
        &self,
        request: Request<pb::GroupRevisionsRequest>,
    ) -> Result<Response<pb::GroupRevisionsResponse>, Status> {
        Ok(Response::new(list::group_revisions(&self.engine, request.into_inner()).await?))
    }

    type WatchStream = AnswerStream<Encoded>;

    async fn watch(&self, request: Request<pb::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(self.feed(&request.into_inner()).await?))
    }

    type SubscribeStream = AnswerStream<Encoded>;

    async fn subscribe(
        &self,
        request: Request<Streaming<pb::SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let (route, requests) = (self.clone(), request.into_inner());
        Ok(Response::new(outbound::spawn(&self.life, feed::RESPONSES_MAX, |responses| {
            subscribe::run(route, requests, responses)
        })))
    }

    async fn put_object(
        &self,
        request: Request<pb::PutObjectRequest>,
    ) -> Result<Response<pb::PutObjectResponse>, Status> {
        Ok(Response::new(objects::put(&self.engine, request.into_inner()).await?))
    }

    async fn get_object(
        &self,
        request: Request<pb::GetObjectRequest>,
    ) -> Result<Response<pb::GetObjectResponse>, Status> {
        Ok(Response::new(objects::get(&self.engine, request.into_inner()).await?))
    }

    async fn list_objects(
        &self,
        request: Request<pb::ListObjectsRequest>,
    ) -> Result<Response<pb::ListObjectsResponse>, Status> {
        Ok(Response::new(objects::list(&self.engine, request.into_inner()).await?))
    }

    async fn delete_object(
        &self,
        request: Request<pb::DeleteObjectRequest>,
    ) -> Result<Response<pb::DeleteObjectResponse>, Status> {
        Ok(Response::new(objects::delete(&self.engine, request.into_inner()).await?))
    }

    async fn heartbeat(
        &self,
        request: Request<pb::HeartbeatRequest>,
    ) -> Result<Response<pb::HeartbeatResponse>, Status> {
        Ok(Response::new(objects::heartbeat(&self.engine, request.into_inner()).await?))
    }

    async fn nodes(&self, request: Request<pb::NodesRequest>) -> Result<Response<pb::NodesResponse>, Status> {
        Ok(Response::new(objects::nodes(&self.engine, &request.into_inner()).await?))
    }
}
