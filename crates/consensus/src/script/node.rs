//! One replica of a script with its disk, and the driver that a node's threads are to it: it writes, applies
//! and answers as [`Effects`](crate::replica::Effects) asks.

use super::print;
use super::world::TICK_MS;
use crate::GROUP;
use crate::configuration::Configuration;
use crate::log::{JoinError, Log, LogError, Options as LogOptions, SimDisk, join};
use crate::replica::{
    Append, Barrier, Committed, Content, Expectation, Freshness, GIVE_UP_TICKS, Lost, Options, Replica,
};
use quoin_core::{Reply, Revision, kv};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

/// What a store would hold: how far it is, who votes, and the commands applied.
#[derive(Clone, Default)]
pub(super) struct State {
    pub(super) index: u64,
    pub(super) term: u64,
    pub(super) configuration: Configuration,
    pub(super) commands: Vec<String>,
}

pub(super) struct Node {
    pub(super) id: u64,
    pub(super) disk: Arc<SimDisk>,
    /// The state that survives a crash.
    pub(super) durable: State,
    pub(super) backup: Option<State>,
    /// How far the wall clock was moved, in milliseconds.
    pub(super) clock_ms: i64,
    /// Milliseconds before this start.
    pub(super) passed_ms: u64,
    /// `stabilize` and `run` do not complete its appends.
    pub(super) hangs: bool,
    pub(super) running: Option<Running>,
}

/// What a crash destroys.
pub(super) struct Running {
    pub(super) replica: Replica,
    pub(super) log: Arc<Log>,
    pub(super) state: State,
    pub(super) appends: VecDeque<Append>,
    /// A received snapshot that waits to be accepted.
    pub(super) offered: Option<State>,
    expectations: Vec<Expectation>,
    barriers: Vec<Barrier>,
    clients: Vec<(String, Client)>,
    shown: (String, u64),
}

enum Client {
    Writer(oneshot::Receiver<Result<Reply, Lost>>),
    Reader(oneshot::Receiver<Result<(), Lost>>),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Join(#[from] JoinError),
}

impl Node {
    pub(super) fn new(id: u64, durable: State) -> Self {
        Self {
            id,
            disk: Arc::new(SimDisk::new()),
            durable,
            backup: None,
            hangs: false,
            clock_ms: 0,
            passed_ms: 0,
            running: None,
        }
    }

    /// Starts from what is durable, as a node does.
    pub(super) fn start(&mut self, options: Options) -> Result<(), StartError> {
        let log_options =
            LogOptions { cluster: 1, node: self.id, disk: 1, segment_bytes: 1 << 12, cache_bytes: 1 << 10 };
        let log = Arc::new(Log::open(Arc::clone(&self.disk) as _, log_options)?);
        let state = self.durable.clone();
        join(&log, GROUP, state.index, state.term)?;
        let replica =
            Replica::new(self.id, GROUP, Arc::clone(&log), &state.configuration, state.index, options);
        let mut running = Running {
            replica: replica.unwrap(),
            log,
            state,
            appends: VecDeque::new(),
            offered: None,
            expectations: Vec::new(),
            barriers: Vec::new(),
            clients: Vec::new(),
            shown: (String::new(), 0),
        };
        let _ = running.changes();
        self.running = Some(running);
        Ok(())
    }
}

impl Running {
    /// A client that waits for the command `name`.
    pub(super) fn writer(&mut self, name: &str) -> oneshot::Sender<Result<Reply, Lost>> {
        let (sender, receiver) = oneshot::channel();
        self.clients.push((name.into(), Client::Writer(receiver)));
        sender
    }

    /// A client that waits to read.
    pub(super) fn reader(&mut self, name: &str) -> oneshot::Sender<Result<(), Lost>> {
        let (sender, receiver) = oneshot::channel();
        self.clients.push((name.into(), Client::Reader(receiver)));
        sender
    }

    /// What clients have been told since the last call.
    pub(super) fn answers(&mut self) -> Vec<String> {
        let mut answers = Vec::new();
        let commands = &self.state.commands;
        self.clients.retain_mut(|(name, client)| {
            let answer = match client {
                Client::Writer(receiver) => match receiver.try_recv() {
                    Ok(Ok(reply)) => {
                        let number = ordinal(&reply);
                        assert_eq!(&commands[number - 1], name, "the reply is of another command");
                        format!("done, command {number}")
                    }
                    Ok(Err(lost)) => print::lost(lost).into(),
                    Err(oneshot::error::TryRecvError::Empty) => return true,
                    Err(oneshot::error::TryRecvError::Closed) => "forgotten".into(),
                },
                Client::Reader(receiver) => match receiver.try_recv() {
                    Ok(Ok(())) => format!("reads {} commands", commands.len()),
                    Ok(Err(lost)) => print::lost(lost).into(),
                    Err(oneshot::error::TryRecvError::Empty) => return true,
                    Err(oneshot::error::TryRecvError::Closed) => "forgotten".into(),
                },
            };
            answers.push(format!("{name}: {answer}"));
            false
        });
        answers
    }

