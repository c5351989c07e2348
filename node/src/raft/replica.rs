//! One replica of one group, without I/O: messages, ticks and requests go in, [`Effects`] come out.
//!
//! The driver (threads in a node, one loop in the simulator) calls [`Replica::effects`] after feeding inputs,
//! and does what it says: send, write, apply. The order that it must keep is written at [`Effects`].
//!
//! What lives here besides the library's protocol: batching of proposals, forwarding to the leader, coalescing
//! of reads, and who waits for which entry. What does not: clocks (the time is an argument), files, sockets.

use super::GroupId;
use super::log::{self, Entry, EntryKind, HardState, Log, Record};
use super::message::{ForwardOutcome, PeerMessage};
use super::storage::Storage;
use bytes::Bytes;
use prost::Message as _;
use quoin_core::{Batch, Command, Stamp};
use raft::eraftpb::{self, ConfChangeType, ConfChangeV2, ConfState, EntryType, MessageType};
use raft::{RawNode, StateRole};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Why a proposal was not answered with a reply. See [`crate::engine::ProposeError`] for what clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// There is no leader to take it. It was not done.
    NoLeader,
    /// The leader's queue is full. It was not done.
    Busy,
    /// It was proposed, and another entry took its place in the log. It was not done.
    Overwritten,
    /// It was sent, and whether it was or will be done cannot be known here.
    Unknown,
    /// The configuration change is not possible now. It was not done.
    Refused,
}

/// Who waits for one command's reply.
pub type Waiter = oneshot::Sender<Result<quoin_core::Reply, Lost>>;
/// Who waits until the state is fresh enough to read.
pub type ReadWaiter = oneshot::Sender<Result<(), Lost>>;

/// A command and who waits for it.
pub struct Proposal {
    /// The command.
    pub command: Command,
    /// Told the reply.
    pub waiter: Waiter,
}

/// Waiters for commands of one entry. They are told by the applier when it applies the entry at `index`.
pub struct Expectation {
    /// Of the entry.
    pub index: u64,
    /// If the entry at `index` has another term, the commands were not done.
    pub term: u64,
    /// Position within the batch of the first waiter's command; the others follow.
    pub position: u32,
    /// One per command.
    pub waiters: Vec<Waiter>,
    /// When they began to wait.
    pub since_tick: u64,
}

/// Reads that may go ahead once `index` is applied.
pub struct Barrier {
    /// The state must include this entry.
    pub index: u64,
    /// Told when it does.
    pub waiters: Vec<ReadWaiter>,
}

/// A committed entry, ready to be applied.
pub struct Committed {
    /// Of the entry.
    pub index: u64,
    /// Of the entry.
    pub term: u64,
    /// What it holds.
    pub content: Content,
}

/// What a committed entry holds.
pub enum Content {
    /// A [`Batch`], or nothing.
    Batch(Bytes),
    /// A change of the configuration, with what it is now, and the system command that goes with it.
    Configuration {
        /// As stored by [`encode_configuration`].
        configuration: Bytes,
        /// The change of the member list.
        command: Option<Command>,
    },
}

/// What is to be written: all records with one sync, then the messages, then [`Replica::written`].
pub struct Append {
    /// To be given to [`Replica::written`].
    pub number: u64,
    /// In order.
    pub records: Vec<Record>,
    /// To be sent once the records are on disk.
    pub messages: Vec<(u64, PeerMessage)>,
}

/// What the driver is to do. Expectations first, then `messages` and `append` in any order, then `committed`,
/// then `barriers`; appends in their order, each after the one before.
#[derive(Default)]
pub struct Effects {
    /// To be sent now.
    pub messages: Vec<(u64, PeerMessage)>,
    /// To be written.
    pub append: Option<Append>,
    /// For the applier, before any later `committed`.
    pub expectations: Vec<Expectation>,
    /// To be applied, in order.
    pub committed: Vec<Committed>,
    /// For the applier.
    pub barriers: Vec<Barrier>,
    /// These followers need a snapshot streamed to them.
    pub snapshots_wanted: Vec<u64>,
    /// A snapshot that was stepped in is accepted: its state takes the place of the store's.
    pub install: Option<(u64, u64)>,
}

