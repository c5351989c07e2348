//! What a kv command does to the state. Reading order: [`Machine::apply`], then one section per operation.
//!
//! **Invariant (nothing half).** A command is refused before it has written anything: a transaction chooses its
//! path and checks every step of it, then writes.
//!
//! Expiry: every deadline has an entry in the expiry index, which says only "look at this then". A lease kept
//! alive changes its own record alone; when its entry comes due, the entry is moved to the lease's deadline.

use super::command::{
    Command, Compare, CompareResult, CompareTarget, Delete, Increment, LeaseGrant, Operation, Put, Range,
    Ttl, Txn, txn_operation::Step,
};
use super::query::{self, Bounds, Refusal, Reply, Response};
use super::recent::{Previous, Recent};
use super::record::{self, Expiring, Lease, Record};
use crate::store::{Order, StoreError, View};
use crate::tx::Tx;
use crate::types::Stamp;
use bytes::Bytes;
use prost::Message;

/// How many leases and keys are looked at for expiry in one batch at most; the rest wait for the next batch.
pub const EXPIRIES_PER_BATCH_MAX: usize = 1000;
/// The longest time to live of a lease, seconds; etcd's.
pub const LEASE_TTL_S_MAX: i64 = 9_000_000_000;

/// What one command may answer with, in bytes of keys and values that were there before it: a larger answer is refused.
/// A transaction that reads what it writes itself may exceed it by that.
pub const REPLY_BYTES_MAX: usize = 64 << 20;
/// So many single keys are answered without measuring them beforehand: they are as bounded as values are.
const KEYS_UNMEASURED_MAX: usize = 8;

type Done<T> = Result<Result<T, Refusal>, StoreError>;

/// Unwraps what was done, or returns the refusal.
macro_rules! done {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(refusal) => return Ok(Err(refusal)),
        }
    };
}

/// The kv face's machine: the store holds its state; this holds what is derived from it.
#[derive(Debug)]
pub struct Machine {
    /// No entry of the expiry index is before this store key: scans begin here, past the remains of popped ones, of which
    /// very many may have one deadline.
    expiries_from: Vec<u8>,
    /// The first entry's deadline, or earlier; `None` where there are no entries.
    next_deadline: Option<u64>,
    recent: Recent,
}

/// An entry of the expiry index whose time has come.
#[derive(Debug)]
pub struct Due {
    store_key: Bytes,
    deadline: u64,
    what: Expiring,
}

