//! The clients: they write and read through any replica, and remember what they were told.

use crate::linear::{self, Action, Operation};
use crate::record::number;
use crate::schedule::{MS, S};
use crate::watches::Watched;
use crate::world::{At, Event, World};
use anyhow::{Result, anyhow, ensure};
use bytes::Bytes;
use quoin_core::kv::txn_operation::Step;
use quoin_core::kv::{
    Compare, CompareResult, CompareTarget, Delete, LeaseGrant, Operation as Kv, Put, Range, Response, Ttl,
    Txn, TxnOperation, range,
};
use quoin_core::{Command, Reply, system};
use quoin_engine::join::JoinAnswer;
use quoin_engine::{Consistency, MemberError, ProposeError, ReadError, ReadView};
use rand::Rng;
use std::collections::{BTreeMap, VecDeque};

/// Keys of which clients remember everything.
const KEYS: u64 = 8;
/// How long a client waits for an answer.
const PATIENCE: u64 = 8 * S;

/// What is known of a request under way.
pub(crate) enum Known {
    /// A write of a client.
    Write { at: At, key: Bytes, action: Action, called: u64 },
    /// A linearizable read: a client knew of this revision before.
    Read { at: At, key: Bytes, called: u64, floor: u64 },
    /// Transfers of the ledger.
    Transfers { at: At, group: usize },
    /// A write of which nobody remembers anything.
    Other { at: At },
    /// A node asks a member who it is.
    Join { asked: At, place: usize, life: u64 },
    /// The operator changes the members.
    Members { at: At },
    /// A watcher waits for the next changes.
    Watch { at: At, number: usize },
}

impl Known {
    fn at(&self) -> At {
        match self {
            Self::Write { at, .. } | Self::Read { at, .. } | Self::Other { at } => *at,
            Self::Transfers { at, .. } => *at,
            Self::Members { at } | Self::Watch { at, .. } | Self::Join { asked: at, .. } => *at,
        }
    }
}

/// What came of a request.
pub(crate) enum Outcome {
    Write(Result<Reply, ProposeError>),
    Read(Box<Result<ReadView, ReadError>>),
    Join(Box<JoinAnswer>),
    Members(Result<Vec<system::Member>, MemberError>),
    Watch(Box<Watched>),
}

/// All clients together.
pub(crate) struct Clients {
    /// Microseconds between two requests, on average.
    every: u64,
    next_value: u64,
    /// Counts calls and answers.
    moment: u64,
    histories: BTreeMap<Bytes, Vec<Operation>>,
    /// The newest revision that any client was told of, and when.
    told: VecDeque<(u64, u64)>,
    newest_told: u64,
}

impl Clients {
    pub(crate) fn draw(rng: &mut impl Rng) -> Self {
        let every = rng.random_range(10 * MS..120 * MS);
        let (histories, told) = (BTreeMap::new(), VecDeque::new());
        Self { every, next_value: 0, moment: 0, histories, told, newest_told: 0 }
    }

    fn moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    fn value(&mut self, rng: &mut impl Rng) -> (u64, Bytes) {
        self.next_value += 1;
        let filling = if rng.random_bool(0.02) { 5_000 } else { rng.random_range(0..200) };
        (self.next_value, format!("v{} {}", self.next_value, "x".repeat(filling)).into())
    }

    fn note(&mut self, key: Bytes, action: Action, called: u64, answered: Option<u64>) {
        self.histories.entry(key).or_default().push(Operation { action, called, answered });
    }

    fn hear(&mut self, now: u64, revision: u64) {
        if revision > self.newest_told {
            self.newest_told = revision;
            self.told.push_back((now, revision));
        }
    }

    /// The newest revision that clients had been told of `ago` microseconds ago.
    fn told_before(&self, now: u64, ago: u64) -> u64 {
        let before = self.told.iter().rev().find(|(at, _)| at + ago < now);
        before.map_or(0, |(_, revision)| *revision)
    }

    /// Checks all that clients remember.
    ///
    /// # Errors
    /// The history of a key is not linearizable.
    pub(crate) fn check(&self) -> Result<()> {
        for (key, history) in &self.histories {
            linear::check(history).map_err(|error| anyhow!("the history of {key:?} is {error}"))?;
        }
        Ok(())
    }
}

fn put(key: Bytes, value: Bytes, ttl: Option<Ttl>, lease: i64) -> Put {
    Put { key, value, ttl, lease, ..Put::default() }
}

fn range_of(key: &Bytes) -> Range {
    Range { key: key.clone(), ..Range::default() }
}

impl World {
    /// A client does something, through any replica that serves clients.
    pub(crate) fn client(&mut self) -> Result<()> {
        if self.stormy {
            let wait = self.up_to(2 * self.clients.every);
            self.schedule.after(wait, Event::Client);
        }
        let serves = |place: &usize| {
            let process = self.nodes[*place].process.as_ref();
            process.is_some_and(|process| process.stepped.has_replayed() && process.stepped.is_settled())
        };
        let serving: Vec<usize> = (0..self.nodes.len()).filter(serves).collect();
        if serving.is_empty() {
            return Ok(());
        }
        let place = serving[self.rng.random_range(0..serving.len())];
        self.nodes[place].set_clocks(self.schedule.now());
        match self.rng.random_range(0..100) {
            0..30 => self.read(place),
            30..40 => self.read_locally(place)?,
            40..70 => self.change(place),
            70..84 => self.transfer(place),
            _ => self.change_passing(place),
        }
        self.follow_up(place)
    }

    fn key(&mut self) -> Bytes {
        format!("key {}", self.rng.random_range(0..KEYS)).into()
    }

