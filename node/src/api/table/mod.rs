//! `quoin.table.v1`: lookups of many keys, and what is done with versions. `lookup.rs` answers, `admin.rs` publishes and switches,
//! `export.rs` gives changes out.
//!
//! What is deliberately absent: what a value means. The client knows, or asks for f32.

mod admin;
mod export;
mod lookup;

use crate::api::Life;
use crate::engine::Engine;
use crate::table::LookupError;
use quoin_core::Reply;
use quoin_core::table::{Operation, Refusal};
use quoin_proto::quoin::table::v1 as pb;
use quoin_proto::quoin::table::v1::table_server;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// The service.
pub(crate) struct Table {
    engine: Engine,
    life: Life,
}

impl Table {
    pub(crate) fn new(engine: Engine, life: Life) -> Self {
        Self { engine, life }
    }
}

#[tonic::async_trait]
impl table_server::Table for Table {
    async fn lookup(
        &self,
        request: Request<pb::LookupRequest>,
    ) -> Result<Response<pb::LookupResponse>, Status> {
        Ok(Response::new(lookup::lookup(&self.engine, &request.into_inner()).await?))
    }

    type LookupStreamStream = ReceiverStream<Result<pb::LookupResponse, Status>>;

    async fn lookup_stream(
        &self,
        request: Request<Streaming<pb::LookupRequest>>,
    ) -> Result<Response<Self::LookupStreamStream>, Status> {
        Ok(Response::new(lookup::stream(self.engine.clone(), self.life.clone(), request.into_inner())))
    }

    async fn publish(
        &self,
        request: Request<pb::PublishRequest>,
    ) -> Result<Response<pb::VersionResponse>, Status> {
        Ok(Response::new(admin::publish(&self.engine, request.into_inner()).await?))
    }

    async fn activate(
        &self,
        request: Request<pb::ActivateRequest>,
    ) -> Result<Response<pb::VersionResponse>, Status> {
        Ok(Response::new(admin::activate(&self.engine, request.into_inner()).await?))
    }

    async fn rollback(
        &self,
        request: Request<pb::RollbackRequest>,
    ) -> Result<Response<pb::VersionResponse>, Status> {
        Ok(Response::new(admin::rollback(&self.engine, request.into_inner()).await?))
    }

    async fn drop(&self, request: Request<pb::DropRequest>) -> Result<Response<pb::VersionResponse>, Status> {
        Ok(Response::new(admin::forget(&self.engine, request.into_inner()).await?))
    }

    async fn list(&self, request: Request<pb::ListRequest>) -> Result<Response<pb::ListResponse>, Status> {
        Ok(Response::new(admin::list(&self.engine, &request.into_inner())?))
    }

    async fn write(&self, request: Request<pb::WriteRequest>) -> Result<Response<pb::WriteResponse>, Status> {
        Ok(Response::new(admin::write(&self.engine, request.into_inner()).await?))
    }

    type ChangesStream = ReceiverStream<Result<pb::ChangesResponse, Status>>;

    async fn changes(
        &self,
        request: Request<pb::ChangesRequest>,
    ) -> Result<Response<Self::ChangesStream>, Status> {
        Ok(Response::new(export::changes(&self.engine, request.into_inner()).await?))
    }
}

/// Has a table operation done; says the version it was about and the revision.
///
/// # Errors
/// Refusals, and what the engine could not do.
pub(crate) async fn operation(engine: &Engine, operation: Operation) -> Result<(u64, u64), Status> {
    let command = operation.into_command();
    crate::api::commands::check_size(engine, &command)?;
    match engine.propose(command).await? {
        Reply::Table(reply) => {
            reply.result.map(|version| (version, reply.revision.0)).map_err(|refusal| refused(&refusal))
        }
        other => Err(crate::api::error::unexpected_reply("table", &other)),
    }
}

fn refused(refusal: &Refusal) -> Status {
    let text = format!("quoin: {refusal}");
    match refusal {
        Refusal::NoTable(_) | Refusal::NoVersion { .. } => Status::not_found(text),
        Refusal::Width { .. } | Refusal::Malformed => Status::invalid_argument(text),
        _ => Status::failed_precondition(text),
    }
}

/// The status of a lookup without an answer.
pub(crate) fn lookup_refused(error: &LookupError) -> Status {
    let text = format!("quoin: {error}");
    match error {
        LookupError::NoTable(_) => Status::not_found(text),
        LookupError::NotActive(_) => Status::failed_precondition(text),
        LookupError::NotLoaded { .. } => Status::unavailable(text),
        LookupError::TooLarge(_) => Status::resource_exhausted(text),
    }
}
