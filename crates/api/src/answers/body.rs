//! The body of a large answer: given out piece by piece, and dropped when its client takes nothing more of it.
//!
//! Below here each connection keeps a piece until the client has room for it, and asks for no other one until then.
//! So pieces are copies: one that waits does not keep the rest of its answer in memory.

use super::Held;
use axum::body::HttpBody;
use axum::http::HeaderMap;
use bytes::{Buf, Bytes};
use http_body::Frame;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::AbortHandle;
use tonic::Status;
use tonic::body::Body;

const PIECE_BYTES: usize = 64 << 10;
/// A client that has taken nothing of its answer is looked for this often.
pub(super) const UNTAKEN_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });

/// The body of a response that holds something until it has gone. Call within a runtime.
pub(crate) fn holding(body: Body, held: Held) -> Body {
    let content = Content { body, rest: Bytes::new(), moved: false, _held: held };
    let content = Arc::new(Mutex::new(Some(content)));
    let watch = tokio::spawn(give_up(Arc::clone(&content))).abort_handle();
    Body::new(Large { content, watch })
}

/// See the module.
struct Large {
    /// `None` once the client was given up.
    content: Arc<Mutex<Option<Content>>>,
    watch: AbortHandle,
}

struct Content {
    body: Body,
    /// What is left of the frame that is given out.
    rest: Bytes,
    /// Whether something was asked for since it was looked at.
    moved: bool,
    _held: Held,
}

impl Drop for Large {
    fn drop(&mut self) {
        self.watch.abort();
        // The task may live a little longer.
        *self.content.lock() = None;
    }
}

/// Drops what a client does not take.
async fn give_up(content: Arc<Mutex<Option<Content>>>) {
    loop {
        tokio::time::sleep(UNTAKEN_MAX).await;
        let mut content = content.lock();
        if !content.as_mut().is_some_and(|content| std::mem::take(&mut content.moved)) {
            *content = None;
            return;
        }
    }
}

impl Content {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.moved = true;
        if self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let piece = Bytes::copy_from_slice(&self.rest[..self.rest.len().min(PIECE_BYTES)]);
        self.rest.advance(piece.len());
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl HttpBody for Large {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match &mut *self.content.lock() {
            Some(content) => content.poll_frame(context),
            None => Poll::Ready(Some(Ok(untaken()))),
        }
    }
}

/// How a call ends whose client was given up.
fn untaken() -> Frame<Bytes> {
    let text = format!("the client took nothing of the answer for {} s", UNTAKEN_MAX.as_secs());
    let mut trailers = HeaderMap::new();
    // It has no details, which could be no header.
    let _ = Status::unavailable(text).add_header(&mut trailers);
    Frame::trailers(trailers)
}
