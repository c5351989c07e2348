//! The three threads of a replica.
//!
//! ```text
//!   clients, peers ──► inbox ──► raft ──► appends ──► log ──► (written) ──► inbox
//!                                 │  └──► peers                └──► peers (what may only be said once written)
//!                                 └─────► work ─────► apply ──► answers, watchers, (applied) ──► inbox
//! ```
//!
//! Each takes all that waits for it at once, so a slow step makes the next batch larger instead of the queue
//! longer. **Bounds.** The inbox and the appends are bounded by the commands in flight (see [`super`]) and by
//! the peers' own flow control; the raft thread waits while more than [`WORK_BYTES_MAX`] wait to be applied.

use super::alone;
use super::apply::Applier;
use super::queue::Queue;
use super::{Published, RaftStatus, Shared, snapshots, wall_clock};
use crate::raft::GroupId;
use crate::raft::log::{LogError, Record};
use crate::raft::message::{ForwardOutcome, PeerMessage};
use crate::raft::replica::{
    Append, Barrier, Committed, Content, Effects, Expectation, Proposal, ReadWaiter, Replica, Waiter,
};
use crate::store::{Importer, LsmStore};
use quoin_core::{Command, Index, Progress, Stamp, StoreError, system};
use raft::eraftpb::{ConfChangeType, ConfState};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of entries that wait to be applied at most.
const WORK_BYTES_MAX: usize = 256 << 20;
/// How long the log thread waits before it tries a full disk again.
const FULL_DISK_PAUSE: Duration = Duration::from_millis(500);

/// What comes to the raft thread.
pub(crate) enum Input {
    Message { from: u64, group: GroupId, message: PeerMessage },
    PeerLost(u64),
    Propose(Proposal),
    Read(ReadWaiter),
    Written(u64),
    Applied(Index),
    ChangeConfiguration { changes: Vec<(ConfChangeType, u64)>, command: Command, waiter: Waiter },
    Transfer(u64),
    SnapshotReceived(Box<ReceivedSnapshot>),
    SnapshotSent { to: u64, success: bool },
    Stop,
}

/// The inbox.
pub(crate) type Inputs = Queue<Input>;

/// A snapshot that has been received whole and waits to take the place of the store.
pub(crate) struct ReceivedSnapshot {
    pub(crate) from: u64,
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) configuration: ConfState,
    pub(crate) importer: Importer,
}

/// What comes to the apply thread.
enum Work {
    Expect(Expectation),
    Commit(Committed),
    Wait(Barrier),
    Install(Box<ReceivedSnapshot>, std::sync::mpsc::SyncSender<()>),
    Tick(u64),
}

/// The running threads.
pub(crate) struct Threads {
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Waits until all have ended; after [`Input::Stop`].
    pub(crate) fn join(self) {
        for handle in self.handles {
            if handle.join().is_err() {
                tracing::error!("a thread of the replica panicked");
            }
        }
    }
}

/// Starts the threads of one replica.
///
/// # Errors
/// A thread cannot be made.
pub(crate) fn spawn(shared: &Arc<Shared>, replica: Replica, applier: Applier) -> io::Result<Threads> {
    let appends = Arc::new(Queue::default());
    let work = Arc::new(WorkQueue::default());
    let raft = RaftThread {
        shared: Arc::clone(shared),
        replica,
        appends: Arc::clone(&appends),
        work: Arc::clone(&work),
        received: None,
        heard: (0, 0),
        alone: alone::Watch::default(),
    };
    let log = LogThread { shared: Arc::clone(shared), appends };
    let apply = ApplyThread { shared: Arc::clone(shared), applier, work };
    let guard = |shared: &Arc<Shared>| EndGuard(Arc::clone(shared));
    let (a, b, c) = (guard(shared), guard(shared), guard(shared));
    let thread = |name: &str| std::thread::Builder::new().name(name.into());
    let handles = vec![
        thread("raft").spawn(move || {
            let _guard = a;
            raft.run();
        })?,
        thread("log").spawn(move || {
            let _guard = b;
            log.run();
        })?,
        thread("apply").spawn(move || {
            let _guard = c;
            apply.run();
        })?,
    ];
    Ok(Threads { handles })
}

/// A panic in one thread ends the node: half a replica must not go on answering.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(&"a broken invariant (see the panic message above)");
        }
    }
}

#[derive(Default)]
struct WorkQueue {
    queue: Queue<Work>,
    bytes: AtomicUsize,
}

impl WorkQueue {
    fn commit(&self, committed: Committed) {
        let bytes = content_bytes(&committed);
        while self.bytes.load(Ordering::Relaxed) > WORK_BYTES_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.queue.push(Work::Commit(committed));
    }
}

fn content_bytes(committed: &Committed) -> usize {
    match &committed.content {
        Content::Batch(payload) => payload.len(),
        Content::Configuration { configuration, .. } => configuration.len(),
    }
}

