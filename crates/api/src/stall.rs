//! Requests whose rest does not come: their clients are frozen, cut off, or mean harm, and they hold what was
//! charged for the whole request.
//!
//! Deliberately absent: any bound on how slowly a request comes, as long as something of it does.

use axum::body::HttpBody;
use bytes::Bytes;
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// How long nothing of a request may come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });

/// Why a request was given up.
pub(crate) fn reason() -> String {
    format!("nothing more of the request came for {} s", PATIENCE.as_secs())
}

/// Notices that nothing comes. It takes memory only once there is something to wait for.
#[derive(Default)]
pub(crate) struct Stall {
    wait: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

impl Stall {
    /// Something came.
    pub(crate) fn moved(&mut self) {
        self.waiting = false;
    }

    /// Nothing has come yet; true if that has lasted too long.
    pub(crate) fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        let wait = self.wait.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        if !self.waiting {
            self.waiting = true;
            wait.as_mut().reset(Instant::now() + PATIENCE);
        }
        wait.as_mut().poll(context).is_ready()
    }
}

pin_project! {
    /// A body that fails when nothing more of it comes.
    pub(crate) struct Patient<B> {
        #[pin]
        body: B,
        stall: Stall,
    }
}

impl<B> Patient<B> {
    pub(crate) fn new(body: B) -> Self {
        Self { body, stall: Stall::default() }
    }
}

impl<B> HttpBody for Patient<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<axum::BoxError>,
{
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::BoxError>>> {
        let this = self.project();
        match this.body.poll_frame(context) {
            Poll::Ready(frame) => {
                this.stall.moved();
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending if this.stall.is_over(context) => Poll::Ready(Some(Err(reason().into()))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, to_bytes};
    use std::future::poll_fn;
    use tokio::sync::mpsc;
    use tokio_stream::StreamExt;
    use tokio_stream::wrappers::ReceiverStream;

    #[tokio::test]
    async fn a_body_of_which_nothing_more_comes_fails() {
        let (pieces, receiver) = mpsc::channel::<Result<Bytes, axum::BoxError>>(1);
        let mut body =
            Body::new(Patient::new(Body::from_stream(ReceiverStream::new(receiver)))).into_data_stream();
        for _ in 0..3 {
            pieces.send(Ok(Bytes::from_static(b"piece"))).await.unwrap();
            assert_eq!(body.next().await.unwrap().unwrap(), "piece");
        }
        let next = tokio::time::timeout(60 * PATIENCE, body.next()).await.expect("it fails");
        let error = next.unwrap().unwrap_err();
        assert!(error.to_string().contains("nothing more of the request came for 1 s"), "{error}");
        let whole = Body::new(Patient::new(Body::from("whole")));
        assert_eq!(to_bytes(whole, 100).await.unwrap(), "whole");
    }

    #[tokio::test]
    async fn whatever_comes_is_waited_for_anew() {
        let (mut moving, mut still) = (Stall::default(), Stall::default());
        let is_over = async |stall: &mut Stall| poll_fn(|context| Poll::Ready(stall.is_over(context))).await;
        assert!(!is_over(&mut moving).await);
        moving.moved();
        poll_fn(|context| if still.is_over(context) { Poll::Ready(()) } else { Poll::Pending }).await;
        assert!(!is_over(&mut moving).await, "it was told that something came");
    }
}
