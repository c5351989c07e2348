//! Lookups: a request is answered where it arrives, without leaving its thread.

use super::{lookup_refused, pb};
use crate::api::{Life, error};
use crate::engine::{Consistency, Engine, ReadView};
use crate::table::Found;
use quoin_table::Form;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// Answers that wait for a slow reader; beyond that its requests wait.
const ANSWERS_MAX: usize = 16;
/// Tables of one request at most.
const TABLES_MAX: usize = 1000;

/// Answers one request.
pub(super) async fn lookup(
    engine: &Engine,
    request: &pb::LookupRequest,
) -> Result<pb::LookupResponse, Status> {
    check(engine, request)?;
    let view =
        if request.linearizable { engine.read(Consistency::Linearizable).await? } else { engine.latest() };
    let mut bytes_left = engine.limits().response_bytes_max;
    let mut tables = Vec::with_capacity(request.tables.len());
    for keys in &request.tables {
        let values = values(engine, &view, keys, bytes_left)?;
        bytes_left -= values.values.len();
        tables.push(values);
    }
    Ok(pb::LookupResponse { tables })
}

fn check(engine: &Engine, request: &pb::LookupRequest) -> Result<(), Status> {
    if request.tables.len() > TABLES_MAX {
        return Err(error::invalid(format!(
            "{} tables in one request, at most {TABLES_MAX}",
            request.tables.len()
        )));
    }
    let (keys, max) =
        (request.tables.iter().map(|keys| keys.keys.len()).sum::<usize>(), engine.lookup_keys_max());
    if keys > max {
        return Err(error::invalid(format!("{keys} keys in one request, at most {max} (table.keys_max)")));
    }
    Ok(())
}

fn values(engine: &Engine, view: &ReadView, keys: &pb::Keys, bytes_max: usize) -> Result<pb::Values, Status> {
    let form = match keys.form() {
        pb::Form::Stored => Form::Stored,
        pb::Form::F32 => Form::F32,
    };
    let mut found = Found::default();
    let library = engine.library();
    library
        .lookup(view.tables(), &keys.table, &keys.keys, form, bytes_max, &mut found)
        .map_err(|error| lookup_refused(&error))?;
    let Found { version, width, answer } = found;
    Ok(pb::Values {
        version,
        found: answer.found.into(),
        values: answer.values.into(),
        width,
        offsets: answer.offsets,
    })
}

/// Answers requests in their order. One that is refused ends the stream with its reason.
pub(super) fn stream(
    engine: Engine,
    life: Life,
    mut requests: Streaming<pb::LookupRequest>,
) -> ReceiverStream<Result<pb::LookupResponse, Status>> {
    let (answers, receiver) = mpsc::channel(ANSWERS_MAX);
    tokio::spawn(async move {
        loop {
            let request = tokio::select! {
                request = requests.next() => request,
                () = life.ended() => return,
            };
            let answer = match request {
                None => return,
                Some(Err(status)) => Err(status),
                Some(Ok(request)) => lookup(&engine, &request).await,
            };
            let last = answer.is_err();
            if answers.send(answer).await.is_err() || last {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}
