//! Many operations in flight on one stream. What has arrived together runs together, with reads apart from
//! writes, so that a read never waits for a disk. Answers go out as they come.
//!
//! **Invariant: Bounded.** [`OPERATIONS_MAX`] operations are in flight, those whose answers wait for a slow
//! client included; then the stream is not read, and HTTP/2's flow control holds the client back.

use super::run::{Parts, Reads, Writes};
use crate::error::Error;
use crate::grpc::inbound;
use crate::grpc::outbound::{self, AnswerStream, Answers};
use crate::life::Life;
use prost::Message;
use quoin_engine::Engine;
use quoin_proto::quoin::kv::v1 as pb;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Streaming;

/// Maximum operations in flight.
const OPERATIONS_MAX: usize = 16_384;
/// Maximum operations started together.
const GROUP_MAX: usize = 4096;
/// Maximum requests taken off the stream at once.
const REQUESTS_AT_ONCE_MAX: usize = 1024;
/// Maximum answers that wait for a slow client.
const RESPONSES_MAX: usize = 64;
/// An answer is closed at this size in bytes, which is below the default maximum of gRPC clients.
const RESPONSE_BYTES: usize = 1 << 20;

type Responses = Answers<pb::StreamResponse>;

/// Serves a stream on a task of its own; returns its answers.
pub(super) fn serve(
    engine: &Engine,
    life: &Life,
    mut requests: Streaming<pb::StreamRequest>,
) -> AnswerStream<pb::StreamResponse> {
    let engine = engine.clone();
    outbound::spawn(life, RESPONSES_MAX, |responses| async move {
        let stream = Stream { engine, responses, room: Arc::new(Semaphore::new(OPERATIONS_MAX)) };
        stream.run(&mut requests).await
    })
}

struct Stream {
    engine: Engine,
    responses: Responses,
    room: Arc<Semaphore>,
}

impl Stream {
    /// Starts operations as they arrive, until the client ends the stream.
    async fn run(&self, requests: &mut Streaming<pb::StreamRequest>) -> Result<(), Error> {
        loop {
            let arrived = inbound::next_many(requests, REQUESTS_AT_ONCE_MAX).await?;
            if arrived.is_empty() {
                return Ok(());
            }
            let mut operations = arrived
                .into_iter()
                .flat_map(|request| request.operations)
                .map(|tagged| (tagged.id, tagged.operation.unwrap_or_default()));
            loop {
                let group: Vec<_> = operations.by_ref().take(GROUP_MAX).collect();
                if group.is_empty() {
                    break;
                }
                self.start(group).await;
            }
        }
    }

    async fn start(&self, group: Vec<(u64, pb::Operation)>) {
        let Parts { writes, reads, done } = Parts::of(&self.engine, group);
        send(&self.responses, done).await;
        if writes.len() > 0 {
            self.start_writes(writes).await;
        }
        if reads.len() > 0 {
            self.start_reads(reads).await;
        }
    }

    async fn start_writes(&self, writes: Writes<u64>) {
        let room = self.room_for(writes.len()).await;
        let (engine, responses) = (self.engine.clone(), self.responses.clone());
        tokio::spawn(async move {
            send(&responses, writes.run(&engine).await).await;
            drop(room);
        });
    }

    async fn start_reads(&self, reads: Reads<u64>) {
        let room = self.room_for(reads.len()).await;
        let (engine, responses) = (self.engine.clone(), self.responses.clone());
        tokio::spawn(async move {
            send(&responses, reads.run(&engine).await).await;
            drop(room);
        });
    }

    async fn room_for(&self, operations: usize) -> OwnedSemaphorePermit {
        let operations = u32::try_from(operations).expect("a group is bounded");
        let room = Arc::clone(&self.room);
        room.acquire_many_owned(operations).await.expect("nobody closes the semaphore")
    }
}

/// Sends results in as few answers as their size allows. Sending fails if the client has left, which ends the
/// stream anyway.
async fn send(responses: &Responses, results: Vec<(u64, pb::Result)>) {
    let mut response = pb::StreamResponse::default();
    let mut bytes = 0;
    for (id, result) in results {
        bytes += result.encoded_len();
        response.results.push(pb::TaggedResult { id, result: Some(result) });
        if bytes >= RESPONSE_BYTES {
            bytes = 0;
            let _ = responses.send(Ok(std::mem::take(&mut response))).await;
        }
    }
    if !response.results.is_empty() {
        let _ = responses.send(Ok(response)).await;
    }
}
