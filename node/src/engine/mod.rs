//! The one way into the state: [`Engine::propose`] for what changes it, [`Engine::read`] for what does not.
//!
//! `threads.rs` runs a replica: one thread steps Raft, one writes the log, one applies. `apply.rs` is what the
//! last does, `snapshots.rs` how a far follower catches up, `upkeep.rs` what nobody asks for.
//!
//! **Bounds.** Commands under way on a node are bounded in count and bytes (`limits.*_in_flight_max`); beyond
//! that they are refused as [`ProposeError::Busy`] before anything is done.

mod alone;
pub mod apply;
pub mod queue;
mod snapshots;
mod threads;
mod upkeep;

pub(crate) use snapshots::receive as receive_snapshot;
pub(crate) use threads::{Input, Inputs, Threads, spawn};
pub(crate) use upkeep::Upkeep;

use crate::config::{Config, Limits};
use crate::metrics::Metrics;
use crate::raft::log::Log;
use crate::raft::replica::{Lost, Proposal};
use crate::raft::transport::Transport;
use crate::store::{LsmStore, StoreFolder};
use crate::watch::Hub;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use quoin_core::{Command, Index, Progress, Reply, Stamp, StoreError, View, route, system, table};
use raft::eraftpb::ConfChangeType;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, oneshot};

/// A handle to a running replica.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// Why a command has no reply. The variants say whether it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProposeError {
    /// Not done: too many commands are under way.
    #[error("too many requests")]
    Busy,
    /// Not done: the cluster has no leader, or is changing it.
    #[error("no leader")]
    NoLeader,
    /// Not done: disk or quota is used up.
    #[error("database space exceeded")]
    NoSpace,
    /// Not done: larger than a command may be.
    #[error("request is too large: {bytes} bytes, at most {max}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// Not done: a new leader's entry took its place.
    #[error("leader changed")]
    LeaderChanged,
    /// Perhaps done: connection or leader was lost on the way.
    #[error("outcome unknown: the leader was lost before it answered")]
    Unknown,
    /// Not done: another configuration change is under way.
    #[error("configuration change refused: another one is under way")]
    Refused,
    /// Perhaps done: this node is stopping.
    #[error("node is stopping")]
    Stopped,
}

/// Why a read was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The cluster has no leader to confirm what is newest.
    #[error("no leader")]
    NoLeader,
    /// This replica lags more than the read allows.
    #[error("replica lags by {lag_entries} entries and {lag_ms} ms, more than allowed")]
    Lagging {
        /// Entries known to be committed and not applied here.
        lag_entries: u64,
        /// Milliseconds since this replica was last known to be up to date.
        lag_ms: u64,
    },
    /// This node is stopping.
    #[error("node is stopping")]
    Stopped,
}

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Sees every write that was answered before the read began, anywhere.
    Linearizable,
    /// Sees this replica's state, if it lags no more than this behind what it knows of the leader.
    Local {
        /// In entries of the log.
        max_lag_entries: Option<u64>,
        /// In milliseconds.
        max_lag_ms: Option<u64>,
    },
}

impl Consistency {
    /// This replica's state, however old.
    pub const ANY: Self = Self::Local { max_lag_entries: None, max_lag_ms: None };
}

/// The state as of one applied entry.
#[derive(Clone)]
pub struct ReadView {
    published: Arc<Published>,
}

impl ReadView {
    /// For the queries of core.
    pub fn view(&self) -> View<'_> {
        View::new(&*self.published.store, self.published.progress.sequence)
    }

    /// How far the state is.
    pub fn progress(&self) -> &Progress {
        &self.published.progress
    }

    /// The newest rules: at least as new as this state.
    pub fn routes(&self) -> &Arc<route::Table> {
        &self.published.routes
    }

    /// The lookup tables' versions and changes: at least as new as this state.
    pub fn tables(&self) -> &table::Live {
        &self.published.tables
    }

    /// The store itself, for those who hold versions for longer (`pin`).
    pub fn store(&self) -> &Arc<LsmStore> {
        &self.published.store
    }
}

