//! `Get` and `GetStream`: lookups in the table in memory. What has arrived together on a stream is looked up together.
//!
//! **Bounds.** Lookups of one request and on the way on one stream; with more, the stream is not read.

use super::encode::Encoder;
use super::translate::rule_key;
use crate::api::kv::{consistency, header_at};
use crate::api::{Life, error, inbound};
use crate::engine::{Engine, ReadView};
use quoin_core::route::RuleKey;
use quoin_proto::Encoded;
use quoin_proto::quoin::route::v1 as pb;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// Lookups in one request at most.
const LOOKUPS_MAX: usize = 10_000;
/// Requests taken off a stream at once at most.
const REQUESTS_AT_ONCE_MAX: usize = 1024;
/// Lookups taken off a stream at once, about: more would not fit in the processor's caches.
const LOOKUPS_AT_ONCE: usize = 4096;
/// Answers that wait for a slow client at most.
const RESPONSES_MAX: usize = 8;
/// An answer of a stream is closed when it has reached this size, in bytes.
const RESPONSE_BYTES: usize = 256 << 10;
/// Lookups under one hold of the table.
const LOOKUPS_PER_HOLD: usize = 256;

type Responses = mpsc::Sender<Result<Encoded, Status>>;

/// Answers one request.
///
/// # Errors
/// A lookup that is none, too many of them; otherwise as every read.
pub(super) async fn get(engine: &Engine, request: pb::GetRequest) -> Result<Encoded, Status> {
    check_count(request.lookups.len())?;
    let mut keys = Vec::with_capacity(request.lookups.len());
    for (place, lookup) in request.lookups.iter().enumerate() {
        let key = rule_key(lookup.vni, &lookup.ip);
        keys.push(key.map_err(|problem| error::invalid(format_args!("lookups[{place}].{problem}")))?);
    }
    let view = engine.read(consistency(request.consistency.as_ref())).await?;
    let mut encoder = Encoder::default();
    encoder.get_response(&header_at(engine, view.progress()));
    let table = view.routes().look();
    for (lookup, key) in request.lookups.iter().zip(&keys) {
        let found = table.get(key).map_err(error::store)?;
        encoder.answer(lookup.request_id, Ok(found.as_ref()));
    }
    let bytes_max = engine.limits().response_bytes_max;
    if encoder.out.len() > bytes_max {
        return Err(error::response_too_large(bytes_max));
    }
    Ok(Encoded(encoder.take()))
}

fn check_count(lookups: usize) -> Result<(), Status> {
    if lookups > LOOKUPS_MAX {
        return Err(error::invalid(format_args!(
            "{lookups} lookups in one request are too many, at most {LOOKUPS_MAX}"
        )));
    }
    Ok(())
}

/// Serves a stream on a task of its own; returns its answers.
pub(super) fn stream(
    engine: Engine,
    life: Life,
    mut requests: Streaming<pb::GetRequest>,
) -> ReceiverStream<Result<Encoded, Status>> {
    let (responses, receiver) = mpsc::channel(RESPONSES_MAX);
    tokio::spawn(async move {
        let ended = tokio::select! {
            ended = run(&engine, &mut requests, &responses) => ended,
            () = life.ended() => Err(error::STOPPED.into()),
        };
        if let Err(status) = ended {
            // Nobody is left to be told where this fails.
            let _ = responses.send(Err(status)).await;
        }
    });
    ReceiverStream::new(receiver)
}

async fn run(
    engine: &Engine,
    requests: &mut Streaming<pb::GetRequest>,
    responses: &Responses,
) -> Result<(), Status> {
    let mut encoder = Encoder::default();
    let mut at_once = REQUESTS_AT_ONCE_MAX;
    loop {
        let arrived = inbound::next_many(requests, at_once).await?;
        if arrived.is_empty() {
            return Ok(());
        }
        // The next ones will be about as large as these.
        let lookups: usize = arrived.iter().map(|request| request.lookups.len()).sum();
        at_once = (LOOKUPS_AT_ONCE * arrived.len() / lookups.max(1)).clamp(1, REQUESTS_AT_ONCE_MAX);
        for same in arrived.chunk_by(|one, other| one.consistency == other.consistency) {
            let view = engine.read(consistency(same[0].consistency.as_ref())).await?;
            let lookups: Vec<Wanted<'_>> =
                same.iter().flat_map(|request| &request.lookups).map(Wanted::of).collect();
            answer(engine, &view, &lookups, &mut encoder, responses).await?;
        }
    }
}

/// A lookup, read.
struct Wanted<'a> {
    lookup: &'a pb::Lookup,
    key: Result<RuleKey, String>,
}

impl<'a> Wanted<'a> {
    fn of(lookup: &'a pb::Lookup) -> Self {
        Self { lookup, key: rule_key(lookup.vni, &lookup.ip) }
    }
}

async fn answer(
    engine: &Engine,
    view: &ReadView,
    lookups: &[Wanted<'_>],
    encoder: &mut Encoder,
    responses: &Responses,
) -> Result<(), Status> {
    let header = header_at(engine, view.progress());
    encoder.get_response(&header);
    for chunk in lookups.chunks(LOOKUPS_PER_HOLD) {
        look(view, chunk, encoder)?;
        if encoder.out.len() >= RESPONSE_BYTES {
            if responses.send(Ok(Encoded(encoder.take()))).await.is_err() {
                return Ok(());
            }
            encoder.get_response(&header);
        }
    }
    // A client that has left is no error: it is not waiting.
    let _ = responses.send(Ok(Encoded(encoder.take()))).await;
    Ok(())
}

fn look(view: &ReadView, lookups: &[Wanted<'_>], encoder: &mut Encoder) -> Result<(), Status> {
    let table = view.routes().look();
    for wanted in lookups {
        let id = wanted.lookup.request_id;
        match &wanted.key {
            Ok(key) => encoder.answer(id, Ok(table.get(key).map_err(error::store)?.as_ref())),
            Err(problem) => encoder.answer(id, Err(problem)),
        }
    }
    Ok(())
}
