//! Who asks, and whether they may: the same for all wires.
//!
//! Reading order, along a request: `gate.rs` finds out who asks (`password.rs`, `token.rs`, a certificate; `attempts.rs` bounds guesses), `rules.rs`
//! says what a call needs, `caller.rs` judges by the users and roles of this replica, and `layer.rs` does all of that for
//! HTTP/2 and HTTP/1. `keys.rs` says what a kv operation needs of which keys.
//!
//! **Invariant: Newest rights.** What was judged here is done only if the users and roles are still those, see
//! [`quoin_engine::admission`].
//!
//! Deliberately absent: any judgement while authentication is off, which costs a request a look at a flag.

mod attempts;
mod caller;
mod gate;
mod keys;
mod layer;
mod password;
pub(crate) mod rules;
mod tell;
#[cfg(test)]
mod tests;
mod token;

pub(crate) use caller::{
    Caller, Identity, carried, check, check_table, check_user, check_view, present, renewed,
};
pub use gate::Settings;
pub(crate) use gate::{CommonName, Gate, of_certificate, passed_on, with_token};
pub(crate) use keys::{check_here, check_lease, check_operation, check_reads, check_txn};
pub(crate) use layer::{Guard, OfTable, guard_pages};
pub(crate) use rules::Need;
pub(crate) use tell::tell;
