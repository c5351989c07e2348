//! Processes that start and end, and nodes that join.

use crate::clients::{Known, Outcome};
use crate::schedule::{MS, S};
use crate::world::{Event, World};
use anyhow::{Context, Result, bail, ensure};
use quoin_consensus::log::LogError;
use quoin_engine::OpenError;
use quoin_engine::join::{JoinAnswer, Joining};
use rand::Rng;
use std::collections::BTreeMap;

impl World {
    /// Starts the process of a machine.
    pub(crate) fn start(&mut self, place: usize) -> Result<()> {
        let node = &self.nodes[place];
        if node.process.is_some() || node.gone && !self.operator.has_removed(node.id()) {
            return Ok(());
        }
        let (identity, life) = (node.identity().clone(), node.life);
        if identity.id == 0 || !identity.founder && !identity.settled {
            return self.join(place, life);
        }
        self.open(place, &identity.peers)
    }

    fn open(&mut self, place: usize, peers: &BTreeMap<u64, String>) -> Result<()> {
        let (now, founding) = (self.schedule.now(), &self.founding);
        let node = &mut self.nodes[place];
        let id = node.id();
        match node.start(now, &mut self.rng, founding, peers) {
            Ok(()) => ensure!(!node.rotten, "replica {id} does not notice that its log has rotted"),
            // It has lost its log, and says so.
            Err(OpenError::LogGone { .. } | OpenError::Join(_)) if node.lost => {
                self.schedule.after(S, Event::Operate);
                return Ok(());
            }
            Err(OpenError::Log(LogError::Corrupt { .. })) if node.rotten => {
                self.replace(place, id);
                self.schedule.after(S, Event::Operate);
                return Ok(());
            }
            // It says that its disk has failed or is full, and is started again.
            Err(_) if node.sync_failed || node.full => {
                node.sync_failed = false;
                node.disk.spare_next_sync();
                let after = self.up_to(2 * S);
                self.schedule.after(after, Event::Start(place));
                return Ok(());
            }
            Err(error) => bail!("replica {id} does not start: {error}"),
        }
        let record = self.record.clone();
        let process = self.process(place);
        process.stepped.observe(Box::new(move |index, replies, events| {
            record.lock().applied(id, index, replies, events);
        }));
        self.counts.starts += 1;
        self.nodes[place].set_clocks(now);
        self.begin_threads(place)
    }

    /// Ends the process of a machine, whatever it is doing. Its peers notice within `noticed` microseconds, or
    /// because it is silent.
    pub(crate) fn end(&mut self, place: usize, noticed: u64) {
        let (id, process) = (self.nodes[place].id(), self.process_at(place));
        self.end_streams(process);
        let node = &mut self.nodes[place];
        (node.process, node.sync_failed) = (None, false);
        node.disk.spare_next_sync();
        node.life += 1;
        self.break_links(id, noticed);
        self.clients_lose(place);
    }

    /// A node that was added asks a member who it is.
    pub(crate) fn join(&mut self, place: usize, life: u64) -> Result<()> {
        let node = &self.nodes[place];
        if node.life != life || node.process.is_some() {
            return Ok(());
        }
        let (address, disk) = (node.address.clone(), node.identity().disk);
        let others: Vec<usize> =
            (0..self.nodes.len()).filter(|other| *other != place && self.reaches(place, *other)).collect();
        let asked = (!others.is_empty()).then(|| others[self.rng.random_range(0..others.len())]);
        let answer = asked.and_then(|other| {
            let process = self.nodes[other].process.as_ref()?;
            Some((other, process.stepped.answer_join(address, disk)?))
        });
        match answer {
            Some((other, answer)) => {
                let known = Known::Join { asked: self.process_at(other), place, life };
                self.tasks.add(known, async { Outcome::Join(Box::new(answer.await)) });
                self.follow_up(other)
            }
            None => {
                self.schedule.after(500 * MS, Event::Join(place, life));
                Ok(())
            }
        }
    }

    /// A member has said who a node is.
    pub(crate) fn joined(&mut self, place: usize, life: u64, answer: &JoinAnswer) -> Result<()> {
        if self.nodes[place].life != life || self.nodes[place].process.is_some() {
            return Ok(());
        }
        let disk = self.nodes[place].identity().disk;
        match answer.means_to(disk) {
            Joining::Member(id) => {
                self.nodes[place].identity().peers.clone_from(&answer.peers);
                let before = std::mem::replace(&mut self.nodes[place].identity().id, id);
                if before != 0 && before != id {
                    bail!("member {before} is told that it is member {id}");
                }
                self.open(place, &answer.peers).with_context(|| format!("joining as member {id}"))
            }
            Joining::OtherDisk { .. } if self.nodes[place].lost => {
                self.schedule.after(S, Event::Operate);
                Ok(())
            }
            // It ends, and is started again: the one that it asked may not know of the newest member here yet.
            Joining::OtherDisk { .. } | Joining::Unrecorded(_) | Joining::NoMember => {
                self.schedule.after(S, Event::Join(place, life));
                Ok(())
            }
        }
    }
}
