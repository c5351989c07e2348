//! One replica of one group, without I/O: messages, ticks and requests go in, [`Effects`] come out.
//!
//! The driver (threads in a node, one loop in the simulator) feeds inputs, then calls [`Replica::effects`]
//! until it returns nothing, and sends, writes and applies what it is told to. [`Effects`] says in which
//! order.
//!
//! Reading order: this file (the loop around the library), `effects.rs` (what comes out), `admission.rs` (what
//! comes in from peers), `proposals.rs` and `forwards.rs` (commands on their way into the log), `pace.rs` (when
//! those go that take long), `reads.rs` (linearizable reads), `changes.rs` (configuration entries), `leading.rs`
//! (who gives leadership up), `freshness.rs` (how old what is applied may be), `appends.rs` (what is being
//! written), `time.rs` (what stamps are made of), `resends.rs` (snapshots that failed).
//!
//! What it does not do: read a clock (time is an argument), touch files or sockets, or apply entries.

mod admission;
mod appends;
pub(crate) mod changes;
mod effects;
mod forwards;
mod freshness;
mod leading;
mod options;
mod pace;
mod proposals;
mod reads;
mod resends;
mod time;

pub use effects::{
    Append, Barrier, Committed, Content, Effects, Expectation, Lost, Proposal, ReadWaiter, Waiter,
};
pub use freshness::Freshness;
use options::PACED_GIVE_UP_TICKS;
pub use options::{GIVE_UP_TICKS, Options};

use crate::configuration::Configuration;
use crate::group::GroupId;
use crate::log::{Log, LogError};
use crate::message::{ForwardOutcome, PeerMessage, RaftMessage};
use crate::mutants;
use crate::storage::Storage;
use admission::Refusal;
use appends::{Appends, Writes};
use forwards::Forwards;
use freshness::{Beat, Clock, Fresh};
use leading::Summons;
use pace::Pace;
use proposals::{Forwarded, NextBatch, Proposals};
use quoin_core::{Batch, Command, Stamp};
use raft::eraftpb::{self, EntryType, MessageType};
use raft::{RawNode, StateRole};
use reads::Reads;
use resends::Resends;
use std::collections::BTreeMap;
use std::sync::Arc;
use time::{Time, Told};

/// Why a replica cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// The consensus library refuses the options, or the state that it finds.
    #[error(transparent)]
    Library(Box<raft::Error>),
    /// The log cannot be read.
    #[error("reading the log: {0}")]
    Log(LogError),
}

/// Maximum bytes of committed entries in one [`Effects`]: a start replays its log in pieces of this size.
const COMMITTED_BYTES_MAX: u64 = 16 << 20;

/// One replica of one group.
pub struct Replica {
    group: GroupId,
    raw: RawNode<Storage>,
    options: Options,
    ticks: u64,
    applied: u64,
    /// What was known to be committed at the start, and the end of the log then.
    at_start: (u64, u64),
    /// The tick of each member's last message.
    heard: BTreeMap<u64, u64>,
    proposals: Proposals,
    pace: Pace,
    forwards: Forwards,
    reads: Reads,
    appends: Appends,
    /// Messages of peers that were malformed.
    refused: u64,
    time: Time,
    resends: Resends,
    summons: Option<Summons>,
    /// The driver's disk has no room.
    full: bool,
    /// The term and the leader, as of the last look.
    known_leader: (u64, u64),
    clock: Clock,
    fresh: Fresh,
    /// By member: questions for what is committed that came before this leader knew.
    early_questions: BTreeMap<u64, Box<eraftpb::Message>>,
    /// What the next [`Self::effects`] returns.
    effects: Effects,
}

