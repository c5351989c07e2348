//! etcd's `KV`: keys and values.

use super::header::{header, header_at};
use super::{translate, validate};
use crate::answers::{Held, Reader};
use crate::audit::about;
use crate::auth;
use crate::commands::{check_key_length, check_space_for, kv_operation, page, range, read, system_operation};
use crate::consistency;
use crate::error::{Error, Known};
use crate::grpc::outbound::{self, AnswerStream, Answers};
use crate::life::Life;
use quoin_core::kv::{Operation, Refusal, Response as Done};
use quoin_core::{kv, system};
use quoin_engine::{Consistency, Engine, ReadView};
use quoin_proto::etcdserverpb::kv_server;
use quoin_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
};
use tonic::{Request, Response, Status};

/// The service.
pub(crate) struct Kv {
    engine: Engine,
    reader: Reader,
    life: Life,
}

impl Kv {
    pub(crate) fn new(engine: Engine, reader: Reader, life: Life) -> Self {
        Self { engine, reader, life }
    }

    async fn view_for(&self, request: &RangeRequest) -> Result<ReadView, Error> {
        validate::range(request)?;
        auth::check_reads(&self.engine, &request.key, &request.range_end)?;
        read(&self.engine, consistency::of_flag(request.serializable)).await
    }

    /// As in etcd, a transaction that only reads takes no place in the log.
    async fn read_txn(&self, txn: kv::Txn) -> Result<Response<TxnResponse>, Status> {
        auth::check_txn(&self.engine, &txn)?;
        let view = read(&self.engine, Consistency::Linearizable).await?;
        let (header, revision) = (header_at(&self.engine, view.progress()), view.progress().revision);
        match self.reader.txn(view, txn).await? {
            (Done::Txn { succeeded, responses }, held) => {
                Ok(holding(held, translate::txn_response(header, revision, succeeded, responses)?))
            }
            (other, _) => Err(Error::unexpected_reply("kv", &other).into()),
        }
    }
}

/// A response with what it holds until it has gone.
fn holding<T>(held: Option<Held>, response: T) -> Response<T> {
    let mut response = Response::new(response);
    if let Some(held) = held {
        response.extensions_mut().insert(held);
    }
    response
}

#[tonic::async_trait]
impl kv_server::Kv for Kv {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let request = request.into_inner();
        let view = self.view_for(&request).await?;
        let header = header_at(&self.engine, view.progress());
        let (reply, held) = self.reader.range(view, translate::range(request)).await?;
        Ok(holding(held, translate::range_response(header, reply)))
    }

    type RangeStreamStream = AnswerStream<RangeStreamResponse>;

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let request = request.into_inner();
        let view = self.view_for(&request).await?;
        let (engine, reader) = (self.engine.clone(), self.reader.clone());
        Ok(Response::new(outbound::spawn(&self.life, 1, |answers| {
            send_range(engine, reader, view, translate::range(request), answers)
        })))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let request = request.into_inner();
        validate::put(&request)?;
        check_key_length(request.key.len(), self.engine.limits())?;
        let operation = Operation::Put(translate::put(request));
        check_space_for(&self.engine, &operation)?;
        match kv_operation(&self.engine, operation).await? {
            (revision, Done::Put(previous)) => Ok(Response::new(PutResponse {
                header: Some(header(&self.engine, revision)),
                prev_kv: previous.map(translate::key_value),
            })),
            (_, other) => Err(Error::unexpected_reply("kv", &other).into()),
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
            (_, other) => Err(Error::unexpected_reply("kv", &other).into()),
        }
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let request = request.into_inner();
        validate::txn(&request, self.engine.limits())?;
        let txn = translate::txn(request)?;
        kv::check_txn(&txn).map_err(|refusal| match refusal {
            // All else that is malformed was refused before: only the depth is left.
            Refusal::Malformed => Known::TooManyOperations.into(),
            refusal => Error::from(refusal),
        })?;
        if kv::only_reads(&txn) {
            return self.read_txn(txn).await;
        }
        let operation = Operation::Txn(txn);
        check_space_for(&self.engine, &operation)?;
        match kv_operation(&self.engine, operation).await? {
            (revision, Done::Txn { succeeded, responses }) => {
                let header = header(&self.engine, revision);
                Ok(Response::new(translate::txn_response(header, revision, succeeded, responses)?))
            }
            (_, other) => Err(Error::unexpected_reply("kv", &other).into()),
        }
    }

    /// `physical` has no effect: compacted revisions cannot be read once this is answered, and the store
    /// frees their space as it merges its tables; under the NOSPACE alarm at once.
    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        let revision = request.into_inner().revision;
        about("revision", revision);
        let revision = u64::try_from(revision).map_err(|_| Error::Etcd(Known::Compacted))?;
        system_operation(&self.engine, system::Operation::Compact(revision)).await?;
        let header = header_at(&self.engine, self.engine.latest().progress());
        Ok(Response::new(CompactionResponse { header: Some(header) }))
    }
}

/// Maximum keys in a message of a range stream.
const KEYS_PER_MESSAGE: usize = 1000;
/// Bytes of keys and values in a message; the key that exceeds this is its last.
const MESSAGE_BYTES: usize = 1 << 20;

/// Sends a range in pieces. In key order and without bounds on revisions it is also read in pieces, so that
/// memory is bounded; otherwise the whole range is sorted or filtered first, within the bound on one answer.
async fn send_range(
    engine: Engine,
    reader: Reader,
    view: ReadView,
    mut request: kv::Range,
    answers: Answers<RangeStreamResponse>,
) -> Result<(), Error> {
    let header = header_at(&engine, view.progress());
    let mut last = RangeResponse { header: Some(header), ..RangeResponse::default() };
    if !in_pieces(&request) {
        // What it holds, it holds until all is sent.
        let (reply, _held) = reader.range(view, request).await?;
        (last.more, last.count) = (reply.more, reply.count);
        let mut kvs = translate::key_values(reply.kvs).into_iter();
        loop {
            let piece: Vec<_> = kvs.by_ref().take(KEYS_PER_MESSAGE).collect();
            if piece.is_empty() {
                break;
            }
            send(&answers, RangeResponse { kvs: piece, ..RangeResponse::default() }).await?;
        }
        return send(&answers, last).await;
    }
    let count = kv::Range { count_only: true, ..request.clone() };
    last.count = range(&engine, view.clone(), count).await?.count;
    // All pieces are of this sequence, which is kept for as long as the client takes.
    let held = view.store().pin(view.progress().sequence).map_err(|_| Error::Etcd(Known::Compacted))?;
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
        send(&answers, piece).await?;
    }
    drop(held);
    send(&answers, last).await
}

/// True if the answer is in key order and leaves out no key.
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

async fn send(answers: &Answers<RangeStreamResponse>, response: RangeResponse) -> Result<(), Error> {
    let message = RangeStreamResponse { range_response: Some(response) };
    outbound::send(answers, message).await
}
