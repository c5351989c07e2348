//! Queues of keys held by leases, of which locks and elections are made, as in etcd's clients.
//!
//! Under a name, each waiting client has a key `name/lease` (the lease in hexadecimal). The oldest key has
//! its turn; its create revision is the fencing token, which grows from turn to turn.
//!
//! **Invariant: Fairness.** Turns come in the order of create revisions. A client that leaves the
//! queue, by itself or because its lease ended, is skipped, and wakes only the one behind it.

use super::header::{header_at, signed};
use super::lease;
use crate::auth::{self, check_reads};
use crate::changes::Changes;
use crate::commands::{check_key_length, check_space, kv_operation, range, read};
use crate::error::{Error, Known};
use bytes::Bytes;
use quoin_core::kv::txn_operation::Step;
use quoin_core::kv::{self, CompareTarget, KeyValue, Operation, Response, TxnOperation};
use quoin_core::store::prefix_end;
use quoin_core::{Progress, Revision};
use quoin_engine::{Consistency, Engine};
use quoin_proto::etcdserverpb::ResponseHeader;

/// Time to live of a lease that the caller did not bring, in seconds; as in etcd.
const LEASE_TTL_S: i64 = 60;

/// A place in a queue.
pub(super) struct Place {
    pub(super) key: Bytes,
    /// Its create revision: the fencing token.
    pub(super) revision: i64,
    pub(super) lease: i64,
    /// The value of the key, if the lease had this place before.
    pub(super) value_before: Option<Bytes>,
    prefix: Bytes,
}

/// Takes a place under `name` for `lease`, or finds the place that it has. Lease 0 means a new lease.
///
/// # Errors
/// No such lease, or a name that is too long; otherwise as every write.
pub(super) async fn join(engine: &Engine, name: &[u8], lease: i64, value: Bytes) -> Result<Place, Error> {
    check_space(engine)?;
    let lease = if lease == 0 { lease::grant(engine, 0, LEASE_TTL_S).await?.1 } else { lease };
    let prefix = prefix(name);
    let key = Bytes::from([&prefix[..], format!("{lease:x}").as_bytes()].concat());
    check_key_length(key.len(), engine.limits())?;
    let put = kv::Put { key: key.clone(), value, lease, ..kv::Put::default() };
    let look = kv::Range { key: key.clone(), ..kv::Range::default() };
    let done = if_created_at(engine, &key, 0, Step::Put(put), Some(Step::Range(look))).await?;
    let (revision, value_before) = match (done.held, done.response) {
        (true, _) => (signed(done.revision.0), None),
        (false, Some(Response::Range(mut found))) => {
            let before = found.kvs.pop().ok_or_else(|| Error::unexpected_reply("kv", &"an empty range"))?;
            (before.create_revision, Some(before.value))
        }
        (false, other) => return Err(Error::unexpected_reply("kv", &other)),
    };
    Ok(Place { key, revision, lease, value_before, prefix })
}

/// Waits until this place is the first. The header is of a state in which it was. A caller that stops waiting
/// leaves the queue.
///
/// # Errors
/// The lease ended while it waited, and the place was lost.
pub(super) async fn wait_for_turn(engine: &Engine, place: &Place) -> Result<ResponseHeader, Error> {
    let mut waiting = Waiting { engine, place, over: false };
    while let Some((before, seen)) = predecessor(engine, place).await? {
        Changes::of(engine, &before.key, b"", seen.next()).next().await?;
    }
    waiting.over = true;
    // Whoever waits outlives changes of users and roles.
    let view = auth::renewed(engine, read(engine, Consistency::Linearizable)).await??;
    let header = header_at(engine, view.progress());
    let look = kv::Range { key: place.key.clone(), keys_only: true, ..kv::Range::default() };
    let own = range(engine, view, look).await?.kvs.pop();
    if own.is_none_or(|own| own.create_revision != place.revision) {
        return Err(Known::SessionExpired.into());
    }
    Ok(header)
}

