//! Lookups. A request is answered on the thread on which it arrives.

use crate::consistency;
use crate::error::Error;
use crate::grpc::outbound::{self, AnswerStream};
use crate::life::Life;
use quoin_engine::{Engine, ReadView};
use quoin_library::{Found, Library};
use quoin_proto::quoin::table::v1 as pb;
use quoin_table::Form;
use std::sync::Arc;
use tonic::Streaming;

/// Maximum answers that wait for a slow client; then its requests wait.
const ANSWERS_MAX: usize = 16;
/// Maximum tables in a request.
const TABLES_MAX: usize = 1000;

/// Answers one request.
pub(super) async fn lookup(
    engine: &Engine,
    library: &Library,
    request: &pb::LookupRequest,
) -> Result<pb::LookupResponse, Error> {
    check(library, request)?;
    let view = consistency::view(engine, request.consistency.as_ref()).await?;
    let mut bytes_left = engine.limits().response_bytes_max;
    let mut tables = Vec::with_capacity(request.tables.len());
    for keys in &request.tables {
        let values = values(library, &view, keys, bytes_left)?;
        bytes_left -= values.values.len();
        tables.push(values);
    }
    Ok(pb::LookupResponse { tables })
}

fn check(library: &Library, request: &pb::LookupRequest) -> Result<(), Error> {
    if request.tables.len() > TABLES_MAX {
        return Err(Error::invalid(format!(
            "{} tables in one request, at most {TABLES_MAX}",
            request.tables.len()
        )));
    }
    let (keys, max) =
        (request.tables.iter().map(|keys| keys.keys.len()).sum::<usize>(), library.settings().keys_max);
    if keys > max {
        return Err(Error::invalid(format!("{keys} keys in one request, at most {max} (table.keys_max)")));
    }
    Ok(())
}

fn values(
    library: &Library,
    view: &ReadView,
    keys: &pb::Keys,
    bytes_max: usize,
) -> Result<pb::Values, Error> {
    let form = match keys.form() {
        pb::Form::Stored => Form::Stored,
        pb::Form::F32 => Form::F32,
    };
    let mut found = Found::default();
    library.lookup(&view.memory().tables, &keys.table, &keys.keys, form, bytes_max, &mut found)?;
    let Found { version, width, answer } = found;
    Ok(pb::Values {
        version,
        found: answer.found.into(),
        values: answer.values.into(),
        width,
        offsets: answer.offsets,
    })
}

/// Answers requests in their order. An error ends the stream.
pub(super) fn stream(
    engine: Engine,
    library: Arc<Library>,
    life: &Life,
    mut requests: Streaming<pb::LookupRequest>,
) -> AnswerStream<pb::LookupResponse> {
    outbound::spawn(life, ANSWERS_MAX, |answers| async move {
        while let Some(request) = requests.message().await? {
            let answer = lookup(&engine, &library, &request).await?;
            if answers.send(Ok(answer)).await.is_err() {
                break;
            }
        }
        Ok(())
    })
}