impl Machine {
    /// The machine of a store that may hold state already.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(view: View<'_>) -> Result<Self, StoreError> {
        let first = view.scan(&record::expiry_from(0), &record::EXPIRIES_END, Order::Ascending).next();
        let (expiries_from, next_deadline) = match first.transpose()? {
            Some((key, _)) => (key.to_vec(), Some(record::read_expiry(&key)?.0)),
            None => (record::expiry_from(0), None),
        };
        Ok(Self { expiries_from, next_deadline, recent: Recent::default() })
    }

    /// When the next lease or key may expire; never later than it does.
    pub fn next_deadline(&self) -> Option<Stamp> {
        self.next_deadline.map(Stamp)
    }

    /// Applies one command.
    ///
    /// # Errors
    /// The store failed. What a client may not do is a refusal, not an error.
    pub fn apply(&mut self, tx: &mut Tx<'_>, bytes: Bytes) -> Result<Reply, StoreError> {
        let result = match Command::decode(bytes).map(|command| command.operation) {
            Ok(Some(operation)) => self.perform(tx, operation)?,
            Ok(None) | Err(_) => Err(Refusal::Malformed),
        };
        Ok(Reply { revision: tx.revision(), result })
    }

    fn perform(&mut self, tx: &mut Tx<'_>, operation: Operation) -> Done<Response> {
        match operation {
            Operation::Put(put) => {
                done!(check_put(tx, &put)?);
                self.put(tx, put).map(Ok)
            }
            Operation::Delete(delete) => {
                done!(check_delete(&delete));
                done!(check_answer(tx, answered_by_delete(&delete).into_iter().collect())?);
                self.delete(tx, &delete).map(Ok)
            }
            Operation::Txn(txn) => self.txn(tx, txn),
            Operation::LeaseGrant(grant) => self.grant(tx, grant),
            Operation::LeaseRevoke(id) => self.revoke(tx, id),
            Operation::LeaseKeepAlive(id) => keep_alive(tx, id),
            Operation::Increment(increment) => self.increment(tx, increment),
        }
    }

    // Writing a key.

    fn put(&mut self, tx: &mut Tx<'_>, put: Put) -> Result<Response, StoreError> {
        let store_key = Bytes::from(record::key(&put.key));
        let whole = put.prev_kv || put.ignore_value || put.keep_metadata;
        let (previous, record) = self.previous(tx, &store_key, &put.key, whole)?;
        let next = successor(tx, &put, previous, record.as_ref());
        self.attach(tx, &put.key, previous.map_or(0, |previous| previous.lease), next.lease);
        if let Some((deadline, _)) = next.expires
            && next.expires != previous.and_then(|previous| previous.expires)
        {
            self.expect_expiry(tx, deadline, &Expiring::Key(put.key.clone()));
        }
        self.recent.note(&put.key, Some(Previous::of(&next)));
        tx.change(store_key, Some(next.encode()));
        let shown = record.filter(|_| put.prev_kv);
        Ok(Response::Put(shown.map(|record| record.into_key_value(put.key))))
    }

    fn increment(&mut self, tx: &mut Tx<'_>, Increment { key, by }: Increment) -> Done<Response> {
        if key.is_empty() {
            return Ok(Err(Refusal::EmptyKey));
        }
        let record = tx.get(&record::key(&key))?.map(Record::decode).transpose()?;
        let text = record.as_ref().map_or(&b"0"[..], |record| &record.value);
        let Some(before) = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok()) else {
            return Ok(Err(Refusal::NoInteger));
        };
        let Some(after) = before.checked_add(by) else { return Ok(Err(Refusal::Overflow)) };
        self.put(tx, Put::of_number(key, after, record.is_some()))?;
        Ok(Ok(Response::Number(after)))
    }

    /// What a write replaces; the whole record only where it is wanted or had to be read.
    fn previous(
        &self,
        tx: &Tx<'_>,
        store_key: &[u8],
        key: &[u8],
        whole: bool,
    ) -> Result<(Option<Previous>, Option<Record>), StoreError> {
        if !whole && let Some(remembered) = self.recent.get(key) {
            return Ok((remembered, None));
        }
        let record = tx.get(store_key)?.map(Record::decode).transpose()?;
        Ok((record.as_ref().map(Previous::of), record))
    }

    /// Deletes one key's record, which has `lease`.
    fn remove(&mut self, tx: &mut Tx<'_>, store_key: Bytes, key: &[u8], lease: i64) {
        self.attach(tx, key, lease, 0);
        self.recent.note(key, None);
        tx.change(store_key, None);
    }

    fn attach(&mut self, tx: &mut Tx<'_>, key: &[u8], from: i64, to: i64) {
        if from == to {
            return;
        }
        if from != 0 {
            tx.delete(&record::attachment(from, key));
        }
        if to != 0 {
            tx.put(&record::attachment(to, key), Bytes::new());
        }
    }

    // Deleting keys.

    fn delete(&mut self, tx: &mut Tx<'_>, delete: &Delete) -> Result<Response, StoreError> {
        let bounds = Bounds::of(&delete.key, &delete.range_end);
        let mut prev_kvs = Vec::new();
        let mut deleted = 0;
        for (store_key, key, record) in query::records(tx.view(), &bounds)? {
            self.remove(tx, store_key, &key, record.lease);
            deleted += 1;
            if delete.prev_kv {
                prev_kvs.push(record.into_key_value(key));
            }
        }
        Ok(Response::Delete { deleted, prev_kvs })
    }

    // Transactions.

    fn txn(&mut self, tx: &mut Tx<'_>, txn: Txn) -> Done<Response> {
        done!(super::txn::check(&txn));
        let mut path = Vec::new();
        choose(tx, &txn, &mut path)?;
        let mut answered = Vec::new();
        done!(check_path(tx, &txn, &mut path.iter().copied(), &mut answered)?);
        done!(check_answer(tx, answered)?);
        self.run(tx, txn, &mut path.into_iter())
    }

    /// Does the chosen steps. Everything that could be refused has been checked, but reads of old revisions.
    fn run(&mut self, tx: &mut Tx<'_>, txn: Txn, path: &mut dyn Iterator<Item = bool>) -> Done<Response> {
        let succeeded = path.next().expect("the path has a turn for every transaction on it");
        let steps = if succeeded { txn.success } else { txn.failure };
        let mut responses = Vec::with_capacity(steps.len());
        for step in steps {
            let response = match step.step.expect("checked by txn::check") {
                Step::Range(range) => match query::range_in(tx, &range, usize::MAX)? {
                    Ok(reply) => Response::Range(reply),
                    Err(refusal) => return Ok(Err(refusal)),
                },
                Step::Put(put) => self.put(tx, put)?,
                Step::Delete(delete) => self.delete(tx, &delete)?,
                Step::Txn(inner) => done!(self.run(tx, inner, path)?),
            };
            responses.push(response);
        }
        Ok(Ok(Response::Txn { succeeded, responses }))
    }

    // Leases.

    fn grant(&mut self, tx: &mut Tx<'_>, grant: LeaseGrant) -> Done<Response> {
        if grant.id == 0 {
            return Ok(Err(Refusal::Malformed));
        }
        if grant.ttl_s > LEASE_TTL_S_MAX {
            return Ok(Err(Refusal::LeaseTtlTooLarge));
        }
        let key = record::lease_key(grant.id);
        if tx.get(&key)?.is_some() {
            return Ok(Err(Refusal::LeaseExists));
        }
        let ttl_s = grant.ttl_s.max(1);
        let lease = Lease { ttl_s: ttl_s as u64, deadline: after(tx.stamp(), ttl_s as u64 * 1000) };
        tx.put(&key, lease.encode());
        self.expect_expiry(tx, lease.deadline, &Expiring::Lease(grant.id));
        Ok(Ok(Response::Lease { id: grant.id, ttl_s }))
    }

    /// Ends a lease; all its keys go in one revision. Its entry in the expiry index goes when it comes due.
    fn revoke(&mut self, tx: &mut Tx<'_>, id: i64) -> Done<Response> {
        let key = record::lease_key(id);
        if tx.get(&key)?.is_none() {
            return Ok(Err(Refusal::LeaseNotFound));
        }
        tx.delete(&key);
        let attached: Result<Vec<_>, _> =
            tx.view().scan_prefix(&record::attachments(id), Order::Ascending).collect();
        for (attachment, _) in attached? {
            let key = record::attached_key(&attachment);
            self.remove(tx, record::key(&key).into(), &key, id);
        }
        Ok(Ok(Response::Revoked))
    }

    // Expiry.

    fn expect_expiry(&mut self, tx: &mut Tx<'_>, deadline: Stamp, what: &Expiring) {
        let store_key = record::expiry_key(deadline.0, what);
        tx.put(&store_key, Bytes::new());
        self.next_deadline = Some(self.next_deadline.map_or(deadline.0, |next| next.min(deadline.0)));
        if store_key < self.expiries_from {
            self.expiries_from = store_key;
        }
    }

    /// The first leases and keys whose deadline `stamp` has reached, `max` at most; to be handed to [`Self::expire`] in
    /// this order, before anything else is done.
    ///
    /// # Errors
    /// The store failed.
    pub fn due(&mut self, view: View<'_>, stamp: Stamp, max: usize) -> Result<Vec<Due>, StoreError> {
        let mut due = Vec::new();
        if self.next_deadline.is_none_or(|next| next > stamp.0) {
            return Ok(due);
        }
        self.next_deadline = None;
        // One scan for all of them, and from where the last one ended: an entry's remains are passed over once.
        for pair in view.scan(&self.expiries_from, &record::EXPIRIES_END, Order::Ascending) {
            let store_key = pair?.0;
            let (deadline, what) = record::read_expiry(&store_key)?;
            if deadline > stamp.0 || due.len() == max {
                self.next_deadline = Some(deadline);
                break;
            }
            due.push(Due { store_key, deadline, what });
        }
        if let Some(last) = due.last() {
            self.expiries_from = [&last.store_key[..], b"\0"].concat();
        }
        Ok(due)
    }

    /// Lets what is due expire, if its deadline still stands.
    ///
    /// # Errors
    /// The store failed.
    pub fn expire(&mut self, tx: &mut Tx<'_>, due: Due) -> Result<(), StoreError> {
        tx.delete(&due.store_key);
        match due.what {
            Expiring::Lease(id) => self.expire_lease(tx, id),
            Expiring::Key(key) => self.expire_key(tx, &key, due.deadline),
        }
    }

    fn expire_lease(&mut self, tx: &mut Tx<'_>, id: i64) -> Result<(), StoreError> {
        let Some(lease) = tx.get(&record::lease_key(id))?.map(Lease::decode).transpose()? else {
            return Ok(());
        };
        let ends = lease.ends(tx.term_began());
        if ends > tx.stamp() {
            self.expect_expiry(tx, ends, &Expiring::Lease(id));
            return Ok(());
        }
        let revoked = self.revoke(tx, id)?;
        assert_eq!(revoked, Ok(Response::Revoked), "the lease was just read");
        Ok(())
    }

    fn expire_key(&mut self, tx: &mut Tx<'_>, key: &Bytes, deadline: u64) -> Result<(), StoreError> {
        let store_key = Bytes::from(record::key(key));
        let Some(record) = tx.get(&store_key)?.map(Record::decode).transpose()? else { return Ok(()) };
        // Written since with another time to live, or none: then another entry stands for it, or none.
        if record.expires.is_some_and(|(stands, _)| stands.0 == deadline) {
            self.remove(tx, store_key, key, record.lease);
        }
        Ok(())
    }
}

