//! Judges calls of gRPC, of etcd's gateway and of HTTP before their handlers see them, and ends their answers when the
//! right to them is taken away.

use super::caller::Caller;
use super::gate::{CommonName, Gate};
use super::rules::{self, Need};
use crate::accept::Peer;
use crate::audit::{self, Act, Audit};
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
use quoin_audit::{Outcome, Who};
use quoin_core::auth::Access;
use quoin_core::auth::table_rights::LOOKUP;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tonic::body::Body;
use tonic::{Code, Status};
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
        if let Some((audit, certain)) = Asked::of(&request).recorded(&self.gate) {
            let audit = Arc::clone(audit);
            let next = self.inner.clone();
            let (inner, gate) = (std::mem::replace(&mut self.inner, next), Arc::clone(&self.gate));
            return Answering::Judged { answer: Box::pin(recorded((gate, audit), inner, request, certain)) };
        }
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

/// What a request of the client port asks for.
struct Asked<'a> {
    path: &'a str,
    /// The method of gRPC, of which `path` may be the gateway's.
    call: Option<&'a str>,
    need: Need,
}

impl<'a> Asked<'a> {
    fn of(request: &'a Request) -> Self {
        let path = request.uri().path();
        let call = if grpc::is_call(path) { Some(path) } else { gateway::call_of(path) };
        let need = match call {
            Some(call) => rules::of_call(call),
            None => rules::of_page(request.method().as_str(), path),
        };
        Self { path, call, need }
    }

    /// Whether it may be worth a record, and whether it is in any case.
    fn recorded(&self, gate: &'a Gate) -> Option<(&'a Arc<Audit>, bool)> {
        let audit = gate.audit()?;
        let certain = match self.call {
            Some(call) => audit.of_call(call, self.need),
            None => audit.of_page(self.need),
        };
        Some((audit, certain?))
    }

    fn manner(&self) -> Manner {
        Manner::of_call(self.path, self.call.unwrap_or(self.path))
    }

    /// The answer to a request that is refused.
    fn refused(&self, error: Error) -> Response {
        let manner = self.manner();
        match self.call {
            Some(_) if manner.is_call => status(error, manner.of_etcd).into_http(),
            Some(_) => gateway::failed(&status(error, manner.of_etcd)),
            None => http::refused(error).map(Body::new),
        }
    }
}

/// Serves a request that may be worth a record.
async fn recorded<S>(
    (gate, audit): (Arc<Gate>, Arc<Audit>),
    mut inner: S,
    request: Request,
    certain: bool,
) -> Result<Response, S::Error>
where
    S: Service<Request, Response = Response>,
{
    let (asked, arrived) = (Asked::of(&request), request.extensions().get::<Arrived>());
    let (peer, name) = arrived.map(|arrived| (&arrived.peer, &arrived.name)).unzip();
    let wire = match asked.call {
        Some(_) if asked.manner().is_call => "grpc",
        Some(_) => "json",
        None => "http",
    };
    let who = who(wire, peer.and_then(Option::as_ref), name.and_then(Option::as_ref));
    let act = asked.call.map_or_else(|| format!("{} {}", request.method(), asked.path), str::to_owned);
    let manner = asked.manner();
    let act = match Act::begin((&audit, gate.engine()), who, act, certain, manner.goes_on) {
        Ok(act) => act,
        Err(full) => return Ok(asked.refused(full.into())),
    };
    let need = asked.need;
    let answered = act.run(async {
        if gate.engine().auth_on() {
            return judged(gate, inner, request).await;
        }
        let lost = manner.goes_on.then(|| unasked(&gate, need)).flatten();
        let response = inner.call(request).await?;
        Ok(match lost {
            Some(lost) => response.map(|body| Body::new(Ending::new(body, lost, manner))),
            None => response,
        })
    });
    let response = answered.await?;
    if manner.is_call {
        see_status(&act, response.headers());
    } else {
        act.ended_with_status(response.status());
    }
    Ok(response.map(|body| Body::new(Recorded { body, act: Some(act) })))
}

/// Who asks, before it is known which user that is.
fn who(wire: &'static str, peer: Option<&Peer>, name: Option<&CommonName>) -> Who {
    Who {
        user: String::new(),
        certificate: name.map(|name| name.0.to_string()).unwrap_or_default(),
        address: peer.map(Peer::to_string).unwrap_or_default(),
        wire,
    }
}

/// Notes how a call ended, if the headers, or trailers, say so.
fn see_status(act: &Act, headers: &HeaderMap) {
    if let Some(code) = headers.get("grpc-status") {
        act.ended_with(Code::from_bytes(code.as_bytes()));
    }
}