/// Store and progress, replaced together after each applied entry; and what the machines keep in memory.
pub(crate) struct Published {
    pub(crate) store: Arc<LsmStore>,
    pub(crate) routes: Arc<route::Table>,
    pub(crate) tables: Arc<table::Live>,
    pub(crate) progress: Progress,
}

/// What a replica knows of the consensus; renewed at every tick and change.
#[derive(Clone, Debug, Default)]
pub struct RaftStatus {
    /// 0 for none.
    pub leader: u64,
    /// The term.
    pub term: u64,
    /// This node is the leader.
    pub is_leader: bool,
    /// The newest entry known to be committed.
    pub committed: u64,
    /// Commands waiting to be proposed.
    pub queued: usize,
    /// Leader only: id, newest matching entry, answered lately.
    pub followers: Vec<(u64, u64, bool)>,
    /// Who votes.
    pub voters: Vec<u64>,
    /// Who only learns.
    pub learners: Vec<u64>,
}

/// What a node says of itself.
#[derive(Clone, Debug)]
pub struct Status {
    /// This node.
    pub id: u64,
    /// Its cluster.
    pub cluster: u64,
    /// Of the consensus.
    pub raft: RaftStatus,
    /// Of the state.
    pub progress: Progress,
    /// Milliseconds since this replica was last known to be up to date.
    pub lag_ms: u64,
    /// Bytes of the store on disk and in memory tables.
    pub store_bytes: u64,
    /// Bytes of the log on disk.
    pub log_bytes: u64,
    /// Entries up to this one survive the loss of memory without the log.
    pub persisted: Index,
}

/// A change of the member list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// A new voter or learner; `id` chosen by the caller.
    Add(system::Member),
    /// A learner becomes a voter.
    Promote(u64),
    /// A member leaves for good; its id is never used again.
    Remove(u64),
    /// New peer addresses.
    UpdatePeers(u64, Vec<String>),
}

/// Why the member list was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// No such member.
    #[error("member not found")]
    NotFound,
    /// The id is taken.
    #[error("member ID already exist")]
    IdExists,
    /// A peer address is taken.
    #[error("Peer URLs already exists")]
    PeerExists,
    /// The member is no learner.
    #[error("can only promote a learner member")]
    NotLearner,
    /// The learner is too far behind to vote.
    #[error("can only promote a learner member which is in sync with leader")]
    LearnerNotReady,
    /// The remaining members could not elect a leader.
    #[error("re-configuration failed due to not enough started members")]
    Unhealthy,
    /// The command did not go through.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// The store failed.
    #[error("store: {0}")]
    Store(String),
}

/// What the threads of a node share.
pub(crate) struct Shared {
    pub(crate) id: u64,
    pub(crate) cluster: u64,
    pub(crate) config: Config,
    /// Lookup tables' files.
    pub(crate) library: crate::table::Library,
    pub(crate) inbox: Inputs,
    pub(crate) log: Arc<Log>,
    pub(crate) stores: Mutex<StoreFolder>,
    pub(crate) hub: OnceLock<Arc<Hub>>,
    pub(crate) transport: OnceLock<Arc<Transport>>,
    pub(crate) published: ArcSwap<Published>,
    pub(crate) raft: ArcSwap<RaftStatus>,
    alone: alone::Alone,
    /// Peer addresses by id.
    pub(crate) members: Mutex<BTreeMap<u64, String>>,
    /// Members that left; their ids are never used again.
    pub(crate) removed: Mutex<BTreeSet<u64>>,
    pub(crate) no_space_alarm: AtomicBool,
    pub(crate) disk_full: AtomicBool,
    pub(crate) next_deadline: AtomicU64,
    /// Milliseconds since [`Self::started`] at which this replica was last known to have everything.
    pub(crate) fresh_at_ms: AtomicU64,
    pub(crate) metrics: Metrics,
    pub(crate) started: Instant,
    pub(crate) failure: Mutex<Option<String>>,
    pub(crate) ended: Notify,
    in_flight: AtomicUsize,
    in_flight_bytes: AtomicUsize,
}

