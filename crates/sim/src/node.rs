//! One replica of the simulation: its disk, which survives a crash, and its memory, which does not.
//!
//! Everything that decides is the node's own code: [`quoin_engine::resume`] joins log and store, [`Replica`]
//! speaks the protocol, [`Applier`] changes the state. This file only carries out their effects, at simulated
//! times, on a simulated disk.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use quoin_consensus::GROUP;
use quoin_consensus::log::{Log, Options as LogOptions, SimDisk};
use quoin_consensus::message::PeerMessage;
use quoin_consensus::replica::{Append, Effects, Options, Replica};
use quoin_core::store::{MemoryStore, Order, Version};
use quoin_core::{Progress, Stamp, Store, View, machines, system};
use quoin_engine::Founding;
use quoin_engine::apply::{Applied, Applier};
use std::collections::VecDeque;
use std::sync::Arc;

/// Every version of every key: what a store's flush leaves on disk, and what a snapshot carries.
pub(crate) type Dump = Vec<Version>;

/// What right wall clocks show when the world begins.
pub(crate) const FIRST_MS: u64 = 1_000_000_000;

/// One replica.
pub(crate) struct Node {
    pub(crate) id: u64,
    disk: Arc<SimDisk>,
    flushed: Dump,
    pub(crate) running: Option<Running>,
}

/// What a crash destroys.
pub(crate) struct Running {
    pub(crate) replica: Replica,
    pub(crate) applier: Applier,
    pub(crate) store: MemoryStore,
    pub(crate) log: Arc<Log>,
    /// Appends on their way to the disk, each with the time at which it arrives.
    pub(crate) appends: VecDeque<(u64, Append)>,
    /// A snapshot that was offered to the replica, until it accepts or drops it.
    pub(crate) snapshot: Option<Dump>,
    /// How far this machine's wall clock is ahead of the world's, in milliseconds.
    pub(crate) clock_skew_ms: i64,
    /// When it started: from there its monotonic clock counts.
    started_ms: u64,
}

/// What a node asks of the world.
#[derive(Default)]
pub(crate) struct Requests {
    pub(crate) messages: Vec<(u64, PeerMessage)>,
    pub(crate) snapshots_wanted: Vec<u64>,
    pub(crate) applied: Vec<(Progress, Applied)>,
}

impl Node {
    /// A founding replica with an empty disk.
    pub(crate) fn new(id: u64, voters: &[u64]) -> Self {
        let store = MemoryStore::new();
        let member = |id: &u64| system::Member { id: *id, ..system::Member::default() };
        let founding = Founding::of(voters.iter().map(member).collect());
        machines::found(&store, founding.record(), &founding.members);
        Self { id, disk: Arc::new(SimDisk::new()), flushed: store.dump(), running: None }
    }

    /// Starts the replica, for the first time or after a crash.
    pub(crate) fn start(&mut self, seed: u64, now_ms: u64, clock_skew_ms: i64) -> Result<()> {
        let store = restore(&self.flushed);
        let (node, disk) = (self.id, self.id);
        let options = LogOptions { cluster: 1, node, disk, segment_bytes: 1 << 16, cache_bytes: 1 << 14 };
        let log = Arc::new(Log::open(Arc::clone(&self.disk) as _, options).context("recovering the log")?);
        let options = Options { seed, batch_bytes_max: 4096, message_bytes_max: 2048, ..Options::default() };
        let (replica, applier) = quoin_engine::resume(self.id, &log, &store, options)?;
        let (appends, snapshot) = (VecDeque::new(), None);
        let mut running =
            Running { replica, applier, store, log, appends, snapshot, clock_skew_ms, started_ms: now_ms };
        running.see_clock(now_ms);
        self.running = Some(running);
        Ok(())
    }

    /// Crashes. If in the middle of a write, the sync of the first pending append does not return. If the
    /// `power` fails, the page cache goes too, and any part of what was not synced may have reached the
    /// disk.
    pub(crate) fn crash(&mut self, seed: u64, in_the_middle_of_a_write: bool, power: bool) {
        let Some(mut running) = self.running.take() else { return };
        if in_the_middle_of_a_write && let Some((_, append)) = running.appends.pop_front() {
            self.disk.fail_next_sync();
            // The error is the crash itself.
            let _ = running.log.append(&append.records);
        }
        drop(running);
        if power {
            self.disk.crash(seed);
        }
    }

