//! Work on hashes: fields with times to live, large hashes that are renamed, copied, deleted and replaced, and several
//! keys at once on a condition, as MULTI and scripts do. What each command was answered is compared with a model of its
//! own, run on the state before it, and what it left behind with the state after it.

use crate::clients::Known;
use crate::record::number;
use crate::world::World;
use anyhow::{Result, ensure};
use bytes::Bytes;
use quoin_core::kv::txn_operation::Step;
use quoin_core::kv::{
    self, Compare, CompareResult, CompareTarget, Delete, FieldAction, FieldChange, FieldsReply,
    Operation as Kv, Put, Refusal, Response, Ttl, Txn, TxnOperation, WriteFields,
};
use quoin_core::store::Order;
use quoin_core::{Revision, View, history};
use quoin_engine::ReadView;
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet};

const KEYS: u64 = 4;
const PREFIX: &str = "hash ";
/// More than one entry clears beside clients' commands.
const LARGE: u64 = 250;

/// What clients remember.
#[derive(Default)]
pub(crate) struct Hashes {
    /// Values of fields that clients were told are not written.
    never: BTreeSet<Bytes>,
}

/// One command.
#[derive(Debug)]
pub(crate) struct Asked {
    /// A key, and the revision that must have changed it last.
    condition: Option<(Bytes, i64)>,
    acts: Vec<Act>,
}

/// What happens to one key, or to all that are hashes.
#[derive(Clone, Debug)]
enum Act {
    Write(WriteFields),
    Set(Bytes, Bytes),
    Delete(Bytes, Bytes),
}

/// A key: text, or fields with their deadlines.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    modified: i64,
    until: Option<u64>,
    fields: Option<Fields>,
}

type Fields = BTreeMap<Bytes, (Bytes, Option<u64>)>;
type State = BTreeMap<Bytes, Held>;

fn key(number: u64) -> Bytes {
    format!("{PREFIX}{number}").into()
}

impl Asked {
    fn operation(&self) -> Kv {
        match (&self.condition, &self.acts[..]) {
            (None, [Act::Write(write)]) => Kv::WriteFields(write.clone()),
            _ => {
                let compare = |(key, modified): &(Bytes, i64)| Compare {
                    result: CompareResult::Equal as i32,
                    key: key.clone(),
                    target: Some(CompareTarget::ModRevision(*modified)),
                    ..Compare::default()
                };
                let compare = self.condition.iter().map(compare).collect();
                let success = self.acts.iter().map(|act| TxnOperation { step: Some(act.step()) }).collect();
                Kv::Txn(Txn { compare, success, failure: Vec::new() })
            }
        }
    }

    /// What the model answers at `stamp`: whether the condition holds, and a response to each act.
    fn run(&self, state: &mut State, stamp: u64, revision: i64) -> Result<(bool, Vec<Response>), Refusal> {
        let modified = |key: &Bytes| state.get(key).map_or(0, |held| held.modified);
        if self.condition.as_ref().is_some_and(|(key, wanted)| modified(key) != *wanted) {
            return Ok((false, Vec::new()));
        }
        let responses: Result<_, Refusal> =
            self.acts.iter().map(|act| act.run(state, stamp, revision)).collect();
        Ok((true, responses?))
    }

    /// Whether the model, run on `before`, gives this answer and the state `after` it.
    fn explains(
        &self,
        (before, after): (&State, &State),
        stamp: u64,
        revision: i64,
        answer: &Result<Response, Refusal>,
    ) -> bool {
        let mut state = before.clone();
        let (succeeded, mut responses) = match self.run(&mut state, stamp, revision) {
            Err(refusal) => return answer.as_ref() == Err(&refusal) && before == after,
            Ok(modelled) => modelled,
        };
        let expected = match self.operation() {
            Kv::Txn(_) => Response::Txn { succeeded, responses },
            _ => responses.remove(0),
        };
        answer.as_ref() == Ok(&expected) && state == *after
    }

