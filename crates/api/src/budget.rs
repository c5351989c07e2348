//! Bytes of requests that clients are sending or wait to have answered, over all client ports of a node.
//!
//! **Invariant: Bounded.** A request is charged with its whole length before its bytes are buffered, and
//! until it is answered. What exceeds `limits.command_bytes_in_flight_max` is refused with
//! RESOURCE_EXHAUSTED, BUSY or 429, and was not done. A request alone always goes.
//!
//! `http/charge.rs` charges HTTP, `resp/connection.rs` Redis's protocol, and [`Charged`] the messages of
//! gRPC: in a stream, each until the next one is awaited. From then on the engine's own bound counts what is
//! under way.
//!
//! What it deliberately does not count: what the system and HTTP/2's windows hold of a request before it is
//! looked at, and what decoding adds.

use crate::answers::{self, Held};
use crate::error::Known;
use crate::grpc;
use crate::stall::{self, Stall};
use axum::body::HttpBody;
use axum::http::{Request, Response, Version};
use bytes::Bytes;
use pin_project_lite::pin_project;
use prometheus::IntCounter;
use quoin_engine::Engine;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use tonic::Status;
use tonic::body::Body;
use tower_layer::Layer;
use tower_service::Service;

/// The bytes that all requests together may have.
#[derive(Clone)]
pub(crate) struct Budget(Arc<Shared>);

struct Shared {
    bytes_max: usize,
    held: AtomicUsize,
    refused: IntCounter,
}

/// What one request holds; given back when it is dropped. One task at a time changes it.
pub(crate) struct Share {
    budget: Budget,
    held: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(engine: &Engine) -> Self {
        let refused = engine.metrics().commands.with_label_values(&["busy"]);
        Self::of(engine.limits().command_bytes_in_flight_max, refused)
    }

    /// The bytes that all large answers to reads together may have, see `answers/`.
    pub(crate) fn of_answers(engine: &Engine) -> Self {
        Self::of(engine.limits().response_bytes_in_flight_max, engine.metrics().reads_refused.clone())
    }

    fn of(bytes_max: usize, refused: IntCounter) -> Self {
        Self(Arc::new(Shared { bytes_max, held: AtomicUsize::new(0), refused }))
    }

    #[cfg(test)]
    pub(crate) fn of_bytes(bytes_max: usize) -> Self {
        Self::of(bytes_max, IntCounter::new("refused", "refused").unwrap())
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// A share of nothing yet.
    pub(crate) fn share(&self) -> Share {
        Share { budget: self.clone(), held: AtomicUsize::new(0) }
    }
}

impl Share {
    /// Holds `bytes` from now on, instead of what it held. False where the others leave no room: then it
    /// holds nothing.
    pub(crate) fn hold(&self, bytes: usize) -> bool {
        let Shared { bytes_max, held, refused } = &*self.budget.0;
        let before = self.held.load(Ordering::Relaxed);
        // The usual case, which leaves the shared count alone.
        if bytes == before {
            return true;
        }
        self.held.store(bytes, Ordering::Relaxed);
        if bytes < before {
            held.fetch_sub(before - bytes, Ordering::Relaxed);
            return true;
        }
        let others = held.fetch_add(bytes - before, Ordering::Relaxed) - before;
        if others > 0 && others + bytes > *bytes_max {
            refused.inc();
            self.hold(0);
            return false;
        }
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.hold(0);
    }
}

/// Charges the requests of a gRPC server. This costs a request two small allocations, for its body and for
/// what that shares with the call, and two changes of a count that all share.
#[derive(Clone)]
pub(crate) struct Charging {
    pub(crate) budget: Budget,
    /// Larger messages are refused before their bytes are buffered, and not charged.
    pub(crate) message_bytes_max: usize,
}

impl<S> Layer<S> for Charging {
    type Service = ChargingService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ChargingService { inner, charging: self.clone() }
    }
}

/// See [`Charging`].
#[derive(Clone)]
pub(crate) struct ChargingService<S> {
    inner: S,
    charging: Charging,
}

