//! The simulated world: time, network, clients and faults.

use crate::node::{Dump, FIRST_MS, Node};
use crate::workload::{Counts, Workload};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use quoin_consensus::message::PeerMessage;
use quoin_core::kv::{Range, range};
use quoin_core::{Progress, View};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};

const TICK_MS: u64 = 10;
const HOUR_MS: i64 = 3_600_000;
/// How far apart right clocks are.
const CLOCK_SKEW_MS: i64 = 50;
/// How long the cluster may take to settle once the faults have ended.
const HEALING_MS_MAX: u64 = 20_000;

/// What to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Every random choice is drawn from it.
    pub seed: u64,
    /// Simulated milliseconds with faults; then everything heals and the final state is checked.
    pub duration_ms: u64,
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What the clients saw.
    pub counts: Counts,
    /// Crashed processes.
    pub crashes: u64,
    /// Network partitions.
    pub partitions: u64,
    /// Wall clocks that were made wrong.
    pub clocks_moved: u64,
    /// Snapshots sent.
    pub snapshots: u64,
    /// The index of the newest applied entry.
    pub last_index: u64,
    /// A hash over all states and events: the same seed gives the same value.
    pub fingerprint: u64,
}

enum Delivery {
    Message(PeerMessage),
    Snapshot(Dump),
    SnapshotSent,
}

struct World {
    rng: ChaCha8Rng,
    now_ms: u64,
    /// How late the first stamp was: time begins where a majority's clocks agree, so with one replica down and a
    /// clock of the others behind, it begins there.
    began_late_ms: Option<u64>,
    nodes: Vec<Node>,
    /// By arrival time and a sequence number that breaks ties: from, to, what.
    network: BTreeMap<(u64, u64), (u64, u64, Delivery)>,
    next_delivery: u64,
    cut: BTreeSet<(u64, u64)>,
    restarts: BTreeMap<u64, u64>,
    workload: Workload,
    states: BTreeMap<u64, u64>,
    report: Report,
    faults: bool,
}

/// Runs one simulation.
///
/// # Errors
/// A check failed: the text says which, and the same seed reproduces it.
pub fn run(settings: Settings) -> Result<Report> {
    let mut world = World::new(settings.seed)?;
    while world.now_ms < settings.duration_ms {
        world.step()?;
    }
    world.heal()?;
    while !world.settled()? {
        ensure!(
            world.now_ms < settings.duration_ms + HEALING_MS_MAX,
            "the cluster did not settle within {HEALING_MS_MAX} ms of the last fault"
        );
        world.step()?;
    }
    world.check_end()?;
    Ok(world.report)
}