impl Replica {
    /// Makes replica `id` of `group`, on `log` and a store that has applied entries up to `applied` and is at
    /// `configuration`. The two must have been joined: see [`crate::log::join`].
    ///
    /// # Errors
    /// See [`ReplicaError`].
    pub fn new(
        id: u64,
        group: GroupId,
        log: Arc<Log>,
        configuration: &Configuration,
        applied: u64,
        options: Options,
    ) -> Result<Self, ReplicaError> {
        let config = raft::Config {
            id,
            election_tick: options.election_ticks,
            heartbeat_tick: options.heartbeat_ticks,
            applied,
            max_size_per_msg: options.message_bytes_max,
            max_inflight_msgs: options.messages_in_flight_max,
            max_committed_size_per_ready: COMMITTED_BYTES_MAX,
            check_quorum: true,
            pre_vote: !mutants::is("no-pre-vote"),
            read_only_option: raft::ReadOnlyOption::Safe,
            ..raft::Config::default()
        };
        let numbered_from = if mutants::is("numbered-from-zero") { 0 } else { options.seed };
        let mut time = Time::default();
        if let Some(stamp) = newest_stamp(&log, group)? {
            time.know(stamp);
        }
        let storage = Storage::new(log, group, configuration.to_library(), applied);
        let raw = RawNode::new(&config, storage, &slog::Logger::root(slog::Discard, slog::o!()))
            .map_err(|error| ReplicaError::Library(Box::new(error)))?;
        let at_start = (raw.raft.raft_log.committed, raw.raft.raft_log.last_index());
        let mut replica = Self {
            group,
            raw,
            ticks: 0,
            applied,
            at_start,
            heard: BTreeMap::new(),
            proposals: Proposals::default(),
            pace: Pace::default(),
            forwards: Forwards::numbered_from(numbered_from),
            reads: Reads::numbered_from(numbered_from, id),
            appends: Appends::default(),
            refused: 0,
            time,
            resends: Resends::default(),
            summons: None,
            full: false,
            known_leader: (0, 0),
            clock: Clock::starting_from(options.seed),
            fresh: Fresh::default(),
            early_questions: BTreeMap::new(),
            effects: Effects::default(),
            options,
        };
        replica.draw_election_timeout();
        Ok(replica)
    }

    /// This replica's id.
    pub fn id(&self) -> u64 {
        self.raw.raft.id
    }

    /// The leader as far as this replica knows, 0 for none.
    pub fn leader(&self) -> u64 {
        self.raw.raft.leader_id
    }

    /// Whether this replica leads, as far as it knows.
    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// Whether this replica leads, has committed an entry in its term, and nobody else votes or learns.
    pub fn is_only_member(&self) -> bool {
        let configuration = self.raw.store().configuration();
        self.is_only_voter()
            && configuration.learners.is_empty()
            && configuration.learners_next.is_empty()
            && self.is_leader()
            && self.raw.raft.commit_to_current_term()
    }

    fn is_only_voter(&self) -> bool {
        let configuration = self.raw.store().configuration();
        configuration.voters == [self.id()] && configuration.voters_outgoing.is_empty()
    }

    /// Whether `applied` covers everything that this replica knows to have been committed before it started:
    /// what its log says, and where nobody else votes, all of its log.
    ///
    /// **Invariant: Replayed first.** Clients are served only from then on. Earlier they could see less than they
    /// saw before the stop.
    pub fn has_replayed(&self, applied: u64) -> bool {
        let (committed, last) = self.at_start;
        applied >= if self.is_only_voter() { last } else { committed }
    }

