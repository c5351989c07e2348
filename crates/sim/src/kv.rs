//! Work on keys: puts, deletions, swaps, keys that end by themselves, and reads. What clients are told is compared with
//! what the replicas have applied, and each key's history is searched for an order.

use crate::clients::{Known, Outcome, PATIENCE};
use crate::linear::Action;
use crate::record::number;
use crate::schedule::MS;
use crate::world::{Event, World};
use anyhow::{Result, anyhow, ensure};
use bytes::Bytes;
use quoin_core::Face;
use quoin_core::kv::txn_operation::Step;
use quoin_core::kv::{
    Compare, CompareResult, CompareTarget, Delete, KEY_BYTES_MAX, LeaseGrant, Operation as Kv, Put, Range,
    Response, Ttl, Txn, TxnOperation, range,
};
use quoin_engine::{Consistency, ReadView};
use rand::Rng;

/// Keys of which clients remember everything.
const KEYS: u64 = 8;

impl World {
    fn key(&mut self) -> Bytes {
        format!("key {}", self.rng.random_range(0..KEYS)).into()
    }

    pub(crate) fn change(&mut self, place: usize) {
        let (at, key, called) = (self.process_at(place), self.key(), self.clients.moment());
        let (value, text) = self.clients.value(&mut self.rng);
        let (action, operation) = match self.rng.random_range(0..10) {
            0 | 1 => (Action::Write(None), Kv::Delete(Delete { key: key.clone(), ..Delete::default() })),
            2 | 3 => (Action::Swap(None, value), swap(&key, &self.newest_value(place, &key), text)),
            _ => (Action::Write(Some(value)), Kv::Put(put(key.clone(), text, None, 0))),
        };
        self.propose(place, Known::Write { at, key, action, called }, operation.into_command());
    }

    /// The value that a replica shows just now.
    fn newest_value(&mut self, place: usize, key: &Bytes) -> Bytes {
        let view = self.process(place).stepped.engine().latest();
        let found = range(view.view(), view.progress(), &range_of(key)).ok().and_then(Result::ok);
        found.and_then(|found| found.kvs.into_iter().next()).map(|kv| kv.value).unwrap_or_default()
    }

    /// Changes keys that end by themselves, and what belongs to them.
    pub(crate) fn change_passing(&mut self, place: usize) {
        let at = self.process_at(place);
        let (_, text) = self.clients.value(&mut self.rng);
        let key = Bytes::from(format!("passing {}", self.rng.random_range(0..KEYS)));
        // What no adapter lets through must not stop a replica either.
        let longer =
            if self.rng.random_bool(0.03) { KEY_BYTES_MAX - 20 + self.rng.random_range(0..40) } else { 0 };
        let key = if longer > 0 { vec![b'l'; longer].into() } else { key };
        let lease = self.rng.random_range(1..4);
        let operation = match self.rng.random_range(0..6) {
            0 => Kv::LeaseGrant(LeaseGrant { id: lease, ttl_s: self.rng.random_range(1..5) }),
            1 => Kv::LeaseKeepAlive(lease),
            2 => Kv::LeaseRevoke(lease),
            3 => Kv::Put(put(key, text, None, lease)),
            4 => Kv::Put(put(key, text, Some(Ttl::Restart(true)), 0)),
            _ => Kv::Put(put(key, text, Some(Ttl::Milliseconds(self.rng.random_range(50..5_000))), 0)),
        };
        self.propose(place, Known::Other { at, face: Face::Kv }, operation.into_command());
    }

    pub(crate) fn read(&mut self, place: usize) {
        let (at, key, called) = (self.process_at(place), self.key(), self.clients.moment());
        let (engine, floor) = (self.process(place).stepped.engine(), self.clients.newest_told);
        let reading = async move { Outcome::Read(Box::new(engine.read(Consistency::Linearizable).await)) };
        let task = self.tasks.add(Known::Read { at, key, called, floor }, reading);
        self.schedule.after(PATIENCE, Event::GiveUp(task));
    }

