//! The operator: replaces members that have lost their disk, as docs/reliability.md says, adds members, learners too, and
//! removes some. One change at a time.

use crate::clients::{Known, Outcome};
use crate::node::{Identity, Node};
use crate::schedule::{MS, S};
use crate::world::{Event, World};
use anyhow::{Result, ensure};
use quoin_core::system;
use quoin_engine::{MemberChange, MemberError};
use rand::Rng;
use std::collections::BTreeSet;

/// Members that a cluster grows to, at most.
const MEMBERS_MAX: usize = 5;

/// What the operator is about.
#[derive(Default)]
pub(crate) struct Operator {
    /// The machine, and how far it is.
    busy: Option<(usize, Stage)>,
    /// The member that is to go.
    member: u64,
    /// Members that were removed, or are about to be.
    removed: BTreeSet<u64>,
    added: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The disk is gone. Its process must find that out by itself.
    Lost,
    /// The member is to be removed, for one that takes its place.
    Remove,
    /// A member is to be removed for good.
    Leave,
    /// A new one, with this id, is to be added.
    Add { id: u64, learner: bool },
    /// The new one joins.
    Joins { learner: bool },
    /// The learner is to vote.
    Promote,
}

impl Operator {
    pub(crate) fn has_removed(&self, id: u64) -> bool {
        self.removed.contains(&id)
    }

    /// Whether everything is as it should be.
    pub(crate) fn is_idle(&self) -> bool {
        self.busy.is_none()
    }

    fn next_id(&mut self) -> u64 {
        self.added += 1;
        100 + self.added
    }
}

impl World {
    /// Who votes, while every member is well and something may be taken away.
    pub(crate) fn voters(&self) -> Option<Vec<u64>> {
        let whole =
            |node: &Node| node.process.is_some() && node.identity().settled && !node.lost && !node.rotten;
        let all = self.operator.is_idle() && self.nodes.iter().all(|node| node.gone || whole(node));
        let leads = |node: &Node| {
            let raft = node.process.as_ref()?.stepped.engine().raft();
            raft.is_leader.then(|| raft.voters.clone())
        };
        self.nodes.iter().find_map(leads).filter(|_| all)
    }

    /// Whether the member at `place` may be lost: a majority is left.
    pub(crate) fn is_dispensable(&self, place: usize) -> bool {
        self.voters().is_some_and(|voters| voters.len() > 2 && voters.contains(&self.nodes[place].id()))
    }

    /// A machine loses its disk, or the part of it that holds the log: never so many that a majority is gone.
    pub(crate) fn lose_disk(&mut self, place: usize) -> Result<()> {
        if !self.is_dispensable(place) {
            return Ok(());
        }
        self.counts.disks_lost += 1;
        self.end(place, 20_000);
        let node = &mut self.nodes[place];
        let identity = node.identity().clone();
        if self.rng.random_bool(0.3) {
            node.lose_log();
        } else {
            // Whoever starts it again has the same settings and an empty folder. Not the only founder: for about a second it
            // would be a cluster of its own, and docs/reliability.md says so.
            let founder = identity.founder && self.founding.members.len() > 1;
            let id = if founder { identity.id } else { 0 };
            let disk = self.rng.random();
            let folder = self.new_folder();
            let fresh = Identity { id, founder, disk, ..Identity::default() };
            self.nodes[place].wipe(folder, fresh);
        }
        self.replace(place, identity.id);
        let after = self.up_to(2 * S);
        self.schedule.after(after, Event::Start(place));
        Ok(())
    }

    /// The disk of a member is lost: another member is to take its place.
    pub(crate) fn replace(&mut self, place: usize, member: u64) {
        self.nodes[place].lost = true;
        (self.operator.busy, self.operator.member) = (Some((place, Stage::Lost)), member);
    }

    /// Adds a machine, whose member votes at once or learns first, or removes a member.
    pub(crate) fn resize(&mut self) {
        let Some(voters) = self.voters() else { return };
        if voters.len() > 3 && self.rng.random_bool(0.5) {
            self.operator.member = voters[self.rng.random_range(0..voters.len())];
            let Some(place) = self.place_of(self.operator.member) else { return };
            self.operator.busy = Some((place, Stage::Leave));
        } else if voters.len() < MEMBERS_MAX {
            // A second voter is needed for the majority at once. If the only leader ends before it answers, there is none
            // whom to ask whether the member was added, and so whether to start it. As a learner it runs by then.
            let (place, learner) = (self.nodes.len(), self.rng.random_bool(0.5) || voters.len() == 1);
            let (folder, disk) = (self.new_folder(), self.rng.random());
            let mut node = Node::new(place, 0, folder, disk);
            // Until it is a member, it is nobody's.
            node.gone = true;
            self.nodes.push(node);
            let id = self.operator.next_id();
            self.operator.busy = Some((place, Stage::Add { id, learner }));
        }
        self.schedule.after(0, Event::Operate);
    }

