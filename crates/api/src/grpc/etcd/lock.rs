//! etcd's `Lock`: mutual exclusion by name, held by leases.

use super::header::header;
use super::queue;
use crate::commands::kv_operation;
use crate::error::Known;
use bytes::Bytes;
use quoin_core::kv::{Delete, Operation};
use quoin_engine::Engine;
use quoin_proto::v3lockpb::lock_server;
use quoin_proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use tonic::{Request, Response, Status};

/// The service.
pub(crate) struct Lock {
    engine: Engine,
}

impl Lock {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine }
    }
}

#[tonic::async_trait]
impl lock_server::Lock for Lock {
    async fn lock(&self, request: Request<LockRequest>) -> Result<Response<LockResponse>, Status> {
        let request = request.into_inner();
        let place = queue::join(&self.engine, &request.name, request.lease, Bytes::new()).await?;
        let header = Some(queue::wait_for_turn(&self.engine, &place).await?);
        Ok(Response::new(LockResponse { header, key: place.key }))
    }

    async fn unlock(&self, request: Request<UnlockRequest>) -> Result<Response<UnlockResponse>, Status> {
        let key = request.into_inner().key;
        if key.is_empty() {
            return Err(Known::EmptyKey.into());
        }
        let delete = Operation::Delete(Delete { key, ..Delete::default() });
        let (revision, _) = kv_operation(&self.engine, delete).await?;
        Ok(Response::new(UnlockResponse { header: Some(header(&self.engine, revision)) }))
    }
}
