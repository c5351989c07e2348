//! Many operations in flight on one stream. What has arrived together runs together, with reads apart from
//! writes, so that a read never waits for a disk. Answers go out as they come.
//!
//! **Invariant: Bounded.** [`OPERATIONS_MAX`] operations are in flight, those whose answers wait for a slow
//! client included; then the stream is not read, and HTTP/2's flow control holds the client back. Of what reads
//! found, at most [`READERS_MAX`] and [`RESPONSES_MAX`] answers of about [`RESPONSE_BYTES`] are in memory.

use super::run::{Parts, Reads, Writes};
use crate::auth;
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
/// Maximum groups of reads that have begun and whose answers are not all queued.
const READERS_MAX: usize = 16;
/// Maximum answers that wait for a slow client.
const RESPONSES_MAX: usize = 16;
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
        Stream::new(engine, responses).run(&mut requests).await
    })
}

struct Stream {
    engine: Engine,
    responses: Responses,
    room: Arc<Semaphore>,
    readers: Arc<Semaphore>,
}

impl Stream {
    fn new(engine: Engine, responses: Responses) -> Self {
        let room = Arc::new(Semaphore::new(OPERATIONS_MAX));
        Self { engine, responses, room, readers: Arc::new(Semaphore::new(READERS_MAX)) }
    }

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
                // A stream outlives changes of users and roles.
                auth::renewed(&self.engine, self.start(group)).await?;
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
        tokio::spawn(auth::carried(async move {
            send(&responses, writes.run(&engine).await).await;
            drop(room);
        }));
    }

    async fn start_reads(&self, mut reads: Reads<u64>) {
        let room = self.room_for(reads.len()).await;
        let reader = acquire(&self.readers, 1).await;
        let (engine, responses) = (self.engine.clone(), self.responses.clone());
        tokio::spawn(auth::carried(async move {
            while !responses.is_closed() {
                let done = reads.run_some(&engine, RESPONSE_BYTES).await;
                if done.is_empty() {
                    break;
                }
                send(&responses, done).await;
            }
            drop((room, reader));
        }));
    }

    async fn room_for(&self, operations: usize) -> OwnedSemaphorePermit {
        acquire(&self.room, u32::try_from(operations).expect("a group is bounded")).await
    }
}

async fn acquire(semaphore: &Arc<Semaphore>, permits: u32) -> OwnedSemaphorePermit {
    Arc::clone(semaphore).acquire_many_owned(permits).await.expect("nobody closes the semaphore")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::alone;
    use quoin_core::kv;
    use quoin_proto::quoin::v1::{Consistency, Local};
    use tokio::sync::mpsc;

    const KEYS: u64 = 100;

    fn get(number: u64) -> (u64, pb::Operation) {
        let consistency = Some(Consistency::from(Local::default()));
        let get = pb::GetRequest { key: number.to_string().into(), consistency, ..Default::default() };
        (number, pb::Operation { operation: Some(pb::operation::Operation::Get(get)) })
    }

    fn reads(engine: &Engine) -> u64 {
        engine.metrics().reads_local.get()
    }

    /// Every read in flight kept its record until the client took it: 16,384 of a MiB each.
    #[test]
    fn a_client_that_takes_no_answers_has_only_a_few_records_read() {
        alone(|engine| async move {
            let value = bytes::Bytes::from(vec![7; RESPONSE_BYTES / 2]);
            for number in 0..KEYS {
                let put =
                    kv::Put { key: number.to_string().into(), value: value.clone(), ..Default::default() };
                engine.propose(kv::Operation::Put(put).into_command()).await.unwrap();
            }
            let (responses, mut answered) = mpsc::channel(RESPONSES_MAX);
            let stream = Stream::new(engine.clone(), responses);
            let before = reads(&engine);
            let asking = tokio::spawn(async move {
                // One that reads all, and one for each key.
                stream.start((0..KEYS).map(get).collect()).await;
                for number in 0..KEYS {
                    stream.start(vec![get(number)]).await;
                }
            });
            while answered.len() < RESPONSES_MAX {
                tokio::task::yield_now().await;
            }
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            let begun = reads(&engine) - before;
            assert!(begun <= (RESPONSES_MAX + READERS_MAX) as u64, "{begun} pieces were read");
            let mut all = Vec::new();
            while let Some(answer) = answered.recv().await {
                let results = answer.unwrap().results;
                assert!(results.len() <= 2, "{} records in an answer", results.len());
                all.extend(results.into_iter().map(|result| result.id));
            }
            all.sort_unstable();
            assert!(all.iter().copied().eq((0..2 * KEYS).map(|place| place / 2)), "{all:?}");
            asking.await.unwrap();
            assert_eq!(reads(&engine) - before, KEYS / 2 + KEYS, "pieces of two records, and single ones");
        });
    }
}