/// The key right before `place`, and the revision at which it was there.
async fn predecessor(engine: &Engine, place: &Place) -> Result<Option<(KeyValue, Revision)>, Error> {
    let newest_before = kv::Range {
        max_create_revision: place.revision - 1,
        sort_order: kv::SortOrder::Descend.into(),
        keys_only: true,
        ..first_by_creation(place.prefix.clone())
    };
    // Whoever waits outlives changes of users and roles.
    let view = auth::renewed(engine, read(engine, Consistency::Linearizable)).await??;
    let revision = view.progress().revision;
    let found = range(engine, view, newest_before).await?.kvs.pop();
    Ok(found.map(|found| (found, revision)))
}

/// The key that has its turn under `name`, and the state that shows it.
///
/// # Errors
/// As every read.
pub(super) async fn holder(
    engine: &Engine,
    name: &[u8],
    consistency: Consistency,
) -> Result<(Progress, Option<KeyValue>), Error> {
    let prefix = prefix(name);
    check_reads(engine, &prefix, &prefix_end(&prefix))?;
    let view = read(engine, consistency).await?;
    let progress = *view.progress();
    let oldest = kv::Range { sort_order: kv::SortOrder::Ascend.into(), ..first_by_creation(prefix) };
    Ok((progress, range(engine, view, oldest).await?.kvs.pop()))
}

/// Changes under `name`, from a revision on.
pub(super) fn changes(engine: &Engine, name: &[u8], from: Revision) -> Changes {
    let prefix = prefix(name);
    Changes::of(engine, &prefix, &prefix_end(&prefix), from)
}

fn prefix(name: &[u8]) -> Bytes {
    [name, b"/"].concat().into()
}

fn first_by_creation(prefix: Bytes) -> kv::Range {
    kv::Range {
        range_end: prefix_end(&prefix).into(),
        key: prefix,
        limit: 1,
        sort_target: kv::SortTarget::Create.into(),
        ..kv::Range::default()
    }
}

/// The result of a conditional step.
pub(super) struct Conditional {
    pub(super) revision: Revision,
    /// The condition held.
    pub(super) held: bool,
    pub(super) response: Option<Response>,
}

/// Runs `step` if `key` was created at `revision` (0: if it is absent), else `otherwise`.
///
/// # Errors
/// As every write.
pub(super) async fn if_created_at(
    engine: &Engine,
    key: &Bytes,
    revision: i64,
    step: Step,
    otherwise: Option<Step>,
) -> Result<Conditional, Error> {
    let steps = |step: Option<Step>| step.map(|step| TxnOperation { step: Some(step) }).into_iter().collect();
    let compare = kv::Compare {
        result: kv::CompareResult::Equal.into(),
        key: key.clone(),
        target: Some(CompareTarget::CreateRevision(revision)),
        ..kv::Compare::default()
    };
    let txn = kv::Txn { compare: vec![compare], success: steps(Some(step)), failure: steps(otherwise) };
    match kv_operation(engine, Operation::Txn(txn)).await? {
        (revision, Response::Txn { succeeded: held, mut responses }) => {
            Ok(Conditional { revision, held, response: responses.pop() })
        }
        (_, other) => Err(Error::unexpected_reply("kv", &other)),
    }
}

/// Gives up a place, unless it belongs to somebody else by now.
///
/// # Errors
/// As every write.
pub(super) async fn leave(engine: &Engine, key: &Bytes, revision: i64) -> Result<Conditional, Error> {
    let delete = kv::Delete { key: key.clone(), ..kv::Delete::default() };
    if_created_at(engine, key, revision, Step::Delete(delete), None).await
}

/// A waiting client. Dropped before its turn, it leaves the queue, so that those behind it need not wait for
/// its lease to end.
struct Waiting<'a> {
    engine: &'a Engine,
    place: &'a Place,
    over: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let (engine, key, revision) = (self.engine.clone(), self.place.key.clone(), self.place.revision);
        tokio::spawn(auth::carried(async move {
            let left = auth::renewed(&engine, leave(&engine, &key, revision)).await;
            if let Err(error) = left.and_then(|left| left) {
                tracing::warn!(%error, "a client stopped waiting for a lock and could not leave the queue; its place ends with its lease");
            }
        }));
    }
}
