//! Work on several keys at once: transactions that compare, and then read ranges, write and delete. What each was
//! answered is compared with a model of its own, run on the state that the replicas had applied before it.

use crate::clients::Known;
use crate::record::number;
use crate::world::World;
use anyhow::{Result, ensure};
use bytes::Bytes;
use quoin_core::kv::txn_operation::Step;
use quoin_core::kv::{
    Compare, CompareResult, CompareTarget, Delete, KeyValue, Operation as Kv, Put, Range, Response, Txn,
    TxnOperation,
};
use rand::Rng;
use std::collections::BTreeMap;

const KEYS: u64 = 5;
const PREFIX: &str = "txn ";

/// One key as the model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) value: u64,
    pub(crate) created: u64,
    pub(crate) modified: u64,
    pub(crate) version: u64,
}

type State = BTreeMap<Bytes, Held>;

fn key(number: u64) -> Bytes {
    format!("{PREFIX}{number}").into()
}

/// Everything with the prefix.
fn all() -> (Bytes, Bytes) {
    (PREFIX.into(), "txn!".into())
}

impl World {
    /// A client runs a transaction.
    pub(crate) fn transact(&mut self, place: usize) {
        let (at, floor) = (self.process_at(place), self.clients.newest_told);
        let compare = (0..self.rng.random_range(0..3)).map(|_| self.draw_compare()).collect();
        let (success, failure) = (self.draw_branch(), self.draw_branch());
        let txn = Txn { compare, success, failure };
        let command = Kv::Txn(txn.clone()).into_command();
        self.propose(place, Known::Txn { at, txn: Box::new(txn), floor }, command);
    }

    fn draw_compare(&mut self) -> Compare {
        let seen = self.record.lock().newest();
        let key = key(self.rng.random_range(0..KEYS));
        let target = match self.rng.random_range(0..4) {
            0 => CompareTarget::Version(self.rng.random_range(0..3)),
            1 => CompareTarget::ModRevision(self.rng.random_range(0..=seen) as i64),
            2 => CompareTarget::CreateRevision(self.rng.random_range(0..=seen) as i64),
            _ => CompareTarget::Version(0),
        };
        let results =
            [CompareResult::Equal, CompareResult::Greater, CompareResult::Less, CompareResult::NotEqual];
        let result = results[self.rng.random_range(0..results.len())] as i32;
        Compare { result, key, target: Some(target), ..Compare::default() }
    }

    /// Steps that write no key twice: puts first, then deletions of other keys. Reads are anywhere.
    fn draw_branch(&mut self) -> Vec<TxnOperation> {
        let (mut steps, split) = (Vec::new(), self.rng.random_range(0..=KEYS));
        for number in 0..KEYS {
            let key = key(number);
            let step = match self.rng.random_range(0..6) {
                0 | 1 if number < split => {
                    let (_, value) = self.clients.value(&mut self.rng);
                    Step::Put(Put { key, value, ..Put::default() })
                }
                2 if number >= split => Step::Delete(Delete { key, ..Delete::default() }),
                3 => Step::Range(Range { key, ..Range::default() }),
                4 => {
                    let (key, range_end) = all();
                    Step::Range(Range { key, range_end, ..Range::default() })
                }
                _ => continue,
            };
            steps.push(TxnOperation { step: Some(step) });
        }
        if split == 0 && self.rng.random_bool(0.2) {
            let (key, range_end) = all();
            steps =
                vec![TxnOperation { step: Some(Step::Delete(Delete { key, range_end, prev_kv: false })) }];
        }
        steps
    }