impl Shared {
    pub(crate) fn new(
        id: u64,
        cluster: u64,
        config: Config,
        log: Arc<Log>,
        stores: StoreFolder,
        published: Published,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            cluster,
            config,
            library: crate::table::Library::default(),
            inbox: Inputs::default(),
            log,
            stores: Mutex::new(stores),
            hub: OnceLock::new(),
            transport: OnceLock::new(),
            published: ArcSwap::from_pointee(published),
            raft: ArcSwap::default(),
            alone: alone::Alone::default(),
            members: Mutex::default(),
            removed: Mutex::default(),
            no_space_alarm: AtomicBool::new(false),
            disk_full: AtomicBool::new(false),
            next_deadline: AtomicU64::new(u64::MAX),
            fresh_at_ms: AtomicU64::new(0),
            metrics: Metrics::default(),
            started: Instant::now(),
            failure: Mutex::default(),
            ended: Notify::new(),
            in_flight: AtomicUsize::new(0),
            in_flight_bytes: AtomicUsize::new(0),
        })
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        self.hub.get().expect("set before any thread starts")
    }

    pub(crate) fn transport(&self) -> &Arc<Transport> {
        self.transport.get().expect("set before any thread starts")
    }

    /// Ends the node: nothing more can be trusted here.
    pub(crate) fn fail(&self, error: &dyn std::fmt::Display) {
        tracing::error!(%error, "this node stops: its state can no longer be trusted to be complete");
        self.end(error.to_string());
    }

    /// Ends the node: the cluster does not want it.
    pub(crate) fn cast_out(&self, reason: &str) {
        tracing::error!(reason, "this node stops");
        self.end(reason.to_string());
    }

    fn end(&self, reason: String) {
        self.failure.lock().get_or_insert(reason);
        self.inbox.push(Input::Stop);
        self.ended.notify_waiters();
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.raft.load().is_leader
    }

    fn lag_ms(&self) -> u64 {
        self.now_ms().saturating_sub(self.fresh_at_ms.load(Ordering::Relaxed))
    }
}

impl crate::watch::Source for Shared {
    fn latest(&self) -> (Arc<dyn quoin_core::Store>, Progress, Box<dyn std::any::Any + Send>) {
        // First the pin, then the progress: whatever is forgotten later, this progress' history is still there.
        let pin = self.published.load().store.pin_now();
        let published = self.published.load_full();
        (Arc::clone(&published.store) as _, published.progress, Box::new(pin))
    }
}

/// Milliseconds since the Unix epoch, by this machine's clock.
pub(crate) fn wall_clock() -> Stamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Stamp(since.as_millis() as u64)
}