    /// The term.
    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// Index of the newest entry known to be committed.
    pub fn committed(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    /// Index of the newest entry that the library knows to be applied. The log must be kept from the next one on:
    /// a campaign looks there for changes of the configuration, and panics where they are gone.
    pub fn known_applied(&self) -> u64 {
        self.raw.raft.raft_log.applied
    }

    /// By id: each member's newest matching entry, and whether a message of it came within two election
    /// timeouts. Only a leader knows; others return nothing.
    pub fn followers(&self) -> Vec<(u64, u64, bool)> {
        if !self.is_leader() {
            return Vec::new();
        }
        let progress = self.raw.raft.prs().iter();
        let mut followers: Vec<_> =
            progress.map(|(id, progress)| (*id, progress.matched, self.has_heard(*id, 2))).collect();
        followers.sort_unstable();
        followers
    }

    /// Whether a message of `member` came within so many election timeouts.
    fn has_heard(&self, member: u64, elections: u64) -> bool {
        let patience = elections * self.options.election_ticks as u64;
        self.heard.get(&member).is_some_and(|tick| self.ticks - tick <= patience)
    }

    /// The configuration in force.
    pub fn configuration(&self) -> Configuration {
        Configuration::from_library(self.raw.store().configuration())
    }

    /// Ticks since the start.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// How many commands wait to be proposed or forwarded: this replica's own, and those forwarded to it.
    pub fn queued(&self) -> usize {
        self.proposals.len()
    }

    #[cfg(test)]
    pub(crate) fn role(&self) -> StateRole {
        self.raw.raft.state
    }

    #[cfg(test)]
    pub(crate) fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    /// Why a message that came on a connection of `from` would be dropped.
    #[cfg(test)]
    pub(crate) fn refusal(&self, from: u64, message: &eraftpb::Message) -> Option<&'static str> {
        match admission::check(&self.raw.raft, from, message) {
            Ok(()) => None,
            Err(Refusal::Untimely) => Some("untimely"),
            Err(Refusal::Malformed(reason)) => Some(reason),
        }
    }

    /// Steps a message that may make the library panic.
    #[cfg(test)]
    pub(crate) fn step_unchecked(&mut self, message: eraftpb::Message) {
        let _ = self.raw.step(message);
    }

    /// The cluster's time, as far as this replica knows it.
    pub fn time(&self) -> Stamp {
        self.time.now()
    }

    /// What must be added to the monotonic clock to have the cluster's time, in milliseconds.
    pub fn time_offset_ms(&self) -> i64 {
        self.time.offset()
    }

    /// How far this machine's wall clock is ahead of the cluster's time, in milliseconds, as it was
    /// last told; `None` while this replica does not know the time.
    pub fn wall_ahead_ms(&self) -> Option<i64> {
        self.time.wall_ahead()
    }

    /// The state has this stamp: time goes on from there if nothing newer is known.
    pub fn know_stamp(&mut self, stamp: Stamp) {
        self.time.know(stamp);
    }

    /// The monotonic clock shows `now_ms`, in milliseconds since any moment of this process. Call it before
    /// other inputs: what they say of time is taken to be said now.
    pub fn pass(&mut self, now_ms: u64) {
        self.time.pass(now_ms);
        self.clock.pass(now_ms);
        self.pace.pass(now_ms);
    }

    /// This machine's wall clock shows `wall`. Call it at the start and before each tick.
    pub fn set_wall(&mut self, wall: Stamp) {
        self.time.set_wall(wall);
    }

    /// One tick has passed.
    pub fn tick(&mut self) {
        self.ticks += 1;
        self.time.tick(self.ticks, 2 * self.options.election_ticks as u64);
        if self.is_leader() {
            self.time.correct(self.raw.raft.id, &self.raw.store().configuration().voters);
            for to in self.resends.take_due(self.ticks) {
                self.raw.report_snapshot(to, raft::SnapshotStatus::Failure);
            }
        } else {
            self.time.follow();
            self.resends.forget();
        }
        // Whoever wins an election has its log on disk: the library takes that for granted, and panics where the
        // only voter has not.
        if self.is_leader() || admission::is_persisted(&self.raw.raft) {
            self.raw.tick();
        }
        self.fresh.tick();
        self.reads.tick(self.ticks);
        self.forwards.give_up(self.ticks);
        self.proposals.give_up(self.ticks, self.is_leader());
        self.hand_over_if_stalled();
    }