struct RaftThread {
    shared: Arc<Shared>,
    replica: Replica,
    appends: Arc<Queue<Append>>,
    work: Arc<WorkQueue>,
    received: Option<Box<ReceivedSnapshot>>,
    /// When the leader was last heard, and what was committed by then.
    heard: (u64, u64),
    alone: alone::Watch,
}

impl RaftThread {
    fn run(mut self) {
        let tick = Duration::from_millis(self.shared.config.raft.tick_ms);
        let mut next_tick = Instant::now() + tick;
        let mut inputs = Vec::new();
        self.publish_status();
        while self.shared.inbox.take(&mut inputs, Some(next_tick)) {
            // Whoever is about to send something does so first: what comes together is proposed, and confirmed,
            // together. That costs an idle machine nothing and makes a busy one's batches larger.
            std::thread::yield_now();
            self.shared.inbox.take_more(&mut inputs);
            let mut stop = false;
            for input in inputs.drain(..) {
                stop |= matches!(input, Input::Stop);
                self.feed(input);
            }
            if stop {
                break;
            }
            let now = Instant::now();
            if now >= next_tick {
                // A thread that was not scheduled for long must not count that as many missed heartbeats.
                next_tick = (next_tick + tick).max(now);
                self.tick();
            }
            self.work_off();
        }
        self.shared.alone.end();
        self.shared.inbox.close();
        self.replica.fail_queue(crate::raft::replica::Lost::NoLeader);
        self.appends.close();
        self.work.queue.close();
    }

    fn feed(&mut self, input: Input) {
        match input {
            Input::Message { from, group, message } => self.receive(from, group, message),
            Input::PeerLost(peer) => self.replica.peer_lost(peer),
            Input::Propose(proposal) => self.replica.propose(proposal),
            Input::Read(waiter) => self.replica.read(waiter),
            Input::Written(number) => self.replica.written(number),
            Input::Applied(index) => self.applied(index),
            Input::ChangeConfiguration { changes, command, waiter } => {
                self.replica.change_configuration(&changes, Some(command), waiter);
            }
            Input::Transfer(to) => self.replica.transfer_leader(to),
            Input::SnapshotReceived(snapshot) => {
                let (from, index, term) = (snapshot.from, snapshot.index, snapshot.term);
                let configuration = snapshot.configuration.clone();
                self.received = Some(snapshot);
                self.replica.offer_snapshot(from, index, term, configuration);
                self.work_off();
                // Not accepted: the log has meanwhile come further by itself.
                self.received = None;
            }
            Input::SnapshotSent { to, success } => self.replica.snapshot_sent(to, success),
            Input::Stop => {}
        }
    }

    fn receive(&mut self, from: u64, group: GroupId, message: PeerMessage) {
        if group != crate::raft::GROUP {
            return;
        }
        let overloaded = self.replica.queued() > self.shared.config.limits.commands_in_flight_max;
        if let PeerMessage::Forward { request, .. } = &message
            && overloaded
        {
            self.replica.refuse_forward(from, *request);
            return;
        }
        let consensus = matches!(message, PeerMessage::Raft(_));
        self.replica.step(from, message);
        if consensus && from == self.replica.leader() {
            self.heard = (self.shared.now_ms(), self.replica.committed());
            self.refresh(self.shared.published.load().progress.index);
        }
    }

    fn applied(&mut self, index: Index) {
        self.replica.applied(index.0);
        self.refresh(index);
    }

    fn look_whether_alone(&mut self, applied: Index) {
        let (only_member, committed) = (self.replica.is_only_member(), self.replica.committed());
        self.alone.look(only_member, committed, applied.0, &self.shared.alone);
    }

    /// Everything that was committed when the leader was last heard is applied: that fresh is this replica.
    fn refresh(&self, applied: Index) {
        let (at_ms, committed) = self.heard;
        if applied.0 >= committed {
            self.shared.fresh_at_ms.fetch_max(at_ms, Ordering::Relaxed);
        }
    }

    fn tick(&mut self) {
        self.replica.tick();
        self.work.queue.push(Work::Tick(self.replica.ticks()));
        if self.replica.is_leader() {
            self.shared.fresh_at_ms.store(self.shared.now_ms(), Ordering::Relaxed);
            let due = wall_clock().0 >= self.shared.next_deadline.load(Ordering::Relaxed);
            if due && self.replica.queued() == 0 {
                let (waiter, _nobody) = tokio::sync::oneshot::channel();
                let command = system::Operation::Tick(true).into_command();
                self.replica.propose(Proposal { command, waiter });
            }
        }
        self.publish_status();
    }

