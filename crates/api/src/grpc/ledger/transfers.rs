//! Transfers: a batch, a stream of batches, and a look at one.
//!
//! **Invariant: Bounded.** [`BATCHES_MAX`] batches of a stream are in flight; then the stream is not read.

use super::translate;
use crate::consistency;
use crate::error::Error;
use crate::grpc::outbound::{self, AnswerStream, Answers};
use crate::ledger::Book;
use crate::life::Life;
use quoin_core::ledger;
use quoin_proto::quoin::ledger::v1 as pb;
use std::future::poll_fn;
use std::task::Poll;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::Streaming;

/// Maximum batches of a stream in flight.
const BATCHES_MAX: usize = 64;

pub(super) async fn create(
    book: &Book,
    request: &pb::CreateTransfersRequest,
) -> Result<pb::CreateTransfersResponse, Error> {
    let applied = book.transfers(translate::transfers(request)?).await?;
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
/// order. Ends at the first batch without an outcome: those after it may have been applied, and the client
/// sends them again with it.
async fn pipeline(
    book: Book,
    mut requests: Streaming<pb::CreateTransfersRequest>,
    answers: Answers<pb::CreateTransfersResponse>,
) -> Result<(), Error> {
    let (started, mut in_flight) = mpsc::channel(BATCHES_MAX);
    let start = async {
        while let Some(request) = requests.message().await? {
            let batch = translate::transfers(&request)?;
            let work = begin(book.clone().transfers_at_once(batch)).await;
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
        Poll::Pending => tokio::spawn(work),
    }
}