    /// Takes a message that came on a connection of the member `from`. Late ones are dropped, as Raft wants, and
    /// malformed ones.
    pub fn step(&mut self, from: u64, mut message: PeerMessage) {
        let mut told = Told::Nothing;
        if let PeerMessage::Raft(RaftMessage(message)) = &mut message {
            told = Time::take(message);
            match admission::check(&self.raw.raft, from, message) {
                Ok(()) => {}
                Err(Refusal::Untimely) => return,
                Err(Refusal::Malformed(reason)) => return self.refuse(from, reason),
            }
        }
        self.heard.insert(from, self.ticks);
        match message {
            PeerMessage::Raft(RaftMessage(message)) => {
                let term = message.term;
                if asks_or_answers_round(&message, MessageType::MsgHeartbeatResponse) {
                    self.reads.note_answer(message.from, self.raw.store().configuration());
                }
                match message.get_msg_type() {
                    MessageType::MsgTimeoutNow => self.summoned(message),
                    MessageType::MsgReadIndex => self.asked(message),
                    _ => self.step_plain(message),
                }
                // An earlier leader's time does not count any more.
                if term == self.term() && (from == self.leader() || self.is_leader()) {
                    self.time.hear(from, told, self.ticks);
                }
            }
            PeerMessage::Forward { request, commands, paced } => {
                let forward = Forwarded { from, request, commands };
                if !self.is_leader() {
                    self.reply_forward(from, request, ForwardOutcome::NotLeader);
                } else if !self.proposals.push_forwarded(forward, paced, &self.options) {
                    self.reply_forward(from, request, ForwardOutcome::Busy);
                }
            }
            PeerMessage::ForwardReply { request, outcome } => self.forward_answered(from, request, outcome),
        }
    }

    /// Drops a message, and says so: at the first one and then ever more rarely, since a peer may send many.
    fn refuse(&mut self, from: u64, reason: &'static str) {
        self.refused += 1;
        if self.refused.is_power_of_two() {
            let (from, total) = (format!("{from:016x}"), self.refused);
            tracing::warn!(from, reason, total, "dropped a malformed message of a peer");
        }
    }

    fn step_plain(&mut self, message: Box<eraftpb::Message>) {
        let beat = Beat::of(&message);
        // An error means that the message does not concern this state: dropping it is the protocol.
        if self.raw.step(*message).is_ok()
            && let Some(beat) = beat
        {
            self.note_beat(&beat);
        }
    }

    /// The connection to a peer broke: what was forwarded to it has an unknown fate.
    pub fn peer_lost(&mut self, peer: u64) {
        self.reads.peer_lost();
        self.raw.report_unreachable(peer);
        self.forwards.peer_lost(peer);
    }

    /// Queues a command. The next [`Self::effects`] proposes it, or forwards it to the leader.
    pub fn propose(&mut self, proposal: Proposal) {
        self.proposals.push(proposal, self.ticks);
    }

    /// Queues a command that may take long to apply. It is proposed by itself, and when the one before it has been
    /// applied, after a pause as long as that took.
    pub fn propose_paced(&mut self, proposal: Proposal) {
        self.proposals.push_paced(proposal, self.ticks);
    }

    /// Once the monotonic clock shows this, [`Self::effects`] proposes a command that is paced. `None`: none waits,
    /// or something else has to happen first.
    pub fn paced_from_ms(&self) -> Option<u64> {
        let may = self.is_leader() && self.proposals.has_paced();
        if may { self.pace.free_later_ms() } else { None }
    }

    /// Queues a linearizable read.
    pub fn read(&mut self, waiter: ReadWaiter) {
        if mutants::is("read-unconfirmed") {
            let index = self.committed();
            return self.effects.barriers.push(Barrier { index, waiters: vec![waiter] });
        }
        self.reads.push(waiter, self.ticks);
    }

    /// Offers a snapshot whose state has been received whole. If it is accepted, the next [`Self::effects`]
    /// asks to install it; otherwise the log has come further by itself, or no replica has made the snapshot,
    /// and the state can be dropped.
    pub fn offer_snapshot(&mut self, from: u64, index: u64, term: u64, configuration: &Configuration) {
        if let Err(reason) = admission::check_snapshot(&self.raw.raft, index, term, configuration) {
            return self.refuse(from, reason);
        }
        let mut message = eraftpb::Message::default();
        message.set_msg_type(MessageType::MsgSnapshot);
        message.from = from;
        message.to = self.id();
        // A new member may hear of a term by its snapshot only.
        message.term = self.term().max(term);
        // The library takes the sender for the leader of that term. It may have been replaced while it sent.
        let leader = if message.term == self.term() { self.leader() } else { raft::INVALID_ID };
        if ![raft::INVALID_ID, self.id()].contains(&leader) {
            message.from = leader;
        }
        let metadata = message.mut_snapshot().mut_metadata();
        metadata.index = index;
        metadata.term = term;
        metadata.set_conf_state(configuration.to_library());
        let _ = self.raw.step(message);
        if leader == raft::INVALID_ID && !self.is_leader() {
            // Its next heartbeat tells.
            self.raw.raft.leader_id = raft::INVALID_ID;
        }
    }

