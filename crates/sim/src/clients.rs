//! The clients: they write and read through any replica, and remember what they were told.

use crate::hashes;
use crate::linear::{self, Action, Operation};
use crate::routes::{Both, Rules};
use crate::schedule::{MS, S};
use crate::tables::Tables;
use crate::watches::Watched;
use crate::world::{At, Event, World};
use anyhow::{Result, anyhow, bail};
use bytes::Bytes;
use quoin_core::kv::Txn;
use quoin_core::{Command, Face, Reply, system};
use quoin_engine::join::JoinAnswer;
use quoin_engine::{MemberError, ProposeError, ReadError, ReadView};
use rand::Rng;
use std::collections::{BTreeMap, VecDeque};

/// How long a client waits for an answer.
pub(crate) const PATIENCE: u64 = 8 * S;

/// What is known of a request under way.
pub(crate) enum Known {
    /// A write of a client.
    Write { at: At, key: Bytes, action: Action, called: u64 },
    /// A linearizable read: a client knew of this revision before.
    Read { at: At, key: Bytes, called: u64, floor: u64 },
    /// Transfers of the ledger.
    Transfers { at: At, group: usize },
    /// Accounts of the ledger to create.
    Accounts { at: At, chain: usize },
    /// A transaction; a client knew of this revision before, as for what follows.
    Txn { at: At, txn: Box<Txn>, floor: u64 },
    /// Changes of hashes.
    Hashes { at: At, asked: Box<hashes::Asked>, floor: u64 },
    /// Changes of rules.
    Rules { at: At, asked: Rules, floor: u64 },
    /// Changes of lookup tables.
    Tables { at: At, asked: Tables, floor: u64 },
    /// A write of which nobody remembers more than whom it was for.
    Other { at: At, face: Face },
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
            Self::Write { at, .. } | Self::Read { at, .. } | Self::Other { at, .. } => *at,
            Self::Transfers { at, .. } | Self::Accounts { at, .. } | Self::Txn { at, .. } => *at,
            Self::Rules { at, .. } | Self::Tables { at, .. } | Self::Hashes { at, .. } => *at,
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
    /// Until when they ask for nothing.
    pub(crate) quiet_until: u64,
    next_value: u64,
    /// Counts calls and answers.
    moment: u64,
    histories: BTreeMap<Bytes, Vec<Operation>>,
    /// The newest revision that any client was told of, and when.
    told: VecDeque<(u64, u64)>,
    pub(crate) newest_told: u64,
}

impl Clients {
    pub(crate) fn draw(rng: &mut impl Rng) -> Self {
        let every = rng.random_range(5 * MS..90 * MS);
        let (histories, told) = (BTreeMap::new(), VecDeque::new());
        Self { every, quiet_until: 0, next_value: 0, moment: 0, histories, told, newest_told: 0 }
    }

    pub(crate) fn moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    pub(crate) fn value(&mut self, rng: &mut impl Rng) -> (u64, Bytes) {
        self.next_value += 1;
        let filling = if rng.random_bool(0.02) { 5_000 } else { rng.random_range(0..200) };
        (self.next_value, format!("v{} {}", self.next_value, "x".repeat(filling)).into())
    }

    pub(crate) fn note(&mut self, key: Bytes, action: Action, called: u64, answered: Option<u64>) {
        self.histories.entry(key).or_default().push(Operation { action, called, answered });
    }

    pub(crate) fn hear(&mut self, now: u64, revision: u64) {
        if revision > self.newest_told {
            self.newest_told = revision;
            self.told.push_back((now, revision));
        }
    }

