//! The raft thread: feeds inputs to the replica and carries out its effects.

use super::answering::Answering;
use super::expiry::Expiry;
use super::lag::Lag;
use super::send::send;
use super::work::{Work, WorkQueue};
use crate::input::{Input, ReceivedSnapshot};
use crate::queue::Queue;
use crate::shared::Shared;
use crate::status::RaftStatus;
use crate::{alone, clock, snapshots};
use quoin_consensus::message::PeerMessage;
use quoin_consensus::mutants;
use quoin_consensus::replica::{Append, Barrier, Effects, Lost, Replica};
use quoin_consensus::{GROUP, GroupId};
use quoin_core::Index;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub(super) struct RaftThread {
    shared: Arc<Shared>,
    replica: Replica,
    appends: Arc<Queue<Append>>,
    work: Arc<WorkQueue>,
    /// The snapshot that was offered to the replica, until it accepts or refuses it.
    received: Option<Box<ReceivedSnapshot>>,
    lag: Lag,
    expiry: Expiry,
    answering: Answering,
    alone: alone::Watch,
    wall_clock: clock::Watch,
    replayed: bool,
    /// Where nobody else works while this thread waits, what does the work that it waits for.
    meanwhile: Option<Meanwhile>,
}

/// Does what waits for the apply thread.
pub(super) type Meanwhile = Box<dyn FnMut() + Send>;

impl RaftThread {
    pub(super) fn new(
        shared: Arc<Shared>,
        replica: Replica,
        appends: Arc<Queue<Append>>,
        work: Arc<WorkQueue>,
    ) -> Self {
        Self {
            shared,
            replica,
            appends,
            work,
            received: None,
            lag: Lag::default(),
            expiry: Expiry::default(),
            answering: Answering::default(),
            alone: alone::Watch::default(),
            wall_clock: clock::Watch::default(),
            replayed: false,
            meanwhile: None,
        }
    }

    /// In a simulation: `work` is called whenever this thread would wait for the apply thread.
    pub(super) fn while_waiting(&mut self, work: Meanwhile) {
        self.meanwhile = Some(work);
    }

    pub(super) fn run(mut self) {
        let tick = Duration::from_millis(self.shared.settings.raft.tick_ms);
        let mut next_tick = Instant::now() + tick;
        let mut inputs = Vec::new();
        self.begin();
        while self.shared.inbox.take(&mut inputs, Some(self.next_wake(next_tick))) {
            // Lets those who are about to push do so first: what comes together is proposed and confirmed
            // together. This costs an idle machine nothing and makes a busy one's batches larger.
            std::thread::yield_now();
            self.shared.inbox.take_more(&mut inputs);
            let is_due = || {
                let now = Instant::now();
                let is_due = now >= next_tick;
                if is_due {
                    // A thread that was not scheduled for a while must not take that for many missed heartbeats.
                    next_tick = (next_tick + tick).max(now);
                }
                is_due
            };
            if !self.step(&mut inputs, is_due) {
                break;
            }
        }
        self.end();
    }

    /// Before the first step.
    pub(super) fn begin(&mut self) {
        self.replica.pass(self.shared.now_ms());
        self.replica.set_wall(self.shared.clock.wall());
        self.publish_status();
        self.publish_time();
        // Invariant: One disk per member. It campaigns only once it may take part.
        if self.shared.is_settled() {
            self.replica.lead_alone();
            self.work_off();
        }
        self.note_replay(self.shared.published.load().progress.index);
    }

    /// Takes `inputs`, then ticks if that `is_due`, and carries out what comes of it. False once the replica is to
    /// end.
    pub(super) fn step(&mut self, inputs: &mut Vec<Input>, is_due: impl FnOnce() -> bool) -> bool {
        // After everything that is about to be fed in has come.
        self.replica.pass(self.shared.now_ms());
        let mut stop = false;
        for input in inputs.drain(..) {
            stop |= matches!(input, Input::Stop);
            self.feed(input);
        }
        if stop {
            return false;
        }
        if is_due() {
            self.tick(Instant::now());
        }
        self.work_off();
        self.publish_time();
        true
    }

    /// After the last step.
    pub(super) fn end(&mut self) {
        self.replica.fail_queue(Lost::NoLeader);
    }