    /// The stream of a snapshot to `to` has ended. After a failure it is a while until `to` may be sent another
    /// one, longer with each.
    pub fn snapshot_sent(&mut self, to: u64, success: bool) {
        if success {
            self.resends.arrived(to);
            self.raw.report_snapshot(to, raft::SnapshotStatus::Finish);
        } else {
            let draw = mixed(self.options.seed ^ to.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.ticks << 17);
            self.resends.failed(to, self.ticks, self.options.election_ticks as u64, draw);
        }
    }

    /// The append of this number, and so all before it, is on disk.
    pub fn written(&mut self, number: u64) {
        self.appends.written(number, self.raw.mut_store());
        self.raw.on_persist_ready(number);
        if mutants::is("committed-alone") && self.is_leader() {
            let log = &mut self.raw.raft.raft_log;
            log.commit_to(log.persisted.max(log.committed));
        }
        self.advance_applied();
    }

    /// The store has applied entries up to `index`.
    pub fn applied(&mut self, index: u64) {
        self.applied = self.applied.max(index);
        self.pace.applied(self.applied);
        self.advance_applied();
    }

    /// Tells the library what is applied. The state of a snapshot is there before its mark is in the log; the
    /// library hears of it after both.
    fn advance_applied(&mut self) {
        let log = &self.raw.raft.raft_log;
        let known = self.applied.min(log.persisted).min(log.committed);
        if known > log.applied {
            self.raw.advance_apply_to(known);
        }
        self.answer_summons();
    }

    /// Refuses everything that waits to be proposed or to read: this replica is shutting down.
    pub fn fail_queue(&mut self, lost: Lost) {
        self.proposals.fail(lost);
        self.reads.fail(lost);
    }

    /// Works off the queues and says what to do, when the monotonic clock shows `now_ms`. Call it until it
    /// returns nothing to do.
    pub fn effects(&mut self, now_ms: u64) -> Effects {
        self.pass(now_ms);
        self.notice_leader();
        self.answer_questions();
        self.work_proposals();
        self.work_reads();
        self.draw_election_timeout();
        if self.raw.has_ready() {
            self.take_ready();
        }
        std::mem::take(&mut self.effects)
    }

    fn work_proposals(&mut self) {
        if self.is_leader() {
            // Invariant: A vote before its term. Whoever forwarded a command is told its place in the log.
            let may = self.knows_time() && !self.appends.has_vote();
            if may && self.appends.batches_in_flight() < self.options.batches_in_flight_max {
                self.propose_next();
            }
            return;
        }
        for (from, request) in self.proposals.take_forwarded() {
            self.reply_forward(from, request, ForwardOutcome::NotLeader);
        }
        let leader = self.leader();
        if leader == 0 {
            return;
        }
        while let Some((commands, waiters)) = self.proposals.next_forward(&self.options) {
            self.forward(leader, commands, waiters, false);
        }
        while let Some(Proposal { command, waiter }) = self.proposals.next_paced_forward() {
            self.forward(leader, vec![command], vec![waiter], true);
        }
    }

    fn forward(&mut self, leader: u64, commands: Vec<Command>, waiters: Vec<Waiter>, paced: bool) {
        let patience = if paced { PACED_GIVE_UP_TICKS } else { GIVE_UP_TICKS };
        let request = self.forwards.send(leader, waiters, self.ticks + patience);
        self.effects.messages.push((leader, PeerMessage::Forward { request, commands, paced }));
    }

