//! Taking requests off a stream: as many as have arrived, so that they go into the log together.

use crate::error::Error;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use tokio_stream::Stream;
use tonic::Streaming;

/// Waits for a message, and takes it with all others that have arrived, up to `max`. Empty at the end of the
/// stream.
///
/// # Errors
/// The stream broke. Messages before that are dropped: there is nobody to answer.
pub(crate) async fn next_many<T>(stream: &mut Streaming<T>, max: usize) -> Result<Vec<T>, Error> {
    let mut messages = Vec::new();
    poll_fn(|context| {
        while messages.len() < max {
            match Pin::new(&mut *stream).poll_next(context) {
                Poll::Ready(Some(Ok(message))) => messages.push(message),
                Poll::Ready(Some(Err(status))) => return Poll::Ready(Err(status)),
                // What came before the end is answered; the next call meets the end again.
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
