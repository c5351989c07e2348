//! Changes over the active version, given out so that they can be folded into files.
//!
//! **Invariant.** All that is given is of one revision, which the first answer names, whatever is written meanwhile.

use super::pb;
use crate::api::error;
use crate::engine::{Consistency, Engine, ReadView};
use crate::table::LookupError;
use quoin_core::table::{Version, query};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Bytes of keys and values in one answer, about.
const CHUNK_BYTES: usize = 256 << 10;
/// Answers that wait for a slow reader; beyond that reading the store waits.
const CHUNKS_WAITING: usize = 4;

type Answer = Result<pb::ChangesResponse, Status>;

/// Everything that lies over the active version's files, as of a state that has every write answered before.
pub(super) async fn changes(
    engine: &Engine,
    request: pb::ChangesRequest,
) -> Result<ReceiverStream<Answer>, Status> {
    let view = engine.read(Consistency::Linearizable).await?;
    let name = request.table;
    let changed = view.tables().look().table(&name).map(quoin_core::table::TableState::changed);
    let version = query::active(view.view(), &name).map_err(error::store)?.ok_or_else(|| {
        super::lookup_refused(&match changed {
            Some(_) => LookupError::NotActive(name.clone()),
            None => LookupError::NoTable(name.clone()),
        })
    })?;
    let over = pb::changes_response::Over {
        version: version.number,
        manifest: version.manifest.clone(),
        revision: view.progress().revision.0,
        cluster: engine.cluster(),
        keys: changed.unwrap_or(0) as u64,
    };
    // Kept from being compacted away while it is read.
    let pin = view.store().pin(view.progress().sequence).map_err(|forgotten| error::fault(&forgotten))?;
    let (answers, receiver) = mpsc::channel(CHUNKS_WAITING);
    tokio::task::spawn_blocking(move || {
        let _pin = pin;
        give(&view, &name, &version, over, &answers);
    });
    Ok(ReceiverStream::new(receiver))
}

/// Sends until all is sent or nobody reads any more.
fn give(
    view: &ReadView,
    name: &str,
    version: &Version,
    over: pb::changes_response::Over,
    answers: &mpsc::Sender<Answer>,
) {
    let mut answer = pb::ChangesResponse { over: Some(over), ..Default::default() };
    let mut bytes = 0;
    for change in query::changes(view.view(), name, version) {
        match change {
            Ok((key, Some(value))) => {
                bytes += 8 + value.len();
                answer.keys.push(key);
                answer.values.push(value);
            }
            Ok((key, None)) => {
                bytes += 8;
                answer.deletes.push(key);
            }
            Err(fault) => {
                let _ = answers.blocking_send(Err(error::store(fault)));
                return;
            }
        }
        if bytes >= CHUNK_BYTES {
            if answers.blocking_send(Ok(std::mem::take(&mut answer))).is_err() {
                return;
            }
            bytes = 0;
        }
    }
    let _ = answers.blocking_send(Ok(answer));
}
