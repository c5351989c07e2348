//! A table command's way through the engine, and what its refusals are to clients.

use crate::commands::check_size;
use crate::error::{Error, Kind};
use quoin_core::Reply;
use quoin_core::table::{CHANGE_BYTES, Operation, Refusal, Write};
use quoin_engine::Engine;
use quoin_library::TableConfig;
use std::sync::Arc;

/// Applies a table operation. Returns the version that it is about and its revision.
///
/// # Errors
/// A refusal, or see [`Engine::propose`].
pub(crate) async fn operation(engine: &Engine, operation: Operation) -> Result<(u64, u64), Error> {
    let command = operation.into_command();
    check_size(engine, &command)?;
    match engine.propose(command).await? {
        Reply::Table(reply) => Ok((reply.result?, reply.revision.0)),
        other => Err(Error::unexpected_reply("table", &other)),
    }
}

/// Refuses a write whose changes would take more memory than they may. One that takes no more than the changes of the same
/// keys do already is never refused: deleting a changed key frees its value.
///
/// # Errors
/// They would.
pub(crate) fn check_changes(engine: &Engine, settings: &TableConfig, write: &Write) -> Result<(), Error> {
    let tables = Arc::clone(&engine.latest().memory().tables);
    let (held, max) = (tables.changes_bytes(), settings.changes_bytes_max);
    let values: usize = write.upserts.iter().map(|upsert| upsert.value.len()).sum();
    let at_most = values + CHANGE_BYTES * (write.upserts.len() + write.deletes.len());
    if held.saturating_add(at_most) <= max {
        return Ok(());
    }
    let bytes = tables.look().table(&write.name).map_or(0, |state| state.growth(write));
    if bytes == 0 || held.saturating_add(bytes) <= max {
        return Ok(());
    }
    let text = format!(
        "changes over tables take {held} bytes of memory, and these {bytes} more than the {max} that they may have: fold \
         changes into files (quoin table export-changes, merge, publish), or raise table.changes_bytes_max"
    );
    Err(Error::Refused(Kind::ResourceExhausted, text))
}

/// The only place where refusals of the table face become errors.
impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoTable(_) | Refusal::NoVersion { .. } => Self::not_found(refusal),
            Refusal::Width { .. }
            | Refusal::NameTooLong { .. }
            | Refusal::TooManyKept { .. }
            | Refusal::Malformed => Self::invalid(refusal),
            _ => Self::precondition(refusal),
        }
    }
}