impl World {
    fn new(seed: u64) -> Result<Self> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let ids = [1, 2, 3];
        let mut nodes: Vec<_> = ids.iter().map(|id| Node::new(*id, &ids)).collect();
        for node in &mut nodes {
            node.start(rng.random(), 0, rng.random_range(0..CLOCK_SKEW_MS))?;
        }
        Ok(Self {
            rng,
            now_ms: 0,
            began_late_ms: None,
            nodes,
            network: BTreeMap::new(),
            next_delivery: 0,
            cut: BTreeSet::new(),
            restarts: BTreeMap::new(),
            workload: Workload::default(),
            states: BTreeMap::new(),
            report: Report {
                counts: Counts::default(),
                crashes: 0,
                partitions: 0,
                clocks_moved: 0,
                snapshots: 0,
                last_index: 0,
                fingerprint: 0,
            },
            faults: true,
        })
    }

    /// Advances the world by one millisecond.
    fn step(&mut self) -> Result<()> {
        self.now_ms += 1;
        self.deliver()?;
        if self.faults {
            self.clients();
            self.inject_faults()?;
        }
        self.restart_due()?;
        if self.now_ms.is_multiple_of(TICK_MS) {
            for running in self.nodes.iter_mut().filter_map(|node| node.running.as_mut()) {
                running.tick(self.now_ms);
            }
        }
        for place in 0..self.nodes.len() {
            self.work(place)?;
        }
        let nodes = &self.nodes;
        self.workload.collect(|place| {
            let running = nodes[place].running.as_ref()?;
            let progress = running.applier.progress();
            let answer = move |key: &Bytes| {
                let view = View::new(&running.store, progress.sequence);
                let request = Range { key: key.clone(), ..Range::default() };
                let reply =
                    range(view, &progress, &request)?.map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
                Ok(reply.kvs.first().map(|kv| kv.mod_revision))
            };
            Some((progress, Box::new(answer) as Box<dyn Fn(&Bytes) -> Result<Option<i64>>>))
        })?;
        self.report.counts = self.workload.counts;
        Ok(())
    }

    fn work(&mut self, place: usize) -> Result<()> {
        let rng = &mut self.rng;
        let slow = rng.random_bool(0.02);
        let node = &mut self.nodes[place];
        let id = node.id;
        let requests = node
            .work(self.now_ms, || if slow { rng.random_range(0..200) } else { rng.random_range(0..4) })
            .with_context(|| format!("replica {id} at {} ms", self.now_ms))?;
        for (progress, applied) in requests.applied {
            let right = FIRST_MS + self.now_ms + CLOCK_SKEW_MS as u64;
            if progress.stamp.0 > 0 {
                self.began_late_ms.get_or_insert(right.saturating_sub(progress.stamp.0));
            }
            ensure!(
                progress.stamp.0 <= right,
                "entry {} is stamped {} ms ahead of all right clocks",
                progress.index.0,
                progress.stamp.0 - right
            );
            for (waiter, answer) in applied.answers {
                let _ = waiter.send(answer);
            }
            self.fingerprint(progress.index.0 ^ progress.revision.0 << 20 ^ progress.stamp.0 << 40);
        }
        for (to, message) in requests.messages {
            self.send(id, to, message);
        }
        for to in requests.snapshots_wanted {
            self.send_snapshot(place, to);
        }
        self.compare_state(place)
    }

    /// Checks that replicas that have applied the same entry have the same state.
    fn compare_state(&mut self, place: usize) -> Result<()> {
        let Some(running) = &self.nodes[place].running else { return Ok(()) };
        let index = running.applier.progress().index.0;
        self.report.last_index = self.report.last_index.max(index);
        if !index.is_multiple_of(8) {
            return Ok(());
        }
        let mut hash = 0xcbf2_9ce4_8422_2325;
        for (key, value) in running.state()? {
            for byte in key.iter().chain(&[0xff]).chain(&value) {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        let known = *self.states.entry(index).or_insert(hash);
        ensure!(known == hash, "replica {} has a different state after entry {index}", self.nodes[place].id);
        self.fingerprint(hash);
        Ok(())
    }

    fn fingerprint(&mut self, number: u64) {
        self.report.fingerprint =
            (self.report.fingerprint ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }

    fn send(&mut self, from: u64, to: u64, message: PeerMessage) {
        let duplicated = self.faults && self.rng.random_bool(0.01) && matches!(message, PeerMessage::Raft(_));
        if duplicated {
            self.post(from, to, Delivery::Message(message.clone()));
        }
        self.post(from, to, Delivery::Message(message));
    }

    fn post(&mut self, from: u64, to: u64, delivery: Delivery) {
        let lost = self.faults && self.rng.random_bool(0.01);
        if lost || self.cut.contains(&(from, to)) {
            return;
        }
        let late = self.faults && self.rng.random_bool(0.02);
        let delay = if late { self.rng.random_range(1..300) } else { self.rng.random_range(1..6) };
        self.next_delivery += 1;
        self.network.insert((self.now_ms + delay, self.next_delivery), (from, to, delivery));
    }

    fn send_snapshot(&mut self, place: usize, to: u64) {
        let from = self.nodes[place].id;
        let Some(running) = &self.nodes[place].running else { return };
        self.report.snapshots += 1;
        let dump = running.store.dump();
        self.post(from, to, Delivery::Snapshot(dump));
        self.post(to, from, Delivery::SnapshotSent);
    }

    fn deliver(&mut self) -> Result<()> {
        while let Some(first) = self.network.first_entry().filter(|first| first.key().0 <= self.now_ms) {
            let (from, to, delivery) = first.remove();
            if self.cut.contains(&(from, to)) {
                continue;
            }
            let place = to as usize - 1;
            let Some(running) = &mut self.nodes[place].running else { continue };
            running.pass(self.now_ms);
            match delivery {
                Delivery::Message(message) => running.replica.step(from, message),
                Delivery::Snapshot(dump) => running.offer_snapshot(from, dump)?,
                Delivery::SnapshotSent => running.replica.snapshot_sent(from, true),
            }
            // A snapshot that is not accepted at once is dropped, so that a later offer cannot install it.
            self.work(place)?;
            if let Some(running) = &mut self.nodes[place].running {
                running.snapshot = None;
            }
        }
        Ok(())
    }

    fn clients(&mut self) {
        for place in 0..self.nodes.len() {
            let (writes, reads) = (self.rng.random_bool(0.15), self.rng.random_bool(0.05));
            let compacts = self.rng.random_bool(0.002);
            let Some(running) = &mut self.nodes[place].running else { continue };
            if writes {
                running.replica.propose(self.workload.write(&mut self.rng));
            }
            if reads {
                running.replica.read(self.workload.read(place, &mut self.rng));
            }
            if compacts {
                running.replica.propose(Workload::compaction(&running.applier.progress()));
            }
        }
    }

    fn inject_faults(&mut self) -> Result<()> {
        let place = self.rng.random_range(0..self.nodes.len());
        if self.rng.random_bool(0.001) && self.nodes[place].running.is_some() {
            let (seed, torn) = (self.rng.random(), self.rng.random_bool(0.5));
            self.nodes[place].crash(seed, torn, self.rng.random_bool(0.5));
            self.report.crashes += 1;
            let back = self.now_ms + self.rng.random_range(1..1500);
            self.restarts.insert(self.nodes[place].id, back);
        }
        if self.rng.random_bool(0.001) {
            self.cut.clear();
            if self.rng.random_bool(0.6) {
                self.report.partitions += 1;
                self.cut_off(place as u64 + 1);
            }
        }
        if self.rng.random_bool(0.001) {
            self.move_clock(place);
        }
        if self.rng.random_bool(0.01) {
            self.nodes[place].flush()?;
        }
        Ok(())
    }

    /// Makes a wall clock wrong, and sets the others right: a minority is wrong.
    fn move_clock(&mut self, place: usize) {
        for running in self.nodes.iter_mut().filter_map(|node| node.running.as_mut()) {
            running.clock_skew_ms = self.rng.random_range(0..CLOCK_SKEW_MS);
        }
        let furthest = if self.rng.random_bool(0.5) { HOUR_MS } else { 365 * 24 * HOUR_MS };
        let Some(running) = &mut self.nodes[place].running else { return };
        running.clock_skew_ms = self.rng.random_range(-furthest..furthest);
        self.report.clocks_moved += 1;
    }

    /// Partitions one replica from the others, in one direction or both.
    fn cut_off(&mut self, id: u64) {
        let (out, back) = match self.rng.random_range(0..4) {
            0 => (true, false),
            1 => (false, true),
            _ => (true, true),
        };
        for other in self.nodes.iter().map(|node| node.id).filter(|other| *other != id) {
            if out {
                self.cut.insert((id, other));
            }
            if back {
                self.cut.insert((other, id));
            }
        }
    }

    fn restart_due(&mut self) -> Result<()> {
        let due: Vec<u64> =
            self.restarts.iter().filter(|(_, at)| **at <= self.now_ms).map(|(id, _)| *id).collect();
        for id in due {
            self.restarts.remove(&id);
            let (seed, skew) = (self.rng.random(), self.rng.random_range(0..CLOCK_SKEW_MS));
            self.nodes[id as usize - 1]
                .start(seed, self.now_ms, skew)
                .with_context(|| format!("restarting replica {id}"))?;
        }
        Ok(())
    }

    fn heal(&mut self) -> Result<()> {
        self.faults = false;
        self.cut.clear();
        for at in self.restarts.values_mut() {
            *at = self.now_ms;
        }
        self.restart_due()
    }

    fn settled(&self) -> Result<bool> {
        let progresses: Vec<Progress> =
            self.nodes.iter().filter_map(|node| Some(node.running.as_ref()?.applier.progress())).collect();
        let leaders = self.nodes.iter().filter_map(|node| node.running.as_ref());
        let leading = leaders.filter(|running| running.replica.is_leader()).count();
        let level = progresses.windows(2).all(|pair| pair[0] == pair[1]);
        Ok(progresses.len() == self.nodes.len() && level && leading == 1 && self.workload.is_idle())
    }

    fn check_end(&mut self) -> Result<()> {
        let mut states = Vec::new();
        for node in &self.nodes {
            let running = node.running.as_ref().context("every replica runs at the end")?;
            let progress = running.applier.progress();
            self.workload.check_history(View::new(&running.store, progress.sequence), &progress)?;
            let late_ms = (FIRST_MS + self.now_ms).saturating_sub(running.replica.time().0);
            let began_late_ms = self.began_late_ms.unwrap_or(0);
            ensure!(
                late_ms < began_late_ms + self.now_ms / 5 + 1000,
                "replica {} is {late_ms} ms late",
                node.id
            );
            states.push(running.state()?);
        }
        ensure!(states.windows(2).all(|pair| pair[0] == pair[1]), "the replicas end with different states");
        Ok(())
    }
}
