//! Hashes: a key's fields, each a record of its own, and the key's record, which counts them.
//!
//! Changing a field reads and writes that field's record and the key's, however many fields there are. The key's record
//! is what has revisions, a history of versions and watchers: each change of fields is one of it. A key that is
//! deleted, replaced or over gives its collection up with one record; [`Machine::clear`] deletes the fields later, in
//! steps, as a lease of very many keys ends.
//!
//! **Invariant: Nothing half.** [`Plan::of`] refuses what cannot be done, and writes nothing.

use super::check::check_key;
use super::command::{FieldAction, FieldChange, Ttl, WriteFields};
use super::deadline::Deadline;
use super::machine::{Held, Machine, after, wanted_deadline};
use super::number::integer;
use super::recent::Previous;
use super::record::{self, Collection, CollectionId, Expiring, FIELD_BYTES_MAX, Field, Record};
use super::reply::{Done, FieldsReply, Refusal, Response, done};
use crate::codec::Malformed;
use crate::limits::REQUEST_BYTES_MAX;
use crate::mutants;
use crate::store::{Order, StoreError, prefix_end};
use crate::tx::Tx;
use crate::types::Stamp;
use bytes::Bytes;
use std::collections::HashSet;

/// What changes of fields will do.
#[derive(Default)]
pub(super) struct Plan {
    /// The key's record.
    previous: Option<Record>,
    /// That of the key whose hash moves here.
    source: Option<Record>,
    /// Its hash, unless there is none to be changed.
    hash: Option<Collection>,
    /// The records that differ.
    changes: Vec<FieldAfter>,
    /// Bytes of the values that are written again with other deadlines.
    rewritten: usize,
    reply: FieldsReply,
}

/// A field's record before and after (`None` to be deleted). Of the one before only what the other records are about: the
/// values of very many fields are not held at once.
struct FieldAfter {
    field: Bytes,
    /// Whether it is there, and its deadline.
    before: Option<Option<Stamp>>,
    after: Option<Field>,
}

impl Plan {
    /// Checks a write, and looks up what it changes.
    pub(super) fn of(tx: &Tx<'_>, write: &WriteFields) -> Done<Self> {
        done!(check_key(&write.key));
        // For lookup only: its order is never seen.
        let mut named = HashSet::with_capacity(write.changes.len());
        for FieldChange { field, action, .. } in &write.changes {
            let bytes = field.len();
            if bytes > FIELD_BYTES_MAX {
                return Ok(Err(Refusal::FieldTooLong { bytes }));
            }
            if action.is_none() || !named.insert(field) {
                return Ok(Err(Refusal::Malformed));
            }
        }
        let previous = tx.get(&record::store_key(&write.key))?.map(Record::decode).transpose()?;
        // One that is over only waits to be deleted.
        let alive =
            |record: &&Record| !write.anew && record.expires.is_none_or(|has| !has.is_over(tx.stamp()));
        let mut source = None;
        if !write.from.is_empty() {
            if write.anew || write.from == write.key {
                return Ok(Err(Refusal::Malformed));
            }
            done!(check_key(&write.from));
            source = tx.get(&record::store_key(&write.from))?.map(Record::decode).transpose()?;
            if source.as_ref().filter(alive).is_none() {
                return Ok(Err(Refusal::KeyNotFound));
            }
        }
        let hash = match source.as_ref().or(previous.as_ref().filter(alive)) {
            Some(Record { collection: None, .. }) => return Ok(Err(Refusal::WrongType)),
            Some(Record { collection, .. }) => *collection,
            None => None,
        };
        let mut plan = Self { previous, source, hash, ..Self::default() };
        for change in &write.changes {
            done!(plan.add(tx, change)?);
        }
        Ok(Ok(plan))
    }