impl<S> Service<Request<Body>> for ChargingService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Answering<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Charging { budget, message_bytes_max } = &self.charging;
        let share = Arc::new(budget.share());
        // The gateway charges its requests itself. A call of gRPC is charged whatever it came over.
        if request.version() != Version::HTTP_2 && !grpc::is_call(request.uri().path()) {
            return Answering { answer: self.inner.call(request), share };
        }
        let streams = grpc::streams(request.uri().path());
        let request = request.map(|body| {
            let (share, message_bytes_max) = (Arc::clone(&share), *message_bytes_max);
            Body::new(Charged::new(body, share, streams, message_bytes_max))
        });
        Answering { answer: self.inner.call(request), share }
    }
}

pin_project! {
    /// A call; while it lasts, its request is charged. What its answer holds goes over to the answer's body.
    pub(crate) struct Answering<F> {
        #[pin]
        answer: F,
        share: Arc<Share>,
    }
}

impl<F, E> Future for Answering<F>
where
    F: Future<Output = Result<Response<Body>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = ready!(self.project().answer.poll(context))?;
        // The usual answer holds nothing, and its body is left alone.
        Poll::Ready(Ok(match response.extensions_mut().remove::<Held>() {
            Some(held) => response.map(|body| answers::holding(body, held)),
            None => response,
        }))
    }
}

/// A body of messages, each behind five bytes: whether it is compressed, and its length.
struct Charged {
    body: Body,
    share: Arc<Share>,
    /// Whether any number of messages may come.
    streams: bool,
    message_bytes_max: usize,
    head: [u8; 5],
    /// Bytes of `head` that have come.
    read: usize,
    /// Bytes of the message that have not come yet.
    missing: usize,
    stall: Stall,
}

impl Charged {
    fn new(body: Body, share: Arc<Share>, streams: bool, message_bytes_max: usize) -> Self {
        Self {
            body,
            share,
            streams,
            message_bytes_max,
            head: [0; 5],
            read: 0,
            missing: 0,
            stall: Stall::default(),
        }
    }

    /// Follows the messages in `bytes`; charges each when its length is known.
    fn follow(&mut self, mut bytes: &[u8]) -> Result<(), Status> {
        while !bytes.is_empty() {
            if self.missing > 0 {
                let passed = self.missing.min(bytes.len());
                self.missing -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            self.head[self.read] = bytes[0];
            self.read += 1;
            bytes = &bytes[1..];
            if self.read < self.head.len() {
                continue;
            }
            self.read = 0;
            let [_, length @ ..] = self.head;
            self.missing = u32::from_be_bytes(length) as usize;
            let charged = if self.missing > self.message_bytes_max { 0 } else { self.missing };
            if !self.share.hold(charged) {
                return Err(Known::TooManyRequests.into());
            }
        }
        Ok(())
    }
}

impl HttpBody for Charged {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            // The next message of a stream is awaited, so those before it were taken. A call of one message
            // is not answered yet, whatever else its client may send.
            if self.streams && self.missing == 0 && self.read == 0 {
                self.share.hold(0);
            }
            if self.share.held.load(Ordering::Relaxed) > 0 && self.stall.is_over(context) {
                self.share.hold(0);
                return Poll::Ready(Some(Err(Status::deadline_exceeded(stall::reason()))));
            }
            return Poll::Pending;
        };
        self.stall.moved();
        if let Some(Ok(frame)) = &frame
            && let Some(bytes) = frame.data_ref()
        {
            self.follow(bytes)?;
        }
        Poll::Ready(frame)
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

    fn held(budget: &Budget) -> usize {
        budget.0.held.load(Ordering::Relaxed)
    }

    fn body(budget: &Budget) -> Charged {
        Charged::new(Body::empty(), Arc::new(budget.share()), true, 1000)
    }

    fn message(length: usize) -> Vec<u8> {
        [&[0], &(length as u32).to_be_bytes()[..], &vec![7; length]].concat()
    }