fn keep_alive(tx: &mut Tx<'_>, id: i64) -> Done<Response> {
    let key = record::lease_key(id);
    let Some(lease) = tx.get(&key)?.map(Lease::decode).transpose()? else {
        return Ok(Err(Refusal::LeaseNotFound));
    };
    let deadline = after(tx.stamp(), lease.ttl_s * 1000);
    if deadline != lease.deadline {
        tx.put(&key, Lease { deadline, ..lease }.encode());
    }
    Ok(Ok(Response::Lease { id, ttl_s: lease.ttl_s as i64 }))
}

fn after(stamp: Stamp, ms: u64) -> Stamp {
    Stamp(stamp.0.saturating_add(ms))
}

/// The record that a put leaves behind, in place of `previous`; `record` is there where the put keeps some of it.
fn successor(tx: &Tx<'_>, put: &Put, previous: Option<Previous>, record: Option<&Record>) -> Record {
    let revision = tx.next_revision().0;
    let stamp = tx.stamp();
    let ttl_before = previous.and_then(|previous| previous.expires);
    let expires = match put.ttl {
        Some(Ttl::Milliseconds(ms)) => Some((after(stamp, ms), ms)),
        Some(Ttl::At(at)) => Some((Stamp(at), at.saturating_sub(stamp.0))),
        Some(Ttl::Keep(true)) => ttl_before,
        Some(Ttl::Restart(true)) => ttl_before.map(|(_, ms)| (after(stamp, ms), ms)),
        Some(Ttl::Keep(false) | Ttl::Restart(false)) | None => None,
    };
    let lease = previous.filter(|_| put.ignore_lease).map_or(put.lease, |previous| previous.lease);
    let metadata = match record {
        Some(record) if put.keep_metadata => record.metadata.clone(),
        _ => put.metadata.clone(),
    };
    let value = match record {
        Some(record) if put.ignore_value => record.value.clone(),
        _ => put.value.clone(),
    };
    Record {
        create_revision: previous.map_or(revision, |previous| previous.create_revision),
        mod_revision: revision,
        version: previous.map_or(1, |previous| previous.version + 1),
        updated: stamp,
        lease,
        expires,
        metadata,
        value,
    }
}