    fn add(&mut self, tx: &Tx<'_>, change: &FieldChange) -> Done<()> {
        let stored = match self.hash {
            Some(hash) => tx.get(&hash.id.field_key(&change.field))?.map(Field::decode).transpose()?,
            None => None,
        };
        let alive = stored.as_ref().filter(|field| !field.is_over(tx.stamp()));
        let until = alive.and_then(|field| field.expires);
        let keep = Some(Ttl::Keep(true));
        let after = match change.action.as_ref().expect("there is one, see Plan::of") {
            FieldAction::Put(value) => Some((value.clone(), change.ttl)),
            FieldAction::PutNew(_) if alive.is_some() => return Ok(Ok(())),
            FieldAction::PutNew(value) => Some((value.clone(), change.ttl)),
            FieldAction::Add(by) => {
                let text = alive.map_or(&b"0"[..], |field| &field.value);
                let Some(before) = integer(text) else { return Ok(Err(Refusal::FieldNoInteger)) };
                let Some(sum) = before.checked_add(*by) else { return Ok(Err(Refusal::Overflow)) };
                self.reply.number = sum;
                Some((sum.to_string().into(), change.ttl.or(keep)))
            }
            FieldAction::Expire(_) => match alive {
                Some(field) => {
                    self.rewritten = self.rewritten.saturating_add(field.value.len());
                    if self.rewritten > REQUEST_BYTES_MAX {
                        return Ok(Err(Refusal::RewritesTooMuch));
                    }
                    Some((field.value.clone(), change.ttl))
                }
                None => return Ok(Ok(())),
            },
            FieldAction::Delete(_) if stored.is_none() => return Ok(Ok(())),
            FieldAction::Delete(_) => None,
        };
        self.reply.added += i64::from(alive.is_none() && after.is_some());
        self.reply.removed += i64::from(alive.is_some() && after.is_none());
        let after = after.map(|(value, ttl)| Field { value, expires: deadline(tx.stamp(), ttl, until) });
        let before = stored.map(|field| field.expires);
        self.changes.push(FieldAfter { field: change.field.clone(), before, after });
        Ok(Ok(()))
    }

    /// How many fields the hash has then.
    fn count(&self) -> u64 {
        let (mut more, mut fewer) = (0, 0);
        for FieldAfter { before, after, .. } in &self.changes {
            more += u64::from(before.is_none() && after.is_some());
            fewer += u64::from(before.is_some() && after.is_none());
        }
        (self.hash.map_or(0, |hash| hash.count) + more).saturating_sub(fewer)
    }
}

/// The deadline of a field that ended at `before`.
fn deadline(stamp: Stamp, ttl: Option<Ttl>, before: Option<Stamp>) -> Option<Stamp> {
    match ttl? {
        Ttl::Milliseconds(ms) => Some(after(stamp, ms)),
        Ttl::At(at) => Some(Stamp(at)),
        Ttl::Keep(true) | Ttl::Restart(true) => before,
        Ttl::Keep(false) | Ttl::Restart(false) => None,
    }
}

impl Machine {
    pub(super) fn write_fields(
        &mut self,
        tx: &mut Tx<'_>,
        write: WriteFields,
        plan: Plan,
    ) -> Result<Response, StoreError> {
        let response = Response::Fields(plan.reply);
        let store_key = Bytes::from(record::store_key(&write.key));
        let previous = plan.previous.as_ref().map(Previous::of);
        let deadline_changes = plan.hash.is_some() && (write.persist || write.ttl.is_some());
        let moves = plan.source.is_some();
        let replaces = write.anew && previous.is_some();
        if !(moves || replaces || deadline_changes) && plan.changes.is_empty() {
            return Ok(response);
        }
        let count = plan.count();
        let made = || CollectionId { sequence: tx.sequence().0, number: tx.changed() as u32 };
        let id = plan.hash.map_or_else(made, |hash| hash.id);
        self.change_fields(tx, &write.key, (id, moves), plan.changes);
        if let Some(source) = &plan.source {
            let previous = Previous::of(source);
            let held = match mutants::is("moved-fields-cleared") {
                true => Held::by(&previous),
                false => Held::without_collection(&previous),
            };
            self.remove(tx, Bytes::from(record::store_key(&write.from)), held);
        }
        if count == 0 {
            if moves {
                self.give_up(tx, id);
            }
            if let Some(previous) = previous {
                self.remove(tx, store_key, Held::by(&previous));
            }
            return Ok(response);
        }
        let kept = plan.previous.filter(|_| plan.hash.is_some() && !moves).unwrap_or_default();
        let (revision, hash) = (tx.next_revision().0, Collection { id, count });
        let before = previous.and_then(|previous| previous.expires);
        let ttl = match write.ttl {
            None if !write.persist && plan.hash.is_some() && !moves => Some(Ttl::Keep(true)),
            ttl => ttl,
        };
        let wanted = wanted_deadline(tx.stamp(), ttl, before);
        let next = Record {
            create_revision: previous.map_or(revision, |previous| previous.create_revision),
            mod_revision: revision,
            version: previous.map_or(1, |previous| previous.version + 1),
            updated: tx.stamp(),
            lease: kept.lease,
            expires: Deadline::schedule(&mut self.expiries, tx, &write.key, before, wanted),
            metadata: kept.metadata,
            collection: Some(hash),
            value: hash.text(),
        };
        self.replace(tx, store_key, previous, &next);
        Ok(response)
    }

