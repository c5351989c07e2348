//! `quoin.table.v1`: lookups of many keys (`lookup.rs`), versions (`admin.rs`), changes over them
//! (`export.rs`), and the way of both through the engine (`operation.rs`).
//!
//! Deliberately absent: what a value means. The client knows, or asks for f32.

mod admin;
mod export;
mod lookup;
mod operation;

pub(crate) use operation::{check_changes, operation};

use super::outbound::AnswerStream;
use crate::auth::OfTable;
use crate::life::Life;
use quoin_engine::Engine;
use quoin_library::Library;
use quoin_proto::quoin::table::v1 as pb;
use quoin_proto::quoin::table::v1::table_server;
use std::sync::Arc;
use tonic::{Request, Response, Status, Streaming};

/// The service.
pub(crate) struct Table {
    engine: Engine,
    library: Arc<Library>,
    life: Life,
}

impl Table {
    pub(crate) fn new(engine: Engine, library: Arc<Library>, life: Life) -> Self {
        Self { engine, library, life }
    }
}

#[tonic::async_trait]
impl table_server::Table for Table {
    async fn lookup(
        &self,
        request: Request<pb::LookupRequest>,
    ) -> Result<Response<pb::LookupResponse>, Status> {
        Ok(Response::new(lookup::lookup(&self.engine, &self.library, &request.into_inner()).await?))
    }

    type LookupStreamStream = lookup::Lookups;

    async fn lookup_stream(
        &self,
        request: Request<Streaming<pb::LookupRequest>>,
    ) -> Result<Response<Self::LookupStreamStream>, Status> {
        Ok(Response::new(lookup::stream(
            self.engine.clone(),
            Arc::clone(&self.library),
            &self.life,
            request.into_inner(),
        )))
    }

    async fn publish(
        &self,
        request: Request<pb::PublishRequest>,
    ) -> Result<Response<pb::VersionResponse>, Status> {
        Ok(Response::new(admin::publish(&self.engine, &self.library, request.into_inner()).await?))
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
        Ok(Response::new(admin::list(&self.engine, &self.library, &request.into_inner()).await?))
    }

    async fn write(&self, request: Request<pb::WriteRequest>) -> Result<Response<pb::WriteResponse>, Status> {
        Ok(Response::new(admin::write(&self.engine, &self.library, request.into_inner()).await?))
    }

    type ChangesStream = AnswerStream<pb::ChangesResponse>;

    async fn changes(
        &self,
        request: Request<pb::ChangesRequest>,
    ) -> Result<Response<Self::ChangesStream>, Status> {
        let request = request.into_inner();
        let table = OfTable(request.table.as_str().into());
        let mut response = Response::new(export::changes(&self.engine, &self.life, request).await?);
        response.extensions_mut().insert(table);
        Ok(response)
    }
}
