//! What must be true once the faults have ended: the cluster recovers, and is the same everywhere.

use crate::checks::state;
use crate::schedule::S;
use crate::world::{Event, World};
use anyhow::{Result, ensure};
use rand::Rng;

impl World {
    /// Ends all faults.
    pub(crate) fn calm(&mut self) -> Result<()> {
        self.stormy = false;
        self.heal_all()?;
        for place in 0..self.nodes.len() {
            self.room(place)?;
            let node = &mut self.nodes[place];
            (node.paused_until, node.hangs_until) = (0, 0);
            if node.process.is_none() && !node.gone {
                self.schedule.after(S / 10, Event::Start(place));
            }
        }
        Ok(())
    }

    /// Whether all replicas run, have one leader and the same state, and nobody waits.
    pub(crate) fn has_settled(&self) -> bool {
        let members = || self.nodes.iter().filter(|node| !node.gone);
        let running: Vec<_> =
            members().filter_map(|node| Some(node.process.as_ref()?.stepped.engine())).collect();
        let left = self.nodes.iter().any(|node| node.gone && node.process.is_some());
        let leaders = running.iter().filter(|engine| engine.raft().is_leader).count();
        let mut progresses = running.iter().map(|engine| *engine.latest().progress());
        let first = progresses.next();
        running.len() == members().count()
            && !left
            && leaders == 1
            && self.operator.is_idle()
            && progresses.all(|progress| Some(progress) == first)
            && !self.clients_wait()
            && self.watchers_are_done()
            && self.hashes_are_cleared()
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

    /// Cuts a follower off for a while, of a cluster that is well: when it is back it must disturb nobody.
    pub(crate) fn cut_follower(&mut self) -> Option<Leader> {
        let leader = self.leader()?;
        let follows = |place: &usize| *place != leader.place && !self.nodes[*place].gone;
        let followers: Vec<usize> = (0..self.nodes.len()).filter(follows).collect();
        if self.voters().is_none_or(|voters| voters.len() < 3) || self.rng.random_bool(0.5) {
            return None;
        }
        let place = followers[self.rng.random_range(0..followers.len())];
        let others = (0..self.nodes.len()).filter(|other| *other != place);
        let cut = others.flat_map(|other| [(place, other), (other, place)]).collect();
        let lasts = 2 * S + self.up_to(3 * S);
        self.cut_for(cut, lasts);
        Some(Leader { until: self.schedule.now() + lasts + S, ..leader })
    }

    /// Checks that the same replica leads in the same term, unless another one has ended meanwhile too: a fault of the storm
    /// may come late, as one of a disk that wrote nothing until then.
    pub(crate) fn check_leader(&self, before: &Leader) -> Result<()> {
        if self.lives() != before.lives {
            return Ok(());
        }
        let now = self.leader().map(|leader| (leader.place, leader.term));
        ensure!(
            now == Some((before.place, before.term)),
            "a follower that was cut off and is back has unseated a leader: {:?} led, now {now:?} does (place and term)",
            (before.place, before.term)
        );
        Ok(())
    }

    fn leader(&self) -> Option<Leader> {
        let leads = |place: usize| {
            let raft = self.nodes[place].process.as_ref()?.stepped.engine().raft();
            raft.is_leader.then_some(Leader { place, term: raft.term, until: 0, lives: self.lives() })
        };
        (0..self.nodes.len()).find_map(leads)
    }

    /// Changes when a process starts or ends.
    fn lives(&self) -> u64 {
        self.nodes.iter().map(|node| node.life).sum()
    }
}

/// Who leads, and until when nobody else may.
pub(crate) struct Leader {
    pub(crate) place: usize,
    pub(crate) term: u64,
    pub(crate) until: u64,
    lives: u64,
}