    fn change_fields(
        &mut self,
        tx: &mut Tx<'_>,
        key: &Bytes,
        (id, moves): (CollectionId, bool),
        changes: Vec<FieldAfter>,
    ) {
        // Fields that end must find the key that has them.
        let mut expires = moves;
        for FieldAfter { field, before, after } in changes {
            let until = after.as_ref().and_then(|field| field.expires);
            expires |= until.is_some();
            self.reschedule(tx, id, &field, before.flatten(), until);
            match after {
                Some(after) => tx.put(&id.field_key(&field), after.encode()),
                None => tx.delete(&id.field_key(&field)),
            }
        }
        if expires {
            tx.put(&id.owner_key(), key.clone());
        }
    }

    /// Moves a field's entry in the expiry index.
    fn reschedule(
        &mut self,
        tx: &mut Tx<'_>,
        id: CollectionId,
        field: &Bytes,
        before: Option<Stamp>,
        after: Option<Stamp>,
    ) {
        if before == after {
            return;
        }
        let subject = Expiring::Field(id, field.clone());
        if let Some(before) = before.filter(|_| !mutants::is("expiry-left")) {
            self.expiries.remove(tx, before, &subject.encode());
        }
        if let Some(after) = after {
            self.expect_expiry(tx, after, &subject);
        }
    }

    /// Deletes a field whose deadline has come, unless the deadline has moved.
    pub(super) fn expire_field(
        &mut self,
        tx: &mut Tx<'_>,
        id: CollectionId,
        field: &Bytes,
        due: Stamp,
    ) -> Result<(), StoreError> {
        let field_key = id.field_key(field);
        let stored = tx.get(&field_key)?.map(Field::decode).transpose()?;
        if stored.and_then(|field| field.expires) != Some(due) {
            return Ok(());
        }
        let key = tx.get(&id.owner_key())?.ok_or(Malformed { what: "field without a key" })?;
        let store_key = Bytes::from(record::store_key(&key));
        let record = tx.get(&store_key)?.map(Record::decode).transpose()?;
        // Else it is garbage, and is deleted with all of it.
        let Some((record, hash)) = record.and_then(|record| record.collection.map(|hash| (record, hash)))
        else {
            return Ok(());
        };
        if hash.id != id {
            return Ok(());
        }
        tx.delete(&field_key);
        let previous = Previous::of(&record);
        let hash = Collection { count: hash.count.saturating_sub(1), ..hash };
        if hash.count == 0 {
            self.remove(tx, store_key, Held::by(&previous));
            return Ok(());
        }
        let next = Record {
            mod_revision: tx.next_revision().0,
            version: record.version + 1,
            updated: tx.stamp(),
            collection: Some(hash),
            value: hash.text(),
            ..record
        };
        self.replace(tx, store_key, Some(previous), &next);
        Ok(())
    }

    /// No key holds the collection any more: its records are deleted with what expires from now on.
    pub(super) fn give_up(&mut self, tx: &mut Tx<'_>, id: CollectionId) {
        self.garbage.add(tx, tx.stamp(), &Expiring::Garbage(id).encode());
    }

