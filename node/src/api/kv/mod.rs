//! `quoin.kv.v1`: what etcd's API cannot say. `translate.rs` turns operations into commands and answers back, `run.rs`
//! does many at once, `stream.rs` keeps many in flight.
//!
//! **Invariant.** An operation means the same alone, in a batch and in a stream: all three go through the same
//! translation.

mod replicas;
mod run;
mod stream;
mod translate;

use crate::api::commands::{check_size, kv_reply};
use crate::api::{Life, error};
use crate::engine::Engine;
use quoin_core::{Progress, Revision};
use quoin_proto::quoin::kv::v1 as pb;
use quoin_proto::quoin::kv::v1::kv_server;
use run::Parts;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use translate::Written;
pub(crate) use translate::consistency;

/// Operations of a batch at most.
const BATCH_OPERATIONS_MAX: usize = 10_000;

/// The service.
pub(crate) struct Kv {
    engine: Engine,
    life: Life,
}

impl Kv {
    pub(crate) fn new(engine: Engine, life: Life) -> Self {
        Self { engine, life }
    }

    async fn write(&self, write: translate::Write) -> Result<Written, Status> {
        check_size(&self.engine, &write.command)?;
        write.kind.answer(&self.engine, kv_reply(self.engine.propose(write.command).await?)?)
    }

    fn header(&self, revision: Revision) -> Option<pb::Header> {
        Some(header(&self.engine, revision, self.engine.raft().term))
    }

    fn header_at(&self, progress: &Progress) -> Option<pb::Header> {
        Some(header_at(&self.engine, progress))
    }
}

/// Where and when an answer was made that shows the state at `progress`.
pub(crate) fn header_at(engine: &Engine, progress: &Progress) -> pb::Header {
    header(engine, progress.revision, progress.term.0)
}

/// Where and when an answer was made.
pub(crate) fn header(engine: &Engine, revision: Revision, term: u64) -> pb::Header {
    let revision = i64::try_from(revision.0).expect("revisions stay below 2^63");
    pb::Header { cluster_id: engine.cluster(), member_id: engine.id(), revision, term }
}

#[tonic::async_trait]
impl kv_server::Kv for Kv {
    async fn put(&self, request: Request<pb::PutRequest>) -> Result<Response<pb::PutResponse>, Status> {
        let write = translate::put(&self.engine, request.into_inner())?;
        let (revision, mut response) = self.write(write).await?.into_put()?;
        response.header = self.header(revision);
        Ok(Response::new(response))
    }

    async fn delete(
        &self,
        request: Request<pb::DeleteRequest>,
    ) -> Result<Response<pb::DeleteResponse>, Status> {
        let write = translate::delete(&self.engine, request.into_inner())?;
        let (revision, mut response) = self.write(write).await?.into_delete()?;
        response.header = self.header(revision);
        Ok(Response::new(response))
    }

    async fn get(&self, request: Request<pb::GetRequest>) -> Result<Response<pb::GetResponse>, Status> {
        let request = request.into_inner();
        let view = self.engine.read(translate::consistency(request.consistency.as_ref())).await?;
        let mut response = run::get(&view, request)?;
        response.header = self.header_at(view.progress());
        Ok(Response::new(response))
    }

    async fn floor(&self, request: Request<pb::FloorRequest>) -> Result<Response<pb::FloorResponse>, Status> {
        let request = request.into_inner();
        let view = self.engine.read(translate::consistency(request.consistency.as_ref())).await?;
        let mut response = run::floor(&view, request)?;
        response.header = self.header_at(view.progress());
        Ok(Response::new(response))
    }

    async fn batch(&self, request: Request<pb::BatchRequest>) -> Result<Response<pb::BatchResponse>, Status> {
        let operations = request.into_inner().operations;
        let count = operations.len();
        if count > BATCH_OPERATIONS_MAX {
            return Err(error::invalid(format_args!(
                "a batch of {count} operations is too large, at most {BATCH_OPERATIONS_MAX} are allowed"
            )));
        }
        let Parts { writes, reads, mut done } = Parts::of(&self.engine, operations.into_iter().enumerate());
        let (written, read) = tokio::join!(writes.run(&self.engine), reads.run(&self.engine));
        done.extend(written);
        done.extend(read);
        done.sort_unstable_by_key(|(place, _)| *place);
        let results = done.into_iter().map(|(_, result)| result).collect();
        let header = self.header_at(self.engine.latest().progress());
        Ok(Response::new(pb::BatchResponse { header, results }))
    }

    type StreamStream = ReceiverStream<Result<pb::StreamResponse, Status>>;

    async fn stream(
        &self,
        request: Request<Streaming<pb::StreamRequest>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        let answers = stream::serve(self.engine.clone(), self.life.clone(), request.into_inner());
        Ok(Response::new(answers))
    }

    async fn replicas(
        &self,
        _: Request<pb::ReplicasRequest>,
    ) -> Result<Response<pb::ReplicasResponse>, Status> {
        let replicas = replicas::list(&self.engine).await?;
        let header = self.header_at(self.engine.latest().progress());
        Ok(Response::new(pb::ReplicasResponse { header, replicas }))
    }
}
