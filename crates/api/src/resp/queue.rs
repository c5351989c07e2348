//! Commands between MULTI and EXEC.
//!
//! **Invariant: Bounded.** Beyond [`QUEUED_MAX`] commands or [`BYTES_MAX`] bytes a command is refused, and so
//! is EXEC then. `connection.rs` bounds the bytes of all queues together.

use super::keys::Run;
use super::reply::Reply;
use super::request::Arguments;
use super::scripts;
use super::session::Session;
use bytes::Bytes;

/// Maximum commands in a transaction.
const QUEUED_MAX: usize = 10_000;
/// Maximum bytes of their arguments.
const BYTES_MAX: usize = 64 << 20;
/// What an argument costs besides its bytes.
const ARGUMENT_BYTES: usize = 64;

/// What EXEC does for a queued command.
#[derive(Clone, Copy)]
pub(super) enum Queued {
    /// It reads or writes keys: a part of the transaction.
    Keys(Run),
    /// It runs a script, as a part of the transaction.
    Script(scripts::Kind),
    /// It works on the connection's state, once the transaction is done.
    Connection(fn(&mut Session, &[Bytes]) -> Reply),
}

/// The commands of a transaction.
#[derive(Default)]
pub(super) struct Queue {
    commands: Vec<(Queued, Vec<Bytes>)>,
    bytes: usize,
    spoiled: bool,
}

impl Queue {
    /// Adds a command.
    ///
    /// # Errors
    /// The queue is full, says the text.
    pub(super) fn push(&mut self, queued: Queued, args: Arguments<'_>) -> Result<(), String> {
        // After an error nothing of it is done: nothing need be kept.
        if self.spoiled {
            return Ok(());
        }
        if self.commands.len() >= QUEUED_MAX {
            return Err(format!("ERR more than {QUEUED_MAX} commands in a transaction"));
        }
        self.bytes += args.iter().map(|arg| arg.len() + ARGUMENT_BYTES).sum::<usize>();
        if self.bytes > BYTES_MAX {
            return Err(format!("ERR more than {BYTES_MAX} bytes in a transaction"));
        }
        self.commands.push((queued, args.copied()));
        Ok(())
    }

    /// What the commands take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// There was an error: EXEC will refuse.
    pub(super) fn spoil(&mut self) {
        *self = Self { spoiled: true, ..Self::default() };
    }

    /// The commands, in order, each with its arguments; `None` after an error.
    pub(super) fn into_commands(self) -> Option<Vec<(Queued, Vec<Bytes>)>> {
        (!self.spoiled).then_some(self.commands)
    }
}