    /// Role, term and leader where they have changed, and the commit index where it has.
    pub(super) fn changes(&mut self) -> (Option<String>, Option<u64>) {
        let (role, committed) = (self.role(), self.replica.committed());
        let (shown_role, shown_commit) = &self.shown;
        let changed = ((*shown_role != role).then(|| role.clone()), *shown_commit != committed);
        self.shown = (role, committed);
        (changed.0, changed.1.then_some(committed))
    }

    pub(super) fn role(&self) -> String {
        let (leader, term) = (self.replica.leader(), self.replica.term());
        let role = match self.replica.role() {
            raft::StateRole::Leader => "leader".into(),
            raft::StateRole::Candidate => "candidate".into(),
            raft::StateRole::PreCandidate => "pre-candidate".into(),
            raft::StateRole::Follower if leader == 0 => "follower of nobody".into(),
            raft::StateRole::Follower => format!("follower of {leader}"),
        };
        format!("{role}, term {term}")
    }

    /// What must be applied to be how fresh.
    pub(super) fn freshness(&mut self) -> String {
        let now = TICK_MS * self.replica.ticks();
        match self.replica.freshness() {
            Some(Freshness { committed, as_of_ms }) => {
                format!("applied {}, up to {committed} is {} ms old", self.state.index, now - as_of_ms)
            }
            None => "does not know how fresh it is".into(),
        }
    }

    pub(super) fn is_follower(&self) -> bool {
        self.replica.role() == raft::StateRole::Follower
    }

    /// Somebody waits for commands of an entry to come.
    pub(super) fn expect(&mut self, expectation: Expectation) {
        if expectation.index <= self.state.index {
            fail(expectation, Lost::Unknown);
        } else {
            self.expectations.push(expectation);
        }
    }

    pub(super) fn wait(&mut self, barrier: Barrier) {
        self.barriers.push(barrier);
        self.let_read();
    }

    pub(super) fn apply(&mut self, entry: Committed) {
        assert_eq!(entry.index, self.state.index + 1, "entries are applied in order");
        let before = self.state.commands.len();
        match entry.content {
            Content::Batch(payload) => self.state.commands.extend(print::commands_of(&payload)),
            Content::Configuration { configuration, command } => {
                self.state.configuration = Configuration::decode(&configuration).unwrap();
                self.state.commands.extend(command.as_ref().map(print::name));
            }
        }
        self.state.index = entry.index;
        self.state.term = entry.term;
        for expectation in self.expectations.extract_if(.., |expected| expected.index == entry.index) {
            if expectation.term != entry.term {
                fail(expectation, Lost::Overwritten);
                continue;
            }
            for (waiter, number) in expectation.waiters.into_iter().zip(1..) {
                let _ = waiter.send(Ok(reply(before + expectation.position as usize + number)));
            }
        }
        self.let_read();
    }

    pub(super) fn installed(&mut self, state: State) {
        self.state = state;
        for passed in self.expectations.extract_if(.., |expected| expected.index <= self.state.index) {
            fail(passed, Lost::Unknown);
        }
        self.let_read();
    }

    /// Tells those who have waited too long that the fate of their command is unknown.
    pub(super) fn give_up(&mut self) {
        let now = self.replica.ticks();
        for old in self.expectations.extract_if(.., |old| old.since_tick + GIVE_UP_TICKS < now) {
            fail(old, Lost::Unknown);
        }
    }

    fn let_read(&mut self) {
        for ready in self.barriers.extract_if(.., |barrier| barrier.index <= self.state.index) {
            for waiter in ready.waiters {
                let _ = waiter.send(Ok(()));
            }
        }
    }
}

fn fail(expectation: Expectation, lost: Lost) {
    for waiter in expectation.waiters {
        let _ = waiter.send(Err(lost));
    }
}

/// A reply says how many commands had been applied, its own included.
fn reply(number: usize) -> Reply {
    let result = Ok(kv::Response::Number(number as i64));
    Reply::Kv(kv::Reply { revision: Revision(number as u64), result })
}

fn ordinal(reply: &Reply) -> usize {
    let Reply::Kv(reply) = reply else { panic!("not a reply of this driver") };
    reply.revision.0 as usize
}