/// A command's share of the bounds, given back when it has its answer.
struct Admission<'a> {
    shared: &'a Shared,
    bytes: usize,
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.shared.in_flight_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Engine {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Has `command` applied on a majority and returns its reply.
    ///
    /// # Errors
    /// See [`ProposeError`]: each variant says whether the command was done.
    pub async fn propose(&self, command: Command) -> Result<Reply, ProposeError> {
        let outcome = match self.admit(&command) {
            Ok(_admission) => {
                let (waiter, reply) = oneshot::channel();
                self.shared.inbox.push(Input::Propose(Proposal { command, waiter }));
                answer(reply.await)
            }
            Err(refused) => Err(refused),
        };
        self.count(&outcome);
        outcome
    }

    fn count(&self, outcome: &Result<Reply, ProposeError>) {
        let label = match outcome {
            Ok(_) => "applied",
            Err(ProposeError::Busy) => "busy",
            Err(ProposeError::NoLeader) => "no_leader",
            Err(ProposeError::NoSpace) => "no_space",
            Err(ProposeError::TooLarge { .. }) => "too_large",
            Err(ProposeError::LeaderChanged) => "leader_changed",
            Err(ProposeError::Unknown) => "unknown",
            Err(ProposeError::Refused) => "refused",
            Err(ProposeError::Stopped) => "stopped",
        };
        let metrics = &self.shared.metrics;
        match outcome {
            Ok(_) => metrics.commands_applied.inc(),
            Err(_) => metrics.commands.with_label_values(&[label]).inc(),
        }
    }

    /// As [`Self::propose`], for many at once: they go into the log in this order, mostly in one entry.
    pub async fn propose_many(&self, commands: Vec<Command>) -> Vec<Result<Reply, ProposeError>> {
        let mut waiting = Vec::with_capacity(commands.len());
        let mut inputs = Vec::with_capacity(commands.len());
        for command in commands {
            waiting.push(self.admit(&command).map(|admission| {
                let (waiter, reply) = oneshot::channel();
                inputs.push(Input::Propose(Proposal { command, waiter }));
                (admission, reply)
            }));
        }
        self.shared.inbox.extend(inputs);
        let mut replies = Vec::with_capacity(waiting.len());
        for waiting in waiting {
            let outcome = match waiting {
                Ok((_admission, reply)) => answer(reply.await),
                Err(refused) => Err(refused),
            };
            self.count(&outcome);
            replies.push(outcome);
        }
        replies
    }

    fn admit(&self, command: &Command) -> Result<Admission<'_>, ProposeError> {
        let shared = &*self.shared;
        let limits = &shared.config.limits;
        let (bytes, max) = (command.bytes.len(), limits.request_bytes_max + (64 << 10));
        if bytes > max {
            return Err(ProposeError::TooLarge { bytes, max });
        }
        if shared.disk_full.load(Ordering::Relaxed) {
            return Err(ProposeError::NoSpace);
        }
        let count = shared.in_flight.fetch_add(1, Ordering::Relaxed);
        let total = shared.in_flight_bytes.fetch_add(bytes, Ordering::Relaxed);
        let admission = Admission { shared, bytes };
        if count >= limits.commands_in_flight_max || total > limits.command_bytes_in_flight_max {
            return Err(ProposeError::Busy);
        }
        Ok(admission)
    }

    /// A view of the state that is as fresh as asked.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&self, consistency: Consistency) -> Result<ReadView, ReadError> {
        let outcome = self.read_uncounted(consistency).await;
        let metrics = &self.shared.metrics;
        match (&outcome, consistency) {
            (Ok(_), Consistency::Linearizable) => metrics.reads_linearizable.inc(),
            (Ok(_), Consistency::Local { .. }) => metrics.reads_local.inc(),
            (Err(_), _) => metrics.reads_refused.inc(),
        }
        outcome
    }

    async fn read_uncounted(&self, consistency: Consistency) -> Result<ReadView, ReadError> {
        match consistency {
            Consistency::Linearizable if self.shared.alone.holds() => {}
            Consistency::Linearizable => {
                let (waiter, ready) = oneshot::channel();
                self.shared.inbox.push(Input::Read(waiter));
                match ready.await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return Err(ReadError::NoLeader),
                    Err(_) => return Err(ReadError::Stopped),
                }
            }
            Consistency::Local { max_lag_entries, max_lag_ms } => {
                self.check_lag(max_lag_entries, max_lag_ms)?;
            }
        }
        Ok(self.latest())
    }

    fn check_lag(&self, max_lag_entries: Option<u64>, max_lag_ms: Option<u64>) -> Result<(), ReadError> {
        if max_lag_entries.is_none() && max_lag_ms.is_none() {
            return Ok(());
        }
        let applied = self.latest().progress().index.0;
        let lag_entries = self.shared.raft.load().committed.saturating_sub(applied);
        let lag_ms = self.shared.lag_ms();
        let too_far = max_lag_entries.is_some_and(|max| lag_entries > max)
            || max_lag_ms.is_some_and(|max| lag_ms > max);
        if too_far { Err(ReadError::Lagging { lag_entries, lag_ms }) } else { Ok(()) }
    }

    /// The newest state of this replica.
    pub fn latest(&self) -> ReadView {
        ReadView { published: self.shared.published.load_full() }
    }

    /// What is told to Prometheus.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// The watchers' hub.
    pub fn hub(&self) -> &Arc<Hub> {
        self.shared.hub()
    }

    /// The lookup tables' files on this replica.
    pub fn library(&self) -> &crate::table::Library {
        &self.shared.library
    }

    /// Keys of one lookup at most.
    pub fn lookup_keys_max(&self) -> usize {
        self.shared.config.table.keys_max
    }

    /// How tables are fetched and held.
    pub fn table_settings(&self) -> &crate::config::TableConfig {
        &self.shared.config.table
    }

    /// What requests may be at most.
    pub fn limits(&self) -> &Limits {
        &self.shared.config.limits
    }

    /// True while writes that grow the store are refused.
    pub fn no_space(&self) -> bool {
        self.shared.no_space_alarm.load(Ordering::Relaxed) || self.shared.disk_full.load(Ordering::Relaxed)
    }

    /// Bytes to which the store can grow before writes are refused: the quota, or what the disk has but for its reserve.
    pub fn space(&self) -> u64 {
        let config = &self.shared.config.store;
        let free = self.shared.log.free_space().unwrap_or(0).saturating_sub(config.reserve_bytes);
        match config.quota_bytes {
            0 => self.shared.published.load().store.disk_bytes().saturating_add(free),
            quota => quota,
        }
    }

    /// This node's id.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// The cluster's id.
    pub fn cluster(&self) -> u64 {
        self.shared.cluster
    }

    /// What this replica knows of the consensus.
    pub fn raft(&self) -> Arc<RaftStatus> {
        self.shared.raft.load_full()
    }

    /// Everything that a status page shows.
    pub fn status(&self) -> Status {
        let latest = self.latest();
        Status {
            id: self.shared.id,
            cluster: self.shared.cluster,
            raft: (*self.raft()).clone(),
            progress: *latest.progress(),
            lag_ms: self.shared.lag_ms(),
            store_bytes: latest.store().disk_bytes() + latest.store().memtable_bytes(),
            log_bytes: self.shared.log.size_on_disk(),
            persisted: latest.store().persisted_index(),
        }
    }

    /// The counters of the peer connections.
    pub fn transport_counters(&self) -> &crate::raft::transport::Counters {
        &self.shared.transport().counters
    }

    /// All members as this replica knows them.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn members(&self) -> Result<Vec<system::Member>, StoreError> {
        system::members(self.latest().view())
    }

    /// Hands the leadership to `to`. Returns once this replica sees it there, or after two election timeouts.
    ///
    /// # Errors
    /// This node is not the leader, or `to` did not take over.
    pub async fn transfer_leader(&self, to: u64) -> Result<(), ProposeError> {
        if !self.shared.is_leader() {
            return Err(ProposeError::NoLeader);
        }
        self.shared.inbox.push(Input::Transfer(to));
        let raft = &self.shared.config.raft;
        let tick = std::time::Duration::from_millis(raft.tick_ms);
        for _ in 0..raft.election_ticks * 4 {
            if self.shared.raft.load().leader == to {
                return Ok(());
            }
            tokio::time::sleep(tick).await;
        }
        Err(ProposeError::Unknown)
    }

    /// Changes the member list and, with it, who votes. Must be asked of the leader.
    ///
    /// # Errors
    /// See [`MemberError`].
    pub async fn change_members(&self, change: MemberChange) -> Result<Vec<system::Member>, MemberError> {
        let view = self.read(Consistency::Linearizable).await.map_err(|_| ProposeError::NoLeader)?;
        let members = system::members(view.view()).map_err(|error| MemberError::Store(error.to_string()))?;
        let (changes, operation) = self.plan(change, &members)?;
        let command = operation.into_command();
        let reply = if changes.is_empty() {
            self.propose(command).await?
        } else {
            let (waiter, reply) = oneshot::channel();
            self.shared.inbox.push(Input::ChangeConfiguration { changes, command, waiter });
            answer(reply.await)?
        };
        debug_assert_eq!(reply, Reply::System(system::Reply::Done));
        self.members().map_err(|error| MemberError::Store(error.to_string()))
    }

    fn plan(
        &self,
        change: MemberChange,
        members: &[system::Member],
    ) -> Result<(Vec<(ConfChangeType, u64)>, system::Operation), MemberError> {
        let find = |id| members.iter().find(|member| member.id == id).cloned().ok_or(MemberError::NotFound);
        let taken = |addresses: &[String], by_other_than| {
            let others = members.iter().filter(|member| member.id != by_other_than);
            let mut used = others.flat_map(|member| &member.peer_addresses);
            used.any(|address| addresses.contains(address))
        };
        match change {
            MemberChange::Add(member) => {
                if find(member.id).is_ok() || self.shared.removed.lock().contains(&member.id) {
                    return Err(MemberError::IdExists);
                }
                if taken(&member.peer_addresses, 0) {
                    return Err(MemberError::PeerExists);
                }
                let kind =
                    if member.learner { ConfChangeType::AddLearnerNode } else { ConfChangeType::AddNode };
                if !member.learner {
                    self.check_healthy_after(None)?;
                }
                Ok((vec![(kind, member.id)], system::Operation::SetMember(member)))
            }
            MemberChange::Promote(id) => {
                let mut member = find(id)?;
                if !member.learner {
                    return Err(MemberError::NotLearner);
                }
                let raft = self.raft();
                let matched = raft.followers.iter().find(|(follower, ..)| *follower == id).map_or(0, |f| f.1);
                // etcd's rule: within a tenth of the leader's log.
                if matched < raft.committed - raft.committed / 10 {
                    return Err(MemberError::LearnerNotReady);
                }
                member.learner = false;
                Ok((vec![(ConfChangeType::AddNode, id)], system::Operation::SetMember(member)))
            }
            MemberChange::Remove(id) => {
                let member = find(id)?;
                if !member.learner {
                    self.check_healthy_after(Some(id))?;
                }
                Ok((vec![(ConfChangeType::RemoveNode, id)], system::Operation::RemoveMember(id)))
            }
            MemberChange::UpdatePeers(id, addresses) => {
                let mut member = find(id)?;
                if taken(&addresses, id) {
                    return Err(MemberError::PeerExists);
                }
                member.peer_addresses = addresses;
                Ok((Vec::new(), system::Operation::SetMember(member)))
            }
        }
    }

    /// Refuses a change after which the members that answer now would be no majority.
    fn check_healthy_after(&self, removed: Option<u64>) -> Result<(), MemberError> {
        let raft = self.raft();
        let voters: Vec<u64> = raft.voters.iter().copied().filter(|id| Some(*id) != removed).collect();
        let active =
            |id: &&u64| raft.followers.iter().any(|(follower, _, active)| follower == *id && *active);
        let answering = voters.iter().filter(|id| **id == self.shared.id || active(id)).count();
        let future = voters.len() + usize::from(removed.is_none());
        if answering > future / 2 || (removed.is_none() && answering == voters.len()) {
            Ok(())
        } else {
            Err(MemberError::Unhealthy)
        }
    }
}

fn answer(reply: Result<Result<Reply, Lost>, oneshot::error::RecvError>) -> Result<Reply, ProposeError> {
    match reply {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(Lost::NoLeader)) => Err(ProposeError::NoLeader),
        Ok(Err(Lost::Busy)) => Err(ProposeError::Busy),
        Ok(Err(Lost::Overwritten)) => Err(ProposeError::LeaderChanged),
        Ok(Err(Lost::Unknown)) => Err(ProposeError::Unknown),
        Ok(Err(Lost::Refused)) => Err(ProposeError::Refused),
        Err(_) => Err(ProposeError::Stopped),
    }
}