impl Effects {
    /// True when there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.append.is_none()
            && self.expectations.is_empty()
            && self.committed.is_empty()
            && self.barriers.is_empty()
            && self.snapshots_wanted.is_empty()
            && self.install.is_none()
    }
}

/// Bounds and timing of a replica. Ticks are the driver's.
#[derive(Clone, Debug)]
pub struct Options {
    /// Ticks without a leader before an election; the actual time is drawn between one and two of these.
    pub election_ticks: usize,
    /// Ticks between a leader's heartbeats.
    pub heartbeat_ticks: usize,
    /// Commands in one batch at most.
    pub batch_commands_max: usize,
    /// Bytes in one batch at most (a single larger command still goes, alone).
    pub batch_bytes_max: usize,
    /// Batches of this leader that may be on their way to the disk at once; further proposals wait and form
    /// the next batch.
    pub batches_in_flight_max: usize,
    /// Bytes of entries in one message to a follower.
    pub message_bytes_max: u64,
    /// Messages on their way to a follower, unanswered.
    pub messages_in_flight_max: usize,
    /// Serve linearizable reads by the leader's lease instead of a round of heartbeats. Trusts clocks to run
    /// at the same speed.
    pub lease_reads: bool,
    /// Seeds the election timeouts, together with the id and the term.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            election_ticks: 10,
            heartbeat_ticks: 2,
            batch_commands_max: 4096,
            batch_bytes_max: 1 << 20,
            batches_in_flight_max: 2,
            message_bytes_max: 1 << 20,
            messages_in_flight_max: 128,
            lease_reads: false,
            seed: 0,
        }
    }
}

/// Ticks after which an unanswered read round is begun again.
const READ_RETRY_TICKS: u64 = 10;
/// Ticks after which whoever waits is told that it will not, or may not, happen.
pub const GIVE_UP_TICKS: u64 = 100;

/// Bytes of committed entries handed out at once: a start replays its log in pieces of this.
const COMMITTED_BYTES_MAX: u64 = 16 << 20;

/// One replica of one group.
pub struct Replica {
    group: GroupId,
    raw: RawNode<Storage>,
    options: Options,
    ticks: u64,
    applied: u64,
    /// The tick of each member's last message.
    heard: BTreeMap<u64, u64>,
    queue: VecDeque<(u64, Proposal)>,
    queue_forwarded: VecDeque<(u64, u64, Vec<Command>)>,
    unwritten: VecDeque<(u64, Unwritten)>,
    forwards: BTreeMap<u64, Forwarded>,
    last_request: u64,
    reads_waiting: Vec<(u64, ReadWaiter)>,
    read_round: Option<ReadRound>,
    last_round: u64,
    /// The voters that answered a leader's read round first since the last tick: no more than make a majority with it.
    /// While they are known only they are asked.
    confirming: Vec<u64>,
    effects: Effects,
}

struct Unwritten {
    last: Option<(u64, u64)>,
    base: bool,
    proposed: bool,
}

struct Forwarded {
    to: u64,
    waiters: Vec<Waiter>,
    sent_at_tick: u64,
}

struct ReadRound {
    context: u64,
    started_at_tick: u64,
    waiters: Vec<(u64, ReadWaiter)>,
}

