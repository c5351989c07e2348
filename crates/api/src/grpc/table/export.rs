//! The changes over the active version, exported so that they can be merged into files.
//!
//! **Invariant: Whole exports.** All changes are of one revision, which the first answer names, whatever is
//! written meanwhile.

use super::admin::disks;
use crate::auth::check_table;
use crate::commands::read;
use crate::error::Error;
use crate::grpc::outbound::{self, AnswerStream, Answers, send_blocking};
use crate::life::Life;
use quoin_core::auth::table_rights::LOOKUP;
use quoin_core::table::{self, TableState, Version};
use quoin_engine::{Consistency, Engine, ReadView};
use quoin_library::LookupError;
use quoin_proto::quoin::table::v1 as pb;
use quoin_table::Folds;

/// An answer is closed at this size, in bytes of keys and values.
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum answers that wait for a slow client; then reading the store waits.
const CHUNKS_WAITING: usize = 4;

/// Streams all changes over the active version's files, as of a state that has every write answered before.
pub(super) async fn changes(
    engine: &Engine,
    life: &Life,
    request: pb::ChangesRequest,
) -> Result<AnswerStream<pb::ChangesResponse>, Error> {
    let name = request.table;
    check_table(engine, &name, LOOKUP)?;
    let view = read(engine, Consistency::Linearizable).await?;
    let changed = view.memory().tables.look().table(&name).map(TableState::changed);
    let version = table::active(view.view(), &name)?.ok_or_else(|| match changed {
        Some(_) => LookupError::NotActive(name.clone()),
        None => LookupError::NoTable(name.clone()),
    })?;
    let revision = view.progress().revision.0;
    let disks = disks(&engine.members()?);
    if disks.is_empty() {
        // In a cluster's first seconds. What is exported without a note could not be folded.
        return Err(Error::unavailable("no member has recorded its disk yet: ask again in a moment"));
    }
    let folds = Folds { revision, table: name.clone(), cluster: engine.cluster(), disks };
    let over = pb::changes_response::Over {
        version: version.number,
        manifest: version.manifest.clone(),
        revision,
        cluster: engine.cluster(),
        folds: folds.to_string(),
        keys: changed.unwrap_or(0) as u64,
    };
    // Keeps the sequence from being compacted away while it is read.
    let pin = view.store().pin(view.progress().sequence).map_err(Error::fault)?;
    Ok(outbound::spawn_blocking(life, CHUNKS_WAITING, move |answers| {
        let _pin = pin;
        send(&view, &name, &version, over, answers)
    }))
}

fn send(
    view: &ReadView,
    name: &str,
    version: &Version,
    over: pb::changes_response::Over,
    answers: &Answers<pb::ChangesResponse>,
) -> Result<(), Error> {
    let mut answer = pb::ChangesResponse { over: Some(over), ..Default::default() };
    let mut bytes = 0;
    for change in table::changes(view.view(), name, version) {
        match change? {
            (key, Some(value)) => {
                bytes += 8 + value.len();
                answer.keys.push(key);
                answer.values.push(value);
            }
            (key, None) => {
                bytes += 8;
                answer.deletes.push(key);
            }
        }
        if bytes >= CHUNK_BYTES {
            send_blocking(answers, std::mem::take(&mut answer))?;
            bytes = 0;
        }
    }
    send_blocking(answers, answer)
}