fn check_put(tx: &Tx<'_>, put: &Put) -> Done<()> {
    if put.key.is_empty() {
        return Ok(Err(Refusal::EmptyKey));
    }
    if (put.ignore_value || put.ignore_lease) && tx.get(&record::key(&put.key))?.is_none() {
        return Ok(Err(Refusal::KeyNotFound));
    }
    if put.lease != 0 && !put.ignore_lease && tx.get(&record::lease_key(put.lease))?.is_none() {
        return Ok(Err(Refusal::LeaseNotFound));
    }
    Ok(Ok(()))
}

fn check_delete(delete: &Delete) -> Result<(), Refusal> {
    if delete.key.is_empty() { Err(Refusal::EmptyKey) } else { Ok(()) }
}

/// Decides for `txn` and the transactions on its chosen path which way each goes, before anything is written.
fn choose(tx: &Tx<'_>, txn: &Txn, path: &mut Vec<bool>) -> Result<(), StoreError> {
    let mut holds = true;
    for compare in &txn.compare {
        holds = holds && compare_holds(tx.view(), compare)?;
    }
    path.push(holds);
    let steps = if holds { &txn.success } else { &txn.failure };
    for step in steps {
        if let Some(Step::Txn(inner)) = &step.step {
            choose(tx, inner, path)?;
        }
    }
    Ok(())
}