    #[test]
    fn a_message_is_charged_before_its_bytes_come_and_until_the_next_begins() {
        let budget = Budget::of_bytes(100);
        let mut stream = body(&budget);
        for byte in &message(60)[..5] {
            assert_eq!(held(&budget), 0);
            stream.follow(&[*byte]).unwrap();
        }
        assert_eq!(held(&budget), 60, "no byte of it has come");
        stream.follow(&message(60)[5..]).unwrap();
        assert_eq!(held(&budget), 60, "it is not answered");
        stream.follow(&[message(10), message(20), message(30)].concat()).unwrap();
        assert_eq!(held(&budget), 30);
        stream.follow(&message(2000)[..5]).unwrap();
        assert_eq!(held(&budget), 0, "the decoder refuses it");
    }

    /// A few hundred clients that announced a request and sent nothing of it had all others refused, for as long as
    /// they liked.
    #[tokio::test]
    async fn a_request_whose_rest_does_not_come_gives_back_its_share() {
        use std::future::poll_fn;
        let budget = Budget::of_bytes(100);
        // Announced and not sent; sent, and not ended; sent, and the next one begun.
        for (streams, sent) in [
            (false, message(90)[..5].to_vec()),
            (false, message(90)),
            (true, message(90)[..50].to_vec()),
            (true, [&message(90)[..], &[0]].concat()),
        ] {
            let (pieces, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, Status>>(1);
            let body = axum::body::Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(receiver));
            let mut charged = Charged::new(Body::new(body), Arc::new(budget.share()), streams, 1000);
            pieces.send(Ok(sent.into())).await.unwrap();
            let mut next = async || {
                let next = poll_fn(|context| Pin::new(&mut charged).poll_frame(context));
                // It never ends without the bound.
                tokio::time::timeout(60 * stall::PATIENCE, next).await.unwrap().unwrap()
            };
            assert!(next().await.is_ok());
            assert_eq!(held(&budget), 90);
            assert_eq!(next().await.unwrap_err().code(), tonic::Code::DeadlineExceeded);
            assert_eq!(held(&budget), 0);
        }
    }

    #[test]
    fn what_exceeds_the_budget_is_refused_and_what_is_alone_is_not() {
        let budget = Budget::of_bytes(100);
        let (mut first, mut second) = (body(&budget), body(&budget));
        first.follow(&message(150)[..5]).unwrap();
        let refused = second.follow(&message(1)[..5]).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert_eq!((held(&budget), budget.0.refused.get()), (150, 1));
        drop(first);
        assert_eq!(held(&budget), 0);
        let mut third = body(&budget);
        third.follow(&message(40)[..5]).unwrap();
        body(&budget).follow(&message(60)[..5]).unwrap();
        assert_eq!(held(&budget), 40);
    }

    /// Reads its request: 200 if it came whole.
    struct Reading;

    impl Service<Request<Body>> for Reading {
        type Response = Response<Body>;
        type Error = std::convert::Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, std::convert::Infallible>>>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            Box::pin(async move {
                let read = axum::body::to_bytes(axum::body::Body::new(request.into_body()), 1000).await;
                let status = if read.is_ok() { 200 } else { 429 };
                Ok(Response::builder().status(status).body(Body::empty()).unwrap())
            })
        }
    }

    /// The client port speaks HTTP/1 too, and its router knows the services: calls that came over it were not charged.
    #[tokio::test]
    async fn a_call_is_charged_whatever_it_comes_over() {
        let budget = Budget::of_bytes(100);
        let held = budget.share();
        assert!(held.hold(60));
        let mut service = Charging { budget, message_bytes_max: 1000 }.layer(Reading);
        for (path, version, status) in [
            ("/etcdserverpb.KV/Put", Version::HTTP_2, 429),
            ("/etcdserverpb.KV/Put", Version::HTTP_11, 429),
            ("/v3/kv/put", Version::HTTP_11, 200),
            ("/v3/kv/put.x/y", Version::HTTP_11, 200),
        ] {
            let body = Body::new(axum::body::Body::from(message(60)));
            let request = Request::post(path).version(version).body(body).unwrap();
            assert_eq!(service.call(request).await.unwrap().status().as_u16(), status, "{path} {version:?}");
        }
    }
}