    /// A read of this replica's state, if it is not older than a bound: it must not be.
    pub(crate) fn read_locally(&mut self, place: usize) -> Result<()> {
        let bound_ms = self.rng.random_range(50..2_000);
        // The only replica there is has everything, however it is asked.
        let alone = self.nodes.len() == 1;
        let bounded = Consistency::Local { max_lag_entries: None, max_lag_ms: Some(bound_ms) };
        let consistency = if alone { Consistency::ANY } else { bounded };
        let engine = self.process(place).stepped.engine();
        let mut reading = std::pin::pin!(engine.read(consistency));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(outcome) = reading.as_mut().poll(&mut context) else {
            anyhow::bail!("a local read waits");
        };
        let Ok(view) = outcome else { return Ok(()) };
        self.counts.local_reads += 1;
        // Clocks are in milliseconds.
        let bounded = self.clients.told_before(self.schedule.now(), (bound_ms + bound_ms / 250 + 4) * MS);
        let floor = if alone { self.clients.newest_told } else { bounded };
        let seen = view.progress().revision.0;
        ensure!(
            seen >= floor,
            "replica {} shows revision {seen} to a read that allows a lag of {bound_ms} ms; a client was told of {floor} \
             before that",
            self.nodes[place].id()
        );
        Ok(())
    }

    pub(crate) fn written(
        &mut self,
        key: Bytes,
        action: Action,
        (called, answered): (u64, Option<u64>),
        response: &Response,
        revision: u64,
    ) {
        match (action, response) {
            // Nothing was there: the same as a read that finds nothing.
            (Action::Write(None), Response::Delete { deleted: 0, .. }) => {
                self.clients.note(key, Action::Read(None), called, answered);
            }
            (Action::Write(value), _) => {
                self.record.lock().done(&key, value, revision);
                self.clients.note(key, action, called, answered);
            }
            (Action::Swap(_, value), Response::Txn { succeeded, responses }) => {
                let found = responses.first().and_then(|response| match response {
                    Response::Range(found) => found.kvs.first().and_then(|kv| number(&kv.value)),
                    _ => None,
                });
                let action = if *succeeded { Action::Swap(found, value) } else { Action::Read(found) };
                if *succeeded {
                    self.record.lock().done(&key, Some(value), revision);
                } else {
                    self.record.lock().not_done(value);
                }
                self.clients.note(key, action, called, answered);
            }
            (action, response) => {
                self.record.lock().violate(format!("{action:?} was answered {response:?}"));
            }
        }
    }

    pub(crate) fn not_written(&mut self, (key, action, called): (Bytes, Action, u64), is_unknown: bool) {
        if is_unknown {
            self.counts.unknown += 1;
            // What a swap found is not known either: it counts as a write.
            let action =
                if let Action::Swap(_, value) = action { Action::Write(Some(value)) } else { action };
            return self.clients.note(key, action, called, None);
        }
        self.counts.not_done += 1;
        if let Action::Write(Some(value)) | Action::Swap(_, value) = action {
            self.record.lock().not_done(value);
        }
    }

    pub(crate) fn seen(
        &mut self,
        view: &ReadView,
        key: Bytes,
        called: u64,
        floor: u64,
        id: u64,
    ) -> Result<()> {
        self.counts.reads += 1;
        let revision = view.progress().revision.0;
        let found =
            range(view.view(), view.progress(), &range_of(&key))?.map_err(|refusal| anyhow!("{refusal}"))?;
        let found = found.kvs.first().map(|kv| (number(&kv.value).unwrap_or(0), kv.mod_revision as u64));
        ensure!(
            revision >= floor,
            "replica {id} shows revision {revision} to a linearizable read; a client was told of {floor} before"
        );
        let recorded = self.record.lock().value_at(&key, revision);
        ensure!(
            found == recorded,
            "replica {id} shows {found:?} in {key:?} at revision {revision}, where there is {recorded:?}"
        );
        self.check_rules(view)?;
        let answered = Some(self.clients.moment());
        self.clients.hear(self.schedule.now(), revision);
        self.clients.note(key, Action::Read(found.map(|(value, _)| value)), called, answered);
        Ok(())
    }
}

fn put(key: Bytes, value: Bytes, ttl: Option<Ttl>, lease: i64) -> Put {
    Put { key, value, ttl, lease, ..Put::default() }
}

fn range_of(key: &Bytes) -> Range {
    Range { key: key.clone(), ..Range::default() }
}

/// Reads a key, and writes it if it holds `expected`, which is empty for an absent one.
fn swap(key: &Bytes, expected: &Bytes, value: Bytes) -> Kv {
    let target =
        if expected.is_empty() { CompareTarget::Version(0) } else { CompareTarget::Value(expected.clone()) };
    let compare = Compare {
        result: CompareResult::Equal as i32,
        key: key.clone(),
        target: Some(target),
        ..Compare::default()
    };
    let step = |step| TxnOperation { step: Some(step) };
    let success = vec![step(Step::Range(range_of(key))), step(Step::Put(put(key.clone(), value, None, 0)))];
    Kv::Txn(Txn { compare: vec![compare], success, failure: vec![step(Step::Range(range_of(key)))] })
}