/// Refuses an answer that would be too large, before anything is written. `answered` is what it would show.
fn check_answer(tx: &Tx<'_>, answered: Vec<Range>) -> Done<()> {
    let single = |range: &Range| range.range_end.is_empty();
    if answered.len() <= KEYS_UNMEASURED_MAX && answered.iter().all(single) {
        return Ok(Ok(()));
    }
    let mut left = REPLY_BYTES_MAX;
    for range in &answered {
        let reply = done!(query::range_in(tx, range, left)?);
        let bytes: usize = reply.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
        left = done!(left.checked_sub(bytes).ok_or(Refusal::ResponseTooLarge));
    }
    Ok(Ok(()))
}

fn answered_by_delete(delete: &Delete) -> Option<Range> {
    let Delete { key, range_end, prev_kv } = delete.clone();
    prev_kv.then(|| Range { key, range_end, ..Range::default() })
}

/// Checks the steps of the chosen path, and gathers what they will be answered with.
fn check_path(
    tx: &Tx<'_>,
    txn: &Txn,
    path: &mut dyn Iterator<Item = bool>,
    answered: &mut Vec<Range>,
) -> Done<()> {
    let succeeded = path.next().expect("the path has a turn for every transaction on it");
    let steps = if succeeded { &txn.success } else { &txn.failure };
    for step in steps {
        match step.step.as_ref().expect("checked by txn::check") {
            Step::Range(range) => {
                done!(query::check_revision(tx, range)?);
                answered.extend((!range.count_only).then(|| range.clone()));
            }
            Step::Put(put) => {
                done!(check_put(tx, put)?);
                let shown = Range { key: put.key.clone(), ..Range::default() };
                answered.extend(put.prev_kv.then_some(shown));
            }
            Step::Delete(delete) => {
                done!(check_delete(delete));
                answered.extend(answered_by_delete(delete));
            }
            Step::Txn(inner) => done!(check_path(tx, inner, path, answered)?),
        }
    }
    Ok(Ok(()))
}