    fn feed(&mut self, input: Input) {
        match input {
            Input::Message { from, group, message } => self.receive(from, group, message),
            Input::PeerLost(peer) => {
                self.answering.broke(peer);
                self.replica.peer_lost(peer);
            }
            Input::Propose(proposal) => self.replica.propose(proposal),
            Input::ProposePaced(proposal) => self.replica.propose_paced(proposal),
            Input::Read(waiter) => self.replica.read(waiter),
            Input::Written(number) => self.replica.written(number),
            Input::Applied(index) => self.applied(index),
            Input::ChangeConfiguration { changes, command, seen, waiter } => {
                if self.is_configuration(&seen) {
                    self.replica.change_configuration(&changes, Some(command), waiter);
                } else {
                    let _ = waiter.send(Err(Lost::Refused));
                }
            }
            Input::Transfer(to) => self.replica.transfer_leader(to),
            Input::SnapshotReceived(snapshot) => {
                let (from, index, term) = (snapshot.from, snapshot.index, snapshot.term);
                let configuration = snapshot.configuration.clone();
                self.received = Some(snapshot);
                self.replica.offer_snapshot(from, index, term, &configuration);
                self.work_off();
                // If it was not accepted, the log has meanwhile come further by itself.
                self.received = None;
            }
            Input::SnapshotSent { to, success } => self.replica.snapshot_sent(to, success),
            Input::Stop => {}
        }
    }

    fn receive(&mut self, from: u64, group: GroupId, message: PeerMessage) {
        if group != GROUP {
            return;
        }
        self.replica.step(from, message);
        self.note_freshness();
    }

    fn applied(&mut self, index: Index) {
        self.replica.applied(index.0);
        self.refresh(index);
        self.note_replay(index);
        // What an entry left over because of its bounds follows without a tick: no clock has to reach it.
        let stamp = self.shared.published.load().progress.stamp;
        if self.shared.next_deadline.load(Ordering::Relaxed) <= stamp.0 {
            self.let_expire();
        } else {
            self.expiry.rest();
        }
    }

    /// Proposes that what is due expires, unless a step of that is under way.
    fn let_expire(&mut self) {
        if self.replica.is_leader()
            && let Some(step) = self.expiry.next(self.shared.expiry_us.load(Ordering::Relaxed))
        {
            self.replica.propose_paced(step);
        }
    }

    /// When to go on although nothing comes.
    fn next_wake(&self, next_tick: Instant) -> Instant {
        let Some(from_ms) = self.replica.paced_from_ms() else { return next_tick };
        let left = Duration::from_millis(from_ms.saturating_sub(self.shared.now_ms()));
        next_tick.min(Instant::now() + left)
    }

    /// `applied` is published: tells those who wait to serve clients when it is enough.
    fn note_replay(&mut self, applied: Index) {
        if !self.replayed && (self.replica.has_replayed(applied.0) || mutants::is("served-unreplayed")) {
            self.replayed = true;
            self.shared.set_replayed();
        }
    }

    fn update_alone(&mut self) {
        let applied = self.shared.published.load().progress.index;
        let (only_member, committed) = (self.replica.is_only_member(), self.replica.committed());
        self.alone.update(only_member, committed, applied.0, &self.shared.alone);
    }

    /// The leader may have said what must be applied to be how fresh.
    fn note_freshness(&mut self) {
        if let Some(freshness) = self.replica.take_freshness() {
            self.lag.note(freshness);
            self.refresh(self.shared.published.load().progress.index);
        }
    }

    fn refresh(&mut self, applied: Index) {
        if let Some(as_of_ms) = self.lag.applied(applied) {
            self.shared.set_fresh_at(as_of_ms);
        }
    }

    fn tick(&mut self, now: Instant) {
        if !self.shared.is_settled() {
            // Invariant: One disk per member. Time does not pass for it, so it does not campaign.
            self.replica.fail_queue(Lost::NoLeader);
            return self.publish_status();
        }
        // Both clocks at one moment: feeding may have taken a while.
        self.replica.pass(self.shared.now_ms());
        self.replica.set_wall(self.shared.clock.wall());
        self.replica.set_full(self.shared.disk_full.load(Ordering::Relaxed));
        self.replica.tick();
        self.watch_wall_clock(now);
        self.work.extend([Work::Tick(self.replica.ticks())]);
        self.note_freshness();
        let is_due = self.replica.time().0 >= self.shared.next_deadline.load(Ordering::Relaxed);
        if self.replica.is_leader() && is_due {
            self.let_expire();
        }
        self.publish_status();
    }

