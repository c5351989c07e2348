//! A table command's way through the engine, and what its refusals are to clients.

use crate::commands::check_size;
use crate::error::Error;
use quoin_core::Reply;
use quoin_core::table::{Operation, Refusal};
use quoin_engine::Engine;

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