    /// Flushes the store to disk and purges the log up to there.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if let Some(running) = &self.running {
            self.flushed = running.store.dump();
            let index = running.applier.progress().index.0;
            running.log.purge(GROUP, index)?;
            running.log.seal()?;
        }
        Ok(())
    }

    /// Completes the appends that are due and carries out the replica's effects until there are none.
    /// `disk_ms` draws how long a new append takes.
    pub(crate) fn work(&mut self, now_ms: u64, mut disk_ms: impl FnMut() -> u64) -> Result<Requests> {
        let mut requests = Requests::default();
        let Some(running) = &mut self.running else { return Ok(requests) };
        while let Some((_, append)) = running.appends.pop_front_if(|(due, _)| *due <= now_ms) {
            running.log.append(&append.records)?;
            requests.messages.extend(append.messages);
            running.replica.written(append.number);
        }
        loop {
            let effects = running.replica.effects(now_ms - running.started_ms);
            if effects.is_empty() {
                return Ok(requests);
            }
            let Effects { messages, append, expectations, committed, barriers, snapshots_wanted, install } =
                effects;
            requests.messages.extend(messages);
            requests.snapshots_wanted.extend(snapshots_wanted);
            expectations.into_iter().for_each(|expectation| running.applier.expect(expectation));
            if install.is_some() {
                let dump = running.snapshot.take().context("an accepted snapshot was offered")?;
                running.store = restore(&dump);
                running.applier.installed(&running.store)?;
                running.replica.know_stamp(running.applier.progress().stamp);
                self.flushed = dump;
            }
            if let Some(append) = append {
                // Appends stay in order, however long each takes.
                let after = running.appends.back().map_or(0, |(due, _)| *due);
                running.appends.push_back(((now_ms + disk_ms()).max(after), append));
            }
            for entry in committed {
                let before = running.applier.progress();
                let applied = running.applier.apply(&running.store, entry)?;
                let progress = running.applier.progress();
                let forward = progress.revision >= before.revision && progress.stamp >= before.stamp;
                ensure!(forward, "time or revisions ran backwards: {before:?}, then {progress:?}");
                requests.applied.push((progress, applied));
            }
            running.replica.applied(running.applier.progress().index.0);
            barriers.into_iter().for_each(|barrier| running.applier.wait(barrier));
            for waiter in running.applier.ready_reads() {
                let _ = waiter.send(Ok(()));
            }
        }
    }
}

impl Running {
    /// A tick has passed.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        self.pass(now_ms);
        self.see_clock(now_ms);
        self.replica.tick();
        self.applier.give_up(self.replica.ticks());
    }

    fn see_clock(&mut self, now_ms: u64) {
        self.replica.set_wall(Stamp((FIRST_MS + now_ms).saturating_add_signed(self.clock_skew_ms)));
    }

    /// Tells the replica how much time has passed.
    pub(crate) fn pass(&mut self, now_ms: u64) {
        self.replica.pass(now_ms - self.started_ms);
    }

    /// Offers the replica a snapshot that `from` has sent.
    pub(crate) fn offer_snapshot(&mut self, from: u64, dump: Dump) -> Result<()> {
        let store = restore(&dump);
        let progress = machines::read_progress(&store)?;
        let configuration = quoin_engine::configuration_of(&store)?;
        self.snapshot = Some(dump);
        self.replica.offer_snapshot(from, progress.index.0, progress.term.0, &configuration);
        Ok(())
    }

    /// All live records as of the last applied entry.
    pub(crate) fn state(&self) -> Result<Vec<(Bytes, Bytes)>> {
        let view = View::new(&self.store, self.applier.progress().sequence);
        view.scan(b"", b"", Order::Ascending).map(|pair| pair.map_err(Into::into)).collect()
    }
}

fn restore(dump: &Dump) -> MemoryStore {
    let store = MemoryStore::new();
    for (key, at, value) in dump {
        match value {
            Some(value) => store.put(key, value.clone(), *at),
            None => store.delete(key, *at),
        }
    }
    store
}
