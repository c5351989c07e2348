//! What kv operations need of which keys. The rules are etcd's.

use super::caller;
use crate::audit::{self, Use};
use crate::commands::long_read;
use crate::error::Error;
use quoin_core::auth::Access;
use quoin_core::kv::txn_operation::Step;
use quoin_core::kv::{self, FieldAction, Operation, Txn};
use quoin_engine::{Consistency, Engine};

/// Whether the caller may read a range; an empty `range_end` means the one key.
///
/// # Errors
/// They may not.
pub(crate) fn check_reads(engine: &Engine, key: &[u8], range_end: &[u8]) -> Result<(), Error> {
    let judged = caller::check(engine, |access| access.reads(key, range_end));
    audit::uses(judged.is_ok(), Use::Reads, key, range_end)?;
    judged
}

/// Whether the caller may run a transaction that only reads.
///
/// # Errors
/// They may not.
pub(crate) fn check_txn(engine: &Engine, txn: &Txn) -> Result<(), Error> {
    let judged = caller::check(engine, |access| may_run(access, txn));
    audit::uses_of_txn(judged.is_ok(), txn)?;
    judged
}

/// Whether the caller may do a kv operation.
///
/// # Errors
/// They may not, or the keys of its leases cannot be read.
pub(crate) async fn check_operation(engine: &Engine, operation: &Operation) -> Result<(), Error> {
    let mut root = false;
    let judged = caller::check(engine, |access| {
        root = access.is_root();
        may_do(access, operation)
    });
    audit::uses_of(judged.is_ok(), operation)?;
    judged?;
    if !engine.auth_on() {
        return Ok(());
    }
    if root {
        return Ok(());
    }
    for lease in leases(operation) {
        check_lease(engine, lease, Access::writes).await?;
    }
    Ok(())
}

/// As [`check_operation`], by this replica's state of its leases.
///
/// # Errors
/// As [`check_operation`].
pub(crate) fn check_here(engine: &Engine, operation: &Operation) -> Result<(), Error> {
    let judged = caller::check(engine, |access| may_do(access, operation));
    audit::uses_of(judged.is_ok(), operation)?;
    judged?;
    if !engine.auth_on() {
        return Ok(());
    }
    for lease in leases(operation) {
        let view = engine.latest();
        let found = kv::lease(view.view(), view.progress(), lease, true)?;
        let keys = found.map(|(_, keys)| keys).unwrap_or_default();
        caller::check(engine, |access| keys.iter().all(|key| access.writes(key, b"")))?;
    }
    Ok(())
}

/// Whether the caller may do to all keys of a lease what `may` says. Whoever cannot write one of them cannot end it, and
/// so attaches nothing to it either.
///
/// # Errors
/// They may not, or the state cannot be read.
pub(crate) async fn check_lease(
    engine: &Engine,
    lease: i64,
    may: fn(&Access, &[u8], &[u8]) -> bool,
) -> Result<(), Error> {
    let view = engine.read(Consistency::Linearizable).await?;
    let progress = *view.progress();
    let found = long_read(move || kv::lease(view.view(), &progress, lease, true)).await?;
    let keys = found.map(|(_, keys)| keys).unwrap_or_default();
    caller::check(engine, |access| keys.iter().all(|key| may(access, key, b"")))
}

fn may_do(access: &Access, operation: &Operation) -> bool {
    match operation {
        Operation::Put(put) => may_put(access, put),
        Operation::Delete(delete) => may_delete(access, delete),
        Operation::Txn(txn) => may_run(access, txn),
        // Their keys are judged besides.
        Operation::LeaseGrant(_) | Operation::LeaseRevoke(_) | Operation::LeaseKeepAlive(_) => true,
        // The answer is what the key has then.
        Operation::Increment(increment) => {
            access.writes(&increment.key, b"") && access.reads(&increment.key, b"")
        }
        Operation::WriteFields(write) => may_write_fields(access, write),
    }
}

fn may_put(access: &Access, put: &kv::Put) -> bool {
    access.writes(&put.key, b"") && (!put.prev_kv || access.reads(&put.key, b""))
}

fn may_delete(access: &Access, delete: &kv::Delete) -> bool {
    let (key, range_end) = (&delete.key, &delete.range_end);
    access.writes(key, range_end) && (!delete.prev_kv || access.reads(key, range_end))
}

fn may_write_fields(access: &Access, write: &kv::WriteFields) -> bool {
    let answers = write.changes.iter().any(|change| matches!(change.action, Some(FieldAction::Add(_))));
    // A hash that moves from another key is read there, and deleted.
    let moves = write.from.is_empty() || access.writes(&write.from, b"") && access.reads(&write.from, b"");
    access.writes(&write.key, b"") && moves && (!answers || access.reads(&write.key, b""))
}

fn may_run(access: &Access, txn: &Txn) -> bool {
    let compares = txn.compare.iter().all(|compare| access.reads(&compare.key, &compare.range_end));
    compares
        && txn.success.iter().chain(&txn.failure).all(|operation| match &operation.step {
            None => true,
            Some(Step::Range(range)) => access.reads(&range.key, &range.range_end),
            Some(Step::Put(put)) => may_put(access, put),
            Some(Step::Delete(delete)) => may_delete(access, delete),
            Some(Step::Txn(txn)) => may_run(access, txn),
            Some(Step::WriteFields(write)) => may_write_fields(access, write),
            // A channel is judged as a key of its name.
            Some(Step::Publish(message)) => access.writes(&message.channel, b""),
        })
}

/// The leases whose keys an operation concerns.
fn leases(operation: &Operation) -> Vec<i64> {
    let mut leases = match operation {
        Operation::Put(put) => vec![put.lease],
        Operation::LeaseRevoke(lease) => vec![*lease],
        Operation::Txn(txn) => of_txn(txn),
        _ => Vec::new(),
    };
    leases.retain(|lease| *lease != 0);
    leases.sort_unstable();
    leases.dedup();
    leases
}

fn of_txn(txn: &Txn) -> Vec<i64> {
    let steps = txn.success.iter().chain(&txn.failure);
    steps
        .flat_map(|operation| match &operation.step {
            Some(Step::Put(put)) => vec![put.lease],
            Some(Step::Txn(txn)) => of_txn(txn),
            _ => Vec::new(),
        })
        .collect()
}
