//! etcd's `KV`: keys and values.

use super::{header, header_at, translate, validate};
use crate::api::commands::{check_space, kv_operation, page, range, system_operation};
use crate::api::error;
use crate::engine::{Consistency, Engine, ReadView};
use quoin_core::kv::{Operation, Refusal, Response as Done, Txn};
use quoin_core::{kv, system};
use quoin_proto::etcdserverpb::kv_server;
use quoin_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// The service.
pub(crate) struct Kv {
    engine: Engine,
}

impl Kv {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine }
    }

    async fn view_for(&self, request: &RangeRequest) -> Result<ReadView, Status> {
        validate::range(request)?;
        let consistency = if request.serializable { Consistency::ANY } else { Consistency::Linearizable };
        Ok(self.engine.read(consistency).await?)
    }
}

#[tonic::async_trait]
impl kv_server::Kv for Kv {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let request = request.into_inner();
        let view = self.view_for(&request).await?;
        let header = header_at(&self.engine, view.progress());
        let reply = range(&self.engine, view, translate::range(request)).await?;
        Ok(Response::new(translate::range_response(header, reply)))
    }

    type RangeStreamStream = ReceiverStream<Result<RangeStreamResponse, Status>>;

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let request = request.into_inner();
        let view = self.view_for(&request).await?;
        let (sender, receiver) = mpsc::channel(1);
        let engine = self.engine.clone();
        tokio::spawn(async move {
            if let Err(status) = send_range(&engine, view, translate::range(request), &sender).await {
                // Nobody is left to be told where this fails.
                let _ = sender.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let request = request.into_inner();
        validate::put(&request)?;
        validate::key_length(request.key.len(), self.engine.limits())?;
        check_space(&self.engine)?;
        let operation = Operation::Put(translate::put(request));
        match kv_operation(&self.engine, operation).await? {
            (revision, Done::Put(previous)) => Ok(Response::new(PutResponse {
                header: Some(header(&self.engine, revision)),
                prev_kv: previous.map(translate::key_value),
            })),
            (_, other) => Err(translate::unexpected(&other)),
        }
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let request = request.into_inner();
        validate::delete(&request)?;
        let operation = Operation::Delete(translate::delete(request));
        match kv_operation(&self.engine, operation).await? {
            (revision, Done::Delete { deleted, prev_kvs }) => Ok(Response::new(DeleteRangeResponse {
                header: Some(header(&self.engine, revision)),
                deleted,
                prev_kvs: translate::key_values(prev_kvs),
            })),
            (_, other) => Err(translate::unexpected(&other)),
        }
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let request = request.into_inner();
        validate::txn(&request, self.engine.limits())?;
        let txn = translate::txn(request)?;
        kv::check_txn(&txn).map_err(|refusal| match refusal {
            // What else is malformed was found before: only the depth is left.
            Refusal::Malformed => error::TOO_MANY_OPERATIONS.into(),
            refusal => error::refused(refusal),
        })?;
        if writes_values(&txn) {
            check_space(&self.engine)?;
        }
        match kv_operation(&self.engine, Operation::Txn(txn)).await? {
            (revision, Done::Txn { succeeded, responses }) => {
                let header = header(&self.engine, revision);
                Ok(Response::new(translate::txn_response(header, revision, succeeded, responses)?))
            }
            (_, other) => Err(translate::unexpected(&other)),
        }
    }

    /// `physical` changes nothing: what is compacted cannot be read once this is answered, and its space is given
    /// back by the store's own merging.
    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        let revision = request.into_inner().revision;
        let revision = u64::try_from(revision).map_err(|_| Status::from(error::COMPACTED))?;
        system_operation(&self.engine, system::Operation::Compact(revision)).await?;
        let header = header_at(&self.engine, self.engine.latest().progress());
        Ok(Response::new(CompactionResponse { header: Some(header) }))
    }
}

/// True where a transaction could make the store grow.
fn writes_values(txn: &Txn) -> bool {
    use kv::txn_operation::Step;
    txn.success.iter().chain(&txn.failure).any(|operation| match &operation.step {
        Some(Step::Put(_)) => true,
        Some(Step::Txn(txn)) => writes_values(txn),
        _ => false,
    })
}

/// Keys in one message of a range stream at most.
const KEYS_PER_MESSAGE: usize = 1000;
/// Bytes of keys and values in one message, about: the key that exceeds it is the last.
const MESSAGE_BYTES: usize = 1 << 20;

/// Sends a range in pieces. In key order and without bounds on revisions it is also read in pieces, so that memory
/// stays bounded; otherwise the whole must be sorted or sifted first, within the bound on one answer.
async fn send_range(
    engine: &Engine,
    view: ReadView,
    mut request: kv::Range,
    sender: &mpsc::Sender<Result<RangeStreamResponse, Status>>,
) -> Result<(), Status> {
    let header = header_at(engine, view.progress());
    let mut last = RangeResponse { header: Some(header), ..RangeResponse::default() };
    if !in_pieces(&request) {
        let reply = range(engine, view, request).await?;
        (last.more, last.count) = (reply.more, reply.count);
        let mut kvs = translate::key_values(reply.kvs).into_iter();
        loop {
            let piece: Vec<_> = kvs.by_ref().take(KEYS_PER_MESSAGE).collect();
            if piece.is_empty() {
                break;
            }
            send(sender, RangeResponse { kvs: piece, ..RangeResponse::default() }).await?;
        }
        return send(sender, last).await;
    }
    let count = kv::Range { count_only: true, ..request.clone() };
    last.count = range(engine, view.clone(), count).await?.count;
    // The pieces are read one after the other: what they show must stay as long as the client takes.
    let held = view.store().pin(view.progress().sequence).map_err(|_| Status::from(error::COMPACTED))?;
    let mut left = if request.limit > 0 { request.limit } else { i64::MAX };
    last.more = true;
    while last.more && left > 0 {
        request.limit = left.min(KEYS_PER_MESSAGE as i64);
        let reply = page(view.clone(), request.clone(), MESSAGE_BYTES).await?;
        last.more = reply.more;
        left -= reply.count;
        let Some(end) = reply.kvs.last().map(|kv| kv.key.clone()) else { break };
        request.key = [&end[..], b"\0"].concat().into();
        let piece = RangeResponse { kvs: translate::key_values(reply.kvs), ..RangeResponse::default() };
        send(sender, piece).await?;
    }
    drop(held);
    send(sender, last).await
}

/// True where the answer comes in key order without leaving keys out.
fn in_pieces(request: &kv::Range) -> bool {
    let bounds = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    let key_order =
        request.sort_order() != kv::SortOrder::Descend && request.sort_target() == kv::SortTarget::Key;
    key_order && !request.range_end.is_empty() && !request.count_only && bounds == [0; 4]
}

async fn send(
    sender: &mpsc::Sender<Result<RangeStreamResponse, Status>>,
    response: RangeResponse,
) -> Result<(), Status> {
    let message = RangeStreamResponse { range_response: Some(response) };
    sender.send(Ok(message)).await.map_err(|_| Status::cancelled("the client has left"))
}
