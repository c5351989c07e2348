//! Transfers: a batch, a stream of batches, and a look at one.
//!
//! What is recorded of a stream is a whole prefix of its batches: see [`ledger::Fence`].
//!
//! **Invariant: Bounded.** [`BATCHES_MAX`] batches of a stream are in flight; then the stream is not read.

use super::translate;
use crate::auth;
use crate::consistency;
use crate::error::Error;
use crate::grpc::outbound::{self, AnswerStream, Answers};
use crate::ledger::Book;
use crate::life::Life;
use quoin_core::ledger::{self, Fence};
use quoin_proto::quoin::ledger::v1 as pb;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::{Stream, StreamExt};
use tonic::{Status, Streaming};
use uuid::Uuid;

/// Maximum batches of a stream in flight.
const BATCHES_MAX: usize = 64;

pub(super) async fn create(
    book: &Book,
    request: &pb::CreateTransfersRequest,
) -> Result<pb::CreateTransfersResponse, Error> {
    let transfers = translate::transfers(request)?;
    if request.dry_run {
        let applied = book.dry_run(transfers, None).await?;
        let applied = applied.ok_or_else(|| Error::fault("a batch without a key had a conflict of keys"))?;
        return Ok(translate::dry_run_response(request.tag, applied));
    }
    let applied = book.transfers(transfers).await?;
    Ok(translate::transfers_response(request.tag, applied))
}

pub(super) async fn get(
    book: &Book,
    request: pb::GetTransferRequest,
) -> Result<pb::GetTransferResponse, Error> {
    let id = translate::id(&request.id, "id")?;
    let view = book.view(consistency::of(request.consistency.as_ref())).await?;
    let found = ledger::transfer(view.view(), id)?;
    let found = found.ok_or_else(|| Error::not_found("the transfer does not exist"))?;
    Ok(translate::found(found, view.progress().revision))
}

pub(super) fn stream(
    book: Book,
    life: &Life,
    requests: Streaming<pb::CreateTransfersRequest>,
) -> AnswerStream<pb::CreateTransfersResponse> {
    outbound::spawn(life, 1, |answers| pipeline(book, requests, answers))
}

/// Proposes the batches of a stream in their order, with up to [`BATCHES_MAX`] in flight, and answers in that
/// order. Ends at the first batch without an outcome. No batch after one that was not recorded is: the client
/// sends them again with it.
async fn pipeline(
    book: Book,
    mut requests: impl Stream<Item = Result<pb::CreateTransfersRequest, Status>> + Unpin,
    answers: Answers<pb::CreateTransfersResponse>,
) -> Result<(), Error> {
    let (started, mut in_flight) = mpsc::channel(BATCHES_MAX);
    let stream = Uuid::now_v7().as_u128();
    // The newest batch that is known to be recorded, as all before it.
    let recorded = &AtomicU64::new(0);
    let start = async {
        let mut before = 0;
        while let Some(request) = requests.try_next().await? {
            if request.dry_run {
                return Err(Error::invalid("dry_run: a stream records what it is sent; use CreateTransfers"));
            }
            let batch = translate::transfers(&request)?;
            let after = if recorded.load(Relaxed) == before { 0 } else { before };
            let fence = Fence { stream, number: before + 1, after };
            before = fence.number;
            let work = begin(book.clone().transfers_in_order(batch, fence)).await;
            if started.send((request.tag, work)).await.is_err() {
                break;
            }
        }
        drop(started);
        Ok(())
    };
    let answer = async {
        while let Some((tag, work)) = in_flight.recv().await {
            let applied = work.await.map_err(Error::fault)??;
            recorded.fetch_add(1, Relaxed);
            if answers.send(Ok(translate::transfers_response(tag, applied))).await.is_err() {
                break;
            }
        }
        Ok::<(), Error>(())
    };
    tokio::try_join!(start, answer).map(|_: ((), ())| ())
}

/// Polls `work` once, so that what begins first is first in the log, then runs it as a task.
async fn begin<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let mut work = Box::pin(work);
    match poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
        Poll::Ready(done) => tokio::spawn(std::future::ready(done)),
        Poll::Pending => tokio::spawn(auth::carried(work)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{settings, start};
    use bytes::Bytes;

    fn batch(tag: u64, ids: std::ops::Range<u128>) -> pb::CreateTransfersRequest {
        let transfer = |id: u128| pb::Transfer {
            id: Bytes::copy_from_slice(&id.to_be_bytes()),
            debit_account: Bytes::copy_from_slice(&1_u128.to_be_bytes()),
            credit_account: Bytes::copy_from_slice(&2_u128.to_be_bytes()),
            amount: 1,
            ..pb::Transfer::default()
        };
        let transfers = ids.map(transfer).collect();
        pb::CreateTransfersRequest { tag, transfers, ..pb::CreateTransfersRequest::default() }
    }

    /// A batch was lost with its leader, or refused by a busy node, and those after it were recorded, with refusals
    /// that stay for ever.
    #[test]
    fn no_batch_of_a_stream_is_recorded_after_one_that_was_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut small = settings();
        small.limits.request_bytes_max = 1024;
        let (_folder, running) = start(&runtime, small);
        let engine = running.engine();
        runtime.block_on(async {
            let book = Book::start(engine.clone());
            // The third is larger than a command may be, which shows when it is proposed.
            let requests = [
                batch(1, 10..11),
                batch(2, 20..21),
                batch(3, 1_000..6_000),
                batch(4, 40..41),
                batch(5, 50..51),
            ];
            let (answers, mut answered) = mpsc::channel(8);
            let requests = tokio_stream::iter(requests.map(Ok));
            let error = pipeline(book.clone(), requests, answers).await.unwrap_err();
            assert!(error.to_string().contains("too large"), "{error}");
            for tag in [1, 2] {
                assert_eq!(answered.recv().await.unwrap().unwrap().tag, tag);
            }
            assert!(answered.recv().await.is_none());
            // Whatever the stream has left behind is in the log before this.
            let (answers, mut answered) = mpsc::channel(8);
            let requests = tokio_stream::iter([Ok(batch(6, 60..61))]);
            pipeline(book.clone(), requests, answers).await.unwrap();
            assert_eq!(answered.recv().await.unwrap().unwrap().tag, 6);
            let view = book.view(quoin_engine::Consistency::Linearizable).await.unwrap();
            let recorded = |id: u128| ledger::transfer(view.view(), id).unwrap().is_some();
            assert_eq!([10, 20, 1_000, 40, 50, 60].map(recorded), [true, true, false, false, false, true]);
        });
        running.stop();
    }
}