fn compare_holds(view: View<'_>, compare: &Compare) -> Result<bool, StoreError> {
    let Some(target) = &compare.target else { return Ok(false) };
    let result = compare.result();
    if compare.range_end.is_empty() {
        let record = view.get(&record::key(&compare.key))?.map(Record::decode).transpose()?;
        return Ok(record_passes(record.as_ref(), target, result, compare.absent_passes));
    }
    let bounds = Bounds::of(&compare.key, &compare.range_end);
    for (_, _, record) in query::records(view, &bounds)? {
        if !record_passes(Some(&record), target, result, compare.absent_passes) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn record_passes(
    record: Option<&Record>,
    target: &CompareTarget,
    result: CompareResult,
    absent_passes: bool,
) -> bool {
    let Some(record) = record else {
        // As in etcd, an absent key has all numbers zero and no value to compare.
        return absent_passes || absent_key_passes(target, result);
    };
    let number = |stored: i64, given: i64| passes(stored.cmp(&given), result);
    match target {
        CompareTarget::Version(given) => number(record.version as i64, *given),
        CompareTarget::CreateRevision(given) => number(record.create_revision as i64, *given),
        CompareTarget::ModRevision(given) => number(record.mod_revision as i64, *given),
        CompareTarget::Lease(given) => number(record.lease, *given),
        CompareTarget::Value(given) => passes(record.value.cmp(given), result),
        CompareTarget::Metadata(given) => match record.metadata.get(given.position as usize) {
            Some(stored) => number(*stored, given.value),
            None => absent_passes || number(0, given.value),
        },
    }
}

fn absent_key_passes(target: &CompareTarget, result: CompareResult) -> bool {
    let given = match target {
        CompareTarget::Version(given)
        | CompareTarget::CreateRevision(given)
        | CompareTarget::ModRevision(given)
        | CompareTarget::Lease(given) => *given,
        CompareTarget::Metadata(given) => given.value,
        CompareTarget::Value(_) => return false,
    };
    passes(0.cmp(&given), result)
}

fn passes(ordering: std::cmp::Ordering, result: CompareResult) -> bool {
    match result {
        CompareResult::Equal => ordering.is_eq(),
        CompareResult::Greater => ordering.is_gt(),
        CompareResult::Less => ordering.is_lt(),
        CompareResult::NotEqual => ordering.is_ne(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::TxnOperation;
    use super::*;
    use crate::store::{MemoryStore, Scan, Versions};
    use crate::{Batch, Machines, Reply as Any, Sequence, Store, Term};

    fn ask(store: &MemoryStore, machines: &mut Machines, operation: Operation) -> Reply {
        let index = machines.progress().index.next();
        let payload = Batch::encode(Stamp(1), &[operation.into_command()]);
        let outcome = machines.apply(store, index, Term(1), payload).unwrap();
        match outcome.replies.into_iter().next() {
            Some(Any::Kv(reply)) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// A transaction could be answered with the whole store, once per step.
    #[test]
    fn an_answer_that_is_too_large_is_refused_before_anything_is_written() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        let value = Bytes::from(vec![7; REPLY_BYTES_MAX / 32]);
        let put =
            |key: String, prev_kv| Put { key: key.into(), value: value.clone(), prev_kv, ..Put::default() };
        let key = |number: usize| format!("k{number:02}");
        for number in 0..20 {
            ask(&store, &mut machines, Operation::Put(put(key(number), false))).result.unwrap();
        }
        let before = machines.progress().revision;
        let all = Range { key: "k".into(), range_end: "l".into(), ..Range::default() };
        let step = |step| TxnOperation { step: Some(step) };
        let written = || step(Step::Put(put("other".into(), false)));
        let txn = |steps: Vec<TxnOperation>| Operation::Txn(Txn { success: steps, ..Txn::default() });
        let one = |number| Range { key: key(number).into(), ..Range::default() };
        let delete = |key: &'static str| Delete { key: key.into(), range_end: "l".into(), prev_kv: true };
        let within = Txn { success: vec![step(Step::Range(all.clone()))], ..Txn::default() };
        let too_large = [
            txn(vec![written(), step(Step::Range(all.clone())), step(Step::Txn(within))]),
            txn((0..33).map(|number| step(Step::Range(one(number % 20)))).chain([written()]).collect()),
            txn(vec![written(), step(Step::Range(all.clone())), step(Step::Delete(delete("k")))]),
        ];
        for operation in too_large {
            let reply = ask(&store, &mut machines, operation);
            assert_eq!((reply.result, reply.revision), (Err(Refusal::ResponseTooLarge), before));
        }
        let counted = Range { count_only: true, ..all.clone() };
        let fits = txn(vec![step(Step::Range(all)), step(Step::Range(counted)), written()]);
        assert!(ask(&store, &mut machines, fits).result.is_ok());
        let deleted = ask(&store, &mut machines, Operation::Delete(delete("k")));
        assert!(matches!(deleted.result, Ok(Response::Delete { deleted: 20, .. })));
    }

    /// Notes from where the expiry index is scanned.
    #[derive(Default)]
    struct Noting {
        store: MemoryStore,
        scanned_from: parking_lot::Mutex<Vec<Vec<u8>>>,
    }

    impl Store for Noting {
        fn get(&self, key: &[u8], at: Sequence) -> Result<Option<Bytes>, StoreError> {
            self.store.get(key, at)
        }
        fn scan<'a>(&'a self, from: &[u8], to: &[u8], at: Sequence, order: Order) -> Scan<'a> {
            if to == record::EXPIRIES_END {
                self.scanned_from.lock().push(from.to_vec());
            }
            self.store.scan(from, to, at, order)
        }
        fn versions<'a>(&'a self, at: Sequence) -> Versions<'a> {
            self.store.versions(at)
        }
        fn put(&self, key: &[u8], value: Bytes, at: Sequence) {
            self.store.put(key, value, at);
        }
        fn delete(&self, key: &[u8], at: Sequence) {
            self.store.delete(key, at);
        }
        fn forget(&self, before: Sequence, dead_from: &[u8], dead_to: &[u8]) {
            self.store.forget(before, dead_from, dead_to);
        }
    }

    /// After a change of leader very many leases have one deadline. Each entry was looked for from the first of that
    /// deadline on, over the remains of all that had been taken: writes waited for most of a minute.
    #[test]
    fn the_remains_of_expired_leases_are_not_passed_over_again() {
        let store = Noting::default();
        let mut machines = Machines::open(&store).unwrap();
        let mut apply = |stamp, commands: &[crate::Command]| {
            let index = machines.progress().index.next();
            machines.apply(&store, index, Term(1), Batch::encode(Stamp(stamp), commands)).unwrap();
        };
        let grant = |id| Operation::LeaseGrant(LeaseGrant { id, ttl_s: 1 }).into_command();
        let leases = 2 * EXPIRIES_PER_BATCH_MAX as i64 + 500;
        apply(1, &(1..=leases).map(grant).collect::<Vec<_>>());
        store.scanned_from.lock().clear();
        for _ in 0..4 {
            apply(1001, &[]);
        }
        let view = View::new(&store.store, Sequence(u64::MAX - 1));
        assert_eq!(view.scan(&record::LEASES, &record::LEASES_END, Order::Ascending).count(), 0);
        // One scan for each batch that found something, each from behind what the one before has taken.
        let scanned = store.scanned_from.lock();
        assert_eq!(scanned.len(), 3);
        for (place, from) in scanned.iter().enumerate().skip(1) {
            let last = Expiring::Lease((place * EXPIRIES_PER_BATCH_MAX) as i64);
            assert!(*from > record::expiry_key(1001, &last), "scan {place} begins before what is left");
        }
    }
}
