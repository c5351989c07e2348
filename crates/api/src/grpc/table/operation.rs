//! A table command's way through the engine, and what its refusals are to clients.

use crate::commands::check_size;
use crate::error::{Error, Kind};
use bytes::Bytes;
use quoin_core::Reply;
use quoin_core::table::{CHANGE_BYTES, Operation, Refusal};
use quoin_engine::Engine;
use quoin_library::TableConfig;

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

/// Refuses changes of `bytes` that would take more memory than they may.
///
/// # Errors
/// They would.
pub(crate) fn check_changes(engine: &Engine, settings: &TableConfig, bytes: usize) -> Result<(), Error> {
    let (held, max) = (engine.latest().memory().tables.changes_bytes(), settings.changes_bytes_max);
    if held.saturating_add(bytes) <= max {
        return Ok(());
    }
    let text = format!(
        "changes over tables take {held} bytes of memory, and these {bytes} more than the {max} that they may have: fold \
         changes into files (quoin table export-changes, merge, publish), or raise table.changes_bytes_max"
    );
    Err(Error::Refused(Kind::ResourceExhausted, text))
}

/// About the bytes that changes with these values take in memory.
pub(crate) fn changes_bytes<'a>(values: impl Iterator<Item = &'a Bytes>, deletes: usize) -> usize {
    values.map(|value| CHANGE_BYTES + value.len()).sum::<usize>() + deletes * CHANGE_BYTES
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
