//! The kv machine checked against a plain model: an ordered map per revision, and a map of leases.
//!
//! [`check`] runs random commands on both and compares every reply, every event, reads of old revisions, and
//! the replayed history. The model knows nothing of sequences, records, indexes or caches. Each
//! implementation of [`Store`] runs it in its own tests (feature `testing`).

use super::number::integer;
use super::record::{EXPIRIES, FIELDS};
use super::{
    Compare, CompareResult, CompareTarget, Delete, FieldAction, FieldChange, FieldsReply, Floor, Increment,
    KeyValue, Kind, LeaseGrant, Operation, Publish, Put, Range, RangeReply, Refusal, Reply, Response,
    SortOrder, SortTarget, Ttl, Txn, TxnOperation, WriteFields, change_to_key_value, fields, find, floor,
    lease, leases, range, txn_operation::Step,
};
use crate::history::{self, Event, Unavailable};
use crate::store::Order;
use crate::store::contract::Random;
use crate::{Batch, Index, Machines, Revision, Stamp, Store, Term, View, system};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

type State = BTreeMap<Bytes, Kept>;

/// A key as clients see it, its last given time to live, and the fields of a hash.
#[derive(Clone, Debug, PartialEq)]
struct Kept {
    kv: KeyValue,
    ttl_ms: u64,
    fields: Fields,
}

/// Values with their deadlines.
type Fields = BTreeMap<Bytes, (Bytes, Option<u64>)>;

#[derive(Clone, Copy)]
struct Granted {
    ttl_s: i64,
    deadline: u64,
}

struct Model {
    /// The state as of each revision; revisions 0 and 1 are empty.
    states: Vec<State>,
    compacted: u64,
    leases: BTreeMap<i64, Granted>,
    stamp: u64,
    term_began: u64,
}

/// Applies `steps` random entries, named by `seed`, and compares. Calls `applied` after each entry with its
/// index and a random number; there the store may reorganize itself.
///
/// # Panics
/// Model and machine differ; the message names the step.
pub fn check(store: &dyn Store, seed: u64, steps: usize, applied: &mut dyn FnMut(Index, u64)) {
    let mut random = Random::new(seed);
    let mut machines = Machines::open(store).expect("the store can be read");
    let mut model = Model {
        states: vec![State::new(); 2],
        compacted: 0,
        leases: BTreeMap::new(),
        stamp: 0,
        term_began: 0,
    };
    let mut term = 1;
    for step in 0..steps {
        let run = format!("seed {seed}, step {step}");
        let new_term = step == 0 || random.once_in(40);
        term += u64::from(new_term);
        let stamp = model.stamp + random.below(400) * u64::from(random.once_in(3));
        let commands: Vec<Asked> = (0..1 + random.below(3)).map(|_| ask(&mut random, &model)).collect();
        let encoded: Vec<_> = commands.iter().cloned().map(Asked::into_command).collect();
        let index = machines.progress().index.next();
        let payload = Batch::encode(Stamp(stamp), &encoded);
        let outcome = machines.apply(store, index, Term(term), payload).expect("the store does not fail");
        applied(index, random.number());
        if random.once_in(50) {
            // What a machine keeps besides the store must not matter.
            machines = Machines::open(store).expect("the store can be read");
        }

        model.stamp = stamp;
        if new_term {
            model.term_began = stamp;
        }
        let mut events = outcome.events.into_iter().peekable();
        model.expire(&mut events, &commands, &run);
        for (command, reply) in commands.into_iter().zip(outcome.replies) {
            let before = model.states.len();
            let text = format!("{run}: {command:?}");
            assert_eq!(reply, model.answer(command), "{text}");
            if model.states.len() > before {
                model.check_event(&events.next().unwrap_or_else(|| panic!("{text}: no event")), &text);
            }
        }
        assert_eq!(events.next(), None, "{run}: more events than changes");
        model.compare(store, &machines, &mut random, &run);
    }
    // What no key holds any more goes by itself.
    let expire = [system::Operation::Expire(5000).into_command()];
    for _ in 0..20 {
        let index = machines.progress().index.next();
        model.stamp += 1;
        let outcome = machines.apply(store, index, Term(term), Batch::encode(Stamp(model.stamp), &expire));
        let mut events = outcome.expect("the store does not fail").events.into_iter().peekable();
        model.expire(&mut events, &[], &format!("seed {seed}, at the end"));
        applied(index, random.number());
    }
    let view = View::new(store, machines.progress().sequence);
    let left = view.scan_prefix(&FIELDS, Order::Ascending).count();
    let fields: usize = model.state().values().map(|kept| kept.fields.len()).sum();
    assert_eq!(left, fields, "seed {seed}: fields in the end");
    let entries = view.scan_prefix(&EXPIRIES, Order::Ascending).count();
    assert_eq!(entries, model.entries(), "seed {seed}: entries of the expiry index in the end");
}