impl Replica {
    /// The replica `id` of `group`, on a log and a store that has applied up to `applied`.
    ///
    /// # Errors
    /// The library refuses the options or the state that it finds.
    pub fn new(
        id: u64,
        group: GroupId,
        log: Arc<Log>,
        configuration: ConfState,
        applied: u64,
        options: Options,
    ) -> Result<Self, raft::Error> {
        let config = raft::Config {
            id,
            election_tick: options.election_ticks,
            heartbeat_tick: options.heartbeat_ticks,
            applied,
            max_size_per_msg: options.message_bytes_max,
            max_inflight_msgs: options.messages_in_flight_max,
            max_committed_size_per_ready: COMMITTED_BYTES_MAX,
            check_quorum: true,
            pre_vote: true,
            read_only_option: if options.lease_reads {
                raft::ReadOnlyOption::LeaseBased
            } else {
                raft::ReadOnlyOption::Safe
            },
            ..raft::Config::default()
        };
        let storage = Storage::new(log, group, configuration, applied);
        let raw = RawNode::new(&config, storage, &slog::Logger::root(slog::Discard, slog::o!()))?;
        let mut replica = Self {
            group,
            raw,
            options,
            ticks: 0,
            applied,
            heard: BTreeMap::new(),
            queue: VecDeque::new(),
            queue_forwarded: VecDeque::new(),
            unwritten: VecDeque::new(),
            forwards: BTreeMap::new(),
            last_request: 0,
            reads_waiting: Vec::new(),
            read_round: None,
            last_round: 0,
            confirming: Vec::new(),
            effects: Effects::default(),
        };
        replica.draw_election_timeout();
        Ok(replica)
    }

    /// This replica's id.
    pub fn id(&self) -> u64 {
        self.raw.raft.id
    }

    /// Whom this replica takes for the leader, 0 for nobody.
    pub fn leader(&self) -> u64 {
        self.raw.raft.leader_id
    }

    /// True while this replica is the leader.
    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// True while this replica leads, has committed in its term, and nobody else votes or learns.
    pub fn is_only_member(&self) -> bool {
        let configuration = self.configuration();
        configuration.voters == [self.id()]
            && configuration.learners.is_empty()
            && configuration.voters_outgoing.is_empty()
            && configuration.learners_next.is_empty()
            && self.is_leader()
            && self.raw.raft.commit_to_current_term()
    }