    /// What other threads take for the cluster's time.
    fn publish_time(&self) {
        self.shared.clock.set_offset(self.replica.time_offset_ms());
    }

    fn watch_wall_clock(&mut self, now: Instant) {
        let Some(ahead_ms) = self.replica.wall_ahead_ms() else { return };
        self.shared.metrics.clock_ahead_seconds.set(ahead_ms as f64 / 1e3);
        if let Some(what) = self.wall_clock.look(ahead_ms, now) {
            tracing::warn!("{what}");
        }
    }

    fn work_off(&mut self) {
        loop {
            let effects = self.replica.effects(self.shared.now_ms());
            self.update_alone();
            if effects.is_empty() {
                break;
            }
            // Before anybody hears that it was changed: whoever changes it next must see it.
            if !self.is_configuration(&self.shared.raft.borrow()) {
                self.publish_status();
            }
            self.carry_out(effects);
        }
        if !self.is_status_current() {
            let leader = self.replica.leader();
            if leader != 0 && leader != self.shared.raft.borrow().leader {
                self.shared.metrics.leader_changes.inc();
            }
            self.publish_status();
        }
    }

    fn is_status_current(&self) -> bool {
        let (known, replica) = (self.shared.raft.borrow(), &self.replica);
        (known.leader, known.term, known.is_leader) == (replica.leader(), replica.term(), replica.is_leader())
    }

    /// Whether those who vote and learn are those that `status` has.
    fn is_configuration(&self, status: &RaftStatus) -> bool {
        let configuration = self.replica.configuration();
        (&status.voters, &status.learners) == (&configuration.voters, &configuration.learners)
    }

    fn carry_out(&mut self, effects: Effects) {
        let Effects { messages, append, expectations, committed, barriers, snapshots_wanted, install } =
            effects;
        for (to, message) in messages {
            send(&self.shared, to, message);
        }
        self.work.extend(expectations.into_iter().map(Work::Expect));
        if install.is_some() && !self.install() {
            // The replica ends with its apply thread. What it has not installed it must not acknowledge, and
            // its log must not begin behind its store.
            self.appends.close();
            return;
        }
        if let Some(append) = append {
            self.appends.push(append);
        }
        for committed in committed {
            self.work.commit(committed);
        }
        self.release_reads(barriers);
        for to in snapshots_wanted {
            snapshots::send(&self.shared, to);
        }
    }

    /// Lets reads go ahead whose entry is applied already, as it usually is. The others wait for the apply
    /// thread.
    fn release_reads(&self, barriers: Vec<Barrier>) {
        if barriers.is_empty() {
            return;
        }
        let applied = self.shared.published.load().progress.index.0;
        let (ready, early): (Vec<_>, Vec<_>) =
            barriers.into_iter().partition(|barrier| barrier.index <= applied);
        for waiter in ready.into_iter().flat_map(|barrier| barrier.waiters) {
            // An error: the client has disconnected.
            let _ = waiter.send(Ok(()));
        }
        self.work.extend(early.into_iter().map(Work::Wait));
    }

    /// **Invariant: Store before log.** The store is replaced before the log restarts behind it. A crash in
    /// between leaves a store that is ahead of its log, which the next start repairs; a log ahead of its
    /// store it could not.
    ///
    /// False where the apply thread has ended before it replaced the store: then nothing may follow in
    /// the log.
    fn install(&mut self) -> bool {
        let received = self.received.take().expect("only a snapshot that was offered is accepted");
        let (done, installed) = std::sync::mpsc::sync_channel(1);
        self.work.extend([Work::Install(received, done)]);
        if let Some(work) = &mut self.meanwhile {
            work();
        }
        let installed = installed.recv().is_ok();
        self.replica.know_stamp(self.shared.published.load().progress.stamp);
        installed
    }

    fn publish_status(&mut self) {
        let (followers, now_ms) = (self.replica.followers(), self.shared.now_ms());
        self.answering.note(&followers, now_ms);
        let healthy = self.answering.healthy(self.shared.settings.raft.member_health_ms, now_ms);
        let known_committed = self.replica.freshness().map(|freshness| freshness.committed);
        let replica = &self.replica;
        let configuration = replica.configuration();
        self.shared.raft.send_replace(Arc::new(RaftStatus {
            leader: replica.leader(),
            term: replica.term(),
            is_leader: replica.is_leader(),
            committed: replica.committed(),
            known_committed,
            applied: replica.known_applied(),
            queued: replica.queued(),
            followers,
            healthy,
            voters: configuration.voters.clone(),
            learners: configuration.learners.clone(),
        }));
    }
}

