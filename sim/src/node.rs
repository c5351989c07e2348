//! One replica of the simulation: its disk, which survives, and its memory, which does not.

use anyhow::{Context, Result};
use bytes::Bytes;
use quoin_core::store::{MemoryStore, Order};
use quoin_core::{Progress, Sequence, Stamp, Store, View, machines, system};
use quoin_node::engine::apply::{Applied, Applier};
use quoin_node::raft::GROUP;
use quoin_node::raft::log::{Base, HardState, Log, Options as LogOptions, Record, SimDisk};
use quoin_node::raft::message::PeerMessage;
use quoin_node::raft::replica::{
    Append, Effects, Options, Replica, decode_configuration, encode_configuration,
};
use raft::eraftpb::ConfState;
use std::collections::VecDeque;
use std::sync::Arc;

/// Every version of every key: what a store's flush leaves on disk, and what a snapshot carries.
pub(crate) type Dump = Vec<(Bytes, Sequence, Option<Bytes>)>;

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
    /// Appends on their way to the disk, with the time at which they arrive.
    pub(crate) appends: VecDeque<(u64, Append)>,
    pub(crate) snapshot: Option<(u64, Dump)>,
    /// How far this machine's clock is from the world's, milliseconds.
    pub(crate) clock_skew_ms: u64,
}

/// What a step of a node asks of the world.
#[derive(Default)]
pub(crate) struct Requests {
    pub(crate) messages: Vec<(u64, PeerMessage)>,
    pub(crate) snapshots_wanted: Vec<u64>,
    pub(crate) applied: Vec<(Progress, Applied)>,
}

impl Node {
    /// A founding replica with an empty disk.
    pub(crate) fn new(id: u64, voters: &[u64], disk: SimDisk) -> Self {
        let store = MemoryStore::new();
        let mut configuration = ConfState::default();
        configuration.set_voters(voters.to_vec());
        let members: Vec<_> =
            voters.iter().map(|id| system::Member { id: *id, ..system::Member::default() }).collect();
        machines::found(&store, encode_configuration(&configuration), &members);
        Self { id, disk: Arc::new(disk), flushed: store.dump(), running: None }
    }

    /// Starts, or starts again after a crash.
    pub(crate) fn start(&mut self, seed: u64, clock_skew_ms: u64) -> Result<()> {
        let store = restore(&self.flushed);
        let options = LogOptions { cluster: 1, node: self.id, segment_bytes: 1 << 16, cache_bytes: 1 << 14 };
        let log = Arc::new(Log::open(Arc::clone(&self.disk) as _, options).context("recovering the log")?);
        let progress = machines::read_progress(&store)?;
        let base = log.base(GROUP);
        anyhow::ensure!(
            base.index <= progress.index.0,
            "log begins at {}, store ends at {}",
            base.index,
            progress.index
        );
        if progress.index.0 > log.last_index(GROUP) {
            let known = log.hard_state(GROUP).unwrap_or(HardState { term: 0, vote: 0, commit: 0 });
            let base = Base { index: progress.index.0, term: progress.term.0 };
            let vote = if known.term >= base.term { known.vote } else { 0 };
            let hard = HardState { term: known.term.max(base.term), vote, commit: base.index };
            log.append(&[Record::Base(GROUP, base), Record::HardState(GROUP, hard)])?;
        }
        let configuration = configuration_of(&store)?;
        let options = Options { seed, batch_bytes_max: 4096, message_bytes_max: 2048, ..Options::default() };
        let replica =
            Replica::new(self.id, GROUP, Arc::clone(&log), configuration, progress.index.0, options)?;
        let applier = Applier::open(&store)?;
        let (appends, snapshot) = (VecDeque::new(), None);
        self.running = Some(Running { replica, applier, store, log, appends, snapshot, clock_skew_ms });
        Ok(())
    }

    /// Dies. Of an append that was being written, any part may have reached the disk.
    pub(crate) fn crash(&mut self, seed: u64, in_the_middle_of_a_write: bool) {
        let Some(mut running) = self.running.take() else { return };
        if in_the_middle_of_a_write && let Some((_, append)) = running.appends.pop_front() {
            self.disk.fail_next_sync();
            // The error is the crash itself.
            let _ = running.log.append(&append.records);
        }
        drop(running);
        self.disk.crash(seed);
    }

    /// The store writes itself out; the log may forget what it has.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if let Some(running) = &self.running {
            self.flushed = running.store.dump();
            let index = running.applier.progress().index.0;
            running.log.purge(GROUP, index)?;
        }
        Ok(())
    }

    /// Carries out all that the replica asks, until it asks nothing more.
    pub(crate) fn work(&mut self, now_ms: u64, mut disk_ms: impl FnMut() -> u64) -> Result<Requests> {
        let mut requests = Requests::default();
        let Some(running) = &mut self.running else { return Ok(requests) };
        while let Some((_, append)) = running.appends.pop_front_if(|(due, _)| *due <= now_ms) {
            running.log.append(&append.records)?;
            requests.messages.extend(append.messages);
            running.replica.written(append.number);
        }
        loop {
            let effects = running.replica.effects(Stamp(now_ms + running.clock_skew_ms));
            if effects.is_empty() {
                return Ok(requests);
            }
            let Effects { messages, append, expectations, committed, barriers, snapshots_wanted, install } =
                effects;
            requests.messages.extend(messages);
            requests.snapshots_wanted.extend(snapshots_wanted);
            expectations.into_iter().for_each(|expectation| running.applier.expect(expectation));
            if install.is_some() {
                let (_, dump) = running.snapshot.take().context("an accepted snapshot was offered")?;
                running.store = restore(&dump);
                running.applier.installed(&running.store)?;
                self.flushed = dump;
            }
            if let Some(append) = append {
                // Writes keep their order, however long each takes.
                let after = running.appends.back().map_or(0, |(due, _)| *due);
                running.appends.push_back(((now_ms + disk_ms()).max(after), append));
            }
            for entry in committed {
                let applied = running.applier.apply(&running.store, entry)?;
                requests.applied.push((running.applier.progress(), applied));
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
    /// Takes a snapshot that another replica has sent.
    pub(crate) fn offer_snapshot(&mut self, from: u64, dump: Dump) -> Result<()> {
        let store = restore(&dump);
        let progress = machines::read_progress(&store)?;
        let configuration = configuration_of(&store)?;
        self.snapshot = Some((progress.index.0, dump));
        self.replica.offer_snapshot(from, progress.index.0, progress.term.0, configuration);
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

fn configuration_of(store: &MemoryStore) -> Result<ConfState> {
    let record = machines::read_configuration(store)?.context("a founded store has a configuration")?;
    Ok(decode_configuration(&record)?)
}