    /// Deletes fields that no key holds any more: as many as the entry may, the rest follows.
    pub(super) fn clear(&mut self, tx: &mut Tx<'_>, id: CollectionId, due: Stamp) -> Result<(), StoreError> {
        let most = match self.work.lease_step {
            0 => self.work.lease_keys_left,
            step => self.work.lease_keys_left.min(step),
        };
        let prefix = id.fields();
        let from = self.clearing.remove(&id).unwrap_or_else(|| prefix.clone());
        let (mut gone, mut more) = (Vec::new(), false);
        for pair in tx.view().scan(&from, &prefix_end(&prefix), Order::Ascending) {
            let (store_key, stored) = pair?;
            if gone.len() == most {
                more = true;
                break;
            }
            // A copy: what a scan returns may be a slice of a whole block.
            gone.push((Bytes::copy_from_slice(&store_key), Field::decode(stored)?.expires));
        }
        self.work.lease_keys_left -= gone.len();
        let behind = gone.last().map_or(from, |(last, _)| [last, &b"\0"[..]].concat());
        for (store_key, expires) in gone {
            self.reschedule(tx, id, &record::field_name(&store_key), expires, None);
            tx.delete(&store_key);
        }
        if !more {
            tx.delete(&id.owner_key());
            return Ok(());
        }
        if self.clearing.len() >= CLEARING_MAX {
            self.clearing.clear();
        }
        self.clearing.insert(id, behind);
        // Before all others: one after the other, so that few places have to be remembered.
        self.garbage.add(tx, Stamp(due.0.saturating_sub(1)), &Expiring::Garbage(id).encode());
        Ok(())
    }
}