impl Drop for RaftThread {
    fn drop(&mut self) {
        self.shared.alone.end();
        self.shared.inbox.end();
        self.appends.close();
        self.work.close();
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::apply::Applier;
    use super::super::apply::ApplyThread;
    use super::super::work::BYTES_MAX;
    use super::*;
    use crate::Founding;
    use crate::owner::Owner;
    use crate::peers::PeerHandler;
    use crate::settings::Settings;
    use crate::start::Opened;
    use crate::threads::log::LogThread;
    use bytes::Bytes;
    use quoin_consensus::Change;
    use quoin_consensus::log::SimDisk;
    use quoin_consensus::replica::{Committed, Content, Proposal};
    use quoin_consensus::transport::{Endpoint, Transport};
    use quoin_core::store::Order;
    use quoin_core::{Term, View, kv, machines, system};
    use quoin_store::StoreFolder;
    use std::collections::BTreeMap;
    use std::net::TcpListener;
    use std::path::Path;

    impl RaftThread {
        /// Takes what comes within `patience`; false if nothing does.
        fn wait(&mut self, patience: Duration) -> bool {
            let mut inputs = Vec::new();
            let until = Instant::now() + patience;
            self.shared.inbox.take(&mut inputs, Some(self.next_wake(until)));
            let came = !inputs.is_empty() || Instant::now() < until;
            self.step(&mut inputs, || false);
            came
        }

        fn keys(&self) -> usize {
            let published = self.shared.published.load_full();
            let view = View::new(&*published.store, published.progress.sequence);
            view.scan_prefix(b"\x01k", Order::Ascending).count()
        }
    }

    /// An entry lets a thousand keys expire, and only a tick proposed the next one: a million keys with one deadline
    /// took 50 seconds.
    #[test]
    fn what_an_entry_leaves_over_expires_without_another_tick() {
        const KEYS: usize = 2500;
        let folder = tempfile::tempdir().unwrap();
        let founding = Founding::of(vec![system::Member { id: 1, ..system::Member::default() }]);
        let disk = Arc::new(SimDisk::new());
        let owner = Owner { cluster: 7, id: 1, disk: 9, ..Owner::default() };
        let opened = Opened::open(owner, folder.path(), disk, Settings::default(), Some(&founding)).unwrap();
        let (shared, replica, applier) = opened.into_parts();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let handler = Arc::new(PeerHandler::new(&shared, Some(runtime.handle().clone())));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let who = (shared.cluster, shared.id, shared.disk);
        let (nobody, patience) = (BTreeMap::new(), Duration::from_secs(60));
        let transport = Transport::start(
            Endpoint { listener, address: String::new(), keys: None },
            who,
            GROUP,
            handler,
            &nobody,
            patience,
        );
        shared.set_transport(transport.unwrap());
        let (appends, work) = (Arc::new(Queue::default()), Arc::new(WorkQueue::default()));
        let log = LogThread::new(Arc::clone(&shared), Arc::clone(&appends));
        let apply = ApplyThread { shared: Arc::clone(&shared), applier, work: Arc::clone(&work) };
        let threads = [std::thread::spawn(|| log.run()), std::thread::spawn(|| apply.run())];
        let mut raft = RaftThread::new(Arc::clone(&shared), replica, appends, work);
        while !raft.replica.is_leader() {
            raft.tick(Instant::now());
            raft.wait(Duration::from_millis(5));
        }
        // Due as soon as they are written, and from here on nothing ticks.
        for number in 0..KEYS {
            let (key, ttl) = (Bytes::from(number.to_string()), Some(kv::Ttl::At(1)));
            let put = kv::Put { key, ttl, ..kv::Put::default() };
            let (waiter, _nobody) = tokio::sync::oneshot::channel();
            raft.replica.propose(Proposal { command: kv::Operation::Put(put).into_command(), waiter });
        }
        let mut most = 0;
        while most < KEYS || raft.keys() > 0 {
            assert!(raft.wait(Duration::from_secs(20)), "{} keys are left, and nothing comes", raft.keys());
            most = most.max(raft.keys());
        }
        drop(raft);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    fn three() -> Founding {
        let member = |id| system::Member { id, ..system::Member::default() };
        Founding::of([1, 2, 3].map(member).into())
    }

    /// The first of three founders, which hears of no other.
    fn one_of_three(folder: &Path) -> (Arc<Shared>, Replica, Applier) {
        let founding = three();
        let disk = Arc::new(SimDisk::new());
        let owner = Owner { cluster: 7, id: 1, disk: 9, ..Owner::default() };
        let opened = Opened::open(owner, folder, disk, Settings::default(), Some(&founding)).unwrap();
        opened.into_parts()
    }

    /// Two changes that were found to be safe at one time, one after the other, took the majority away.
    #[test]
    fn a_change_that_was_checked_for_other_voters_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (shared, replica, _applier) = one_of_three(folder.path());
        let (appends, work) = (Arc::new(Queue::default()), Arc::new(WorkQueue::default()));
        let mut raft = RaftThread::new(shared, replica, appends, work);
        raft.publish_status();
        let now = Arc::clone(&raft.shared.raft.borrow());
        let before = |voters: &[u64], learners: &[u64]| {
            let (voters, learners) = (voters.to_vec(), learners.to_vec());
            Arc::new(RaftStatus { voters, learners, ..RaftStatus::clone(&now) })
        };
        for (seen, answer) in [
            (before(&[1, 2, 3, 4], &[]), Lost::Refused),
            (before(&[1, 2, 3], &[4]), Lost::Refused),
            (Arc::clone(&now), Lost::NoLeader),
        ] {
            let (waiter, mut reply) = tokio::sync::oneshot::channel();
            let command = system::Operation::RemoveMember(2).into_command();
            raft.feed(Input::ChangeConfiguration { changes: vec![Change::Remove(2)], command, seen, waiter });
            assert_eq!(reply.try_recv().unwrap(), Err(answer));
        }
    }

    /// The raft thread slept for ever when the apply thread had ended, after a fault of the store, and too much waited
    /// to be applied.
    #[test]
    fn nobody_waits_for_room_in_the_queue_of_an_apply_thread_that_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let founding = Founding::of(vec![system::Member { id: 1, ..system::Member::default() }]);
        let disk = Arc::new(SimDisk::new());
        let owner = Owner { cluster: 7, id: 1, disk: 9, ..Owner::default() };
        let opened = Opened::open(owner, folder.path(), disk, Settings::default(), Some(&founding)).unwrap();
        let (shared, _replica, applier) = opened.into_parts();
        let work = Arc::new(WorkQueue::default());
        let apply = ApplyThread { shared, applier, work: Arc::clone(&work) };
        let producer = std::thread::spawn(move || {
            for index in 2..5 {
                let content = Content::Batch(Bytes::from(vec![0; BYTES_MAX / 2 + 1]));
                work.commit(Committed { index, term: 1, content });
            }
        });
        drop(apply);
        let end = Instant::now() + Duration::from_secs(60);
        while !producer.is_finished() {
            assert!(Instant::now() < end, "it waits for a thread that has ended");
            std::thread::yield_now();
        }
        producer.join().unwrap();
    }