    fn work_off(&mut self) {
        loop {
            let effects = self.replica.effects(wall_clock());
            self.look_whether_alone(self.shared.published.load().progress.index);
            if effects.is_empty() {
                break;
            }
            self.carry_out(effects);
        }
        let known = self.shared.raft.load();
        if known.leader != self.replica.leader()
            || known.term != self.replica.term()
            || known.is_leader != self.replica.is_leader()
        {
            self.publish_status();
        }
    }

    fn carry_out(&mut self, effects: Effects) {
        let Effects { messages, append, expectations, committed, barriers, snapshots_wanted, install } =
            effects;
        for (to, message) in messages {
            send(&self.shared, to, message);
        }
        self.work.queue.extend(expectations.into_iter().map(Work::Expect));
        if install.is_some() {
            self.install();
        }
        if let Some(append) = append {
            self.appends.push(append);
        }
        for committed in committed {
            self.work.commit(committed);
        }
        self.let_read(barriers);
        for to in snapshots_wanted {
            snapshots::send(&self.shared, to);
        }
    }

    /// Reads whose state is applied already, as it mostly is, go ahead; the others wait for the apply thread.
    fn let_read(&self, barriers: Vec<Barrier>) {
        if barriers.is_empty() {
            return;
        }
        let applied = self.shared.published.load().progress.index.0;
        let (ready, early): (Vec<_>, Vec<_>) =
            barriers.into_iter().partition(|barrier| barrier.index <= applied);
        for waiter in ready.into_iter().flat_map(|barrier| barrier.waiters) {
            // Nobody there any more: the client has gone.
            let _ = waiter.send(Ok(()));
        }
        self.work.queue.extend(early.into_iter().map(Work::Wait));
    }

    /// The store is replaced before the log restarts behind it: a crash in between leaves a store that is ahead
    /// of its log, which a start can repair; the other way round could not be.
    fn install(&mut self) {
        let received = self.received.take().expect("only a snapshot that was offered is accepted");
        let (done, installed) = std::sync::mpsc::sync_channel(1);
        self.work.queue.push(Work::Install(received, done));
        // An error: the apply thread has ended, and with it the node.
        let _ = installed.recv();
    }

    fn publish_status(&self) {
        let replica = &self.replica;
        let configuration = replica.configuration();
        self.shared.raft.store(Arc::new(RaftStatus {
            leader: replica.leader(),
            term: replica.term(),
            is_leader: replica.is_leader(),
            committed: replica.committed(),
            queued: replica.queued(),
            followers: replica.followers(),
            voters: configuration.voters.clone(),
            learners: configuration.learners.clone(),
        }));
    }
}

/// Sends to a peer; forwarded commands that cannot be sent are told so at once.
fn send(shared: &Shared, to: u64, message: PeerMessage) {
    let request = match &message {
        PeerMessage::Forward { request, .. } => Some(*request),
        _ => None,
    };
    if !shared.transport().send(to, message)
        && let Some(request) = request
    {
        let message = PeerMessage::ForwardReply { request, outcome: ForwardOutcome::NotLeader };
        shared.inbox.push(Input::Message { from: to, group: crate::raft::GROUP, message });
    }
}

struct LogThread {
    shared: Arc<Shared>,
    appends: Arc<Queue<Append>>,
}

impl LogThread {
    fn run(self) {
        let mut appends = Vec::new();
        while self.appends.take(&mut appends, None) {
            let mut records = Vec::new();
            for append in &mut appends {
                records.append(&mut append.records);
            }
            if !self.write(&records) {
                return;
            }
            let Some(last) = appends.last().map(|append| append.number) else { continue };
            for (to, message) in appends.drain(..).flat_map(|append| append.messages) {
                send(&self.shared, to, message);
            }
            self.shared.inbox.push(Input::Written(last));
        }
    }

    /// False when the log can no longer be written.
    fn write(&self, records: &[Record]) -> bool {
        if records.is_empty() {
            return true;
        }
        loop {
            let begun = Instant::now();
            match self.shared.log.append(records) {
                Ok(()) => {
                    self.shared.metrics.log_write_seconds.observe(begun.elapsed().as_secs_f64());
                    self.shared.metrics.log_write_records.observe(records.len() as f64);
                    if self.shared.disk_full.swap(false, Ordering::Relaxed) {
                        tracing::info!("the disk has room again: writes go on");
                    }
                    return true;
                }
                Err(LogError::NoSpace { .. }) => {
                    if !self.shared.disk_full.swap(true, Ordering::Relaxed) {
                        tracing::error!(
                            "the disk is full: writes are refused until there is room, reads go on"
                        );
                    }
                    std::thread::sleep(FULL_DISK_PAUSE);
                    // A node that stops does not wait for room: nobody was answered yet for what is lost here.
                    if self.appends.is_closed() || self.shared.failure.lock().is_some() {
                        return false;
                    }
                }
                Err(error) => {
                    self.shared.fail(&error);
                    return false;
                }
            }
        }
    }
}

