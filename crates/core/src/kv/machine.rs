//! What a kv command does to the state. Reading order: [`Machine::apply`], then one section per operation.
//!
//! **Invariant: Nothing half.** A command is refused before it has written anything: a transaction chooses
//! its path and checks every step on it, then writes. `work.rs` says what is too much for one entry.
//!
//! A lease has one entry in the expiry index. Keeping it alive changes only its own record: when the entry
//! comes due, a new one takes its place at the lease's deadline of then. Keys are alike, see `deadline.rs`.

use super::check::{
    answered_by_delete, check_answer, check_delete, check_key, check_path, check_put, each_deleted, lease_of,
};
use super::command::{
    Command, Delete, Increment, LeaseGrant, Operation, Publish, Put, Ttl, Txn, txn_operation::Step,
};
use super::compare::choose_path;
use super::deadline::Deadline;
use super::fields::Plan;
use super::number::integer;
use super::own::Own;
use super::range::range_in;
use super::recent::{Previous, Recent};
use super::record::{self, Collection, CollectionId, Expiring, Lease, Record};
use super::reply::{Done, KeyValue, Refusal, Reply, Response, done};
use super::txn;
use super::work::{LEASE_KEYS_MAX, Work};
use crate::allowance::Allowance;
use crate::codec::decode_command;
use crate::expiry::{Expiry, ExpiryIndex};
use crate::message::Message;
use crate::store::{Order, StoreError, View, prefix_end};
use crate::tx::Tx;
use crate::types::Stamp;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Leases that end in steps, and are remembered.
const ENDING_MAX: usize = 64;
/// The longest time to live of a lease, seconds; etcd's.
pub const LEASE_TTL_S_MAX: i64 = 9_000_000_000;

/// The kv face's machine: the store holds its state; this holds what is derived from it.
#[derive(Debug)]
pub struct Machine {
    pub(super) expiries: ExpiryIndex,
    /// Collections that no key holds any more. Apart, so that what is due does not wait until they are gone.
    pub(super) garbage: ExpiryIndex,
    recent: Recent,
    /// By lease that ends in steps: where the attachments begin that are left. Those before have left deletions
    /// behind, which a look from the beginning would pass over again. Invisible from outside, so what is
    /// forgotten costs only time.
    ending: BTreeMap<i64, Vec<u8>>,
    /// By collection that no key holds any more: as `ending`, of its fields.
    pub(super) clearing: BTreeMap<CollectionId, Vec<u8>>,
    /// What is left of the present entry's bounds.
    pub(super) work: Work,
}

