//! `quoin.kv.v1`: what etcd's API cannot say. `translate.rs` turns operations into commands and replies into
//! results, `run.rs` runs many operations at once, `stream.rs` keeps many in flight, `replicas.rs` asks the
//! other replicas.
//!
//! An operation means the same alone, in a batch and in a stream: all three go through the same translation.

mod header;
mod replicas;
mod run;
mod stream;
mod translate;

pub(super) use header::{header, header_at};

use super::outbound::AnswerStream;
use crate::commands::{check_size, kv_reply};
use crate::consistency;
use crate::error::Error;
use crate::life::Life;
use crate::neighbours::Neighbours;
use quoin_core::{Progress, Revision, kv};
use quoin_engine::Engine;
use quoin_proto::quoin::kv::v1 as pb;
use quoin_proto::quoin::kv::v1::kv_server;
use run::Parts;
use tonic::{Request, Response, Status, Streaming};

/// Maximum operations in a batch.
const BATCH_OPERATIONS_MAX: usize = 10_000;

/// The service.
pub(crate) struct Kv {
    engine: Engine,
    life: Life,
    neighbours: Neighbours,
}

impl Kv {
    pub(crate) fn new(engine: Engine, life: Life, neighbours: Neighbours) -> Self {
        Self { engine, life, neighbours }
    }

    async fn write(&self, write: translate::Write) -> Result<(Revision, kv::Response), Error> {
        check_size(&self.engine, &write.command)?;
        kv_reply(self.engine.propose(write.command).await?)
    }

    async fn run_batch(&self, operations: Vec<pb::Operation>) -> Result<pb::BatchResponse, Error> {
        let count = operations.len();
        if count > BATCH_OPERATIONS_MAX {
            return Err(Error::invalid(format_args!(
                "a batch of {count} operations is too large, at most {BATCH_OPERATIONS_MAX} are allowed"
            )));
        }
        let Parts { writes, reads, mut done } = Parts::of(&self.engine, operations.into_iter().enumerate());
        let (written, read) = tokio::join!(writes.run(&self.engine), reads.run(&self.engine));
        done.extend(written);
        done.extend(read);
        done.sort_unstable_by_key(|(position, _)| *position);
        let results = done.into_iter().map(|(_, result)| result).collect();
        let header = self.header_at(self.engine.latest().progress());
        Ok(pb::BatchResponse { header, results })
    }

    fn header(&self, revision: Revision) -> Option<pb::Header> {
        Some(header(&self.engine, revision, self.engine.raft().term))
    }

    fn header_at(&self, progress: &Progress) -> Option<pb::Header> {
        Some(header_at(&self.engine, progress))
    }
}

#[tonic::async_trait]
impl kv_server::Kv for Kv {
    async fn put(&self, request: Request<pb::PutRequest>) -> Result<Response<pb::PutResponse>, Status> {
        let write = translate::put(&self.engine, request.into_inner())?;
        let (revision, reply) = self.write(write).await?;
        let mut response = translate::put_response(&self.engine, (revision, reply))?;
        response.header = self.header(revision);
        Ok(Response::new(response))
    }

    async fn delete(
        &self,
        request: Request<pb::DeleteRequest>,
    ) -> Result<Response<pb::DeleteResponse>, Status> {
        let write = translate::delete(&self.engine, request.into_inner())?;
        let (revision, reply) = self.write(write).await?;
        let mut response = translate::delete_response(&self.engine, reply)?;
        response.header = self.header(revision);
        Ok(Response::new(response))
    }

    async fn get(&self, request: Request<pb::GetRequest>) -> Result<Response<pb::GetResponse>, Status> {
        let request = request.into_inner();
        let view =
            self.engine.read(consistency::of(request.consistency.as_ref())).await.map_err(Error::from)?;
        let mut response = run::get(&view, request)?;
        response.header = self.header_at(view.progress());
        Ok(Response::new(response))
    }

    async fn floor(&self, request: Request<pb::FloorRequest>) -> Result<Response<pb::FloorResponse>, Status> {
        let request = request.into_inner();
        let view =
            self.engine.read(consistency::of(request.consistency.as_ref())).await.map_err(Error::from)?;
        let mut response = run::floor(&view, request)?;
        response.header = self.header_at(view.progress());
        Ok(Response::new(response))
    }

    async fn batch(&self, request: Request<pb::BatchRequest>) -> Result<Response<pb::BatchResponse>, Status> {
        Ok(Response::new(self.run_batch(request.into_inner().operations).await?))
    }

    type StreamStream = AnswerStream<pb::StreamResponse>;

    async fn stream(
        &self,
        request: Request<Streaming<pb::StreamRequest>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        Ok(Response::new(stream::serve(&self.engine, &self.life, request.into_inner())))
    }

    async fn replicas(
        &self,
        _: Request<pb::ReplicasRequest>,
    ) -> Result<Response<pb::ReplicasResponse>, Status> {
        let replicas = replicas::list(&self.engine, &self.neighbours).await?;
        let header = self.header_at(self.engine.latest().progress());
        Ok(Response::new(pb::ReplicasResponse { header, replicas }))
    }
}