    fn values(&self) -> impl Iterator<Item = &Bytes> {
        let writes = self.acts.iter().filter_map(|act| match act {
            Act::Write(write) if !write.anew => Some(write),
            _ => None,
        });
        writes.flat_map(|write| &write.changes).filter_map(|change| match &change.action {
            Some(FieldAction::Put(value) | FieldAction::PutNew(value)) => Some(value),
            _ => None,
        })
    }
}

impl Act {
    fn step(&self) -> Step {
        match self.clone() {
            Self::Write(write) => Step::WriteFields(write),
            Self::Set(key, value) => Step::Put(Put { key, value, ..Put::default() }),
            Self::Delete(key, range_end) => Step::Delete(Delete { key, range_end, prev_kv: false }),
        }
    }

    fn run(&self, state: &mut State, stamp: u64, revision: i64) -> Result<Response, Refusal> {
        Ok(match self {
            Self::Write(write) => Response::Fields(write_fields(state, write, stamp, revision)?),
            Self::Set(key, _) => {
                state.insert(key.clone(), Held { modified: revision, until: None, fields: None });
                Response::Put(None)
            }
            Self::Delete(key, end) => {
                let before = state.len();
                state.retain(|held, _| if end.is_empty() { held != key } else { held < key || held >= end });
                Response::Delete { deleted: (before - state.len()) as i64, prev_kvs: Vec::new() }
            }
        })
    }
}

fn write_fields(
    state: &mut State,
    write: &WriteFields,
    stamp: u64,
    revision: i64,
) -> Result<FieldsReply, Refusal> {
    let is_over = |until: Option<u64>| until.is_some_and(|until| until <= stamp);
    let alive = |key: &Bytes| state.get(key).filter(|held| !write.anew && !is_over(held.until)).cloned();
    let moves = !write.from.is_empty();
    if moves && write.from == write.key {
        return Err(Refusal::Malformed);
    }
    let source = if moves { Some(alive(&write.from).ok_or(Refusal::KeyNotFound)?) } else { None };
    let hash = source.or_else(|| alive(&write.key).filter(|_| !moves));
    let known = hash.is_some();
    let mut fields = match hash {
        Some(Held { fields: None, .. }) => return Err(Refusal::WrongType),
        Some(Held { fields: Some(fields), .. }) => fields,
        None => Fields::new(),
    };
    let stored = state.get(&write.key).cloned();
    let mut writes =
        moves || write.anew && stored.is_some() || known && (write.persist || write.ttl.is_some());
    let mut reply = FieldsReply::default();
    for FieldChange { field, action, ttl } in &write.changes {
        let kept = fields.get(field).cloned();
        let seen = kept.clone().filter(|(_, until)| !is_over(*until));
        let until = seen.as_ref().and_then(|(_, until)| *until);
        let deadline = |ttl: Option<Ttl>| match ttl {
            Some(Ttl::Milliseconds(ms)) => Some(stamp + ms),
            Some(Ttl::At(at)) => Some(at),
            Some(Ttl::Keep(true) | Ttl::Restart(true)) => until,
            _ => None,
        };
        let after = match action {
            Some(FieldAction::Put(value)) => Some((value.clone(), deadline(*ttl))),
            Some(FieldAction::PutNew(_)) if seen.is_some() => continue,
            Some(FieldAction::PutNew(value)) => Some((value.clone(), deadline(*ttl))),
            Some(FieldAction::Add(by)) => {
                let before = seen.as_ref().map_or(Some(0), |(value, _)| kv::integer(value));
                reply.number =
                    before.ok_or(Refusal::FieldNoInteger)?.checked_add(*by).ok_or(Refusal::Overflow)?;
                Some((reply.number.to_string().into(), deadline(ttl.or(Some(Ttl::Keep(true))))))
            }
            Some(FieldAction::Expire(_)) if seen.is_none() => continue,
            Some(FieldAction::Expire(_)) => seen.clone().map(|(value, _)| (value, deadline(*ttl))),
            Some(FieldAction::Delete(_)) if kept.is_none() => continue,
            Some(FieldAction::Delete(_)) | None => None,
        };
        writes = true;
        reply.added += i64::from(seen.is_none() && after.is_some());
        reply.removed += i64::from(seen.is_some() && after.is_none());
        match after {
            Some(after) => fields.insert(field.clone(), after),
            None => fields.remove(field),
        };
    }
    if !writes {
        return Ok(reply);
    }
    if moves {
        state.remove(&write.from);
    }
    if fields.is_empty() {
        state.remove(&write.key);
        return Ok(reply);
    }
    let before = stored.and_then(|held| held.until).filter(|until| *until > stamp);
    let until = match write.ttl {
        Some(Ttl::Milliseconds(ms)) => Some(stamp + ms),
        Some(Ttl::At(at)) => Some(at),
        Some(Ttl::Keep(true)) => before,
        None if !write.persist && known && !moves => before,
        _ => None,
    };
    state.insert(write.key.clone(), Held { modified: revision, until, fields: Some(fields) });
    Ok(reply)
}