    pub(crate) fn propose(&mut self, place: usize, known: Known, command: Command) {
        let engine = self.process(place).stepped.engine();
        // As a node does with what takes long.
        let paced = self.rng.random_bool(0.1);
        self.counts.paced += u64::from(paced);
        let task = self.tasks.add(known, async move {
            Outcome::Write(match paced {
                true => engine.propose_paced(command).await,
                false => engine.propose(command).await,
            })
        });
        self.schedule.after(PATIENCE, Event::GiveUp(task));
    }

    fn change(&mut self, place: usize) {
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
    fn change_passing(&mut self, place: usize) {
        let at = self.process_at(place);
        let (_, text) = self.clients.value(&mut self.rng);
        let key = Bytes::from(format!("passing {}", self.rng.random_range(0..KEYS)));
        let lease = self.rng.random_range(1..4);
        let operation = match self.rng.random_range(0..6) {
            0 => Kv::LeaseGrant(LeaseGrant { id: lease, ttl_s: self.rng.random_range(1..5) }),
            1 => Kv::LeaseKeepAlive(lease),
            2 => Kv::LeaseRevoke(lease),
            3 => Kv::Put(put(key, text, None, lease)),
            4 => Kv::Put(put(key, text, Some(Ttl::Restart(true)), 0)),
            _ => Kv::Put(put(key, text, Some(Ttl::Milliseconds(self.rng.random_range(50..5_000))), 0)),
        };
        self.propose(place, Known::Other { at }, operation.into_command());
    }

    fn read(&mut self, place: usize) {
        let (at, key, called) = (self.process_at(place), self.key(), self.clients.moment());
        let (engine, floor) = (self.process(place).stepped.engine(), self.clients.newest_told);
        let reading = async move { Outcome::Read(Box::new(engine.read(Consistency::Linearizable).await)) };
        let task = self.tasks.add(Known::Read { at, key, called, floor }, reading);
        self.schedule.after(PATIENCE, Event::GiveUp(task));
    }

    /// A read of this replica's state, if it is not older than a bound: it must not be.
    fn read_locally(&mut self, place: usize) -> Result<()> {
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
        let bounded = self.clients.told_before(self.schedule.now(), (bound_ms + 2) * MS);
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

    /// Something was answered.
    pub(crate) fn answered(&mut self, known: Known, outcome: Outcome) -> Result<()> {
        let now = self.schedule.now();
        match (known, outcome) {
            (Known::Write { key, action, called, .. }, Outcome::Write(Ok(reply))) => {
                let Reply::Kv(reply) = reply else { anyhow::bail!("a kv command got {reply:?}") };
                let answered = Some(self.clients.moment());
                self.clients.hear(now, reply.revision.0);
                self.counts.writes += 1;
                let response = reply.result.map_err(|refusal| anyhow!("a write was refused: {refusal}"))?;
                self.written(key, action, (called, answered), &response, reply.revision.0);
            }
            (known @ Known::Write { .. }, Outcome::Write(Err(error))) => self.not_written(known, error),
            (Known::Read { key, called, floor, at }, Outcome::Read(view)) => {
                if let Ok(view) = *view {
                    self.seen(&view, key, called, floor, self.nodes[at.place].id())?;
                }
            }
            (Known::Transfers { group, .. }, Outcome::Write(Ok(Reply::Ledger(reply)))) => {
                self.clients.hear(now, reply.revision.0);
                self.transferred(group, &reply)?;
            }
            (Known::Other { .. }, Outcome::Write(Ok(Reply::Kv(reply)))) => {
                self.clients.hear(now, reply.revision.0);
            }
            (Known::Join { place, life, .. }, Outcome::Join(answer)) => self.joined(place, life, &answer)?,
            (Known::Members { .. }, Outcome::Members(outcome)) => self.members_changed(outcome),
            (Known::Watch { at, number }, Outcome::Watch(watched)) => {
                self.watched(at.place, number, *watched)?
            }
            _ => {}
        }
        Ok(())
    }

    fn written(
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

    fn not_written(&mut self, known: Known, error: ProposeError) {
        let Known::Write { key, action, called, .. } = known else { return };
        if matches!(error, ProposeError::Unknown | ProposeError::Stopped) {
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

    fn seen(&mut self, view: &ReadView, key: Bytes, called: u64, floor: u64, id: u64) -> Result<()> {
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
        let answered = Some(self.clients.moment());
        self.clients.hear(self.schedule.now(), revision);
        self.clients.note(key, Action::Read(found.map(|(value, _)| value)), called, answered);
        Ok(())
    }

    /// A client waits no longer.
    pub(crate) fn give_up(&mut self, task: u64) -> Result<()> {
        if let Some(known @ Known::Write { .. }) = self.tasks.give_up(task) {
            self.not_written(known, ProposeError::Unknown);
        }
        Ok(())
    }

    /// The process of a machine has ended, and with it all connections of clients.
    pub(crate) fn clients_lose(&mut self, place: usize) {
        for known in self.tasks.give_up_where(|known| known.at().place == place) {
            match known {
                known @ Known::Write { .. } => self.not_written(known, ProposeError::Unknown),
                Known::Join { place, life, .. } => self.schedule.after(S, Event::Join(place, life)),
                Known::Members { .. } => self.schedule.after(S, Event::Operate),
                Known::Watch { number, .. } => {
                    self.schedule.after(100 * MS, Event::MoveWatcher { number, again: false })
                }
                Known::Read { .. } | Known::Other { .. } | Known::Transfers { .. } => {}
            }
        }
    }

    /// Whether clients wait for answers.
    pub(crate) fn clients_wait(&self) -> bool {
        let waits = |known: &Known| {
            !matches!(known, Known::Watch { .. } | Known::Join { .. } | Known::Members { .. })
        };
        self.tasks.under_way().any(waits)
    }
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
