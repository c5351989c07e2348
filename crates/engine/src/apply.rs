//! Applies committed entries, and finds out who waits for them.
//!
//! What this deliberately does not do: publish or answer. The driver does both, in this order, so that
//! whoever has an answer can read what it answers for.

use quoin_consensus::mutants;
use quoin_consensus::replica::{
    Barrier, Committed, Content, Expectation, GIVE_UP_TICKS, Lost, ReadWaiter, Waiter,
};
use quoin_core::machines::Outcome;
use quoin_core::{
    Event, Index, Machines, Memory, Message, Progress, Reply, Stamp, Store, StoreError, Term, system,
};
use std::collections::BTreeMap;

/// One replica's machines, and who waits for which entry.
pub struct Applier {
    machines: Machines,
    ledger_cache_bytes: Option<usize>,
    /// By the index of their entry.
    expectations: BTreeMap<u64, Vec<Expectation>>,
    /// Each with the tick at which it came.
    barriers: Vec<(u64, Barrier)>,
    /// The last tick that was told.
    tick: u64,
    observer: Option<Observer>,
}

/// Is told of each entry that is applied: its index, what the commands in it are answered, and what watchers see.
pub type Observer = Box<dyn FnMut(Index, &[Reply], &[Event]) + Send>;

/// The result of applying one entry.
pub struct Applied {
    /// For watchers, in revision order.
    pub events: Vec<Event>,
    /// For listeners, in order.
    pub messages: Vec<Message>,
    /// To be sent once the new state can be read.
    pub answers: Vec<(Waiter, Result<Reply, Lost>)>,
    /// Whether the cluster's own records (members, alarms) may have changed.
    pub system_changed: bool,
    /// The entry was there to let something expire.
    pub expired: bool,
    /// Commands in the entry.
    pub commands: usize,
    /// A hash over what was written.
    pub effects: u64,
    /// What replicas have told of theirs.
    pub told: Vec<system::Effects>,
}

