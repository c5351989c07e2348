//! Applying committed entries, and answering those who wait for them. Without I/O of its own: the driver
//! publishes what has been applied, then sends the answers, so whoever got an answer can read what it did.

use crate::raft::replica::{
    Barrier, Committed, Content, Expectation, GIVE_UP_TICKS, Lost, ReadWaiter, Waiter,
};
use quoin_core::machines::Outcome;
use quoin_core::{Event, Index, Machines, Progress, Reply, Stamp, Store, StoreError, Term, route, table};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One replica's machines, and who waits for what.
pub struct Applier {
    machines: Machines,
    expectations: BTreeMap<u64, Vec<Expectation>>,
    barriers: Vec<Barrier>,
}

/// What became of one entry.
pub struct Applied {
    /// For the watchers, in revision order.
    pub events: Vec<Event>,
    /// To be sent once the new state can be read.
    pub answers: Vec<(Waiter, Result<Reply, Lost>)>,
    /// The cluster's own records may have changed: members, alarms.
    pub system_changed: bool,
    /// How many commands the entry held.
    pub commands: usize,
}

impl Applier {
    /// The applier of a store that may hold state already.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(store: &dyn Store) -> Result<Self, StoreError> {
        Ok(Self { machines: Machines::open(store)?, expectations: BTreeMap::new(), barriers: Vec::new() })
    }

    /// How far the state is.
    pub fn progress(&self) -> Progress {
        self.machines.progress()
    }

    /// The newest rules.
    pub fn routes(&self) -> &Arc<route::Table> {
        self.machines.routes()
    }

    /// The lookup tables' versions and changes.
    pub fn tables(&self) -> &Arc<table::Live> {
        self.machines.tables()
    }

    /// When the next lease, key or node expires, if any does.
    pub fn next_deadline(&self) -> Option<Stamp> {
        self.machines.next_deadline()
    }

    /// Somebody waits for commands of an entry to come.
    pub fn expect(&mut self, expectation: Expectation) {
        if expectation.index <= self.progress().index.0 {
            for waiter in expectation.waiters {
                let _ = waiter.send(Err(Lost::Unknown));
            }
            return;
        }
        self.expectations.entry(expectation.index).or_default().push(expectation);
    }

    /// Somebody waits to read.
    pub fn wait(&mut self, barrier: Barrier) {
        self.barriers.push(barrier);
    }

    /// Applies the next entry to `store`.
    ///
    /// # Errors
    /// The store failed, or the entry cannot be of this version: the node must stop.
    pub fn apply(&mut self, store: &dyn Store, entry: Committed) -> Result<Applied, StoreError> {
        let (index, term) = (Index(entry.index), Term(entry.term));
        let (outcome, configured) = match entry.content {
            Content::Batch(payload) => (self.machines.apply(store, index, term, payload)?, false),
            Content::Configuration { configuration, command } => {
                (self.machines.apply_configuration(store, index, term, configuration, command)?, true)
            }
        };
        let Outcome { replies, events } = outcome;
        let system_changed = configured || replies.iter().any(|reply| matches!(reply, Reply::System(_)));
        let commands = replies.len();
        let answers = self.answers(entry.index, entry.term, replies);
        Ok(Applied { events, answers, system_changed, commands })
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

    /// The reads that may go ahead now.
    pub fn ready_reads(&mut self) -> Vec<ReadWaiter> {
        let applied = self.progress().index.0;
        let ready = self.barriers.extract_if(.., |barrier| barrier.index <= applied);
        ready.flat_map(|barrier| barrier.waiters).collect()
    }

    /// Tells those who have waited too long that the fate of their command is unknown: a leader that is cut
    /// off cannot learn it.
    pub fn give_up(&mut self, tick: u64) {
        self.expectations.retain(|_, expectations| {
            for old in expectations.extract_if(.., |waiting| waiting.since_tick + GIVE_UP_TICKS < tick) {
                for waiter in old.waiters {
                    let _ = waiter.send(Err(Lost::Unknown));
                }
            }
            !expectations.is_empty()
        });
    }

    /// A snapshot has taken the place of the store's state.
    ///
    /// # Errors
    /// The new store cannot be read.
    pub fn installed(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        self.machines = Machines::open(store)?;
        let applied = self.progress().index.0;
        let (passed, later) =
            std::mem::take(&mut self.expectations).into_iter().partition(|(index, _)| *index <= applied);
        self.expectations = later;
        let passed: BTreeMap<u64, Vec<Expectation>> = passed;
        for waiter in passed.into_values().flatten().flat_map(|expectation| expectation.waiters) {
            let _ = waiter.send(Err(Lost::Unknown));
        }
        Ok(())
    }
}