    /// Proposes one entry, if anything waits. A paced command goes first when its time has come: the others have
    /// their turn at once after it.
    fn propose_next(&mut self) {
        let paced = if self.pace.is_free() { self.proposals.next_paced() } else { None };
        let is_paced = paced.is_some();
        if let Some(batch) = paced.or_else(|| self.proposals.next_batch(&self.options))
            && self.propose_batch(batch)
            && is_paced
        {
            self.pace.begin(self.raw.raft.raft_log.last_index());
        }
    }

    /// Whether this leader may stamp batches. After its first answers it does.
    fn knows_time(&mut self) -> bool {
        let acknowledged = self.raw.raft.commit_to_current_term();
        self.time.begin(self.raw.raft.id, &self.raw.store().configuration().voters, acknowledged)
    }

    /// False if the leader takes no proposals.
    fn propose_batch(&mut self, batch: NextBatch) -> bool {
        let NextBatch { commands, waiters, forwarded } = batch;
        let mut message = eraftpb::Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.id();
        let mut entry = eraftpb::Entry::default();
        // Invariant: Time is data. Time enters the log here.
        entry.data = Batch::encode(self.time.now(), &commands);
        message.entries.push(entry);
        if self.raw.step(message).is_err() {
            // A leader that is handing over takes no proposals.
            for waiter in waiters {
                let _ = waiter.send(Err(Lost::NoLeader));
            }
            for placed in forwarded {
                self.reply_forward(placed.from, placed.request, ForwardOutcome::NotLeader);
            }
            return false;
        }
        let (index, term) = (self.raw.raft.raft_log.last_index(), self.term());
        for placed in forwarded {
            let outcome = ForwardOutcome::Proposed { index, term, position: placed.position };
            self.reply_forward(placed.from, placed.request, outcome);
        }
        if !waiters.is_empty() {
            self.expect_last(waiters);
        }
        true
    }

    /// `waiters` wait for the first commands of the entry that was just proposed.
    fn expect_last(&mut self, waiters: Vec<Waiter>) {
        let (index, term) = (self.raw.raft.raft_log.last_index(), self.term());
        self.expect(index, term, 0, waiters);
    }

    fn expect(&mut self, index: u64, term: u64, position: u32, waiters: Vec<Waiter>) {
        let since_tick = self.ticks;
        self.effects.expectations.push(Expectation { index, term, position, waiters, since_tick });
    }

    fn forward_answered(&mut self, from: u64, request: u64, outcome: ForwardOutcome) {
        let Some(waiters) = self.forwards.answered(from, request) else { return };
        let lost = match outcome {
            ForwardOutcome::Proposed { index, term, position } => {
                return self.expect(index, term, position, waiters);
            }
            ForwardOutcome::NotLeader => Lost::NoLeader,
            ForwardOutcome::Busy => Lost::Busy,
        };
        for waiter in waiters {
            let _ = waiter.send(Err(lost));
        }
    }

    fn reply_forward(&mut self, to: u64, request: u64, outcome: ForwardOutcome) {
        self.effects.messages.push((to, PeerMessage::ForwardReply { request, outcome }));
    }

    fn work_reads(&mut self) {
        let nobody_answers =
            self.leader() == 0 || (self.is_leader() && !self.raw.raft.commit_to_current_term());
        if nobody_answers {
            return;
        }
        if let Some(context) = self.reads.begin(self.ticks) {
            self.raw.read_index(context);
        }
    }

    fn take_ready(&mut self) {
        let mut ready = self.raw.ready();
        let number = ready.number();
        let messages = self.wire_all(ready.take_messages());
        for state in ready.take_read_states() {
            self.effects.barriers.extend(self.reads.confirmed(state.index, &state.request_ctx));
        }
        let committed = ready.take_committed_entries();
        self.take_committed(committed);
        let written = self.take_append(number, &mut ready, messages);
        self.raw.advance_append_async(ready);
        self.follow_if_removed();
        if written {
            self.raw.on_persist_ready(number);
        }
    }