impl Applier {
    /// The applier of a store that may hold state already.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(store: &dyn Store) -> Result<Self, StoreError> {
        let (machines, expectations) = (Machines::open(store)?, BTreeMap::new());
        let ledger_cache_bytes = None;
        Ok(Self { machines, ledger_cache_bytes, expectations, barriers: Vec::new(), tick: 0, observer: None })
    }

    /// Bounds the memory that the ledger takes for accounts, in bytes. To be called before anything is applied.
    pub fn set_ledger_cache_bytes(&mut self, bytes: usize) {
        self.ledger_cache_bytes = Some(bytes);
        self.machines.set_ledger_cache_bytes(bytes);
    }

    /// See [`Machines::warm`].
    pub fn warm(&mut self, store: &dyn Store) -> bool {
        self.machines.warm(store)
    }

    /// From now on `observer` is told of each entry.
    pub fn observe(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    /// The last applied entry and the numbers it reached.
    pub fn progress(&self) -> Progress {
        self.machines.progress()
    }

    /// What the faces keep in memory for readers.
    pub fn memory(&self) -> Memory {
        self.machines.memory()
    }

    /// When the next lease, key, node or pending transfer may expire, if any does.
    pub fn next_deadline(&self) -> Option<Stamp> {
        self.machines.next_deadline()
    }

    /// Registers those who wait for commands of an entry that is not applied yet.
    pub fn expect(&mut self, expectation: Expectation) {
        if expectation.index <= self.progress().index.0 {
            for waiter in expectation.waiters {
                let _ = waiter.send(Err(Lost::Unknown));
            }
            return;
        }
        self.expectations.entry(expectation.index).or_default().push(expectation);
    }

    /// Registers those who wait to read.
    pub fn wait(&mut self, barrier: Barrier) {
        self.barriers.push((self.tick, barrier));
    }

    /// Applies the next entry to `store`.
    ///
    /// # Errors
    /// The store failed, or no leader of this version wrote the entry: the node must stop.
    pub fn apply(&mut self, store: &dyn Store, entry: Committed) -> Result<Applied, StoreError> {
        let (index, term) = (Index(entry.index), Term(entry.term));
        let (outcome, configured) = match entry.content {
            Content::Batch(payload) if mutants::is("applied-twice") => {
                self.machines.apply(store, index, term, payload.clone())?;
                (self.machines.apply(store, index, term, payload)?, false)
            }
            Content::Batch(payload) => (self.machines.apply(store, index, term, payload)?, false),
            Content::Configuration { configuration, command } => {
                (self.machines.apply_configuration(store, index, term, configuration, command)?, true)
            }
        };
        let Outcome { replies, events, messages, effects } = outcome;
        if let Some(observer) = &mut self.observer {
            observer(index, &replies, &events);
        }
        let expired = replies.contains(&Reply::System(system::Reply::Expired));
        let system_changed = configured || replies.iter().any(changes_system);
        let commands = replies.len();
        let told = replies.iter().filter_map(|reply| match reply {
            Reply::System(system::Reply::Effects(effects)) => Some(effects.clone()),
            _ => None,
        });
        let told = told.collect();
        let answers = self.answers(entry.index, entry.term, replies);
        Ok(Applied { events, messages, answers, system_changed, expired, commands, effects, told })
    }

    fn answers(&mut self, index: u64, term: u64, replies: Vec<Reply>) -> Vec<(Waiter, Result<Reply, Lost>)> {
        let mut replies: Vec<Option<Reply>> = replies.into_iter().map(Some).collect();
        let mut answers = Vec::new();
        while let Some(first) = self.expectations.first_entry().filter(|first| *first.key() <= index) {
            for expectation in first.remove() {
                let ours = expectation.index == index && expectation.term == term;
                for (offset, waiter) in expectation.waiters.into_iter().enumerate() {
                    let reply = ours
                        .then(|| replies.get_mut(expectation.position as usize + offset)?.take())
                        .flatten();
                    answers.push((waiter, reply.ok_or(Lost::Overwritten)));
                }
            }
        }
        answers
    }

    /// Takes the reads that may go ahead now.
    pub fn ready_reads(&mut self) -> Vec<ReadWaiter> {
        let applied = self.progress().index.0;
        let ready = self.barriers.extract_if(.., |(_, barrier)| barrier.index <= applied);
        ready.flat_map(|(_, barrier)| barrier.waiters).collect()
    }

    /// Tells those who have waited too long that the fate of their command is unknown, and that this replica does
    /// not come to what they want to read. A leader that is cut off cannot learn the one, and a replica whose disk
    /// is full, or that waits for a snapshot, cannot do the other.
    pub fn give_up(&mut self, tick: u64) {
        self.tick = tick;
        for (_, old) in self.barriers.extract_if(.., |(since, _)| *since + GIVE_UP_TICKS < tick) {
            for waiter in old.waiters {
                let _ = waiter.send(Err(Lost::Unknown));
            }
        }
        self.expectations.retain(|_, expectations| {
            for old in expectations.extract_if(.., |waiting| waiting.since_tick + GIVE_UP_TICKS < tick) {
                for waiter in old.waiters {
                    let _ = waiter.send(Err(Lost::Unknown));
                }
            }
            !expectations.is_empty()
        });
    }

    /// A snapshot has replaced the store. Whoever waits for an entry that it covers is told that its fate is
    /// unknown.
    ///
    /// # Errors
    /// The new store cannot be read.
    pub fn installed(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        self.machines = Machines::open(store)?;
        if let Some(bytes) = self.ledger_cache_bytes {
            self.machines.set_ledger_cache_bytes(bytes);
        }
        let applied = self.progress().index.0;
        let later = self.expectations.split_off(&(applied + 1));
        let covered = std::mem::replace(&mut self.expectations, later);
        for waiter in covered.into_values().flatten().flat_map(|expectation| expectation.waiters) {
            let _ = waiter.send(Err(Lost::Unknown));
        }
        Ok(())
    }
}

fn changes_system(reply: &Reply) -> bool {
    let changes_nothing = |reply: &_| matches!(reply, system::Reply::Expired | system::Reply::Effects(_));
    matches!(reply, Reply::System(reply) if !changes_nothing(reply))
}
