//! Quoin's core: what may be asked, what it does to the state, and what is answered.
//!
//! Everything here is a pure function of the log. Time, random ids and expiry enter as data (the
//! [`Stamp`] of a batch, fields of a command), so every replica that applies the same log reaches the
//! same state, gives the same replies and emits the same events.
//!
//! What is deliberately absent: tokio, clocks, randomness, sockets and files. The store is reached
//! through the narrow trait [`store::Store`].
//!
//! Reading order: [`types`] (the numbers), [`store`] (what a machine may do to state), [`batch`] (what one
//! log entry holds), [`machines`] (how an entry is applied), [`history`] (what remains of the past), then
//! one folder per face.

pub mod batch;
pub mod codec;
#[cfg(any(test, feature = "testing"))]
pub mod golden;
pub mod history;
pub mod kv;
pub mod ledger;
pub mod machines;
pub mod route;
pub mod store;
pub mod system;
pub mod table;
pub mod tx;
pub mod types;

pub use batch::{Batch, Command, Face};
pub use history::{Change, Event};
pub use machines::{Machines, Reply};
pub use store::{Order, Store, StoreError, View};
pub use tx::Tx;
pub use types::{Index, Progress, Revision, Sequence, Stamp, Term};