    /// The newest revision that clients had been told of `ago` microseconds ago.
    pub(crate) fn told_before(&self, now: u64, ago: u64) -> u64 {
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

impl World {
    /// A client does something, through any replica that serves clients.
    pub(crate) fn client(&mut self) -> Result<()> {
        if self.stormy {
            let wait = self.up_to(2 * self.clients.every);
            self.schedule.after(wait, Event::Client);
        }
        if self.schedule.now() < self.clients.quiet_until {
            return Ok(());
        }
        let Some(place) = self.serving() else { return Ok(()) };
        self.nodes[place].set_clocks(self.schedule.now());
        match self.rng.random_range(0..100) {
            0..22 => self.read(place),
            22..29 => self.read_locally(place)?,
            29..48 => self.change(place),
            48..55 => self.change_hashes(place)?,
            55..65 => self.transfer(place)?,
            65..74 => self.change_rules(place),
            74..82 => self.change_tables(place),
            82..91 => self.transact(place),
            _ => self.change_passing(place),
        }
        self.follow_up(place)
    }

    /// A replica that serves clients.
    pub(crate) fn serving(&mut self) -> Option<usize> {
        let serves = |place: &usize| {
            let process = self.nodes[*place].process.as_ref();
            process.is_some_and(|process| process.stepped.has_replayed() && process.stepped.is_settled())
        };
        let serving: Vec<usize> = (0..self.nodes.len()).filter(serves).collect();
        (!serving.is_empty()).then(|| serving[self.rng.random_range(0..serving.len())])
    }

    /// Many clients write through one process, one after the other.
    pub(crate) fn burst(&mut self, place: usize, left: u64) -> Result<()> {
        self.change_passing(place);
        if left > 1 && self.stormy {
            let (at, after) = (self.process_at(place), self.up_to(3 * MS));
            self.schedule.after(after, Event::Burst { at, left: left - 1 });
        }
        Ok(())
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

    /// Something was answered.
    pub(crate) fn answered(&mut self, known: Known, outcome: Outcome) -> Result<()> {
        let now = self.schedule.now();
        match (known, outcome) {
            (Known::Write { key, action, called, .. }, Outcome::Write(Ok(reply))) => {
                let Reply::Kv(reply) = reply else { bail!("a kv command was answered {reply:?}") };
                let answered = Some(self.clients.moment());
                self.clients.hear(now, reply.revision.0);
                self.counts.writes += 1;
                let response = reply.result.map_err(|refusal| anyhow!("a write was refused: {refusal}"))?;
                self.written(key, action, (called, answered), &response, reply.revision.0);
            }
            (Known::Txn { txn, floor, .. }, Outcome::Write(Ok(reply))) => {
                let Reply::Kv(reply) = reply else { bail!("a transaction was answered {reply:?}") };
                self.clients.hear(now, reply.revision.0);
                self.counts.transactions += 1;
                let response = reply.result.map_err(|refusal| anyhow!("{txn:?} was refused: {refusal}"))?;
                self.transacted(&txn, floor, (reply.revision.0, &response))?;
            }
            (Known::Hashes { at, asked, floor }, Outcome::Write(Ok(reply))) => {
                let Reply::Kv(reply) = reply else { bail!("a change of hashes was answered {reply:?}") };
                self.clients.hear(now, reply.revision.0);
                self.hashes_changed(at.place, &asked, floor, &reply)?;
            }
            (Known::Rules { asked, floor, .. }, Outcome::Write(Ok(reply))) => {
                let Reply::Route(reply) = reply else { bail!("a change of rules was answered {reply:?}") };
                self.clients.hear(now, reply.revision.0);
                self.counts.rules += 1;
                self.rules_changed(asked, floor, &reply)?;
            }
            (Known::Tables { at, asked, floor }, Outcome::Write(Ok(reply))) => {
                let Reply::Table(reply) = reply else { bail!("{asked:?} was answered {reply:?}") };
                self.clients.hear(now, reply.revision.0);
                self.tables_changed(at.place, &asked, floor, &reply)?;
            }
            (known, Outcome::Write(Err(error))) => self.failed(known, error),
            (Known::Read { key, called, floor, at }, Outcome::Read(view)) => {
                if let Ok(view) = *view {
                    self.seen(&view, key, called, floor, self.nodes[at.place].id())?;
                }
            }
            (Known::Transfers { group, .. }, Outcome::Write(Ok(reply))) => {
                let Reply::Ledger(reply) = reply else { bail!("transfers were answered {reply:?}") };
                self.clients.hear(now, reply.revision.0);
                self.transferred(group, &reply)?;
            }
            (Known::Accounts { chain, .. }, Outcome::Write(Ok(reply))) => {
                let Reply::Ledger(reply) = reply else { bail!("accounts were answered {reply:?}") };
                self.clients.hear(now, reply.revision.0);
                self.accounts_created(chain, &reply)?;
            }
            (Known::Other { face, .. }, Outcome::Write(Ok(reply))) => match (face, reply) {
                (Face::Kv, Reply::Kv(reply)) => self.clients.hear(now, reply.revision.0),
                (Face::Ledger, Reply::Ledger(reply)) => self.clients.hear(now, reply.revision.0),
                (Face::System, Reply::System(_)) => {}
                (face, reply) => bail!("a command for {face:?} was answered {reply:?}"),
            },
            (Known::Join { place, life, .. }, Outcome::Join(answer)) => self.joined(place, life, &answer)?,
            (Known::Members { .. }, Outcome::Members(outcome)) => self.members_changed(outcome),
            (Known::Watch { at, number }, Outcome::Watch(watched)) => {
                self.watched(at.place, number, *watched)?
            }
            _ => {}
        }
        Ok(())
    }

    /// A client waits no longer.
    pub(crate) fn give_up(&mut self, task: u64) -> Result<()> {
        if let Some(known) = self.tasks.give_up(task) {
            self.failed(known, ProposeError::Unknown);
        }
        Ok(())
    }

    /// A write has no reply.
    fn failed(&mut self, known: Known, error: ProposeError) {
        let is_unknown = matches!(error, ProposeError::Unknown | ProposeError::Stopped);
        match known {
            Known::Write { key, action, called, .. } => self.not_written((key, action, called), is_unknown),
            Known::Txn { txn, .. } => self.not_transacted(&txn, is_unknown),
            Known::Hashes { asked, .. } => self.hashes_not_changed(&asked, is_unknown),
            Known::Rules { asked: Rules::Put(rules) | Rules::Write(Both { puts: rules, .. }), .. }
                if !is_unknown =>
            {
                rules.into_values().for_each(|value| self.record.lock().not_done(value));
            }
            _ => {}
        }
    }

    /// The process of a machine has ended, and with it all connections of clients.
    pub(crate) fn clients_lose(&mut self, place: usize) {
        self.lose_watchers(place);
        for known in self.tasks.give_up_where(|known| known.at().place == place) {
            match known {
                Known::Join { place, life, .. } => self.schedule.after(S, Event::Join(place, life)),
                Known::Members { .. } => self.schedule.after(S, Event::Operate),
                Known::Watch { number, .. } => {
                    self.schedule.after(100 * MS, Event::MoveWatcher { number, again: false })
                }
                known => self.failed(known, ProposeError::Unknown),
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
