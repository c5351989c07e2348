//! Taking requests off a stream: as many as have arrived, so that they go into the log together.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

/// Waits for a message and takes it with all others that are there already, `max` at most. Empty at the stream's end.
///
/// # Errors
/// What the stream ended with. Messages before it are lost: nobody is left to be answered.
pub(crate) async fn next_many<T>(stream: &mut Streaming<T>, max: usize) -> Result<Vec<T>, Status> {
    let mut messages = Vec::new();
    poll_fn(|context| {
        while messages.len() < max {
            match Pin::new(&mut *stream).poll_next(context) {
                Poll::Ready(Some(Ok(message))) => messages.push(message),
                Poll::Ready(Some(Err(status))) => return Poll::Ready(Err(status)),
                // What came before the end is answered; the next call finds the end again.
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending if messages.is_empty() => return Poll::Pending,
                Poll::Pending => return Poll::Ready(Ok(())),
            }
        }
        Poll::Ready(Ok(()))
    })
    .await?;
    Ok(messages)
}