    /// Goes on with what is under way.
    pub(crate) fn operate(&mut self) -> Result<()> {
        let Some((place, stage)) = self.operator.busy else { return Ok(()) };
        let id = self.operator.member;
        match stage {
            Stage::Lost => {
                // It has ended, or does not start: it has said that it is lost.
                if self.nodes[place].process.is_some() {
                    self.end(place, S);
                }
                self.operator.busy = Some((place, Stage::Remove));
                self.operator.removed.insert(id);
                self.change_members(MemberChange::Remove(id))
            }
            Stage::Remove | Stage::Leave => {
                self.operator.removed.insert(id);
                self.change_members(MemberChange::Remove(id))
            }
            Stage::Add { id, learner } => {
                let peer_addresses = vec![self.nodes[place].address.clone()];
                let member = system::Member { id, peer_addresses, learner, ..system::Member::default() };
                self.change_members(MemberChange::Add(member))
            }
            Stage::Joins { learner } => {
                let joined =
                    |node: &Node| node.process.as_ref().is_some_and(|process| process.stepped.is_settled());
                if joined(&self.nodes[place]) {
                    self.operator.busy = learner.then_some((place, Stage::Promote));
                }
                self.schedule.after(S / 2, Event::Operate);
                Ok(())
            }
            Stage::Promote => self.change_members(MemberChange::Promote(self.nodes[place].id())),
        }
    }

    /// Asks the leader for a change. What came of it decides what is next.
    fn change_members(&mut self, change: MemberChange) -> Result<()> {
        let leads = |place: &usize| {
            let process = self.nodes[*place].process.as_ref();
            process.is_some_and(|process| process.stepped.engine().raft().is_leader)
        };
        let Some(place) = (0..self.nodes.len()).find(leads) else {
            self.schedule.after(S, Event::Operate);
            return Ok(());
        };
        let (at, engine) = (self.process_at(place), self.process(place).stepped.engine());
        let task = self
            .tasks
            .add(Known::Members { at }, async move { Outcome::Members(engine.change_members(change).await) });
        self.schedule.after(8 * S, Event::GiveUp(task));
        self.schedule.after(9 * S, Event::Operate);
        Ok(())
    }

    pub(crate) fn members_changed(&mut self, outcome: Result<Vec<system::Member>, MemberError>) {
        let Some((place, stage)) = self.operator.busy else { return };
        // What came of an earlier attempt: whoever asks again is told how things are.
        let member = |id: u64| outcome.as_ref().ok()?.iter().find(|member| member.id == id);
        let next = match (stage, &outcome) {
            (Stage::Remove, Ok(_)) if member(self.operator.member).is_none() => Some(self.next()),
            (Stage::Remove, Err(MemberError::NotFound)) => Some(self.next()),
            (Stage::Leave, Ok(_)) if member(self.operator.member).is_none() => self.leave(place),
            (Stage::Leave, Err(MemberError::NotFound)) => self.leave(place),
            (Stage::Add { id, learner }, Ok(_)) if member(id).is_some() => {
                Some(self.begin_anew(place, learner))
            }
            (Stage::Add { learner, .. }, Err(MemberError::IdExists | MemberError::PeerExists)) => {
                Some(self.begin_anew(place, learner))
            }
            (Stage::Promote, Ok(_))
                if member(self.nodes[place].id()).is_some_and(|member| !member.learner) =>
            {
                None
            }
            (Stage::Promote, Err(MemberError::NotLearner)) => None,
            (stage, _) => Some(stage),
        };
        self.operator.busy = next.map(|next| (place, next));
        self.schedule.after(S / 2, Event::Operate);
    }

    fn next(&mut self) -> Stage {
        Stage::Add { id: self.operator.next_id(), learner: false }
    }

    /// A member was removed for good. Its process must find that out by itself.
    fn leave(&mut self, place: usize) -> Option<Stage> {
        self.nodes[place].gone = true;
        self.counts.members_resized += 1;
        None
    }

    /// A member was added: its node begins with an empty disk.
    fn begin_anew(&mut self, place: usize, learner: bool) -> Stage {
        // Whatever has started there meanwhile.
        if self.nodes[place].process.is_some() {
            self.end(place, S);
        }
        let (folder, disk) = (self.new_folder(), self.rng.random());
        let node = &mut self.nodes[place];
        node.wipe(folder, Identity { disk, ..Identity::default() });
        if node.gone {
            self.counts.members_resized += 1;
        } else {
            self.counts.members_replaced += 1;
        }
        (node.lost, node.rotten, node.gone) = (false, false, false);
        self.schedule.after(500 * MS, Event::Start(place));
        Stage::Joins { learner }
    }

    /// A member that has lost what it voted and acknowledged must not take part.
    pub(crate) fn check_lost(&self) -> Result<()> {
        for node in self.nodes.iter().filter(|node| node.lost) {
            let settled = node.process.as_ref().is_some_and(|process| process.stepped.is_settled());
            ensure!(!settled, "member {} has lost its log and takes part again", node.id());
        }
        Ok(())
    }
}