impl World {
    /// A client changes hashes.
    pub(crate) fn change_hashes(&mut self, place: usize) -> Result<()> {
        let (one, two) = self.draw_two();
        let asked = match self.rng.random_range(0..20) {
            0 | 1 => Asked { condition: None, acts: vec![Act::Delete(one, Bytes::new())] },
            2 => Asked { condition: None, acts: vec![Act::Delete(PREFIX.into(), "hash!".into())] },
            3 => {
                let (_, value) = self.clients.value(&mut self.rng);
                Asked { condition: None, acts: vec![Act::Set(one, value)] }
            }
            4 | 5 => {
                let mut write = self.draw_fields(one);
                write.from = two;
                Asked { condition: None, acts: vec![Act::Write(write)] }
            }
            6 | 7 => self.draw_copy(place, one, two)?,
            8..11 => self.draw_several(place, one, two)?,
            11 => Asked { condition: None, acts: vec![Act::Write(self.draw_large(one))] },
            _ => Asked { condition: None, acts: vec![Act::Write(self.draw_fields(one))] },
        };
        let (at, floor) = (self.process_at(place), self.clients.newest_told);
        let command = asked.operation().into_command();
        self.propose(place, Known::Hashes { at, asked: Box::new(asked), floor }, command);
        Ok(())
    }

    /// Two keys.
    fn draw_two(&mut self) -> (Bytes, Bytes) {
        let one = self.rng.random_range(0..KEYS);
        let two = (one + self.rng.random_range(1..KEYS)) % KEYS;
        (key(one), key(two))
    }

    fn draw_ttl(&mut self) -> Option<Ttl> {
        match self.rng.random_range(0..6) {
            0 | 1 => Some(Ttl::Milliseconds(self.rng.random_range(0..3_000))),
            2 => Some(Ttl::Keep(true)),
            _ => None,
        }
    }

    fn draw_fields(&mut self, key: Bytes) -> WriteFields {
        let mut changes = Vec::new();
        for name in 0..6 {
            if self.rng.random_bool(0.6) {
                continue;
            }
            let (_, value) = self.clients.value(&mut self.rng);
            let action = match self.rng.random_range(0..8) {
                0 => FieldAction::PutNew(value),
                1 | 2 => FieldAction::Delete(true),
                3 => FieldAction::Expire(true),
                // Numbers are in some fields only.
                4 | 5 if name < 2 => FieldAction::Add(self.rng.random_range(-9..99)),
                _ if name < 2 => continue,
                _ => FieldAction::Put(value),
            };
            let name = if self.rng.random_bool(0.02) { 1 } else { name };
            let field: Bytes = format!("f{name}").into();
            if changes.iter().all(|change: &FieldChange| change.field != field) {
                changes.push(FieldChange { field, action: Some(action), ttl: self.draw_ttl() });
            }
        }
        let ttl = if self.rng.random_bool(0.15) { self.draw_ttl() } else { None };
        let persist = ttl.is_none() && self.rng.random_bool(0.05);
        WriteFields { key, changes, persist, ttl, ..WriteFields::default() }
    }

