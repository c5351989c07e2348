//! Calls an RPC of this process: what a gRPC client would send, without a connection in between.

use super::answer::failed_line;
use super::body::Objects;
use super::schema::{MessageId, Method};
use super::{Gateway, decode, encode};
use crate::answers::{self, Held};
use crate::commands::off_the_hot_path;
use crate::error::Error;
use axum::body::Body;
use axum::http::StatusCode;
use axum::http::uri::PathAndQuery;
use axum::response::Response;
use bytes::{Buf, BufMut, Bytes};
use futures_util::stream::unfold;
use std::sync::Arc;
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Status, Streaming};

/// Answers above this are transcoded on a thread that may block.
const LARGE_BYTES: usize = 256 << 10;

/// Calls `rpc` with what `body` has.
///
/// # Errors
/// The body is malformed, or the RPC's own.
pub(super) async fn call(gateway: Arc<Gateway>, rpc: &'static str, body: Body) -> Result<Response, Status> {
    let method = gateway.schema.method(rpc).expect("each path stands for an RPC: a test compares");
    let mut objects = Objects::new(body, gateway.budget.share(), gateway.text_bytes_max);
    // As in etcd, a body that is empty is an empty message.
    let first = match objects.first().await? {
        Some(text) => Some(message(&gateway, method.input, &text)?),
        None if method.client_streams => None,
        None => Some(Bytes::new()),
    };
    match (method.client_streams, method.server_streams) {
        (true, _) => {
            let requests = requests(Arc::clone(&gateway), method.input, first, objects);
            let (answers, _) = open(&gateway, rpc, requests).await?;
            Ok(stream(gateway, method, answers))
        }
        (false, true) => {
            let (answers, _) = open(&gateway, rpc, tokio_stream::iter(first)).await?;
            Ok(stream(gateway, method, answers))
        }
        (false, false) => {
            // A lock may be waited for longer than its client stays.
            tokio::select! {
                answer = answer(&gateway, rpc, method.output, first) => answer,
                () = objects.abandoned() => Err(Error::disconnected().into()),
            }
        }
    }
}

/// Calls an RPC of one request and one answer.
async fn answer(
    gateway: &Arc<Gateway>,
    rpc: &'static str,
    of: MessageId,
    request: Option<Bytes>,
) -> Result<Response, Status> {
    let (mut answers, held) = open(gateway, rpc, tokio_stream::iter(request)).await?;
    let answer = answers.message().await?;
    let answer = answer.ok_or_else(|| fault("an RPC has ended without an answer"))?;
    let text = text(gateway, of, answer).await?;
    Ok(super::json(StatusCode::OK, whole(text, held)))
}

/// The answer's text, which takes its room in the budget of large answers until it has gone, if it has any: that of the
/// message, which the text exceeds by a third or more.
fn whole(text: Vec<u8>, held: Option<Held>) -> Body {
    match held {
        Some(held) => Body::new(answers::holding(tonic::body::Body::new(Body::from(text)), held)),
        None => text.into(),
    }
}

/// Begins a call. Returns its answers, and what they hold.
async fn open(
    gateway: &Gateway,
    rpc: &'static str,
    requests: impl Stream<Item = Bytes> + Send + 'static,
) -> Result<(Streaming<Bytes>, Option<Held>), Status> {
    // Answers are bounded by the services.
    let mut services = Grpc::new(gateway.routes.clone()).max_decoding_message_size(usize::MAX);
    let path = PathAndQuery::from_static(rpc);
    let mut response = services.streaming(Request::new(requests), path, Raw).await?;
    let held = response.extensions_mut().remove::<Held>();
    Ok((response.into_inner(), held))
}

/// The messages of a body. As in etcd, what is malformed after the first one ends them.
fn requests(
    gateway: Arc<Gateway>,
    of: MessageId,
    first: Option<Bytes>,
    objects: Objects,
) -> impl Stream<Item = Bytes> + Send + 'static {
    unfold((gateway, first, objects), move |(gateway, first, mut objects)| async move {
        let next = match first {
            Some(first) => first,
            None => message(&gateway, of, &objects.next().await.ok()??).ok()?,
        };
        Some((next, (gateway, None, objects)))
    })
}

fn message(gateway: &Gateway, of: MessageId, text: &[u8]) -> Result<Bytes, Status> {
    let message = decode::decode(&gateway.schema, of, text);
    message.map(Bytes::from).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// An answer as JSON.
async fn text(gateway: &Arc<Gateway>, of: MessageId, message: Bytes) -> Result<Vec<u8>, Status> {
    if message.len() <= LARGE_BYTES {
        return encoded(gateway, of, &message);
    }
    let gateway = Arc::clone(gateway);
    off_the_hot_path(move || encoded(&gateway, of, &message)).await?
}

fn encoded(gateway: &Gateway, of: MessageId, message: &[u8]) -> Result<Vec<u8>, Status> {
    let mut text = Vec::with_capacity(message.len() + message.len() / 2);
    encode::encode(&gateway.schema, of, message, &mut text).map_err(fault)?;
    Ok(text)
}

/// Sends each answer as it comes, a line each: `{"result": ...}`. A client that leaves ends the call, since nobody
/// takes its answers any more.
fn stream(gateway: Arc<Gateway>, method: Method, answers: Streaming<Bytes>) -> Response {
    let lines = unfold(Some((gateway, answers)), move |open| async move {
        let (gateway, mut answers) = open?;
        let next = match answers.message().await {
            Ok(Some(message)) => text(&gateway, method.output, message).await,
            Ok(None) => return None,
            Err(status) => Err(status),
        };
        Some(match next {
            Ok(text) => (line(&text), Some((gateway, answers))),
            Err(status) => (format!("{}\n", failed_line(&status)).into(), None),
        })
    });
    use tokio_stream::StreamExt;
    super::json(StatusCode::OK, Body::from_stream(lines.map(Ok::<Bytes, std::convert::Infallible>)))
}

fn line(text: &[u8]) -> Bytes {
    [b"{\"result\":", text, b"}\n"].concat().into()
}

fn fault(error: impl std::fmt::Display) -> Status {
    Error::fault(error).into()
}

/// Messages as they are.
pub(crate) struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(message.copy_to_bytes(message.remaining())))
    }
}