/// A body whose end ends an act.
struct Recorded<B> {
    body: B,
    /// `None` once it has ended.
    act: Option<Arc<Act>>,
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Recorded<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        let Some(act) = &this.act else { return Pin::new(&mut this.body).poll_frame(context) };
        let frame = act.run_at_once(|| Pin::new(&mut this.body).poll_frame(context));
        match &frame {
            Poll::Pending => return frame,
            Poll::Ready(Some(Ok(frame))) => match frame.trailers_ref() {
                Some(trailers) => see_status(act, trailers),
                None if !this.body.is_end_stream() => {}
                None => this.act = None,
            },
            Poll::Ready(Some(Err(_))) => act.ended(Outcome::Unknown, "broken off"),
            Poll::Ready(None) => this.act = None,
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

async fn judged<S>(gate: Arc<Gate>, mut inner: S, request: Request) -> Result<Response, S::Error>
where
    S: Service<Request, Response = Response>,
{
    let asked = Asked::of(&request);
    let (need, manner) = (asked.need, asked.manner());
    let arrived = request.extensions().get::<Arrived>();
    let (peer, name) = arrived.map(|arrived| (&arrived.peer, &arrived.name)).unzip();
    let from = (peer.and_then(Option::as_ref), name.and_then(Option::as_ref));
    match admit(&gate, need, request.headers(), from).await {
        Ok(caller) => {
            let response = caller.clone().run(inner.call(request)).await?;
            let lost = lost(gate, caller, need, response.extensions().get::<OfTable>().cloned());
            Ok(response.map(|body| Body::new(Ending::new(body, lost, manner))))
        }
        Err(error) => Ok(asked.refused(error)),
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
    (peer, certificate): (Option<&Peer>, Option<&CommonName>),
) -> Result<Caller, Error> {
    if need == Need::Nothing {
        return Ok(Caller::new(super::Identity::Nobody, gate.engine().policy())?.from(peer.cloned()));
    }
    let identity = gate.identify(headers, certificate, peer).await?;
    let caller = Caller::new(identity, gate.engine().policy())?.from(peer.cloned());
    if let Some(act) = audit::present() {
        act.of_user(caller.name());
    }
    caller.check(|access| need.is_met_by(access))?;
    Ok(caller)
}

/// Of an answer that goes on: it is about the table of this name, and ends with the right to look that up.
#[derive(Clone, Debug)]
pub(crate) struct OfTable(pub(crate) Arc<str>);

/// Waits until the caller may not ask this any more; returns why.
fn lost(gate: Arc<Gate>, caller: Caller, need: Need, table: Option<OfTable>) -> Boxed<Error> {
    Box::pin(async move {
        if need == Need::Nothing {
            return std::future::pending().await;
        }
        let engine = gate.engine();
        let mut changes = engine.watch_policy();
        let enough = |access: &Access| {
            let of_table = table.as_ref().is_none_or(|OfTable(name)| access.has_table(name, LOOKUP));
            need.is_met_by(access) && of_table
        };
        loop {
            if engine.auth_on() {
                let caller = caller.renewed(engine);
                let checked = caller.and_then(|caller| caller.check(enough));
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
    of_a_part.then(|| lost(Arc::clone(gate), Caller::nobody(gate.engine().policy()), need, None))
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
    let path = matched.as_ref().map_or_else(|| request.uri().path(), MatchedPath::as_str).to_owned();
    let need = rules::of_page(request.method().as_str(), &path);
    let recorded = gate.audit().and_then(|audit| Some((audit, audit.of_page(need)?)));
    let Some((audit, certain)) = recorded else { return judged_page(gate, need, &path, request, next).await };
    let who = who("http", request.extensions().get::<Peer>(), request.extensions().get::<CommonName>());
    let (engine, manner) = (gate.engine().clone(), Manner::of_page(&path));
    let named = format!("{} {path}", request.method());
    let act = match Act::begin((audit, &engine), who, named, certain, manner.goes_on) {
        Ok(act) => act,
        Err(full) => return http::refused(full.into()).into_response(),
    };
    if request.uri().path() != path {
        act.about("path", request.uri().path());
    }
    let response = act.run(judged_page(gate, need, &path, request, next)).await;
    act.ended_with_status(response.status());
    response
}

async fn judged_page(
    gate: Arc<Gate>,
    need: Need,
    path: &str,
    request: axum::extract::Request,
    next: Next,
) -> axum::response::Response {
    if !gate.engine().auth_on() && !http::tells_on(path) {
        return next.run(request).await;
    }
    let manner = Manner::of_page(path);
    if !gate.engine().auth_on() {
        let lost = unasked(&gate, need);
        let response = next.run(request).await;
        return match lost {
            Some(lost) => response.map(|body| axum::body::Body::new(Ending::new(body, lost, manner))),
            None => response,
        };
    }
    let from = (request.extensions().get::<Peer>(), request.extensions().get::<CommonName>());
    match admit(&gate, need, request.headers(), from).await {
        Ok(caller) => {
            let lost = lost(Arc::clone(&gate), caller.clone(), need, None);
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
