//! `Get` and `GetStream`: lookups in the table in memory. Requests that have arrived together on a stream are
//! looked up together.
//!
//! **Invariant: Bounded.** Lookups of a request, and answers of a stream that wait; then the stream is not
//! read.

use super::encode::Encoder;
use super::translate::rule_key;
use crate::consistency;
use crate::error::Error;
use crate::grpc::inbound;
use crate::grpc::kv::header_at;
use crate::grpc::outbound::{self, AnswerStream, Answers};
use crate::life::Life;
use quoin_core::route::RuleKey;
use quoin_engine::{Engine, ReadView};
use quoin_proto::Encoded;
use quoin_proto::quoin::route::v1 as pb;
use tonic::Streaming;

/// Maximum lookups in a request.
pub(crate) const LOOKUPS_MAX: usize = 10_000;
/// Maximum requests taken off a stream at once.
const REQUESTS_AT_ONCE_MAX: usize = 1024;
/// Lookups to take off a stream at once: more would not fit in the processor's caches.
const LOOKUPS_AT_ONCE: usize = 4096;
/// Maximum answers that wait for a slow client.
const RESPONSES_MAX: usize = 8;
/// An answer of a stream is closed at this size, in bytes.
const RESPONSE_BYTES: usize = 256 << 10;
/// Lookups while the table's lock is held.
pub(crate) const LOOKUPS_PER_HOLD: usize = 256;

type Responses = Answers<Encoded>;

/// Answers one request.
///
/// # Errors
/// An invalid lookup, or too many; otherwise as every read.
pub(super) async fn get(engine: &Engine, request: pb::GetRequest) -> Result<Encoded, Error> {
    check_count(request.lookups.len())?;
    let mut keys = Vec::with_capacity(request.lookups.len());
    for (place, lookup) in request.lookups.iter().enumerate() {
        let key = rule_key(lookup.vni, &lookup.ip);
        keys.push(key.map_err(|problem| Error::invalid(format_args!("lookups[{place}].{problem}")))?);
    }
    let view = consistency::view(engine, request.consistency.as_ref()).await?;
    let mut encoder = Encoder::default();
    encoder.get_response(&header_at(engine, view.progress()));
    let table = view.memory().routes.look();
    for (lookup, key) in request.lookups.iter().zip(&keys) {
        let found = table.get(key)?;
        encoder.answer(lookup.request_id, Ok(found.as_ref()));
    }
    let bytes_max = engine.limits().response_bytes_max;
    if encoder.out.len() > bytes_max {
        return Err(Error::response_too_large(bytes_max));
    }
    Ok(Encoded(encoder.take()))
}

fn check_count(lookups: usize) -> Result<(), Error> {
    if lookups > LOOKUPS_MAX {
        return Err(Error::invalid(format_args!(
            "{lookups} lookups in one request are too many, at most {LOOKUPS_MAX}"
        )));
    }
    Ok(())
}

/// Serves a stream on a task of its own; returns its answers.
pub(super) fn stream(
    engine: Engine,
    life: &Life,
    requests: Streaming<pb::GetRequest>,
) -> AnswerStream<Encoded> {
    outbound::spawn(life, RESPONSES_MAX, |responses| run(engine, requests, responses))
}

async fn run(
    engine: Engine,
    mut requests: Streaming<pb::GetRequest>,
    responses: Responses,
) -> Result<(), Error> {
    let mut encoder = Encoder::default();
    let mut at_once = REQUESTS_AT_ONCE_MAX;
    loop {
        let arrived = inbound::next_many(&mut requests, at_once).await?;
        if arrived.is_empty() {
            return Ok(());
        }
        // The next requests will be about as large as these.
        let lookups: usize = arrived.iter().map(|request| request.lookups.len()).sum();
        at_once = (LOOKUPS_AT_ONCE * arrived.len() / lookups.max(1)).clamp(1, REQUESTS_AT_ONCE_MAX);
        for same in arrived.chunk_by(|one, other| one.consistency == other.consistency) {
            let view = consistency::view(&engine, same[0].consistency.as_ref()).await?;
            let lookups: Vec<Wanted<'_>> =
                same.iter().flat_map(|request| &request.lookups).map(Wanted::of).collect();
            answer(&engine, &view, &lookups, &mut encoder, &responses).await?;
        }
    }
}

/// A lookup with its key.
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
) -> Result<(), Error> {
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
    // This fails if the client has left, which ends the stream.
    let _ = responses.send(Ok(Encoded(encoder.take()))).await;
    Ok(())
}

fn look(view: &ReadView, lookups: &[Wanted<'_>], encoder: &mut Encoder) -> Result<(), Error> {
    let table = view.memory().routes.look();
    for wanted in lookups {
        let id = wanted.lookup.request_id;
        match &wanted.key {
            Ok(key) => encoder.answer(id, Ok(table.get(key)?.as_ref())),
            Err(problem) => encoder.answer(id, Err(problem)),
        }
    }
    Ok(())
}