    /// A transaction was answered at `revision`, the newest one after it.
    pub(crate) fn transacted(
        &mut self,
        txn: &Txn,
        floor: u64,
        (revision, response): (u64, &Response),
    ) -> Result<()> {
        let Response::Txn { succeeded, responses } = response else {
            anyhow::bail!("a transaction was answered {response:?}");
        };
        ensure!(
            revision >= floor,
            "a transaction is answered at {revision}; a client was told of {floor} before"
        );
        for put in puts(if *succeeded { &txn.failure } else { &txn.success }) {
            self.record.lock().not_done(put);
        }
        let explains = |before: u64| {
            let record = self.record.lock();
            let mut state = State::new();
            for key in (0..KEYS).map(key) {
                state.extend(record.held_at(&key, before).map(|held| (key, held)));
            }
            let holds = txn.compare.iter().all(|compare| holds(&state, compare));
            let steps = if holds { &txn.success } else { &txn.failure };
            let old = state.clone();
            let answers: Vec<Answer> = steps.iter().map(|step| run(&mut state, step, before + 1)).collect();
            let writes = state != old;
            let ends_as_recorded =
                (0..KEYS).map(key).all(|key| record.held_at(&key, revision) == state.get(&key).copied());
            holds == *succeeded
                && writes == (before < revision)
                && ends_as_recorded
                && answers.len() == responses.len()
                && answers.iter().zip(responses).all(|(answer, response)| answer.is(response))
        };
        ensure!(
            explains(revision - 1) || explains(revision),
            "a transaction was answered as it cannot have been at revision {revision}: {txn:?} {response:?}"
        );
        Ok(())
    }

    /// A transaction was not done, or nobody knows.
    pub(crate) fn not_transacted(&mut self, txn: &Txn, is_unknown: bool) {
        if is_unknown {
            self.counts.unknown += 1;
            return;
        }
        self.counts.not_done += 1;
        for put in [&txn.success, &txn.failure].into_iter().flat_map(|branch| puts(branch)) {
            self.record.lock().not_done(put);
        }
    }
}

fn puts(branch: &[TxnOperation]) -> Vec<u64> {
    let value = |step: &TxnOperation| match &step.step {
        Some(Step::Put(put)) => number(&put.value),
        _ => None,
    };
    branch.iter().filter_map(value).collect()
}

fn holds(state: &State, compare: &Compare) -> bool {
    let held = state.get(&compare.key);
    let (found, wanted) = match compare.target {
        Some(CompareTarget::Version(wanted)) => (held.map_or(0, |held| held.version), wanted),
        Some(CompareTarget::ModRevision(wanted)) => (held.map_or(0, |held| held.modified), wanted),
        Some(CompareTarget::CreateRevision(wanted)) => (held.map_or(0, |held| held.created), wanted),
        _ => return false,
    };
    let (found, result) = (found as i64, compare.result);
    match () {
        () if result == CompareResult::Equal as i32 => found == wanted,
        () if result == CompareResult::NotEqual as i32 => found != wanted,
        () if result == CompareResult::Greater as i32 => found > wanted,
        () => found < wanted,
    }
}

/// What the model answers to a step.
enum Answer {
    Put,
    Deleted(usize),
    Found(Vec<(Bytes, Held)>),
}

impl Answer {
    fn is(&self, response: &Response) -> bool {
        let alike = |(key, held): &(Bytes, Held), kv: &KeyValue| {
            let numbers = [held.created, held.modified, held.version].map(|number| number as i64);
            *key == kv.key
                && number(&kv.value) == Some(held.value)
                && numbers == [kv.create_revision, kv.mod_revision, kv.version]
        };
        match (self, response) {
            (Self::Put, Response::Put(None)) => true,
            (Self::Deleted(count), Response::Delete { deleted, .. }) => *count as i64 == *deleted,
            (Self::Found(found), Response::Range(range)) => {
                found.len() as i64 == range.count
                    && found.len() == range.kvs.len()
                    && found.iter().zip(&range.kvs).all(|(held, kv)| alike(held, kv))
            }
            _ => false,
        }
    }
}

fn run(state: &mut State, step: &TxnOperation, revision: u64) -> Answer {
    let within = |from: &Bytes, to: &Bytes, key: &Bytes| {
        if to.is_empty() { key == from } else { from <= key && key < to }
    };
    match &step.step {
        Some(Step::Put(put)) => {
            let old = state.get(&put.key);
            let held = Held {
                value: number(&put.value).unwrap_or(0),
                created: old.map_or(revision, |old| old.created),
                modified: revision,
                version: old.map_or(0, |old| old.version) + 1,
            };
            state.insert(put.key.clone(), held);
            Answer::Put
        }
        Some(Step::Delete(delete)) => {
            let before = state.len();
            state.retain(|key, _| !within(&delete.key, &delete.range_end, key));
            Answer::Deleted(before - state.len())
        }
        Some(Step::Range(range)) => {
            let found = state.iter().filter(|(key, _)| within(&range.key, &range.range_end, key));
            Answer::Found(found.map(|(key, held)| (key.clone(), *held)).collect())
        }
        _ => Answer::Found(Vec::new()),
    }
}