    /// The term.
    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// The newest committed entry.
    pub fn committed(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    /// Each member's newest matching entry, and whether it was heard within two election timeouts, by id; only a
    /// leader knows.
    pub fn followers(&self) -> Vec<(u64, u64, bool)> {
        if !self.is_leader() {
            return Vec::new();
        }
        let patience = 2 * self.options.election_ticks as u64;
        let lately = |id| self.heard.get(id).is_some_and(|tick| self.ticks - tick <= patience);
        let progress = self.raw.raft.prs().iter();
        let mut followers: Vec<_> =
            progress.map(|(id, progress)| (*id, progress.matched, lately(id))).collect();
        followers.sort_unstable();
        followers
    }

    /// The configuration in force.
    pub fn configuration(&self) -> &ConfState {
        self.raw.store().configuration()
    }

    /// Ticks since the start.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Commands that wait to be proposed.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// One tick of the clock has passed.
    pub fn tick(&mut self) {
        self.ticks += 1;
        // All are asked again now and then, so that a voter that has become slow or deaf is not waited for.
        self.confirming.clear();
        self.raw.tick();
        let ticks = self.ticks;
        let older_than = |since: u64, age: u64| ticks - since > age;
        // A round can be lost with a message or a leader: begin again, with everybody who has come since.
        if let Some(mut round) =
            self.read_round.take_if(|round| older_than(round.started_at_tick, READ_RETRY_TICKS))
        {
            round.waiters.append(&mut self.reads_waiting);
            self.reads_waiting = round.waiters;
        }
        let given_up = |(_, sent): &(&u64, &Forwarded)| older_than(sent.sent_at_tick, GIVE_UP_TICKS);
        let given_up: Vec<u64> = self.forwards.iter().filter(given_up).map(|(id, _)| *id).collect();
        for request in given_up {
            self.resolve_forward(request, Lost::Unknown);
        }
        while let Some((_, proposal)) =
            self.queue.pop_front_if(|(since, _)| older_than(*since, GIVE_UP_TICKS))
        {
            let _ = proposal.waiter.send(Err(Lost::NoLeader));
        }
        for (_, waiter) in self.reads_waiting.extract_if(.., |(since, _)| older_than(*since, GIVE_UP_TICKS)) {
            let _ = waiter.send(Err(Lost::NoLeader));
        }
    }

    /// Takes a message from a peer. Messages of unknown senders and stale terms are dropped, as Raft wants.
    pub fn step(&mut self, from: u64, message: PeerMessage) {
        self.heard.insert(from, self.ticks);
        match message {
            PeerMessage::Raft(message) => {
                self.note_confirmation(&message);
                // An error means that the message does not concern this state: to drop it is the protocol.
                let _ = self.raw.step(*message);
            }
            PeerMessage::Forward { request, commands } => {
                if self.is_leader() {
                    self.queue_forwarded.push_back((from, request, commands));
                } else {
                    self.reply_forward(from, request, ForwardOutcome::NotLeader);
                }
            }
            PeerMessage::ForwardReply { request, outcome } => self.forward_answered(request, outcome),
        }
    }

    /// Tells a forwarder that its commands were not proposed because the leader is overloaded.
    pub fn refuse_forward(&mut self, to: u64, request: u64) {
        self.reply_forward(to, request, ForwardOutcome::Busy);
    }

    fn note_confirmation(&mut self, message: &eraftpb::Message) {
        let answer =
            message.get_msg_type() == MessageType::MsgHeartbeatResponse && !message.context.is_empty();
        let votes = self.configuration().voters.contains(&message.from);
        if answer && votes && !self.is_confirmed() && !self.confirming.contains(&message.from) {
            self.confirming.push(message.from);
        }
    }

    /// Whether enough voters are known that answer read rounds. Never while two configurations are in force.
    fn is_confirmed(&self) -> bool {
        let ConfState { voters, voters_outgoing, .. } = self.configuration();
        let confirming = self.confirming.len() + usize::from(voters.contains(&self.id()));
        voters_outgoing.is_empty() && confirming > voters.len() / 2
    }

    /// The connection to a peer broke: what was forwarded to it has an unknown fate.
    pub fn peer_lost(&mut self, peer: u64) {
        self.confirming.clear();
        self.raw.report_unreachable(peer);
        let lost: Vec<u64> =
            self.forwards.iter().filter(|(_, sent)| sent.to == peer).map(|(id, _)| *id).collect();
        for request in lost {
            self.resolve_forward(request, Lost::Unknown);
        }
    }

    /// Queues a command; it is proposed, or forwarded to the leader, at the next [`Self::effects`].
    pub fn propose(&mut self, proposal: Proposal) {
        self.queue.push_back((self.ticks, proposal));
    }

    /// Queues a linearizable read.
    pub fn read(&mut self, waiter: ReadWaiter) {
        self.reads_waiting.push((self.ticks, waiter));
    }

    /// Proposes a change of the configuration: who votes and who learns. `command` (a member record) is
    /// applied with it. Several changes at once pass through a joint configuration.
    pub fn change_configuration(
        &mut self,
        changes: &[(ConfChangeType, u64)],
        command: Option<Command>,
        waiter: Waiter,
    ) {
        let mut change = ConfChangeV2::default();
        for (kind, id) in changes {
            let mut single = eraftpb::ConfChangeSingle::default();
            single.set_change_type(*kind);
            single.node_id = *id;
            change.changes.push(single);
        }
        if !self.is_leader() {
            let _ = waiter.send(Err(Lost::NoLeader));
            return;
        }
        if self.raw.raft.has_pending_conf() {
            // The library would turn the entry into an empty one.
            let _ = waiter.send(Err(Lost::Refused));
            return;
        }
        let context = ConfigurationContext {
            changes: changes.iter().map(|(kind, id)| ChangeRecord { kind: *kind as u32, id: *id }).collect(),
            command_face: command.as_ref().map_or(0, |command| command.face as u32),
            command: command.map(|command| command.bytes),
        };
        match self.raw.propose_conf_change(context.encode_to_vec(), change) {
            Ok(()) => self.expect_last(0, vec![waiter]),
            Err(_) => drop(waiter.send(Err(Lost::Refused))),
        }
    }

    /// Asks the leader (this replica) to hand its office to `to`.
    pub fn transfer_leader(&mut self, to: u64) {
        self.raw.transfer_leader(to);
    }

    /// Steps in a snapshot whose state has been received whole.
    pub fn offer_snapshot(&mut self, from: u64, index: u64, term: u64, configuration: ConfState) {
        let mut message = eraftpb::Message::default();
        message.set_msg_type(MessageType::MsgSnapshot);
        message.from = from;
        message.to = self.id();
        message.term = self.term();
        let metadata = message.mut_snapshot().mut_metadata();
        metadata.index = index;
        metadata.term = term;
        metadata.set_conf_state(configuration);
        let _ = self.raw.step(message);
    }

    /// A snapshot stream to `to` has ended.
    pub fn snapshot_sent(&mut self, to: u64, success: bool) {
        let status = if success { raft::SnapshotStatus::Finish } else { raft::SnapshotStatus::Failure };
        self.raw.report_snapshot(to, status);
    }

    /// The append with this number, and so all before it, is on disk.
    pub fn written(&mut self, number: u64) {
        while let Some((_, unwritten)) = self.unwritten.pop_front_if(|(first, _)| *first <= number) {
            if unwritten.base {
                self.raw.mut_store().base_written();
            }
            if let Some((index, term)) = unwritten.last {
                self.raw.mut_store().written(index, term);
            }
        }
        self.raw.on_persist_ready(number);
        self.advance_applied();
    }

    /// The applier has applied up to `index`.
    pub fn applied(&mut self, index: u64) {
        self.applied = self.applied.max(index);
        self.advance_applied();
    }

    /// Tells the library; not before a snapshot's mark is written, though its state is there.
    fn advance_applied(&mut self) {
        let log = &self.raw.raft.raft_log;
        let known = self.applied.min(log.persisted).min(log.committed);
        if known > log.applied {
            self.raw.advance_apply_to(known);
        }
    }

    /// Works off the queues and says what is to be done. To be called until it returns nothing to do.
    pub fn effects(&mut self, now: Stamp) -> Effects {
        self.work_queue(now);
        self.work_reads();
        self.draw_election_timeout();
        if self.raw.has_ready() {
            self.take_ready();
        }
        std::mem::take(&mut self.effects)
    }

    fn work_queue(&mut self, now: Stamp) {
        if self.is_leader() {
            let proposed = |unwritten: &&(u64, Unwritten)| unwritten.1.proposed;
            let in_flight = self.unwritten.iter().filter(proposed).count();
            if in_flight < self.options.batches_in_flight_max {
                self.propose_batch(now);
            }
            return;
        }
        for (from, request, _) in std::mem::take(&mut self.queue_forwarded) {
            self.reply_forward(from, request, ForwardOutcome::NotLeader);
        }
        let leader = self.leader();
        if leader != 0 && !self.queue.is_empty() {
            self.forward_queue(leader);
        }
    }

    fn propose_batch(&mut self, now: Stamp) {
        let mut commands = Vec::new();
        let mut waiters = Vec::new();
        let mut bytes = 0;
        let full = |commands: &Vec<Command>, bytes: usize, options: &Options| {
            commands.len() >= options.batch_commands_max || bytes >= options.batch_bytes_max
        };
        while !full(&commands, bytes, &self.options) {
            let Some((_, proposal)) = self.queue.pop_front() else { break };
            bytes += proposal.command.size_in_batch();
            commands.push(proposal.command);
            waiters.push(proposal.waiter);
        }
        let mut forwarded = Vec::new();
        while !full(&commands, bytes, &self.options) {
            let Some((from, request, more)) = self.queue_forwarded.pop_front() else { break };
            forwarded.push((from, request, commands.len() as u32));
            bytes += more.iter().map(Command::size_in_batch).sum::<usize>();
            commands.extend(more);
        }
        if commands.is_empty() {
            return;
        }
        let payload = Batch::encode(now, &commands);
        let mut message = eraftpb::Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.id();
        let mut entry = eraftpb::Entry::default();
        entry.data = payload;
        message.entries.push(entry);
        if self.raw.step(message).is_err() {
            // A leader that is handing over its office takes no proposals.
            for waiter in waiters {
                let _ = waiter.send(Err(Lost::NoLeader));
            }
            for (from, request, _) in forwarded {
                self.reply_forward(from, request, ForwardOutcome::NotLeader);
            }
            return;
        }
        let (index, term) = (self.raw.raft.raft_log.last_index(), self.term());
        for (from, request, position) in forwarded {
            self.reply_forward(from, request, ForwardOutcome::Proposed { index, term, position });
        }
        if !waiters.is_empty() {
            self.expect_last(0, waiters);
        }
    }

    fn expect_last(&mut self, position: u32, waiters: Vec<Waiter>) {
        let (index, term) = (self.raw.raft.raft_log.last_index(), self.term());
        self.effects.expectations.push(Expectation {
            index,
            term,
            position,
            waiters,
            since_tick: self.ticks,
        });
    }

    fn forward_queue(&mut self, leader: u64) {
        let (mut commands, mut waiters, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some((_, proposal)) = self.queue.pop_front() {
            bytes += proposal.command.size_in_batch();
            commands.push(proposal.command);
            waiters.push(proposal.waiter);
            if commands.len() >= self.options.batch_commands_max || bytes >= self.options.batch_bytes_max {
                self.forward(leader, std::mem::take(&mut commands), std::mem::take(&mut waiters));
                bytes = 0;
            }
        }
        if !commands.is_empty() {
            self.forward(leader, commands, waiters);
        }
    }

    fn forward(&mut self, to: u64, commands: Vec<Command>, waiters: Vec<Waiter>) {
        self.last_request += 1;
        let request = self.last_request;
        self.forwards.insert(request, Forwarded { to, waiters, sent_at_tick: self.ticks });
        self.effects.messages.push((to, PeerMessage::Forward { request, commands }));
    }

    fn forward_answered(&mut self, request: u64, outcome: ForwardOutcome) {
        match outcome {
            ForwardOutcome::Proposed { index, term, position } => {
                if let Some(sent) = self.forwards.remove(&request) {
                    let waiters = sent.waiters;
                    self.effects.expectations.push(Expectation {
                        index,
                        term,
                        position,
                        waiters,
                        since_tick: self.ticks,
                    });
                }
            }
            ForwardOutcome::NotLeader => self.resolve_forward(request, Lost::NoLeader),
            ForwardOutcome::Busy => self.resolve_forward(request, Lost::Busy),
        }
    }

    fn resolve_forward(&mut self, request: u64, lost: Lost) {
        let waiters = self.forwards.remove(&request).map(|sent| sent.waiters);
        for waiter in waiters.into_iter().flatten() {
            let _ = waiter.send(Err(lost));
        }
    }

    fn reply_forward(&mut self, to: u64, request: u64, outcome: ForwardOutcome) {
        self.effects.messages.push((to, PeerMessage::ForwardReply { request, outcome }));
    }

    /// Tells everybody who waits to be proposed that it will not happen.
    pub fn fail_queue(&mut self, lost: Lost) {
        for (_, proposal) in self.queue.drain(..) {
            let _ = proposal.waiter.send(Err(lost));
        }
        for (_, waiter) in self.reads_waiting.drain(..) {
            let _ = waiter.send(Err(lost));
        }
    }

    /// One round for all reads that wait; those that come during it wait for the next.
    fn work_reads(&mut self) {
        if self.reads_waiting.is_empty() || self.read_round.is_some() || self.leader() == 0 {
            return;
        }
        if self.is_leader() && !self.raw.raft.commit_to_current_term() {
            return;
        }
        self.last_round += 1;
        let context = self.last_round;
        self.read_round = Some(ReadRound {
            context,
            started_at_tick: self.ticks,
            waiters: std::mem::take(&mut self.reads_waiting),
        });
        // The leader keys rounds by their context: the id keeps ours apart from the others'.
        self.raw.read_index([self.id().to_le_bytes(), context.to_le_bytes()].concat());
    }

    fn take_ready(&mut self) {
        let mut ready = self.raw.ready();
        let number = ready.number();
        for message in ready.take_messages() {
            self.send(message);
        }
        for state in ready.take_read_states() {
            self.read_answered(state.index, &state.request_ctx);
        }
        let committed = ready.take_committed_entries();
        self.take_committed(committed);
        let written = self.take_append(number, &mut ready);
        self.raw.advance_append_async(ready);
        if written {
            self.raw.on_persist_ready(number);
        }
    }

    /// Makes the append of `ready`. True where there is nothing to write and nothing before it on its way:
    /// then it counts as written at once.
    fn take_append(&mut self, number: u64, ready: &mut raft::Ready) -> bool {
        let mut records = Vec::new();
        let mut unwritten = Unwritten { last: None, base: false, proposed: false };
        if !ready.snapshot().is_empty() {
            let metadata = ready.snapshot().get_metadata();
            let (index, term) = (metadata.index, metadata.term);
            self.raw.mut_store().expect_base(index, term, metadata.get_conf_state().clone());
            records.push(Record::Base(self.group, log::Base { index, term }));
            unwritten.base = true;
            self.effects.install = Some((index, term));
        }
        // A commit index alone is not worth a write: the store knows how far it is, and the leader tells.
        if let Some(hard) = ready.hs().filter(|_| ready.must_sync()) {
            let hard = HardState { term: hard.term, vote: hard.vote, commit: hard.commit };
            records.push(Record::HardState(self.group, hard));
        }
        let entries = ready.take_entries();
        self.raw.mut_store().expect(&entries);
        if let Some(last) = entries.last() {
            unwritten.last = Some((last.index, last.term));
            unwritten.proposed = self.is_leader();
        }
        records.extend(entries.into_iter().map(|entry| Record::Entry(self.group, from_library(entry))));
        let messages: Vec<_> =
            ready.take_persisted_messages().into_iter().filter_map(|message| self.wire(message)).collect();
        let nothing_before = self.unwritten.is_empty();
        if records.is_empty() && (nothing_before || messages.is_empty()) {
            self.effects.messages.extend(messages);
            return nothing_before;
        }
        self.unwritten.push_back((number, unwritten));
        self.effects.append = Some(Append { number, records, messages });
        false
    }

    fn send(&mut self, message: eraftpb::Message) {
        if let Some(message) = self.wire(message) {
            self.effects.messages.push(message);
        }
    }

    /// The message as it goes to the peer. A snapshot goes its own way, and what asks for a read round goes to no more
    /// peers than it needs: the tick's heartbeats go to all.
    fn wire(&mut self, message: eraftpb::Message) -> Option<(u64, PeerMessage)> {
        if message.get_msg_type() == MessageType::MsgSnapshot {
            self.effects.snapshots_wanted.push(message.to);
            return None;
        }
        let asks = message.get_msg_type() == MessageType::MsgHeartbeat && !message.context.is_empty();
        if asks && !self.confirming.contains(&message.to) && self.is_confirmed() {
            return None;
        }
        Some((message.to, PeerMessage::Raft(Box::new(message))))
    }

    fn read_answered(&mut self, index: u64, context: &[u8]) {
        let answered = self.read_round.take_if(|round| context.ends_with(&round.context.to_le_bytes()));
        if let Some(round) = answered {
            let waiters = round.waiters.into_iter().map(|(_, waiter)| waiter).collect();
            self.effects.barriers.push(Barrier { index, waiters });
        }
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

    fn configure(&mut self, context: &[u8]) -> Content {
        let context =
            ConfigurationContext::decode(context).expect("the log's checksum covers what we encoded");
        let mut change = ConfChangeV2::default();
        for record in &context.changes {
            let mut single = eraftpb::ConfChangeSingle::default();
            single.set_change_type(change_type(record.kind));
            single.node_id = record.id;
            change.changes.push(single);
        }
        match self.raw.apply_conf_change(&change) {
            Ok(configuration) => self.raw.mut_store().set_configuration(configuration),
            // All replicas refuse it alike; the configuration stays as it is.
            Err(error) => tracing::warn!(%error, "configuration change refused"),
        }
        let face = quoin_core::Face::try_from(context.command_face as u8).expect("a face that we encoded");
        let command = context.command.map(|bytes| Command { face, bytes });
        Content::Configuration { configuration: encode_configuration(self.configuration()), command }
    }

    /// Draws the election timeout from seed, id and term instead of the library's random numbers, so that a
    /// simulation with the same seed is the same run; terms differ between rounds, so split votes end.
    fn draw_election_timeout(&mut self) {
        let mut state = self.options.seed ^ self.id().wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.term() << 17;
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let spread = self.options.election_ticks as u64;
        let drawn = self.options.election_ticks + ((state ^ (state >> 31)) % spread) as usize;
        self.raw.raft.set_randomized_election_timeout(drawn);
    }
}

/// A configuration entry's own description, in its context. The library's encoding, in the entry's data, is
/// only read back by the replica that has just written it.
#[derive(Clone, PartialEq, prost::Message)]
struct ConfigurationContext {
    #[prost(message, repeated, tag = "1")]
    changes: Vec<ChangeRecord>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    command: Option<Bytes>,
    #[prost(uint32, tag = "3")]
    command_face: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct ChangeRecord {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(fixed64, tag = "2")]
    id: u64,
}

/// Who votes and who learns, as stored with the state.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct ConfigurationRecord {
    #[prost(fixed64, repeated, tag = "1")]
    voters: Vec<u64>,
    #[prost(fixed64, repeated, tag = "2")]
    learners: Vec<u64>,
    #[prost(fixed64, repeated, tag = "3")]
    voters_outgoing: Vec<u64>,
    #[prost(fixed64, repeated, tag = "4")]
    learners_next: Vec<u64>,
    #[prost(bool, tag = "5")]
    auto_leave: bool,
}

/// A configuration in our own encoding.
pub fn encode_configuration(configuration: &ConfState) -> Bytes {
    let sorted = |ids: &[u64]| {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids
    };
    let record = ConfigurationRecord {
        voters: sorted(&configuration.voters),
        learners: sorted(&configuration.learners),
        voters_outgoing: sorted(&configuration.voters_outgoing),
        learners_next: sorted(&configuration.learners_next),
        auto_leave: configuration.auto_leave,
    };
    record.encode_to_vec().into()
}

/// A configuration from our own encoding.
///
/// # Errors
/// The bytes are not such a record.
pub fn decode_configuration(bytes: &[u8]) -> Result<ConfState, prost::DecodeError> {
    let record = ConfigurationRecord::decode(bytes)?;
    let mut configuration = ConfState::default();
    configuration.voters = record.voters;
    configuration.learners = record.learners;
    configuration.voters_outgoing = record.voters_outgoing;
    configuration.learners_next = record.learners_next;
    configuration.auto_leave = record.auto_leave;
    Ok(configuration)
}

fn change_type(kind: u32) -> ConfChangeType {
    [ConfChangeType::AddNode, ConfChangeType::RemoveNode, ConfChangeType::AddLearnerNode]
        .into_iter()
        .find(|known| *known as u32 == kind)
        .expect("a kind that we encoded")
}

fn from_library(entry: eraftpb::Entry) -> Entry {
    let kind = match entry.get_entry_type() {
        EntryType::EntryNormal => EntryKind::Normal,
        EntryType::EntryConfChange => EntryKind::ConfChange,
        EntryType::EntryConfChangeV2 => EntryKind::ConfChangeV2,
    };
    Entry { index: entry.index, term: entry.term, kind, context: entry.context, data: entry.data }
}
