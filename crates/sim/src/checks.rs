//! What is looked at as a whole: states of replicas, their logs, and that the cluster recovers when faults end.

use crate::inject::CLOCK_SKEW_MS;
use crate::node::FIRST_MS;
use crate::record::hash;
use crate::schedule::S;
use crate::world::{Event, World};
use anyhow::{Result, ensure};
use quoin_consensus::GROUP;
use quoin_core::store::Order;
use std::collections::BTreeMap;

/// How often logs are compared.
const LOOK_EVERY: u64 = 2 * S;
/// States are compared after entries whose index is a multiple of this.
const STATE_EVERY: u64 = 16;

impl World {
    /// Compares the state after the newest entry of a replica with that of others after the same one.
    pub(crate) fn compare_state(&mut self, place: usize) -> Result<()> {
        let Some(process) = &self.nodes[place].process else { return Ok(()) };
        let view = process.stepped.engine().latest();
        let progress = *view.progress();
        let right = FIRST_MS + self.schedule.now() / 1000 + CLOCK_SKEW_MS as u64;
        ensure!(
            progress.stamp.0 <= right,
            "entry {} is stamped {} ms ahead of all right clocks",
            progress.index.0,
            progress.stamp.0 - right
        );
        if progress.index.0.is_multiple_of(STATE_EVERY) && progress.index.0 > self.nodes[place].compared {
            self.nodes[place].compared = progress.index.0;
            let state = state(&view)?;
            self.record.lock().state(self.nodes[place].id(), progress.index.0, state);
        }
        Ok(())
    }

    /// The checks that look at everything.
    pub(crate) fn look(&mut self) -> Result<()> {
        self.schedule.after(LOOK_EVERY, Event::Look);
        self.check_lost()?;
        self.match_logs()
    }

    /// Log matching: of two logs that have an entry of one index and term, all before it are the same.
    fn match_logs(&self) -> Result<()> {
        let mut terms: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        for node in &self.nodes {
            let Some(process) = &node.process else { continue };
            let log = process.stepped.log();
            for index in log.first_index(GROUP)..=log.last_index(GROUP) {
                let term = log.term(GROUP, index).unwrap_or(0);
                terms.entry(index).or_default().push((node.id(), term));
            }
        }
        // From the last entry to the first: who agreed once must agree from there on.
        let mut agreed: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for (index, there) in terms.iter().rev() {
            for (place, (one, term)) in there.iter().enumerate() {
                for (other, other_term) in &there[place + 1..] {
                    let pair = (*one, *other);
                    if term == other_term {
                        agreed.entry(pair).or_insert(*index);
                    } else if let Some(later) = agreed.get(&pair) {
                        anyhow::bail!(
                            "the logs of {one} and {other} have the same entry {later} and different ones at {index}"
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends all faults.
    pub(crate) fn calm(&mut self) -> Result<()> {
        self.stormy = false;
        self.heal_all()?;
        for place in 0..self.nodes.len() {
            self.room(place)?;
            let node = &mut self.nodes[place];
            (node.paused_until, node.hangs_until) = (0, 0);
            if node.process.is_none() {
                self.schedule.after(S / 10, Event::Start(place));
            }
        }
        Ok(())
    }

    /// Whether all replicas run, have one leader and the same state, and nobody waits.
    pub(crate) fn has_settled(&self) -> bool {
        let running: Vec<_> =
            self.nodes.iter().filter_map(|node| Some(node.process.as_ref()?.stepped.engine())).collect();
        let leaders = running.iter().filter(|engine| engine.raft().is_leader).count();
        let mut progresses = running.iter().map(|engine| *engine.latest().progress());
        let first = progresses.next();
        running.len() == self.nodes.len()
            && leaders == 1
            && self.operator.is_idle()
            && progresses.all(|progress| Some(progress) == first)
            && !self.clients_wait()
            && self.watchers_are_done()
    }

    /// What must be true when all is calm.
    pub(crate) fn check_end(&mut self) -> Result<()> {
        self.look()?;
        let mut states = Vec::new();
        for node in &self.nodes {
            if let Some(process) = &node.process {
                let view = process.stepped.engine().latest();
                self.check_ledger(&view)?;
                states.push(state(&view)?);
            }
        }
        ensure!(states.windows(2).all(|pair| pair[0] == pair[1]), "the replicas end with different states");
        self.clients.check()
    }

    /// Why the cluster has not settled.
    pub(crate) fn unsettled(&self) -> String {
        let mut text = String::new();
        for node in &self.nodes {
            let status = node.process.as_ref().map(|process| {
                let (engine, stepped) = (process.stepped.engine(), &process.stepped);
                let (raft, progress) = (engine.raft(), *engine.latest().progress());
                (
                    stepped.is_settled(),
                    stepped.has_replayed(),
                    progress.index,
                    progress.revision,
                    (*raft).clone(),
                )
            });
            let peers = node.process.as_ref().map(|process| &process.peers);
            text += &format!("\n  member {} (lost: {}, peers: {peers:?}): {status:?}", node.id(), node.lost);
        }
        let waits = (self.clients_wait(), self.watchers_are_done(), self.operator.is_idle());
        format!("clients wait, watchers are done, operator is idle: {waits:?}{text}{}", self.connections())
    }
}

/// A hash over all that can be read. Records of events that are compacted may be gone or not: they are left out,
/// since what they say is compared when it happens.
fn state(view: &quoin_engine::ReadView) -> Result<u64> {
    let mut seen = 0;
    for (from, to) in [(&b""[..], &b"\0e"[..]), (b"\0f", b"")] {
        for pair in view.view().scan(from, to, Order::Ascending) {
            let (key, value) = pair?;
            seen = hash(hash(seen, &key), &value);
        }
    }
    Ok(seen)
}
