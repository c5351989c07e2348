//! Judges calls of gRPC, of etcd's gateway and of HTTP before their handlers see them, and ends their answers when the
//! right to them is taken away.

use super::caller::Caller;
use super::gate::{CommonName, Gate};
use super::rules::{self, Need};
use crate::error::{Error, Known};
use crate::gateway;
use crate::grpc;
use crate::http;
use crate::preface::Arrived;
use axum::Router;
use axum::extract::{MatchedPath, State};
use axum::http::HeaderMap;
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tonic::Status;
use tonic::body::Body;
use tower_layer::Layer;
use tower_service::Service;

type Request = axum::http::Request<Body>;
type Response = axum::http::Response<Body>;
type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Guards the client port.
#[derive(Clone)]
pub(crate) struct Guard(pub(crate) Arc<Gate>);

impl<S> Layer<S> for Guard {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Guarded { inner, gate: Arc::clone(&self.0) }
    }
}

/// See [`Guard`].
#[derive(Clone)]
pub(crate) struct Guarded<S> {
    inner: S,
    gate: Arc<Gate>,
}

impl<S> Service<Request> for Guarded<S>
where
    S: Service<Request, Response = Response> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Answering<S::Future, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        if !self.gate.engine().auth_on() {
            let path = request.uri().path();
            let lost = grpc::tells_on(path).then(|| unasked(&self.gate, rules::of_call(path))).flatten();
            let lost = lost.map(|lost| (lost, Manner::of_call(path, path)));
            return Answering::Open { answer: self.inner.call(request), lost };
        }
        // The clone has not been asked whether it is ready.
        let next = self.inner.clone();
        let (inner, gate) = (std::mem::replace(&mut self.inner, next), Arc::clone(&self.gate));
        Answering::Judged { answer: Box::pin(judged(gate, inner, request)) }
    }
}

pin_project! {
    /// A call.
    #[project = AnsweringProjection]
    pub(crate) enum Answering<F, E> {
        /// Nobody is asked. `lost`: the answer goes on, in this manner, until somebody has to be.
        Open { #[pin] answer: F, lost: Option<(Boxed<Error>, Manner)> },
        /// It is judged first.
        Judged { answer: Boxed<Result<Response, E>> },
    }
}

impl<F, E> Future for Answering<F, E>
where
    F: Future<Output = Result<Response, E>>,
{
    type Output = Result<Response, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            AnsweringProjection::Open { answer, lost } => {
                let response = ready!(answer.poll(context))?;
                Poll::Ready(Ok(match lost.take() {
                    Some((lost, manner)) => response.map(|body| Body::new(Ending::new(body, lost, manner))),
                    None => response,
                }))
            }
            AnsweringProjection::Judged { answer } => answer.as_mut().poll(context),
        }
    }
}

async fn judged<S>(gate: Arc<Gate>, mut inner: S, request: Request) -> Result<Response, S::Error>
where
    S: Service<Request, Response = Response>,
{
    let path = request.uri().path();
    let call = if grpc::is_call(path) { Some(path) } else { gateway::call_of(path) };
    let need = match call {
        Some(call) => rules::of_call(call),
        None => rules::of_page(request.method().as_str(), path),
    };
    let manner = Manner::of_call(path, call.unwrap_or(path));
    let name = request.extensions().get::<Arrived>().and_then(|arrived| arrived.name.as_ref());
    match admit(&gate, need, request.headers(), name).await {
        Ok(caller) => {
            let lost = lost(Arc::clone(&gate), caller.clone(), need);
            let response = caller.run(inner.call(request)).await?;
            Ok(response.map(|body| Body::new(Ending::new(body, lost, manner))))
        }
        Err(error) => Ok(match call {
            Some(_) if manner.is_call => status(error, manner.of_etcd).into_http(),
            Some(_) => gateway::failed(&status(error, manner.of_etcd)),
            None => http::refused(error).map(Body::new),
        }),
    }
}

/// The status of a call that is refused. etcd's words for who has not said who asks are for etcd's clients.
fn status(error: Error, of_etcd: bool) -> Status {
    match error {
        Error::Etcd(Known::UserEmpty) if !of_etcd => Status::unauthenticated(
            "quoin: this call needs a user: send a token, or Basic and name:password, as authorization",
        ),
        error => error.into(),
    }
}

/// Who asks, if they may.
async fn admit(
    gate: &Arc<Gate>,
    need: Need,
    headers: &HeaderMap,
    certificate: Option<&CommonName>,
) -> Result<Caller, Error> {
    if need == Need::Nothing {
        return Caller::new(super::Identity::Nobody, gate.engine().policy());
    }
    let identity = gate.identify(headers, certificate).await?;
    let caller = Caller::new(identity, gate.engine().policy())?;
    caller.check(|access| need.is_met_by(access))?;
    Ok(caller)
}

