//! Quoin's core: commands, what they do to the state, and replies.
//!
//! **Invariant: Determinism.** Everything here is a pure function of the log. Time, random ids and expiry
//! enter as data (the [`Stamp`] of a batch, fields of a command), so every replica that applies the same log
//! reaches the same state, gives the same replies and emits the same events.
//!
//! What is deliberately absent: tokio, clocks, randomness, sockets and files. The state is reached through
//! the narrow trait [`store::Store`].
//!
//! Reading order: [`types`] (the numbers), [`limits`] (the bounds), [`store`] (the state), [`batch`] (a log
//! entry's payload), [`machines`] (how an entry is applied), `faces.rs` (the list of faces), [`history`] (the
//! record of changes), then one folder per face.
//!
//! Each face's folder has `command.rs`, `reply.rs`, `machine.rs`, `query.rs` and `record.rs`, and golden
//! scripts. In all of them `encode` returns bytes, `encode_into` appends them, `decode` reads them; `*_key`
//! makes a store key, `*_prefix` the beginning of several.

mod allowance;
pub mod auth;
pub mod batch;
mod charge;
pub mod codec;
mod effects;
mod entry;
mod expiry;
mod faces;
pub mod function;
#[cfg(any(test, feature = "testing"))]
pub mod golden;
pub mod history;
#[cfg(any(test, feature = "testing"))]
pub mod hostile;
pub mod kv;
pub mod ledger;
pub mod limits;
pub mod machines;
mod message;
pub mod mutants;
mod progress;
pub mod route;
pub mod store;
pub mod system;
pub mod table;
pub mod tx;
pub mod types;

pub use batch::Batch;
pub use faces::{Command, ENVELOPE_BYTES, Face, Memory, Reply};
pub use history::{Change, Event};
pub use machines::{Machines, Outcome};
pub use message::Message;
pub use store::{Order, Store, StoreError, View};
pub use tx::Tx;
pub use types::{Index, Progress, Revision, Sequence, Stamp, Term};