#[derive(Clone, Debug)]
enum Asked {
    Kv(Operation),
    Compact(u64),
}

impl Asked {
    fn into_command(self) -> crate::Command {
        match self {
            Self::Kv(operation) => operation.into_command(),
            Self::Compact(revision) => system::Operation::Compact(revision).into_command(),
        }
    }
}

// Random commands.

fn key(random: &mut Random) -> Bytes {
    if random.once_in(60) { Bytes::new() } else { format!("k{}", random.below(9)).into() }
}

fn keys(random: &mut Random) -> (Bytes, Bytes) {
    let end = match random.below(4) {
        0 => format!("k{}", random.below(9)).into(),
        1 => Bytes::from_static(b"\0"),
        _ => Bytes::new(),
    };
    (key(random), end)
}

fn lease_id(random: &mut Random) -> i64 {
    random.below(5) as i64
}

fn revision(random: &mut Random, model: &Model) -> i64 {
    let newest = model.newest();
    match random.below(8) {
        0 => newest as i64 + random.below(3) as i64,
        1..=3 => newest.saturating_sub(random.below(30)) as i64,
        4 => random.below(newest + 1) as i64,
        _ => 0,
    }
}

fn ask(random: &mut Random, model: &Model) -> Asked {
    Asked::Kv(match random.below(19) {
        0 => Operation::LeaseGrant(LeaseGrant { id: lease_id(random), ttl_s: random.below(3) as i64 }),
        1 => Operation::LeaseRevoke(lease_id(random)),
        2 => Operation::LeaseKeepAlive(lease_id(random)),
        3 => Operation::Delete(delete(random)),
        4..=7 => Operation::Txn(txn(random, model, 0)),
        8 if random.once_in(8) => return Asked::Compact(revision(random, model).max(0) as u64),
        10..=12 => Operation::WriteFields(write_fields(random)),
        9 => Operation::Increment(Increment { key: key(random), by: random.below(100) as i64 - 50 }),
        _ => Operation::Put(put(random)),
    })
}

fn put(random: &mut Random) -> Put {
    let ttl = match random.below(10) {
        0 => Some(Ttl::Milliseconds(random.below(900))),
        1 => Some(Ttl::Keep(true)),
        2 => Some(Ttl::Restart(true)),
        _ => None,
    };
    Put {
        key: key(random),
        value: format!("{}{}", random.below(5), "v".repeat(random.below(40) as usize)).into(),
        lease: if random.once_in(3) { lease_id(random) } else { 0 },
        prev_kv: random.once_in(2),
        ignore_value: random.once_in(8),
        ignore_lease: random.once_in(8),
        ttl,
        metadata: (0..random.below(3)).map(|_| random.below(9) as i64 - 4).collect(),
        keep_metadata: random.once_in(8),
    }
}

fn write_fields(random: &mut Random) -> WriteFields {
    let ttl = |random: &mut Random| match random.below(8) {
        0 => Some(Ttl::Milliseconds(random.below(900))),
        1 => Some(Ttl::Keep(true)),
        _ => None,
    };
    let mut changes = Vec::new();
    for name in 0..6 {
        if !random.once_in(3) {
            continue;
        }
        let text = Bytes::from(format!("{}", random.below(5)));
        let action = match random.below(7) {
            0 => FieldAction::PutNew(text),
            1 => FieldAction::Add(random.below(9) as i64),
            2 | 3 => FieldAction::Delete(true),
            4 => FieldAction::Expire(true),
            _ => FieldAction::Put(text),
        };
        let field = if random.once_in(50) { "f0".into() } else { format!("f{name}").into() };
        changes.push(FieldChange { field, action: Some(action), ttl: ttl(random) });
    }
    let (anew, persist) = (random.once_in(12), random.once_in(12));
    let from = if random.once_in(5) { key(random) } else { Bytes::new() };
    WriteFields { key: key(random), changes, anew, persist, from, ttl: ttl(random) }
}

fn delete(random: &mut Random) -> Delete {
    let (key, range_end) = keys(random);
    Delete { key, range_end, prev_kv: random.once_in(2) }
}

fn read(random: &mut Random, model: &Model) -> Range {
    let (key, range_end) = keys(random);
    let bound =
        |random: &mut Random| if random.once_in(10) { random.below(model.newest() + 1) as i64 } else { 0 };
    Range {
        key,
        range_end,
        limit: if random.once_in(3) { random.below(5) as i64 } else { 0 },
        revision: revision(random, model),
        sort_order: random.below(3) as i32,
        sort_target: if random.once_in(2) { random.below(5) as i32 } else { 0 },
        keys_only: random.once_in(6),
        count_only: random.once_in(6),
        min_mod_revision: bound(random),
        max_mod_revision: bound(random),
        min_create_revision: bound(random),
        max_create_revision: bound(random),
    }
}