/// Collections that are deleted in steps, and are remembered.
const CLEARING_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::super::command::{Delete, Operation, Put};
    use super::super::record::{EXPIRIES, FIELDS, GARBAGE};
    use super::super::reply::Reply;
    use super::*;
    use crate::store::spied::{Spied, Spy};
    use crate::store::{MemoryStore, Scan};
    use crate::{Batch, Event, Machines, Reply as Any, Store, Term, View, system};

    fn apply(
        machines: &mut Machines,
        store: &dyn Store,
        stamp: u64,
        commands: &[crate::Command],
    ) -> (Vec<Result<Response, Refusal>>, Vec<Event>) {
        let index = machines.progress().index.next();
        let payload = Batch::encode(Stamp(stamp), commands);
        let outcome = machines.apply(store, index, Term(1), payload).unwrap();
        let results = outcome.replies.into_iter().filter_map(|reply| match reply {
            Any::Kv(Reply { result, .. }) => Some(result),
            _ => None,
        });
        (results.collect(), outcome.events)
    }

    fn put(field: Bytes, ttl: Option<Ttl>) -> FieldChange {
        FieldChange { field, action: Some(FieldAction::Put("v".into())), ttl }
    }

    fn write(changes: Vec<FieldChange>) -> crate::Command {
        Operation::WriteFields(WriteFields { key: "h".into(), changes, ..WriteFields::default() })
            .into_command()
    }

    fn large(fields: usize, ttl: Option<Ttl>) -> crate::Command {
        write((0..fields).map(|number| put(format!("{number:06}").into(), ttl)).collect())
    }

    fn count(store: &dyn Store, machines: &Machines, keyspace: &[u8]) -> usize {
        View::new(store, machines.progress().sequence).scan_prefix(keyspace, Order::Ascending).count()
    }

    /// A deletion or an expiry that took all fields with it would hold up every replica, and its event would name them.
    #[test]
    fn a_large_hash_goes_with_one_record_and_its_fields_in_steps() {
        const ALL: usize = 12_000;
        let delete = Operation::Delete(Delete { key: "h".into(), ..Delete::default() }).into_command();
        let replace = Operation::Put(Put { key: "h".into(), ..Put::default() }).into_command();
        for end in [delete, replace] {
            let store = MemoryStore::new();
            let mut machines = Machines::open(&store).unwrap();
            apply(&mut machines, &store, 1, &[large(ALL, Some(Ttl::Milliseconds(1 << 30)))]);
            assert_eq!(count(&store, &machines, &FIELDS), ALL);
            let (_, events) = apply(&mut machines, &store, 2, &[end]);
            assert_eq!((events.len(), events[0].changes.len()), (1, 1));
            assert_eq!((count(&store, &machines, &FIELDS), machines.next_deadline()), (ALL, Some(Stamp(2))));
            // Beside a client's command few go; by themselves as many as the leader says.
            let mut left = ALL;
            for (stamp, most) in [(3, None), (4, Some(1000)), (5, Some(u32::MAX)), (6, Some(u32::MAX))] {
                let commands = match most {
                    None => vec![Operation::LeaseKeepAlive(1).into_command()],
                    Some(most) => vec![system::Operation::Expire(most).into_command()],
                };
                let (_, events) = apply(&mut machines, &store, stamp, &commands);
                let fewer = count(&store, &machines, &FIELDS);
                let expected = most.map_or(101, |most| most.min(5000) as usize);
                assert_eq!((left - fewer, events.len()), (expected, 0), "at {stamp}");
                left = fewer;
                if stamp == 4 {
                    // What is remembered of the first steps does not matter.
                    machines = Machines::open(&store).unwrap();
                }
            }
            apply(&mut machines, &store, 7, &[system::Operation::Expire(u32::MAX).into_command()]);
            assert_eq!(count(&store, &machines, &FIELDS), 0);
            assert_eq!(count(&store, &machines, &EXPIRIES), 0);
        }
    }

    /// Fields may be read one by one, and not be looked for.
    struct NoScans;

    impl Spy for NoScans {
        fn instead_of_scan<'a>(&'a self, from: &[u8], _: &[u8]) -> Option<Scan<'a>> {
            assert!(!from.starts_with(&FIELDS), "fields are looked for");
            None
        }
    }

    /// A lease that ended after many large hashes were deleted had to wait until all their fields were gone.
    #[test]
    fn what_is_due_does_not_wait_for_garbage() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        let grant = Operation::LeaseGrant(super::super::LeaseGrant { id: 7, ttl_s: 1 }).into_command();
        let attached = Put { key: "leased".into(), lease: 7, ..Put::default() };
        apply(&mut machines, &store, 1, &[grant, Operation::Put(attached).into_command()]);
        for number in 0..3u8 {
            let change = |field: u32| put(Bytes::from(field.to_string()), None);
            let (key, changes) = (Bytes::from(vec![b'h', number]), (0..5000).map(change).collect());
            let write = WriteFields { key: key.clone(), changes, ..WriteFields::default() };
            apply(&mut machines, &store, 2, &[Operation::WriteFields(write).into_command()]);
            let delete = Delete { key, ..Delete::default() };
            apply(&mut machines, &store, 10, &[Operation::Delete(delete).into_command()]);
        }
        let expire = system::Operation::Expire(u32::MAX).into_command();
        let (_, events) = apply(&mut machines, &store, 1001, std::slice::from_ref(&expire));
        assert_eq!(events.len(), 1, "the lease's key is deleted");
        let mut entries = 0;
        while count(&store, &machines, &FIELDS) > 0 {
            apply(&mut machines, &store, 1002 + entries, std::slice::from_ref(&expire));
            entries += 1;
        }
        assert!(entries < 10, "{entries} entries");
        assert_eq!(count(&store, &machines, &GARBAGE), 0);
        assert_eq!(machines.next_deadline(), None);
    }

    /// One small command had each replica hold, and write again, all values of the fields that it named.
    #[test]
    fn a_small_command_cannot_write_gigabytes_again() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        let fields: Vec<Bytes> = (0..20).map(|number| number.to_string().into()).collect();
        for field in &fields {
            let value = FieldAction::Put(vec![b'x'; 1 << 20].into());
            let change = FieldChange { field: field.clone(), action: Some(value), ttl: None };
            assert!(apply(&mut machines, &store, 1, &[write(vec![change])]).0[0].is_ok());
        }
        let all = |action: FieldAction, ttl| {
            let change =
                |field: &Bytes| FieldChange { field: field.clone(), action: Some(action.clone()), ttl };
            fields.iter().map(change).collect::<Vec<_>>()
        };
        let expire = all(FieldAction::Expire(true), Some(Ttl::Milliseconds(1000)));
        let (results, events) = apply(&mut machines, &store, 2, &[write(expire.clone())]);
        assert_eq!((results, events), (vec![Err(Refusal::RewritesTooMuch)], vec![]));
        let (results, events) = apply(&mut machines, &store, 2, &[write(expire[..10].to_vec())]);
        assert!(results[0].is_ok() && events.len() == 1);
        let (results, _) = apply(&mut machines, &store, 3, &[write(all(FieldAction::Delete(true), None))]);
        let removed = match &results[0] {
            Ok(Response::Fields(reply)) => reply.removed,
            other => panic!("{other:?}"),
        };
        assert_eq!(removed, 20);
    }

    #[test]
    fn a_field_is_changed_without_a_look_at_the_others() {
        let store = Spied { store: MemoryStore::new(), spy: NoScans };
        let mut machines = Machines::open(&store).unwrap();
        apply(&mut machines, &store, 1, &[large(1000, None)]);
        let add = FieldChange { field: "n".into(), action: Some(FieldAction::Add(2)), ttl: None };
        let delete =
            FieldChange { field: "000007".into(), action: Some(FieldAction::Delete(true)), ttl: None };
        let ends = put("000008".into(), Some(Ttl::Milliseconds(5)));
        let (results, events) = apply(&mut machines, &store, 1, &[write(vec![add, delete, ends])]);
        let reply = FieldsReply { added: 1, removed: 1, number: 2 };
        assert_eq!((results, events.len()), (vec![Ok(Response::Fields(reply))], 1));
        let (_, events) = apply(&mut machines, &store, 6, &[]);
        assert_eq!(events[0].changes.len(), 1);
        let view = View::new(&store, machines.progress().sequence);
        let (kv, _) = super::super::find(view, &"h".into()).unwrap().unwrap();
        assert_eq!(kv.value, "{\"type\":\"hash\",\"fields\":999}");
    }

    /// A renamed hash was read and written whole: one of 120,000 fields was too large for a command.
    #[test]
    fn a_hash_moves_to_another_key_with_its_fields_and_their_deadlines() {
        let store = Spied { store: MemoryStore::new(), spy: NoScans };
        let mut machines = Machines::open(&store).unwrap();
        apply(&mut machines, &store, 1, &[large(1000, Some(Ttl::Milliseconds(1000)))]);
        let other = WriteFields {
            key: "other".into(),
            changes: vec![put("f".into(), None)],
            ..WriteFields::default()
        };
        apply(&mut machines, &store, 1, &[Operation::WriteFields(other).into_command()]);
        let moved = |key: &'static str, from: &'static str| {
            let write = WriteFields { key: key.into(), from: from.into(), ..WriteFields::default() };
            Operation::WriteFields(write).into_command()
        };
        let (results, events) = apply(&mut machines, &store, 1, &[moved("other", "h"), moved("other", "h")]);
        assert_eq!(results, [Ok(Response::Fields(FieldsReply::default())), Err(Refusal::KeyNotFound)]);
        assert_eq!((events.len(), events[0].changes.len()), (1, 2));
        let view = View::new(&store, machines.progress().sequence);
        let (kv, _) = super::super::find(view, &"other".into()).unwrap().unwrap();
        assert_eq!(kv.value, "{\"type\":\"hash\",\"fields\":1000}");
        // The fields end with the key that has them now.
        let store = store.store;
        let mut machines = Machines::open(&store).unwrap();
        apply(&mut machines, &store, 1001, &[system::Operation::Expire(u32::MAX).into_command()]);
        let view = View::new(&store, machines.progress().sequence);
        assert_eq!(super::super::find(view, &"other".into()).unwrap(), None);
        apply(&mut machines, &store, 1002, &[system::Operation::Expire(u32::MAX).into_command()]);
        assert_eq!(count(&store, &machines, &[record::FACE]), 0);
    }

    #[test]
    fn the_longest_field_is_stored_and_expires_and_a_longer_one_is_refused() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        let mut ask = |bytes: usize| {
            let field = put(vec![b'f'; bytes].into(), Some(Ttl::Milliseconds(5)));
            apply(&mut machines, &store, 1, &[write(vec![field])]).0.remove(0).map(|_| ())
        };
        assert_eq!(ask(FIELD_BYTES_MAX), Ok(()));
        let bytes = FIELD_BYTES_MAX + 1;
        assert_eq!(ask(bytes), Err(Refusal::FieldTooLong { bytes }));
        apply(&mut machines, &store, 6, &[]);
        assert_eq!(count(&store, &machines, &FIELDS), 0);
    }
}