impl Machine {
    /// The machine of a store that may hold state already.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(view: View<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            expiries: ExpiryIndex::open(view, record::EXPIRIES)?,
            garbage: ExpiryIndex::open(view, record::GARBAGE)?,
            recent: Recent::default(),
            ending: BTreeMap::new(),
            clearing: BTreeMap::new(),
            work: Work::new(),
        })
    }

    /// When the next lease or key may expire; never later than it does.
    pub fn next_deadline(&self) -> Option<Stamp> {
        [self.expiries.next_deadline(), self.garbage.next_deadline()].into_iter().flatten().min()
    }

    /// Applies one command.
    ///
    /// # Errors
    /// The store failed. What a client may not do is a refusal, not an error.
    pub fn apply(&mut self, tx: &mut Tx<'_>, bytes: Bytes) -> Result<Reply, StoreError> {
        let result = match decode_command(bytes) {
            Some(Command { operation: Some(operation) }) => self.perform(tx, operation)?,
            _ => Err(Refusal::Malformed),
        };
        Ok(Reply { revision: tx.revision(), result })
    }

    /// A log entry begins, with what expires.
    pub(crate) fn begin_entry(&mut self, allowed: Allowance) {
        self.work = Work::of_expiry(allowed);
    }

    /// What expires has expired, and the entry's commands follow.
    pub(crate) fn begin_commands(&mut self) {
        self.work = Work::new();
    }

    fn perform(&mut self, tx: &mut Tx<'_>, operation: Operation) -> Done<Response> {
        self.work.begin_command();
        match operation {
            Operation::Put(put) => {
                done!(check_put(tx, &put)?);
                self.put(tx, put).map(Ok)
            }
            Operation::Delete(delete) => {
                done!(check_delete(&delete));
                let answered = answered_by_delete(&delete).into_iter().collect();
                done!(check_answer(tx, answered, 0, &mut self.work)?);
                let doomed = done!(doomed(tx.view(), &delete, &mut self.work)?);
                Ok(Ok(self.delete(tx, doomed)))
            }
            Operation::Txn(txn) => self.txn(tx, txn),
            Operation::LeaseGrant(grant) => self.grant(tx, grant),
            Operation::LeaseRevoke(id) => self.revoke(tx, id),
            Operation::LeaseKeepAlive(id) => keep_alive(tx, id),
            Operation::Increment(increment) => self.increment(tx, increment),
            Operation::WriteFields(write) => {
                let plan = done!(Plan::of(tx, &write)?);
                self.write_fields(tx, write, plan).map(Ok)
            }
        }
    }

    // Writing a key.

    fn put(&mut self, tx: &mut Tx<'_>, put: Put) -> Result<Response, StoreError> {
        let store_key = Bytes::from(record::store_key(&put.key));
        let whole = put.prev_kv || put.ignore_value || put.keep_metadata;
        let (previous, record) = self.previous(tx, &store_key, &put.key, whole)?;
        let next = self.successor(tx, &put, previous, record.as_ref());
        self.replace(tx, store_key, previous, &next);
        let shown = record.filter(|_| put.prev_kv);
        Ok(Response::Put(shown.map(|record| record.into_key_value(put.key))))
    }

    /// Writes a key's record in place of `previous`. The deadline's entry is written already.
    pub(super) fn replace(
        &mut self,
        tx: &mut Tx<'_>,
        store_key: Bytes,
        previous: Option<Previous>,
        next: &Record,
    ) {
        let key = record::key_of(&store_key);
        self.attach(tx, key, previous.map_or(0, |previous| previous.lease), next.lease);
        self.recent.note(key, Some(Previous::of(next)));
        let id = |collection: Collection| collection.id;
        if let Some(before) = previous.and_then(|previous| previous.collection).map(id)
            && next.collection.map(id) != Some(before)
        {
            self.give_up(tx, before);
        }
        tx.change(store_key, Some(next.encode()));
    }

    fn increment(&mut self, tx: &mut Tx<'_>, Increment { key, by }: Increment) -> Done<Response> {
        done!(check_key(&key));
        let record = tx.get(&record::store_key(&key))?.map(Record::decode).transpose()?;
        // One that is over only waits to be deleted: the count begins anew, without its time to live.
        let record = record.filter(|record| record.expires.is_none_or(|has| !has.is_over(tx.stamp())));
        if record.as_ref().is_some_and(|record| record.collection.is_some()) {
            return Ok(Err(Refusal::WrongType));
        }
        let text = record.as_ref().map_or(&b"0"[..], |record| &record.value);
        let Some(before) = integer(text) else {
            return Ok(Err(Refusal::NoInteger));
        };
        let Some(after) = before.checked_add(by) else { return Ok(Err(Refusal::Overflow)) };
        self.put(tx, Put::of_number(key, after, record.is_some()))?;
        Ok(Ok(Response::Number(after)))
    }

    /// What a write replaces; the whole record only if it is wanted or had to be read.
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

    /// Deletes one key's record, which has its entry in the expiry index unless `expires` is `None`.
    pub(super) fn remove(
        &mut self,
        tx: &mut Tx<'_>,
        store_key: Bytes,
        Held { lease, expires, collection }: Held,
    ) {
        let key = record::key_of(&store_key);
        self.attach(tx, key, lease, 0);
        if let Some(expires) = expires {
            expires.cancel(&self.expiries, tx, key);
        }
        if let Some(collection) = collection {
            self.give_up(tx, collection.id);
        }
        self.recent.note_deleted(key);
        tx.change(store_key, None);
    }

    /// Moves a key's attachment from one lease to another; 0 is none.
    fn attach(&mut self, tx: &mut Tx<'_>, key: &[u8], from: i64, to: i64) {
        if from == to {
            return;
        }
        if from != 0 {
            tx.delete(&record::attachment_key(from, key));
        }
        if to != 0 {
            tx.put(&record::attachment_key(to, key), Bytes::new());
        }
    }

    // Deleting keys.

    fn delete(&mut self, tx: &mut Tx<'_>, doomed: Vec<Doomed>) -> Response {
        let deleted = doomed.len() as i64;
        let mut prev_kvs = Vec::new();
        for Doomed { store_key, held, shown } in doomed {
            self.remove(tx, store_key, held);
            prev_kvs.extend(shown);
        }
        Response::Delete { deleted, prev_kvs }
    }

    // Transactions.

    fn txn(&mut self, tx: &mut Tx<'_>, txn: Txn) -> Done<Response> {
        done!(txn::check(&txn));
        let mut path = Vec::new();
        done!(choose_path(tx.view(), tx.stamp(), &txn, &mut path, &mut self.work)?);
        let mut answered = Vec::new();
        let own_bytes = {
            let (mut own, chosen) = (Own::of(&txn), &mut path.iter().copied());
            done!(check_path(tx, &txn, chosen, (&mut answered, &mut own), &mut self.work)?);
            own.answered
        };
        done!(check_answer(tx, answered, own_bytes, &mut self.work)?);
        self.run(tx, txn, &mut path.into_iter())
    }

    /// Runs the steps on the chosen path. All of them have been checked, so none is refused here.
    fn run(&mut self, tx: &mut Tx<'_>, txn: Txn, path: &mut dyn Iterator<Item = bool>) -> Done<Response> {
        let succeeded = path.next().expect("the path has an item for each transaction on it");
        let steps = if succeeded { txn.success } else { txn.failure };
        let mut responses = Vec::with_capacity(steps.len());
        for step in steps {
            let response = match step.step.expect("checked by txn::check") {
                // Its bounds were checked, as those of a deletion.
                Step::Range(range) => {
                    Response::Range(done!(range_in(tx, &range, usize::MAX, &mut Work::unbounded())?))
                }
                Step::Put(put) => self.put(tx, put)?,
                Step::Delete(delete) => {
                    let doomed = done!(doomed(tx.view(), &delete, &mut Work::unbounded())?);
                    self.delete(tx, doomed)
                }
                Step::Txn(inner) => done!(self.run(tx, inner, path)?),
                Step::WriteFields(write) => {
                    let plan = done!(Plan::of(tx, &write)?);
                    self.write_fields(tx, write, plan)?
                }
                Step::Publish(Publish { channel, payload }) => {
                    tx.publish(Message { channel, payload });
                    Response::Published
                }
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
        let deadline = after(tx.stamp(), ttl_s as u64 * 1000);
        let lease = Lease { ttl_s: ttl_s as u64, deadline, entry: deadline, ending: false };
        tx.put(&key, lease.encode());
        self.expect_expiry(tx, lease.deadline, &Expiring::Lease(grant.id));
        Ok(Ok(Response::Lease { id: grant.id, ttl_s }))
    }

    /// Ends a lease and deletes its keys, or goes on with it.
    fn revoke(&mut self, tx: &mut Tx<'_>, id: i64) -> Done<Response> {
        let Some(lease) = lease_of(tx, id)? else { return Ok(Err(Refusal::LeaseNotFound)) };
        let more = self.end(tx, id, lease)?;
        Ok(Ok(Response::Revoked { more }))
    }

    /// Deletes an ended lease's keys, at one revision; true if keys are left, for the entries that follow. A
    /// lease of at most [`LEASE_KEYS_MAX`] keys loses all of them together, in a later entry if this one may not
    /// delete as many any more.
    fn end(&mut self, tx: &mut Tx<'_>, id: i64, lease: Lease) -> Result<bool, StoreError> {
        let (left, step) = (self.work.lease_keys_left, self.work.lease_step);
        let look = match step {
            _ if left == 0 => 1,
            0 => left + 1,
            _ => LEASE_KEYS_MAX + 1,
        };
        let mut keys = Vec::new();
        let prefix = record::attachments_prefix(id);
        let from = self.ending.get(&id).map_or(&prefix[..], |from| from);
        for pair in tx.view().scan(from, &prefix_end(&prefix), Order::Ascending).take(look) {
            // A copy: what a scan returns may be a slice of a whole block.
            keys.push(Bytes::from(record::store_key(&record::attached_key(&pair?.0))));
        }
        let found = keys.len();
        keys.truncate(match found {
            all if all <= left => all,
            all if all <= LEASE_KEYS_MAX => 0,
            _ => left.min(step),
        });
        let more = keys.len() < found;
        if !more {
            self.ending.remove(&id);
        } else if let Some(last) = keys.last() {
            self.note_ending(id, last);
        }
        self.work.lease_keys_left = if more { 0 } else { left - found };
        for store_key in keys {
            let (previous, _) = self.previous(tx, &store_key, record::key_of(&store_key), false)?;
            let (expires, collection) =
                previous.map_or((None, None), |previous| (previous.expires, previous.collection));
            self.remove(tx, store_key, Held { lease: id, expires, collection });
        }
        self.expiries.remove(tx, lease.entry, &Expiring::Lease(id).encode());
        if more {
            let now = tx.stamp();
            let lease = Lease { deadline: now, entry: now, ending: true, ..lease };
            tx.put(&record::lease_key(id), lease.encode());
            self.expect_expiry(tx, now, &Expiring::Lease(id));
        } else {
            tx.delete(&record::lease_key(id));
        }
        Ok(more)
    }

    /// The lease loses its keys up to the one with the store key `last`.
    fn note_ending(&mut self, id: i64, last: &Bytes) {
        if self.ending.len() >= ENDING_MAX {
            self.ending.clear();
        }
        let behind = [&record::attachment_key(id, record::key_of(last))[..], b"\0"].concat();
        self.ending.insert(id, behind);
    }

    // Expiry.

    pub(super) fn expect_expiry(&mut self, tx: &mut Tx<'_>, deadline: Stamp, what: &Expiring) {
        self.expiries.add(tx, deadline, &what.encode());
    }

    /// The first leases, keys and fields, at most `max`, whose deadline `stamp` has reached, and then what no key holds any
    /// more. The caller must pass each to [`Self::expire`], in this order, before anything else.
    ///
    /// # Errors
    /// The store failed.
    pub(crate) fn due(
        &mut self,
        view: View<'_>,
        stamp: Stamp,
        max: usize,
    ) -> Result<Vec<Expiry>, StoreError> {
        let mut due = self.expiries.take_due(view, stamp, max)?;
        due.extend(self.garbage.take_due(view, stamp, max - due.len())?);
        Ok(due)
    }

    /// Whether the present entry may let more expire.
    pub(crate) fn has_room(&self) -> bool {
        self.work.lease_keys_left > 0
    }

    /// Leaves `left` of what [`Self::due`] returned to the next entry.
    pub(crate) fn put_off(&mut self, left: &[Expiry]) {
        let (garbage, others) = left.iter().partition::<Vec<_>, _>(|due| Expiring::is_garbage(&due.subject));
        others.first().into_iter().for_each(|first| self.expiries.put_off(first));
        garbage.first().into_iter().for_each(|first| self.garbage.put_off(first));
    }

    /// Ends a lease or deletes a key whose deadline has come, unless the deadline has moved.
    ///
    /// # Errors
    /// The store failed.
    pub(crate) fn expire(&mut self, tx: &mut Tx<'_>, due: Expiry) -> Result<(), StoreError> {
        let index = if Expiring::is_garbage(&due.subject) { &self.garbage } else { &self.expiries };
        index.remove(tx, due.deadline, &due.subject);
        match Expiring::decode(due.subject)? {
            Expiring::Lease(id) => self.expire_lease(tx, id, due.deadline),
            Expiring::Key(key) => self.expire_key(tx, &key, due.deadline),
            Expiring::Field(id, field) => self.expire_field(tx, id, &field, due.deadline),
            Expiring::Garbage(id) => self.clear(tx, id, due.deadline),
        }
    }

    fn expire_lease(&mut self, tx: &mut Tx<'_>, id: i64, due: Stamp) -> Result<(), StoreError> {
        let Some(lease) = lease_of(tx, id)? else { return Ok(()) };
        let ends = lease.ends(tx.term_began());
        if ends > tx.stamp() && !lease.ending {
            if lease.entry != due {
                // An earlier version did not note where the entry was.
                self.expiries.remove(tx, lease.entry, &Expiring::Lease(id).encode());
            }
            let lease = Lease { deadline: ends, entry: ends, ..lease };
            tx.put(&record::lease_key(id), lease.encode());
            self.expect_expiry(tx, ends, &Expiring::Lease(id));
            return Ok(());
        }
        self.end(tx, id, lease)?;
        Ok(())
    }

    fn expire_key(&mut self, tx: &mut Tx<'_>, key: &Bytes, due: Stamp) -> Result<(), StoreError> {
        let store_key = Bytes::from(record::store_key(key));
        let Some(record) = tx.get(&store_key)?.map(Record::decode).transpose()? else { return Ok(()) };
        // Earlier versions left entries of deadlines that a write had moved.
        let Some(Deadline { at, .. }) = record.expires.filter(|has| has.at == due || has.entry == due) else {
            return Ok(());
        };
        if at > tx.stamp() {
            self.expect_expiry(tx, at, &Expiring::Key(key.clone()));
        } else {
            self.remove(tx, store_key, Held { expires: None, ..Held::by(&Previous::of(&record)) });
        }
        Ok(())
    }

    /// The record that a put writes in place of `previous`. `record` is given if the put keeps parts of it.
    fn successor(
        &mut self,
        tx: &mut Tx<'_>,
        put: &Put,
        previous: Option<Previous>,
        record: Option<&Record>,
    ) -> Record {
        let revision = tx.next_revision().0;
        let before = previous.and_then(|previous| previous.expires);
        let wanted = wanted_deadline(tx.stamp(), put.ttl, before);
        let expires = Deadline::schedule(&mut self.expiries, tx, &put.key, before, wanted);
        let lease = previous.filter(|_| put.ignore_lease).map_or(put.lease, |previous| previous.lease);
        let metadata = match record {
            Some(record) if put.keep_metadata => record.metadata.clone(),
            _ => put.metadata.clone(),
        };
        let value = match record {
            Some(record) if put.ignore_value => record.value.clone(),
            _ => put.value.clone(),
        };
        // With the value that is kept, so is what it is about.
        let collection = record.filter(|_| put.ignore_value).and_then(|record| record.collection);
        Record {
            create_revision: previous.map_or(revision, |previous| previous.create_revision),
            mod_revision: revision,
            version: previous.map_or(1, |previous| previous.version + 1),
            updated: tx.stamp(),
            lease,
            expires,
            metadata,
            collection,
            value,
        }
    }
}

/// What goes with a key's record.
pub(super) struct Held {
    lease: i64,
    expires: Option<Deadline>,
    collection: Option<Collection>,
}

impl Held {
    /// All but the collection, which another key takes over.
    pub(super) fn without_collection(record: &Previous) -> Self {
        Self { collection: None, ..Self::by(record) }
    }

    pub(super) fn by(record: &Previous) -> Self {
        let Previous { lease, expires, collection, .. } = *record;
        Self { lease, expires, collection }
    }
}

/// A key that is about to be deleted.
struct Doomed {
    store_key: Bytes,
    held: Held,
    /// If the client wants to see it.
    shown: Option<KeyValue>,
}

/// The keys that a deletion means, charged to `work`.
fn doomed(view: View<'_>, delete: &Delete, work: &mut Work) -> Done<Vec<Doomed>> {
    let (mut doomed, by_range) = (Vec::new(), !delete.range_end.is_empty());
    let read = each_deleted(view, delete, work, |store_key, value| {
        let record = Record::decode(value)?;
        let held = Held::by(&Previous::of(&record));
        // A copy: what a scan returns may be a slice of a whole block.
        let store_key = if by_range { Bytes::copy_from_slice(&store_key) } else { store_key };
        let key = || record::client_key(&store_key).expect("the bounds lie within the keys' records");
        let shown = delete.prev_kv.then(|| record.into_key_value(key()));
        doomed.push(Doomed { store_key, held, shown });
        Ok(())
    });
    done!(read?);
    Ok(Ok(doomed))
}

fn keep_alive(tx: &mut Tx<'_>, id: i64) -> Done<Response> {
    let key = record::lease_key(id);
    let Some(lease) = lease_of(tx, id)?.filter(|lease| !lease.ending) else {
        return Ok(Err(Refusal::LeaseNotFound));
    };
    let deadline = after(tx.stamp(), lease.ttl_s * 1000);
    if deadline != lease.deadline {
        tx.put(&key, Lease { deadline, ..lease }.encode());
    }
    Ok(Ok(Response::Lease { id, ttl_s: lease.ttl_s as i64 }))
}

pub(super) fn after(stamp: Stamp, ms: u64) -> Stamp {
    Stamp(stamp.0.saturating_add(ms))
}

/// The deadline and the time to live that a put gives to a key which had `before`.
pub(super) fn wanted_deadline(
    stamp: Stamp,
    ttl: Option<Ttl>,
    before: Option<Deadline>,
) -> Option<(Stamp, u64)> {
    // A key that is over only waits to be deleted: it has no time to live that could be kept. A write must not go
    // with it.
    let before = before.filter(|before| !before.is_over(stamp));
    match ttl? {
        Ttl::Milliseconds(ms) => Some((after(stamp, ms), ms)),
        Ttl::At(at) => Some((Stamp(at), at.saturating_sub(stamp.0))),
        Ttl::Keep(true) => before.map(|before| (before.at, before.ttl_ms)),
        Ttl::Restart(true) => before.map(|before| (after(stamp, before.ttl_ms), before.ttl_ms)),
        Ttl::Keep(false) | Ttl::Restart(false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expiry::encode_key;
    use crate::store::spied::{Spied, Spy};
    use crate::store::{MemoryStore, Scan};
    use crate::{Batch, Machines, Sequence, Term, system};

    /// Where scans of the expiry index, or of attachments, began.
    struct ScannedFrom {
        noted: [u8; 2],
        from: parking_lot::Mutex<Vec<Vec<u8>>>,
    }

    impl ScannedFrom {
        fn of(noted: [u8; 2]) -> Spied<Self> {
            Spied { store: MemoryStore::new(), spy: Self { noted, from: parking_lot::Mutex::default() } }
        }
    }

    impl Spy for ScannedFrom {
        fn instead_of_scan<'a>(&'a self, from: &[u8], _: &[u8]) -> Option<Scan<'a>> {
            if from.starts_with(&self.noted) {
                self.from.lock().push(from.to_vec());
            }
            None
        }
    }

    /// While more keys were over than an entry deletes, a count, or a value that keeps the time to live, was
    /// written to one of them, acknowledged, and deleted with it.
    #[test]
    fn what_is_written_to_a_key_that_is_over_does_not_go_with_it() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        const STEP: u32 = 1000;
        let mut apply = |stamp, commands: Vec<crate::Command>| {
            let index = machines.progress().index.next();
            let outcome =
                machines.apply(&store, index, Term(1), Batch::encode(Stamp(stamp), &commands)).unwrap();
            (outcome, machines.next_deadline())
        };
        let put =
            |key: &str, ttl| Put { key: key.to_owned().into(), value: "5".into(), ttl, ..Put::default() };
        let short = Some(Ttl::Milliseconds(10));
        let keys = (0..STEP).map(|number| format!("k{number:04}"));
        let all = keys.chain(["z1", "z2", "z3", "z4"].map(str::to_owned));
        apply(1, all.map(|key| Operation::Put(put(&key, short)).into_command()).collect());
        let count = Operation::Increment(Increment { key: "z1".into(), by: 2 });
        let kept = [put("z2", Some(Ttl::Keep(true))), put("z3", Some(Ttl::Restart(true)))];
        let operations = [count].into_iter().chain(kept.map(Operation::Put));
        let (outcome, _) = apply(11, operations.map(Operation::into_command).collect());
        assert!(
            matches!(&outcome.replies[0], crate::Reply::Kv(Reply { result: Ok(Response::Number(2)), .. })),
            "{:?}",
            outcome.replies[0]
        );
        let mut expire = || apply(11, vec![system::Operation::Expire(STEP).into_command()]);
        let (first, _) = expire();
        let (second, next) = expire();
        let events = first.events.iter().chain(&second.events);
        let deleted: Vec<_> =
            events.flat_map(|event| &event.changes).map(|change| &change.key[2..]).collect();
        let of_z: Vec<_> = deleted.into_iter().filter(|key| key.starts_with(b"z")).collect();
        assert_eq!((of_z, next), (vec![&b"z4"[..]], None));
    }

    /// After a change of leader very many leases share one deadline. The search for each entry began at the
    /// first of that deadline and passed over the deletions of all entries taken before: writes waited for
    /// most of a minute.
    #[test]
    fn deletions_of_expired_leases_are_not_passed_over_again() {
        let store = ScannedFrom::of(record::EXPIRIES);
        let mut machines = Machines::open(&store).unwrap();
        let mut apply = |stamp, commands: &[crate::Command]| {
            let index = machines.progress().index.next();
            machines.apply(&store, index, Term(1), Batch::encode(Stamp(stamp), commands)).unwrap();
        };
        let grant = |id| Operation::LeaseGrant(LeaseGrant { id, ttl_s: 1 }).into_command();
        const STEP: u32 = 1000;
        let leases = 2 * i64::from(STEP) + 500;
        apply(1, &(1..=leases).map(grant).collect::<Vec<_>>());
        store.spy.from.lock().clear();
        for _ in 0..4 {
            apply(1001, &[system::Operation::Expire(STEP).into_command()]);
        }
        let view = View::new(&store.store, Sequence(u64::MAX - 1));
        assert_eq!(view.scan(&record::LEASES, &record::LEASES_END, Order::Ascending).count(), 0);
        // One scan for each batch that found something, each from behind what the previous one took.
        let scanned = store.spy.from.lock();
        assert_eq!(scanned.len(), 3);
        for (place, from) in scanned.iter().enumerate().skip(1) {
            let last = Expiring::Lease(place as i64 * i64::from(STEP)).encode();
            let last = encode_key(record::EXPIRIES, Stamp(1001), &last);
            assert!(*from > last, "scan {place} begins before what is left");
        }
    }

    /// Each step of a lease with very many keys passed over the deletions of all steps before it.
    #[test]
    fn deletions_of_an_ending_leases_attachments_are_not_passed_over_again() {
        const STEPS: usize = 4;
        let store = ScannedFrom::of([record::FACE, b'a']);
        let mut machines = Machines::open(&store).unwrap();
        let mut apply = |operations: Vec<Operation>| {
            let commands: Vec<_> = operations.into_iter().map(Operation::into_command).collect();
            let index = machines.progress().index.next();
            machines.apply(&store, index, Term(1), Batch::encode(Stamp(1), &commands)).unwrap().replies
        };
        let put = |number: usize| {
            let key = format!("{number:05}").into();
            Operation::Put(Put { key, lease: 7, ..Put::default() })
        };
        let mut begin = vec![Operation::LeaseGrant(LeaseGrant { id: 7, ttl_s: 1 })];
        begin.extend((0..LEASE_KEYS_MAX + STEPS * 1000).map(put));
        apply(begin);
        store.spy.from.lock().clear();
        for _ in 0..STEPS {
            apply(vec![Operation::LeaseRevoke(7)]);
        }
        let scanned = store.spy.from.lock();
        let beginnings: std::collections::BTreeSet<_> = scanned.iter().collect();
        assert_eq!(
            beginnings.len(),
            STEPS,
            "a step each, and what expires beside it looks at the same place"
        );
        assert!(scanned.is_sorted());
    }
}