fn txn(random: &mut Random, model: &Model, depth: u64) -> Txn {
    let compare = |random: &mut Random| {
        let (key, range_end) = keys(random);
        let number = |random: &mut Random| random.below(4) as i64;
        let target = match random.below(6) {
            0 => CompareTarget::Version(number(random)),
            1 => CompareTarget::CreateRevision(random.below(model.newest() + 1) as i64),
            2 => CompareTarget::ModRevision(random.below(model.newest() + 1) as i64),
            3 => CompareTarget::Lease(number(random)),
            4 => CompareTarget::Stamp(model.stamp + random.below(40)),
            _ => CompareTarget::Value(format!("{}", random.below(5)).into()),
        };
        let (result, absent_passes) = (random.below(4) as i32, random.once_in(4));
        Compare { result, key, range_end, target: Some(target), absent_passes }
    };
    let steps = |random: &mut Random| {
        let step = |random: &mut Random| {
            let step = match random.below(8) {
                0..=2 => Step::Range(read(random, model)),
                3 => Step::Delete(delete(random)),
                5 if random.once_in(3) => {
                    Step::Publish(Publish { channel: key(random), payload: Bytes::new() })
                }
                6 => Step::WriteFields(write_fields(random)),
                4 if depth < 2 => Step::Txn(txn(random, model, depth + 1)),
                _ => Step::Put(put(random)),
            };
            TxnOperation { step: Some(step) }
        };
        (0..random.below(4)).map(|_| step(random)).collect()
    };
    let compare = (0..random.below(3)).map(|_| compare(random)).collect();
    Txn { compare, success: steps(random), failure: steps(random) }
}

// The model.

fn within<'a>(
    state: &'a State,
    key: &'a Bytes,
    range_end: &'a Bytes,
) -> impl Iterator<Item = (&'a Bytes, &'a Kept)> {
    state.iter().filter(move |(found, _)| match &range_end[..] {
        [] => *found == key,
        [0] => *found >= key,
        end => *found >= key && &found[..] < end,
    })
}

