//! Lookups. A request is answered on the thread on which it arrives.

use crate::auth::check_table;
use crate::consistency;
use crate::error::Error;
use crate::grpc::outbound;
use crate::life::Life;
use quoin_core::auth::table_rights::LOOKUP;
use quoin_engine::{Engine, ReadView};
use quoin_library::{Found, Library};
use quoin_proto::quoin::table::v1 as pb;
use quoin_table::Form;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::{Stream, StreamExt};
use tonic::{Status, Streaming};

/// Maximum answers that wait for a slow client; then its requests wait.
const ANSWERS_MAX: usize = 16;
/// Maximum bytes of values in answers that wait for a slow client, and in the one to be sent next; one alone may have
/// more.
const ANSWERS_BYTES_MAX: usize = 4 << 20;
/// Maximum tables in a request.
const TABLES_MAX: usize = 1000;

/// Answers one request.
pub(super) async fn lookup(
    engine: &Engine,
    library: &Library,
    request: &pb::LookupRequest,
) -> Result<pb::LookupResponse, Error> {
    check(library, request)?;
    for keys in &request.tables {
        check_table(engine, &keys.table, LOOKUP)?;
    }
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

/// Answers on their way to the client.
pub(crate) type Lookups = Pin<Box<dyn Stream<Item = Result<pb::LookupResponse, Status>> + Send>>;

/// Answers requests in their order. An error ends the stream.
pub(super) fn stream(
    engine: Engine,
    library: Arc<Library>,
    life: &Life,
    mut requests: Streaming<pb::LookupRequest>,
) -> Lookups {
    let waiting = Waiting::new(ANSWERS_BYTES_MAX);
    let answers = outbound::spawn(life, ANSWERS_MAX, |answers| async move {
        while let Some(request) = requests.message().await? {
            let answer = lookup(&engine, &library, &request).await?;
            // Both wait for the client.
            let answer = waiting.hold(answer).await;
            if answers.send(Ok(answer)).await.is_err() {
                break;
            }
        }
        Ok(())
    });
    Box::pin(answers.map(|answer| answer.map(|(answer, _taken)| answer)))
}

/// Bytes of answers that wait for a client.
struct Waiting {
    bytes_max: usize,
    room: Arc<Semaphore>,
}

impl Waiting {
    fn new(bytes_max: usize) -> Self {
        Self { bytes_max, room: Arc::new(Semaphore::new(bytes_max)) }
    }

    /// Waits until there is room for the answer, which it takes until it is dropped.
    async fn hold(&self, answer: pb::LookupResponse) -> (pb::LookupResponse, OwnedSemaphorePermit) {
        let bytes: usize =
            answer.tables.iter().map(|table| table.values.len() + 4 * table.offsets.len()).sum();
        let bytes = bytes.min(self.bytes_max) as u32;
        let room = Arc::clone(&self.room).acquire_many_owned(bytes).await;
        (answer, room.expect("nobody closes the semaphore"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn answer(bytes: usize) -> pb::LookupResponse {
        let values = vec![0; bytes].into();
        pb::LookupResponse { tables: vec![pb::Values { values, ..Default::default() }] }
    }

    /// Sixteen answers of 64 MiB each waited for a client that took none.
    #[tokio::test]
    async fn answers_that_wait_are_bounded_by_their_bytes() {
        let waiting = Waiting::new(100);
        let first = waiting.hold(answer(1000)).await;
        let mut second = pin!(waiting.hold(answer(1)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(second.as_mut().poll(&mut context).is_pending(), "the first takes all room");
        drop(first);
        let second = second.await;
        let third = waiting.hold(answer(99)).await;
        assert_eq!(waiting.room.available_permits(), 0);
        drop((second, third));
        assert_eq!(waiting.room.available_permits(), 100);
    }
}