    /// The raft thread went on when the apply thread had ended before it replaced the store: the log began
    /// behind the store, and the leader was told that the snapshot is here.
    #[test]
    fn a_snapshot_that_was_not_installed_leaves_no_mark_in_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let (shared, replica, _applier) = one_of_three(folder.path());
        let (appends, work) = (Arc::new(Queue::default()), Arc::new(WorkQueue::default()));
        let mut feeding =
            RaftThread::new(Arc::clone(&shared), replica, Arc::clone(&appends), Arc::clone(&work));
        work.end();
        let elsewhere = StoreFolder::open(&folder.path().join("received")).unwrap();
        let importer = elsewhere.import(GROUP.0, shared.settings.store.options()).unwrap();
        let configuration = three().configuration;
        let (from, index, term) = (2, 90, machines::FOUNDING_TERM.0);
        let received = ReceivedSnapshot { from, index, term, configuration, importer };
        let (fed, raft) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            feeding.feed(Input::SnapshotReceived(Box::new(received)));
            fed.send(feeding).is_ok()
        });
        let raft = raft.recv_timeout(Duration::from_secs(60)).expect("it waits for nobody");
        assert_eq!(raft.replica.committed(), index, "it was accepted");
        drop(raft);
        LogThread::new(Arc::clone(&shared), appends).run();
        let (base, progress) = (shared.log.base(GROUP), shared.published.load().progress);
        assert_eq!((base.index, Term(base.term)), (progress.index.0, progress.term));
    }
}
