//! The operator: replaces members that have lost their disk, one after the other, as docs/reliability.md says.

use crate::clients::{Known, Outcome};
use crate::node::Identity;
use crate::schedule::S;
use crate::world::{Event, World};
use anyhow::{Result, ensure};
use quoin_core::system;
use quoin_engine::{MemberChange, MemberError};
use rand::Rng;
use std::collections::BTreeSet;

/// What the operator is about.
#[derive(Default)]
pub(crate) struct Operator {
    /// The machine whose member is replaced, and how far that is.
    busy: Option<(usize, Stage)>,
    /// Members that were removed, or are about to be.
    removed: BTreeSet<u64>,
    added: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The disk is gone. Its process must find that out by itself.
    Lost,
    /// The member is to be removed.
    Remove,
    /// A new one, with this id, is to be added.
    Add(u64),
    /// The new one joins.
    Joins,
}

impl Operator {
    pub(crate) fn has_removed(&self, id: u64) -> bool {
        self.removed.contains(&id)
    }

    /// Whether everything is as it should be.
    pub(crate) fn is_idle(&self) -> bool {
        self.busy.is_none()
    }
}

impl World {
    /// A machine loses its disk, or the part of it that holds the log: never so many that a majority is gone.
    pub(crate) fn lose_disk(&mut self, place: usize) -> Result<()> {
        let whole =
            |node: &crate::node::Node| node.process.is_some() && node.identity().settled && !node.lost;
        let may = self.operator.is_idle() && self.nodes.len() > 2 && self.nodes.iter().all(whole);
        if !may {
            return Ok(());
        }
        self.counts.disks_lost += 1;
        self.end(place, 20_000);
        let node = &mut self.nodes[place];
        node.lost = true;
        let identity = node.identity().clone();
        if self.rng.random_bool(0.3) {
            node.lose_log();
        } else {
            // Whoever starts it again has the same settings and an empty folder.
            let id = if identity.founder { identity.id } else { 0 };
            let disk = self.rng.random();
            let folder = self.new_folder();
            let fresh = Identity { id, founder: identity.founder, disk, ..Identity::default() };
            self.nodes[place].wipe(folder, fresh);
        }
        self.operator.busy = Some((place, Stage::Lost));
        let after = self.up_to(2 * S);
        self.schedule.after(after, Event::Start(place));
        Ok(())
    }

    /// Goes on with the replacement.
    pub(crate) fn operate(&mut self) -> Result<()> {
        let Some((place, stage)) = self.operator.busy else { return Ok(()) };
        let id = self.nodes[place].id();
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
            Stage::Remove => self.change_members(MemberChange::Remove(id)),
            Stage::Add(id) => {
                let address = self.nodes[place].address.clone();
                let member =
                    system::Member { id, peer_addresses: vec![address], ..system::Member::default() };
                self.change_members(MemberChange::Add(member))
            }
            Stage::Joins => {
                if self.nodes[place].process.as_ref().is_some_and(|process| process.stepped.is_settled()) {
                    self.operator.busy = None;
                } else {
                    self.schedule.after(S, Event::Operate);
                }
                Ok(())
            }
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
        let old = self.nodes[place].id();
        let has = |id: u64| matches!(&outcome, Ok(members) if members.iter().any(|member| member.id == id));
        let (has_old, next_id) = (has(old), 100 + self.operator.added);
        let is_added = stage == Stage::Add(next_id) && has(next_id);
        let next = match (stage, outcome) {
            (Stage::Add(_), Ok(_)) if !is_added => stage,
            (Stage::Remove, Ok(_)) if has_old => stage,
            (Stage::Remove, Ok(_) | Err(MemberError::NotFound)) => {
                self.operator.added += 1;
                Stage::Add(100 + self.operator.added)
            }
            (Stage::Add(_), Ok(_) | Err(MemberError::IdExists | MemberError::PeerExists)) => {
                // Whatever has started there meanwhile.
                if self.nodes[place].process.is_some() {
                    self.end(place, S);
                }
                let (folder, disk) = (self.new_folder(), self.rng.random());
                self.nodes[place].wipe(folder, Identity { disk, ..Identity::default() });
                self.nodes[place].lost = false;
                self.counts.members_replaced += 1;
                self.schedule.after(S / 2, Event::Start(place));
                Stage::Joins
            }
            (stage, _) => stage,
        };
        self.operator.busy = Some((place, next));
        self.schedule.after(S / 2, Event::Operate);
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