impl Model {
    fn newest(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    fn state(&self) -> &State {
        self.states.last().expect("there is always one")
    }

    fn ends(&self, granted: Granted) -> u64 {
        granted.deadline.max(self.term_began + granted.ttl_s as u64 * 1000)
    }

    /// How many entries the expiry index has, but for what no key holds any more.
    fn entries(&self) -> usize {
        let fields = |kept: &Kept| kept.fields.values().filter(|(_, until)| until.is_some()).count();
        let of_key = |kept: &Kept| usize::from(kept.kv.expires.is_some()) + fields(kept);
        self.leases.len() + self.state().values().map(of_key).sum::<usize>()
    }

    /// Adds a state that at least one write separates from the newest.
    fn commit(&mut self, state: State) {
        self.states.push(state);
    }

    /// Takes the events of expiry off `events`: all of an event must be due, and nothing due may be left.
    fn expire(
        &mut self,
        events: &mut std::iter::Peekable<std::vec::IntoIter<Event>>,
        commands: &[Asked],
        run: &str,
    ) {
        let due = |model: &Self, kept: &Kept| kept.kv.expires.is_some_and(|at| at.0 <= model.stamp);
        let lease_due = |model: &Self, id: i64| {
            model.leases.get(&id).is_some_and(|granted| model.ends(*granted) <= model.stamp)
        };
        loop {
            let state = self.state().clone();
            if self.expire_field(events, run) {
                continue;
            }
            let dead: BTreeSet<&Bytes> = state
                .iter()
                .filter(|(_, kept)| due(self, kept) || lease_due(self, kept.kv.lease))
                .map(|(key, _)| key)
                .collect();
            if dead.is_empty() {
                break;
            }
            let event =
                events.next().unwrap_or_else(|| panic!("{run}: {dead:?} should expire, {commands:?}"));
            let gone: BTreeSet<Bytes> = changes(&event)
                .map(|(kv, written)| {
                    assert!(!written, "{run}: expiry only deletes");
                    kv.key
                })
                .collect();
            let alone = gone.len() == 1 && gone.iter().all(|key| due(self, &state[key]));
            let owner = gone.first().map_or(0, |key| state[key].kv.lease);
            let owned: BTreeSet<Bytes> =
                state.iter().filter(|(_, kept)| kept.kv.lease == owner).map(|(key, _)| key.clone()).collect();
            assert!(alone || (lease_due(self, owner) && gone == owned), "{run}: {gone:?} is not due");
            let mut next = state.clone();
            next.retain(|key, _| !gone.contains(key));
            self.commit(next);
            self.check_event(&event, run);
        }
        let (stamp, began) = (self.stamp, self.term_began);
        self.leases.retain(|_, granted| granted.deadline.max(began + granted.ttl_s as u64 * 1000) > stamp);
    }

    /// Takes the event of a field's expiry off `events`, if it is one. It takes a revision of its own.
    fn expire_field(
        &mut self,
        events: &mut std::iter::Peekable<std::vec::IntoIter<Event>>,
        run: &str,
    ) -> bool {
        let over = |fields: &Fields, stamp| {
            fields
                .iter()
                .find(|(_, (_, until))| until.is_some_and(|at| at <= stamp))
                .map(|(name, _)| name.clone())
        };
        // A key that is over may go first, or lose fields first.
        let Some(event) = events.peek().cloned() else {
            for (key, kept) in self.state() {
                assert_eq!(over(&kept.fields, self.stamp), None, "{run}: a field of {key:?} should expire");
            }
            return false;
        };
        let told: Vec<_> = changes(&event).collect();
        let [(kv, written)] = &told[..] else { return false };
        let Some(kept) = self.state().get(&kv.key) else { return false };
        let due: Vec<Bytes> = (kept.fields.iter())
            .filter(|(_, (_, until))| until.is_some_and(|at| at <= self.stamp))
            .map(|(name, _)| name.clone())
            .collect();
        let left = kept.fields.len().saturating_sub(1) as u64;
        let last = left == 0 && !written && kept.kv.expires.is_none_or(|at| at.0 > self.stamp);
        if due.is_empty() || !(last || *written) {
            return false;
        }
        // The one that ends first, and of those the first by name.
        let first = due
            .iter()
            .min_by_key(|name| (kept.fields[*name].1, (*name).clone()))
            .expect("one is due")
            .clone();
        let (mut next, revision) = (self.state().clone(), self.newest() as i64 + 1);
        if last {
            next.remove(&kv.key);
        } else {
            let kept = next.get_mut(&kv.key).expect("it is there");
            kept.fields.remove(&first);
            kept.kv.value = about(&kept.fields);
            kept.kv.mod_revision = revision;
            kept.kv.version += 1;
            kept.kv.updated = Stamp(self.stamp);
        }
        self.commit(next);
        let event = events.next().expect("it was peeked at");
        self.check_event(&event, run);
        true
    }

    fn answer(&mut self, asked: Asked) -> crate::Reply {
        match asked {
            Asked::Compact(revision) => crate::Reply::System(self.compact(revision)),
            Asked::Kv(operation) => {
                let result = self.perform(operation);
                crate::Reply::Kv(Reply { revision: Revision(self.newest()), result })
            }
        }
    }

    fn compact(&mut self, revision: u64) -> system::Reply {
        let unavailable = if revision <= self.compacted {
            Unavailable::Compacted { compacted: Revision(self.compacted) }
        } else if revision > self.newest() {
            Unavailable::Future { newest: Revision(self.newest()) }
        } else {
            self.compacted = revision;
            return system::Reply::Done;
        };
        system::Reply::Unavailable(unavailable)
    }

    fn perform(&mut self, operation: Operation) -> Result<Response, Refusal> {
        let mut state = self.state().clone();
        let mut written = false;
        let response = match operation {
            Operation::Put(put) => self.put(&mut state, &mut written, &put)?,
            Operation::Delete(delete) => self.delete(&mut state, &mut written, &delete)?,
            Operation::Txn(txn) => {
                super::check_txn(&txn)?;
                self.check_steps(&txn)?;
                self.run(&mut state, &mut written, &txn)?
            }
            Operation::LeaseGrant(LeaseGrant { id: 0, .. }) => return Err(Refusal::Malformed),
            Operation::LeaseGrant(grant) => {
                if self.leases.contains_key(&grant.id) {
                    return Err(Refusal::LeaseExists);
                }
                let ttl_s = grant.ttl_s.max(1);
                let deadline = self.stamp + ttl_s as u64 * 1000;
                self.leases.insert(grant.id, Granted { ttl_s, deadline });
                Response::Lease { id: grant.id, ttl_s }
            }
            Operation::LeaseRevoke(id) => {
                self.leases.remove(&id).ok_or(Refusal::LeaseNotFound)?;
                let before = state.len();
                state.retain(|_, kept| kept.kv.lease != id);
                written = state.len() < before;
                Response::Revoked { more: false }
            }
            Operation::LeaseKeepAlive(id) => {
                let stamp = self.stamp;
                let granted = self.leases.get_mut(&id).ok_or(Refusal::LeaseNotFound)?;
                granted.deadline = stamp + granted.ttl_s as u64 * 1000;
                Response::Lease { id, ttl_s: granted.ttl_s }
            }
            Operation::WriteFields(write) => self.write_fields(&mut state, &mut written, &write)?,
            Operation::Increment(Increment { key, by }) => {
                if key.is_empty() {
                    return Err(Refusal::EmptyKey);
                }
                if state.get(&key).is_some_and(|kept| kept.kv.kind == Kind::Hash) {
                    return Err(Refusal::WrongType);
                }
                let found = state.get(&key).map(|kept| kept.kv.value.to_vec());
                let text = found.as_deref().unwrap_or(b"0");
                let after = integer(text).ok_or(Refusal::NoInteger)? + by;
                self.put(&mut state, &mut written, &Put::of_number(key, after, found.is_some()))?;
                Response::Number(after)
            }
        };
        if written {
            self.commit(state);
        }
        Ok(response)
    }

    fn put(&self, state: &mut State, written: &mut bool, put: &Put) -> Result<Response, Refusal> {
        self.check_put(self.state(), put)?;
        let (revision, previous) = (self.newest() as i64 + 1, state.get(&put.key).cloned());
        let before = previous.as_ref();
        let expires_before = before.and_then(|kept| Some((kept.kv.expires?, kept.ttl_ms)));
        let expires = match put.ttl {
            Some(Ttl::Milliseconds(ms)) => Some((Stamp(self.stamp + ms), ms)),
            Some(Ttl::Keep(true)) => expires_before,
            Some(Ttl::Restart(true)) => expires_before.map(|(_, ms)| (Stamp(self.stamp + ms), ms)),
            _ => None,
        };
        let kv = KeyValue {
            key: put.key.clone(),
            value: before
                .filter(|_| put.ignore_value)
                .map_or(put.value.clone(), |kept| kept.kv.value.clone()),
            create_revision: before.map_or(revision, |kept| kept.kv.create_revision),
            mod_revision: revision,
            version: before.map_or(1, |kept| kept.kv.version + 1),
            lease: before.filter(|_| put.ignore_lease).map_or(put.lease, |kept| kept.kv.lease),
            expires: expires.map(|(at, _)| at),
            updated: Stamp(self.stamp),
            metadata: before
                .filter(|_| put.keep_metadata)
                .map_or(put.metadata.clone(), |kept| kept.kv.metadata.clone()),
            kind: before.filter(|_| put.ignore_value).map_or(Kind::String, |kept| kept.kv.kind),
        };
        let fields = before.filter(|_| put.ignore_value).map_or_else(Fields::new, |kept| kept.fields.clone());
        state.insert(put.key.clone(), Kept { kv, ttl_ms: expires.map_or(0, |(_, ms)| ms), fields });
        *written = true;
        Ok(Response::Put(previous.map(|kept| kept.kv).filter(|_| put.prev_kv)))
    }

    fn write_fields(
        &self,
        state: &mut State,
        written: &mut bool,
        write: &WriteFields,
    ) -> Result<Response, Refusal> {
        if write.key.is_empty() {
            return Err(Refusal::EmptyKey);
        }
        let names: BTreeSet<&Bytes> = write.changes.iter().map(|change| &change.field).collect();
        if names.len() < write.changes.len() {
            return Err(Refusal::Malformed);
        }
        let (stored, moves) = (self.state().get(&write.key), !write.from.is_empty());
        let mut hash = stored.filter(|_| !write.anew);
        if moves && (write.anew || write.from == write.key) {
            return Err(Refusal::Malformed);
        }
        if moves {
            hash = Some(self.state().get(&write.from).ok_or(Refusal::KeyNotFound)?);
        }
        if hash.is_some_and(|kept| kept.kv.kind == Kind::String) {
            return Err(Refusal::WrongType);
        }
        let mut fields = hash.map_or_else(Fields::new, |kept| kept.fields.clone());
        let (mut reply, mut touched) = (FieldsReply::default(), moves || write.anew && stored.is_some());
        touched |= hash.is_some() && (write.persist || write.ttl.is_some());
        for FieldChange { field, action, ttl } in &write.changes {
            let before = fields.get(field).cloned();
            let keep = Some(Ttl::Keep(true));
            let (value, ttl) = match action.as_ref().expect("there is one") {
                FieldAction::Put(value) => (Some(value.clone()), *ttl),
                FieldAction::PutNew(_) if before.is_some() => continue,
                FieldAction::PutNew(value) => (Some(value.clone()), *ttl),
                FieldAction::Add(by) => {
                    let text = before.as_ref().map_or(&b"0"[..], |(value, _)| value);
                    reply.number = integer(text).ok_or(Refusal::FieldNoInteger)? + by;
                    (Some(reply.number.to_string().into()), ttl.or(keep))
                }
                FieldAction::Delete(_) | FieldAction::Expire(_) if before.is_none() => continue,
                FieldAction::Delete(_) => (None, None),
                FieldAction::Expire(_) => (before.clone().map(|(value, _)| value), *ttl),
            };
            touched = true;
            let until = before.as_ref().and_then(|(_, until)| *until);
            let until = match ttl {
                Some(Ttl::Milliseconds(ms)) => Some(self.stamp + ms),
                Some(Ttl::Keep(true)) => until,
                _ => None,
            };
            match value {
                Some(value) => {
                    reply.added += i64::from(before.is_none());
                    fields.insert(field.clone(), (value, until));
                }
                None => {
                    reply.removed += 1;
                    fields.remove(field);
                }
            }
        }
        if !touched {
            return Ok(Response::Fields(reply));
        }
        if moves {
            state.remove(&write.from);
            *written = true;
            hash = None;
        }
        if fields.is_empty() {
            *written |= state.remove(&write.key).is_some();
            return Ok(Response::Fields(reply));
        }
        *written = true;
        let revision = self.newest() as i64 + 1;
        let before = stored.and_then(|kept| Some((kept.kv.expires?, kept.ttl_ms)));
        let expires = match write.ttl {
            Some(Ttl::Milliseconds(ms)) => Some((Stamp(self.stamp + ms), ms)),
            Some(Ttl::Keep(true)) => before,
            None if !write.persist && hash.is_some() => before,
            _ => None,
        };
        let kv = KeyValue {
            key: write.key.clone(),
            value: about(&fields),
            create_revision: stored.map_or(revision, |kept| kept.kv.create_revision),
            mod_revision: revision,
            version: stored.map_or(1, |kept| kept.kv.version + 1),
            lease: hash.map_or(0, |kept| kept.kv.lease),
            expires: expires.map(|(at, _)| at),
            updated: Stamp(self.stamp),
            metadata: hash.map_or_else(Vec::new, |kept| kept.kv.metadata.clone()),
            kind: Kind::Hash,
        };
        state.insert(write.key.clone(), Kept { kv, ttl_ms: expires.map_or(0, |(_, ms)| ms), fields });
        Ok(Response::Fields(reply))
    }

    fn check_put(&self, state: &State, put: &Put) -> Result<(), Refusal> {
        if put.key.is_empty() {
            return Err(Refusal::EmptyKey);
        }
        if (put.ignore_value || put.ignore_lease) && !state.contains_key(&put.key) {
            return Err(Refusal::KeyNotFound);
        }
        if put.lease != 0 && !put.ignore_lease && !self.leases.contains_key(&put.lease) {
            return Err(Refusal::LeaseNotFound);
        }
        Ok(())
    }

    fn delete(&self, state: &mut State, written: &mut bool, delete: &Delete) -> Result<Response, Refusal> {
        if delete.key.is_empty() {
            return Err(Refusal::EmptyKey);
        }
        let gone: Vec<KeyValue> =
            within(state, &delete.key, &delete.range_end).map(|(_, kept)| kept.kv.clone()).collect();
        for kv in &gone {
            state.remove(&kv.key);
        }
        *written |= !gone.is_empty();
        let deleted = gone.len() as i64;
        Ok(Response::Delete { deleted, prev_kvs: if delete.prev_kv { gone } else { Vec::new() } })
    }

    /// What refuses a transaction's chosen path, judged by the state before it.
    fn check_steps(&self, txn: &Txn) -> Result<(), Refusal> {
        let steps = if self.holds(txn) { &txn.success } else { &txn.failure };
        for step in steps {
            match step.step.as_ref().expect("every step is there") {
                Step::Range(range) if range.key.is_empty() => return Err(Refusal::EmptyKey),
                Step::Range(range) if range.revision > 0 => {
                    self.check_readable(range.revision as u64)?;
                }
                Step::Range(_) => {}
                Step::Put(put) => self.check_put(self.state(), put)?,
                Step::Delete(delete) if delete.key.is_empty() => return Err(Refusal::EmptyKey),
                Step::WriteFields(write) => {
                    self.write_fields(&mut self.state().clone(), &mut false, write)?;
                }
                Step::Delete(_) | Step::Publish(_) => {}
                Step::Txn(inner) => self.check_steps(inner)?,
            }
        }
        Ok(())
    }

    fn holds(&self, txn: &Txn) -> bool {
        txn.compare.iter().all(|compare| {
            if let Some(CompareTarget::Stamp(given)) = compare.target {
                return relates(self.stamp.cmp(&given), compare);
            }
            let mut found =
                within(self.state(), &compare.key, &compare.range_end).map(|(_, kept)| &kept.kv).peekable();
            if found.peek().is_none() {
                return compare.absent_passes || compares(None, compare);
            }
            found.all(|kv| compares(Some(kv), compare))
        })
    }

    fn run(&self, state: &mut State, written: &mut bool, txn: &Txn) -> Result<Response, Refusal> {
        let succeeded = self.holds(txn);
        let steps = if succeeded { &txn.success } else { &txn.failure };
        let mut responses = Vec::new();
        for step in steps {
            responses.push(match step.step.as_ref().expect("every step is there") {
                Step::Range(range) => {
                    // The transaction's own revision is in the future, so it cannot be asked for.
                    let as_of = match range.revision {
                        ..=0 => &*state,
                        revision => &self.states[revision as usize],
                    };
                    Response::Range(select(as_of, range))
                }
                Step::Put(put) => self.put(state, written, put)?,
                Step::Delete(delete) => self.delete(state, written, delete)?,
                Step::WriteFields(write) => self.write_fields(state, written, write)?,
                Step::Txn(inner) => self.run(state, written, inner)?,
                Step::Publish(_) => Response::Published,
            });
        }
        Ok(Response::Txn { succeeded, responses })
    }

    fn check_readable(&self, revision: u64) -> Result<(), Refusal> {
        if revision > self.newest() {
            return Err(Unavailable::Future { newest: Revision(self.newest()) }.into());
        }
        if revision < self.compacted {
            return Err(Unavailable::Compacted { compacted: Revision(self.compacted) }.into());
        }
        Ok(())
    }

    fn read(&self, request: &Range) -> Result<RangeReply, Refusal> {
        if request.key.is_empty() {
            return Err(Refusal::EmptyKey);
        }
        if request.revision <= 0 {
            return Ok(select(self.state(), request));
        }
        self.check_readable(request.revision as u64)?;
        Ok(select(&self.states[request.revision as usize], request))
    }

    // Comparisons.

    /// The newest state and the one before it must differ exactly as the event says.
    fn check_event(&self, event: &Event, run: &str) {
        let newest = self.states.len() - 1;
        assert_eq!((event.revision.0, event.stamp.0), (newest as u64, self.stamp), "{run}");
        self.check_changes(event, run);
    }

    fn check_changes(&self, event: &Event, run: &str) {
        let (after, before) =
            (&self.states[event.revision.0 as usize], &self.states[event.revision.0 as usize - 1]);
        let mut changed: BTreeSet<&Bytes> =
            after.iter().filter(|(key, kept)| before.get(*key) != Some(kept)).map(|(key, _)| key).collect();
        changed.extend(before.keys().filter(|key| !after.contains_key(*key)));
        let mut told = BTreeSet::new();
        for (kv, written) in changes(event) {
            match after.get(&kv.key) {
                Some(kept) => assert!(written && kept.kv == kv, "{run}: {kv:?}"),
                None => assert!(!written, "{run}: {kv:?} is gone"),
            }
            assert!(told.insert(kv.key.clone()), "{run}: {:?} twice in one event", kv.key);
        }
        assert!(changed.iter().all(|key| told.contains(*key)), "{run}: {changed:?} changed, {told:?} told");
    }

    /// Compares random reads, and replays part of the history.
    fn compare(&self, store: &dyn Store, machines: &Machines, random: &mut Random, run: &str) {
        let progress = machines.progress();
        let view = View::new(store, progress.sequence);
        assert_eq!((progress.revision.0, progress.compacted.0), (self.newest(), self.compacted), "{run}");
        for _ in 0..3 {
            let request = read(random, self);
            let found = range(view, &progress, &request).expect("the store can be read");
            assert_eq!(found, self.read(&request), "{run}: {request:?}");
        }
        let key = Bytes::from(format!("k{}", random.below(9)));
        let at = random.below(self.newest() + 2);
        let found =
            floor(view, &progress, &key, Floor::ModRevision(at as i64)).expect("the store can be read");
        let at = at.min(self.newest());
        let expected = match at {
            0 => Ok(None),
            at => self
                .check_readable(at)
                .map(|()| self.states[at as usize].get(&key).map(|kept| kept.kv.clone())),
        };
        assert_eq!(found, expected, "{run}: {key:?} at {at}");
        self.compare_versions(view, &progress, &key, 1 + random.below(6) as i64, run);

        for (key, kept) in self.state() {
            let (kv, hash) = find(view, key).expect("the store can be read").expect("it is there");
            assert_eq!(kv, kept.kv, "{run}");
            let stored = hash
                .into_iter()
                .flat_map(|hash| fields(view, hash, b"").map(|field| field.expect("the store can be read")));
            let stored: Fields =
                stored.map(|(name, field)| (name, (field.value, field.expires.map(|at| at.0)))).collect();
            assert_eq!(stored, kept.fields, "{run}: fields of {key:?}");
        }
        let entries = view.scan_prefix(&EXPIRIES, Order::Ascending).count();
        assert!(entries >= self.entries(), "{run}: entries of the expiry index");

        let from = self.newest().saturating_sub(random.below(40)).max(self.compacted + 1).max(2);
        let past = history::events(view, Revision(from), progress.revision, |_| true);
        let mut next = from;
        for event in past {
            let event = event.expect("the store can be read");
            assert_eq!(event.revision.0, next, "{run}: a gap in the history");
            self.check_changes(&event, &format!("{run}, replayed"));
            next += 1;
        }
        assert_eq!(next, self.newest() + 1, "{run}: the history ends early");

        let found: Vec<_> = leases(view, &progress).expect("the store can be read");
        let found: Vec<_> = found.iter().map(|info| (info.id, info.granted_ttl_s, info.deadline.0)).collect();
        let expected: Vec<_> =
            self.leases.iter().map(|(id, granted)| (*id, granted.ttl_s, self.ends(*granted))).collect();
        assert_eq!(found, expected, "{run}");
        for id in self.leases.keys() {
            let found = lease(view, &progress, *id, true).expect("the store can be read");
            let keys: Vec<Bytes> = self
                .state()
                .values()
                .filter(|kept| kept.kv.lease == *id)
                .map(|kept| kept.kv.key.clone())
                .collect();
            assert_eq!(found.map(|(_, keys)| keys), Some(keys), "{run}: lease {id}");
        }
    }

    /// The newest version at or below `version` within the key's present life, if its revision can be read.
    fn compare_versions(
        &self,
        view: View<'_>,
        progress: &crate::Progress,
        key: &Bytes,
        version: i64,
        run: &str,
    ) {
        let found = floor(view, progress, key, Floor::Version(version)).expect("the store can be read");
        let Some(newest) = self.state().get(key) else {
            return assert_eq!(found, Ok(None), "{run}: {key:?} is absent");
        };
        let readable = self.compacted.max(newest.kv.create_revision as u64) as usize..self.states.len();
        let versions = readable.filter_map(|revision| Some(&self.states[revision].get(key)?.kv));
        let best = versions.filter(|kv| kv.version <= version).max_by_key(|kv| kv.version);
        let expected = match best {
            Some(kv) => Ok(Some(kv.clone())),
            None => Err(Unavailable::Compacted { compacted: progress.compacted }.into()),
        };
        assert_eq!(found, expected, "{run}: {key:?} at version {version}");
    }
}

/// What clients see of a hash who know only values.
fn about(fields: &Fields) -> Bytes {
    format!("{{\"type\":\"hash\",\"fields\":{}}}", fields.len()).into()
}

fn changes(event: &Event) -> impl Iterator<Item = (KeyValue, bool)> {
    event.changes.iter().map(|change| {
        let kv = change_to_key_value(change, event.revision).expect("a record").expect("of the kv face");
        (kv, change.value.is_some())
    })
}

fn compares(kv: Option<&KeyValue>, compare: &Compare) -> bool {
    let number = |stored: fn(&KeyValue) -> i64, given: i64| kv.map_or(0, stored).cmp(&given);
    let ordering = match compare.target.as_ref().expect("there is one") {
        CompareTarget::Version(given) => number(|kv| kv.version, *given),
        CompareTarget::CreateRevision(given) => number(|kv| kv.create_revision, *given),
        CompareTarget::ModRevision(given) => number(|kv| kv.mod_revision, *given),
        CompareTarget::Lease(given) => number(|kv| kv.lease, *given),
        CompareTarget::Value(given) => match kv {
            Some(kv) => kv.value.cmp(given),
            None => return false,
        },
        CompareTarget::Metadata(_) | CompareTarget::Stamp(_) => unreachable!("never compared here"),
    };
    relates(ordering, compare)
}

fn relates(ordering: std::cmp::Ordering, compare: &Compare) -> bool {
    match compare.result() {
        CompareResult::Equal => ordering.is_eq(),
        CompareResult::Greater => ordering.is_gt(),
        CompareResult::Less => ordering.is_lt(),
        CompareResult::NotEqual => ordering.is_ne(),
    }
}

fn select(state: &State, request: &Range) -> RangeReply {
    let all: Vec<&KeyValue> =
        within(state, &request.key, &request.range_end).map(|(_, kept)| &kept.kv).collect();
    let count = all.len() as i64;
    let bounded =
        |number: i64, least: i64, most: i64| (least == 0 || number >= least) && (most == 0 || number <= most);
    let mut kvs: Vec<KeyValue> = all
        .into_iter()
        .filter(|kv| {
            !request.count_only
                && bounded(kv.mod_revision, request.min_mod_revision, request.max_mod_revision)
                && bounded(kv.create_revision, request.min_create_revision, request.max_create_revision)
        })
        .cloned()
        .collect();
    let descending = request.sort_order() == SortOrder::Descend;
    kvs.sort_by(|a, b| {
        let ordering = match request.sort_target() {
            SortTarget::Key => a.key.cmp(&b.key),
            SortTarget::Version => a.version.cmp(&b.version),
            SortTarget::Create => a.create_revision.cmp(&b.create_revision),
            SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
            SortTarget::Value => a.value.cmp(&b.value),
        };
        if descending { ordering.reverse() } else { ordering }
    });
    let limit = if request.limit > 0 { request.limit as usize } else { usize::MAX };
    let more = kvs.len() > limit;
    kvs.truncate(limit);
    if request.keys_only {
        // Last, as in etcd: an answer without values can still be sorted by them.
        kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
    }
    RangeReply { kvs, more, count }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    /// Seed 79 found that an event named a key twice that one transaction had written and deleted.
    #[test]
    fn the_machine_agrees_with_the_model() {
        for seed in 0..100 {
            check(&MemoryStore::new(), seed, 300, &mut |_, _| {});
        }
    }
}