    fn draw_large(&mut self, key: Bytes) -> WriteFields {
        let (_, value) = self.clients.value(&mut self.rng);
        let ttl = self.draw_ttl();
        let change = |name| FieldChange {
            field: format!("l{name}").into(),
            action: Some(FieldAction::Put(value.clone())),
            ttl: ttl.filter(|_| name % 7 == 0),
        };
        let count = self.rng.random_range(0..LARGE);
        WriteFields { key, changes: (0..count).map(change).collect(), ..WriteFields::default() }
    }

    /// As COPY does: reads the one, and writes the other whole, if the one has not changed since.
    fn draw_copy(&mut self, place: usize, from: Bytes, to: Bytes) -> Result<Asked> {
        let view = self.process(place).stepped.engine().latest();
        let Some(held) = held(view.view(), &from)? else {
            let acts = vec![Act::Delete(to, Bytes::new())];
            return Ok(Asked { condition: Some((from, 0)), acts });
        };
        let change = |(field, (value, until)): (Bytes, (Bytes, Option<u64>))| FieldChange {
            field,
            action: Some(FieldAction::Put(value)),
            ttl: until.map(Ttl::At),
        };
        let changes = held.fields.into_iter().flatten().map(change).collect();
        let ttl = held.until.map(Ttl::At);
        let write = WriteFields { key: to, changes, anew: true, ttl, ..WriteFields::default() };
        Ok(Asked { condition: Some((from, held.modified)), acts: vec![Act::Write(write)] })
    }

    /// As a script does: changes two keys, if the first has not changed since it was read.
    fn draw_several(&mut self, place: usize, one: Bytes, two: Bytes) -> Result<Asked> {
        let view = self.process(place).stepped.engine().latest();
        let seen = held(view.view(), &one)?.map_or(0, |held| held.modified);
        let second = match self.rng.random_range(0..4) {
            0 => Act::Delete(two, Bytes::new()),
            1 => Act::Set(two, self.clients.value(&mut self.rng).1),
            _ => Act::Write(self.draw_fields(two)),
        };
        Ok(Asked {
            condition: Some((one.clone(), seen)),
            acts: vec![Act::Write(self.draw_fields(one)), second],
        })
    }

    /// A change of hashes was answered, by the replica at `place`.
    pub(crate) fn hashes_changed(
        &mut self,
        place: usize,
        asked: &Asked,
        floor: u64,
        reply: &kv::Reply,
    ) -> Result<()> {
        let revision = reply.revision.0;
        ensure!(revision >= floor, "hashes are changed at {revision}; a client was told of {floor} before");
        match reply.result {
            Err(Refusal::Crowded) => {
                self.hashes_not_changed(asked, false);
                return Ok(());
            }
            Err(_) => self.hashes_not_changed(asked, false),
            Ok(Response::Txn { succeeded: false, .. }) => self.hashes_not_changed(asked, false),
            Ok(_) => {}
        }
        self.counts.hashes += 1;
        let view = self.process(place).stepped.engine().latest();
        let (Some((before, _)), Some((after, stamp))) =
            (state_at(&view, revision - 1)?, state_at(&view, revision)?)
        else {
            return Ok(());
        };
        let explains =
            |before, stamp| asked.explains((before, &after), stamp, revision as i64, &reply.result);
        // It wrote nothing: then it is not known when it ran, but only what was over by then counts.
        let deadlines = after.values().flat_map(|held| {
            let fields = held.fields.iter().flatten().map(|(_, (_, until))| *until);
            fields.chain([held.until])
        });
        let mut stamps: BTreeSet<u64> = deadlines.flatten().filter(|until| *until > stamp).collect();
        stamps.insert(stamp);
        ensure!(
            explains(&before, stamp) || stamps.into_iter().any(|stamp| explains(&after, stamp)),
            "a change of hashes was answered as it cannot have been at revision {revision}, stamp {stamp}: {asked:?} \
             {:?}, from {before:?} to {after:?}",
            reply.result
        );
        Ok(())
    }