/// Waits until the caller may not ask this any more; returns why.
fn lost(gate: Arc<Gate>, caller: Caller, need: Need) -> Boxed<Error> {
    Box::pin(async move {
        if need == Need::Nothing {
            return std::future::pending().await;
        }
        let engine = gate.engine();
        let mut changes = engine.watch_policy();
        loop {
            if engine.auth_on() {
                let caller = caller.renewed(engine);
                let checked = caller.and_then(|caller| caller.check(|access| need.is_met_by(access)));
                if let Err(error) = checked {
                    return error;
                }
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    })
}

/// As [`lost`], for an answer that goes on and began while nobody was asked. Those that are judged by their keys end
/// by themselves.
fn unasked(gate: &Arc<Gate>, need: Need) -> Option<Boxed<Error>> {
    let of_a_part = matches!(need, Need::Part(..) | Need::Root);
    of_a_part.then(|| lost(Arc::clone(gate), Caller::nobody(gate.engine().policy()), need))
}

/// Frames of the answer to a call of one answer: a message, and the status.
const ANSWER_FRAMES: usize = 2;

/// How an answer goes out.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// It ends with a status.
    is_call: bool,
    /// For etcd's clients.
    of_etcd: bool,
    /// It says more for as long as the client listens.
    goes_on: bool,
}

impl Manner {
    /// Of the answer to a method of gRPC, which was called at `path`.
    fn of_call(path: &str, method: &str) -> Self {
        let of_etcd = grpc::is_call(method) && !method.starts_with("/quoin.");
        Self { is_call: grpc::is_call(path), of_etcd, goes_on: grpc::tells_on(method) }
    }

    fn of_page(path: &str) -> Self {
        Self { is_call: false, of_etcd: false, goes_on: http::tells_on(path) }
    }
}

/// A body that ends when the right to it is taken away.
struct Ending<B> {
    body: B,
    /// Ready when the right is gone; `None` after that.
    lost: Option<Boxed<Error>>,
    /// Frames that have gone.
    gone: usize,
    manner: Manner,
}

impl<B> Ending<B> {
    fn new(body: B, lost: Boxed<Error>, manner: Manner) -> Self {
        Self { body, lost: Some(lost), gone: 0, manner }
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Ending<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        let Some(lost) = &mut this.lost else { return Poll::Ready(None) };
        // What a call of one answer has done is told in any case; what streams goes on only with the right.
        let told = !this.manner.goes_on && this.gone < ANSWER_FRAMES;
        let mut over = if told { Poll::Pending } else { lost.as_mut().poll(context) };
        if over.is_pending() {
            if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
                this.gone += 1;
                return Poll::Ready(frame);
            }
            over = lost.as_mut().poll(context);
        }
        let error = ready!(over);
        this.lost = None;
        if !this.manner.is_call {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::new();
        // A status whose text is no header: its code alone.
        let _ = status(error, this.manner.of_etcd).add_header(&mut trailers);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.lost.is_none() || self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// Guards the pages of the HTTP port.
pub(crate) fn guard_pages(gate: Arc<Gate>, pages: Router) -> Router {
    pages.layer(middleware::from_fn_with_state(gate, page))
}

async fn page(
    State(gate): State<Arc<Gate>>,
    matched: Option<MatchedPath>,
    request: axum::extract::Request,
    next: Next,
) -> axum::response::Response {
    let path = matched.as_ref().map_or_else(|| request.uri().path(), MatchedPath::as_str);
    if !gate.engine().auth_on() && !http::tells_on(path) {
        return next.run(request).await;
    }
    let (need, manner) = (rules::of_page(request.method().as_str(), path), Manner::of_page(path));
    if !gate.engine().auth_on() {
        let lost = unasked(&gate, need);
        let response = next.run(request).await;
        return match lost {
            Some(lost) => response.map(|body| axum::body::Body::new(Ending::new(body, lost, manner))),
            None => response,
        };
    }
    let name = request.extensions().get::<CommonName>();
    match admit(&gate, need, request.headers(), name).await {
        Ok(caller) => {
            let lost = lost(Arc::clone(&gate), caller.clone(), need);
            let response = caller.run(next.run(request)).await;
            response.map(|body| axum::body::Body::new(Ending::new(body, lost, manner)))
        }
        Err(error) => http::refused(error).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use std::future::{poll_fn, ready};

    /// A client that let nothing through while its right was taken away was told what came after that, once it did.
    #[tokio::test]
    async fn what_goes_on_tells_nothing_more_once_the_right_is_gone() {
        for (goes_on, tells) in [(true, false), (false, true)] {
            let manner = Manner { is_call: true, of_etcd: false, goes_on };
            let lost: Boxed<Error> = Box::pin(ready(Known::PermissionDenied.into()));
            let mut body = Ending::new(Body::from("secret"), lost, manner);
            let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.unwrap().unwrap();
            assert_eq!(frame.is_data(), tells);
            assert_eq!(frame.is_trailers(), !tells);
        }
    }
}