    /// Makes the append of `ready`, whose messages `early` need not wait for it. True if there is nothing to write and
    /// nothing before it is being written: then it counts as written at once.
    fn take_append(&mut self, number: u64, ready: &mut raft::Ready, early: Vec<(u64, PeerMessage)>) -> bool {
        if !ready.snapshot().is_empty() {
            let metadata = ready.snapshot().get_metadata();
            self.effects.install = Some((metadata.index, metadata.term));
        }
        // Whoever leads next goes on from the newest stamp in its log.
        if let Some(stamp) = ready.entries().iter().rev().find_map(|entry| Batch::stamp_of(&entry.data)) {
            self.time.know(stamp);
        }
        let leads = self.is_leader();
        let writes = Writes::take(ready, &mut self.appends, self.raw.mut_store(), self.group, leads);
        let messages = ready.take_persisted_messages();
        // A question promises nothing that would have to be on disk first, and a disk may be slow, or full.
        let (questions, messages): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|message| message.get_msg_type() == MessageType::MsgReadIndex);
        let (questions, mut messages) = (self.wire_all(questions), self.wire_all(messages));
        if writes.has_vote() || self.appends.has_vote() {
            messages.splice(..0, early);
        } else {
            self.effects.messages.extend(early);
        }
        self.effects.messages.extend(questions);
        let nothing_before = self.appends.is_empty();
        if writes.is_empty() && (nothing_before || messages.is_empty()) {
            self.effects.messages.extend(messages);
            return nothing_before;
        }
        self.effects.append = Some(self.appends.push(number, writes, messages, self.ticks));
        false
    }

    fn wire_all(&mut self, messages: Vec<eraftpb::Message>) -> Vec<(u64, PeerMessage)> {
        messages.into_iter().filter_map(|message| self.wire(message)).collect()
    }

    /// The message as it goes to the peer. A snapshot goes its own way, and a read round's heartbeat only to
    /// whom the round must ask.
    fn wire(&mut self, mut message: eraftpb::Message) -> Option<(u64, PeerMessage)> {
        let to = message.to;
        if message.get_msg_type() == MessageType::MsgSnapshot {
            self.effects.snapshots_wanted.push(to);
            return None;
        }
        if asks_or_answers_round(&message, MessageType::MsgHeartbeat)
            && !self.reads.needs(to, self.raw.store().configuration())
        {
            return None;
        }
        self.time.write(&mut message);
        self.mark_beat(&mut message);
        Some((to, PeerMessage::Raft(RaftMessage(Box::new(message)))))
    }

    fn take_committed(&mut self, entries: Vec<eraftpb::Entry>) {
        for entry in entries {
            let (index, term) = (entry.index, entry.term);
            let content = match entry.get_entry_type() {
                EntryType::EntryNormal => Content::Batch(entry.data),
                EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => self.configure(&entry.context),
            };
            self.effects.committed.push(Committed { index, term, content });
        }
    }

    /// Draws the election timeout from seed, id and term instead of the library's random numbers, so that a
    /// simulation with the same seed is the same run. Timeouts differ from term to term, so split votes end.
    fn draw_election_timeout(&mut self) {
        let state = self.options.seed ^ self.id().wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.term() << 17;
        let spread = self.options.election_ticks as u64;
        let drawn = self.options.election_ticks + (mixed(state) % spread) as usize;
        self.raw.raft.set_randomized_election_timeout(drawn);
    }
}

/// A number that looks random: the last steps of SplitMix64.
fn mixed(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// The newest stamp in `log`. Few entries, if any, are read to find it: only those that open a term, or change
/// the configuration, have none.
fn newest_stamp(log: &Log, group: GroupId) -> Result<Option<Stamp>, ReplicaError> {
    for index in (log.first_index(group)..=log.last_index(group)).rev() {
        let entries = log.entries(group, index..index + 1, u64::MAX).map_err(ReplicaError::Log)?;
        let stamp = entries.iter().find_map(|entry| Batch::stamp_of(&entry.data));
        if stamp.is_some() {
            return Ok(stamp);
        }
    }
    Ok(None)
}

/// Whether the message is of `kind` and belongs to a read round, rather than being a plain heartbeat or its
/// answer.
fn asks_or_answers_round(message: &eraftpb::Message, kind: MessageType) -> bool {
    message.get_msg_type() == kind && !message.context.is_empty()
}