struct ApplyThread {
    shared: Arc<Shared>,
    applier: Applier,
    work: Arc<WorkQueue>,
}

impl ApplyThread {
    fn run(mut self) {
        let mut work = Vec::new();
        if let Err(error) = self.system_changed() {
            self.shared.fail(&error);
        }
        self.shared.next_deadline.store(self.deadline(), Ordering::Relaxed);
        while self.work.queue.take(&mut work, None) {
            let before = self.applier.progress().index;
            for item in work.drain(..) {
                if let Err(error) = self.step(item) {
                    self.shared.fail(&error);
                    return;
                }
            }
            self.release_reads();
            let applied = self.applier.progress().index;
            if applied != before {
                self.shared.next_deadline.store(self.deadline(), Ordering::Relaxed);
                self.shared.inbox.push(Input::Applied(applied));
            }
        }
    }

    fn deadline(&self) -> u64 {
        self.applier.next_deadline().map_or(u64::MAX, |Stamp(ms)| ms)
    }

    fn step(&mut self, work: Work) -> Result<(), StoreError> {
        match work {
            Work::Expect(expectation) => self.applier.expect(expectation),
            Work::Wait(barrier) => self.applier.wait(barrier),
            Work::Commit(committed) => return self.commit(committed),
            Work::Install(received, done) => {
                self.install(*received)?;
                let _ = done.send(());
            }
            Work::Tick(tick) => self.applier.give_up(tick),
        }
        Ok(())
    }

    fn commit(&mut self, committed: Committed) -> Result<(), StoreError> {
        let begun = Instant::now();
        let store = Arc::clone(&self.shared.published.load().store);
        self.work.bytes.fetch_sub(content_bytes(&committed), Ordering::Relaxed);
        let applied = self.applier.apply(&*store, committed)?;
        let progress = self.applier.progress();
        store.batch_applied(progress.index)?;
        self.shared.metrics.apply_seconds.observe(begun.elapsed().as_secs_f64());
        self.shared.metrics.batch_commands.observe(applied.commands as f64);
        self.publish(store, progress);
        if !applied.events.is_empty() {
            self.shared.hub().publish(applied.events, progress.revision);
        }
        if applied.system_changed {
            self.system_changed()?;
        }
        for (waiter, answer) in applied.answers {
            // Nobody there any more: the client has gone.
            let _ = waiter.send(answer);
        }
        Ok(())
    }

    fn publish(&self, store: Arc<LsmStore>, progress: Progress) {
        let routes = Arc::clone(self.applier.routes());
        let tables = Arc::clone(self.applier.tables());
        self.shared.published.store(Arc::new(Published { store, routes, tables, progress }));
    }

    fn release_reads(&mut self) {
        for waiter in self.applier.ready_reads() {
            let _ = waiter.send(Ok(()));
        }
    }

    fn install(&mut self, received: ReceivedSnapshot) -> Result<(), StoreError> {
        let store = snapshots::activate(received.importer)?;
        // Reads that are under way still have the old one.
        self.shared.published.load().store.retire();
        self.applier.installed(&*store)?;
        let progress = self.applier.progress();
        tracing::info!(index = progress.index.0, revision = progress.revision.0, "installed a snapshot");
        self.publish(store, progress);
        self.shared.hub().reset(progress.revision);
        self.system_changed()
    }

    /// Members or alarms may have changed: tells the transport and those who admit commands.
    fn system_changed(&self) -> Result<(), StoreError> {
        let published = self.shared.published.load();
        let view = quoin_core::View::new(&*published.store, published.progress.sequence);
        let mut addresses = BTreeMap::new();
        for member in system::members(view)? {
            if let Some(address) = member.peer_addresses.first() {
                let address = address.strip_prefix("http://").unwrap_or(address);
                addresses.insert(member.id, address.to_string());
            }
        }
        let removed = system::removed(view)?;
        // First known, then parted with: who dials again at once must be told.
        self.shared.removed.lock().clone_from(&removed);
        self.shared.transport().part_with(&removed);
        // A replica that joins has no members yet: it was told its peers when it started.
        if !addresses.is_empty() {
            self.members_are(addresses);
        }
        let no_space = system::alarms(view)?.iter().any(|alarm| alarm.kind() == system::AlarmKind::Nospace);
        self.shared.no_space_alarm.store(no_space, Ordering::Relaxed);
        Ok(())
    }

    fn members_are(&self, addresses: BTreeMap<u64, String>) {
        let mut members = self.shared.members.lock();
        if *members == addresses {
            return;
        }
        if members.contains_key(&self.shared.id) && !addresses.contains_key(&self.shared.id) {
            self.shared.cast_out(
                "this member was removed from the cluster: delete its data folder before adding it anew",
            );
        }
        self.shared.transport().set_peers(&addresses);
        *members = addresses;
    }
}