    /// A change of hashes was not done, or nobody knows.
    pub(crate) fn hashes_not_changed(&mut self, asked: &Asked, is_unknown: bool) {
        if is_unknown {
            self.counts.unknown += 1;
            return;
        }
        self.counts.not_done += 1;
        self.hashes.never.extend(asked.values().cloned());
        for act in &asked.acts {
            if let Act::Set(_, value) = act
                && let Some(value) = number(value)
            {
                self.record.lock().not_done(value);
            }
        }
    }

    /// Every field belongs to a key, which knows how many it has, or is being cleared.
    pub(crate) fn check_hashes(&self, view: View<'_>, id: u64) -> Result<()> {
        const NUMBER_BYTES: usize = 12;
        let mut fields = 0;
        for number in 0..KEYS {
            let held = held(view, &key(number))?;
            for (field, (value, _)) in held.iter().flat_map(|held| held.fields.iter().flatten()) {
                fields += 1;
                ensure!(
                    !self.hashes.never.contains(value),
                    "replica {id} has {value:?} in field {field:?}, and its client was told: not done"
                );
            }
        }
        let mut cleared = BTreeSet::new();
        for pair in view.scan_prefix(b"\x01y", Order::Ascending) {
            let entry = pair?.0;
            cleared.insert(entry.slice(entry.len() - NUMBER_BYTES..));
        }
        let (mut stored, mut garbage) = (0, 0);
        for pair in view.scan_prefix(b"\x01f", Order::Ascending) {
            stored += 1;
            garbage += u64::from(cleared.contains(&pair?.0[2..2 + NUMBER_BYTES]));
        }
        ensure!(
            stored == fields + garbage,
            "replica {id} has {stored} fields: {fields} of keys, {garbage} that are being cleared"
        );
        Ok(())
    }

    /// Whether no replica has fields to clear.
    pub(crate) fn hashes_are_cleared(&self) -> bool {
        self.nodes.iter().filter_map(|node| node.process.as_ref()).all(|process| {
            let view = process.stepped.engine().latest();
            view.view().scan_prefix(b"\x01y", Order::Ascending).next().is_none()
        })
    }
}

/// All keys and the stamp of a revision, unless it is compacted.
fn state_at(view: &ReadView, revision: u64) -> Result<Option<(State, u64)>> {
    let revision = Revision(revision);
    let Ok(at) = history::sequence_at(view.view(), view.progress(), revision)? else { return Ok(None) };
    let Some((_, stamp)) = history::header(view.view(), revision)? else { return Ok(None) };
    let mut state = State::new();
    for key in (0..KEYS).map(key) {
        if let Some(held) = held(view.view().at(at), &key)? {
            state.insert(key, held);
        }
    }
    Ok(Some((state, stamp.0)))
}

fn held(view: View<'_>, key: &Bytes) -> Result<Option<Held>> {
    let Some((kv, hash)) = kv::find(view, key)? else { return Ok(None) };
    let mut held = Held { modified: kv.mod_revision, until: kv.expires.map(|until| until.0), fields: None };
    if let Some(hash) = hash {
        let mut fields = Fields::new();
        for field in kv::fields(view, hash, b"") {
            let (name, field) = field?;
            fields.insert(name, (field.value, field.expires.map(|until| until.0)));
        }
        ensure!(
            fields.len() as u64 == hash.count,
            "{key:?} says that it has {} fields, and has {fields:?}",
            hash.count
        );
        held.fields = Some(fields);
    }
    Ok(Some(held))
}
