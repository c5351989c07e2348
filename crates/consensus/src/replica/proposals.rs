//! Commands that wait to be proposed: this replica's own, and those that followers forwarded.
//!
//! **Invariant: Bounded.** The driver bounds its own commands before it hands them in. Forwarded ones are bounded
//! in count and bytes ([`Options`]); a forward that does not fit is refused, unless it would be the only one. A
//! command that waits longer than [`GIVE_UP_TICKS`] is refused; one that is paced waits as long as this replica leads.

use super::effects::{Lost, Proposal, Waiter};
use super::options::{GIVE_UP_TICKS, Options};
use crate::frame::FORWARD_COMMANDS_MAX;
use quoin_core::Command;
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Proposals {
    /// Each with the tick at which it came.
    own: VecDeque<(u64, Proposal)>,
    forwarded: VecDeque<Forwarded>,
    /// Each goes by itself, when `pace.rs` says so.
    paced: Vec<Paced>,
    /// Commands and bytes that were forwarded.
    forwarded_commands: usize,
    forwarded_bytes: usize,
}

/// Commands that a follower forwarded.
pub(super) struct Forwarded {
    pub(super) from: u64,
    pub(super) request: u64,
    pub(super) commands: Vec<Command>,
}

enum Paced {
    /// With the tick at which it came.
    Own(u64, Proposal),
    Forwarded(Forwarded),
}

impl Forwarded {
    fn bytes(&self) -> usize {
        self.commands.iter().map(Command::size_in_batch).sum()
    }
}

/// Commands for one entry.
#[derive(Default)]
pub(super) struct NextBatch {
    pub(super) commands: Vec<Command>,
    /// Waiters for the first commands, which are this replica's own.
    pub(super) waiters: Vec<Waiter>,
    pub(super) forwarded: Vec<Placed>,
}

/// Where a forward's commands begin in a batch.
pub(super) struct Placed {
    pub(super) from: u64,
    pub(super) request: u64,
    pub(super) position: u32,
}

impl Proposals {
    /// Queues a command of this replica's own clients.
    pub(super) fn push(&mut self, proposal: Proposal, tick: u64) {
        self.own.push_back((tick, proposal));
    }

    /// Queues a paced command of this replica's own clients. **Invariant: Bounded.** The driver hands in few for which
    /// somebody waits; the others are dropped, since they might pile up during a pause.
    pub(super) fn push_paced(&mut self, proposal: Proposal, tick: u64) {
        self.paced.retain(|paced| !matches!(paced, Paced::Own(_, own) if own.waiter.is_closed()));
        self.paced.push(Paced::Own(tick, proposal));
    }

    /// Queues commands that a follower forwarded. False if too many wait.
    pub(super) fn push_forwarded(&mut self, forwarded: Forwarded, paced: bool, options: &Options) -> bool {
        let count = self.forwarded_commands + forwarded.commands.len();
        let bytes = self.forwarded_bytes + forwarded.bytes();
        let fits = count <= options.forwarded_commands_max && bytes <= options.forwarded_bytes_max;
        if !fits && self.forwarded_commands > 0 {
            return false;
        }
        (self.forwarded_commands, self.forwarded_bytes) = (count, bytes);
        match paced {
            true => self.paced.push(Paced::Forwarded(forwarded)),
            false => self.forwarded.push_back(forwarded),
        }
        true
    }

    fn pop_forwarded(&mut self) -> Option<Forwarded> {
        let forwarded = self.forwarded.pop_front()?;
        self.release(&forwarded);
        Some(forwarded)
    }

    fn release(&mut self, forwarded: &Forwarded) {
        self.forwarded_commands -= forwarded.commands.len();
        self.forwarded_bytes -= forwarded.bytes();
    }

    /// How many commands wait, this replica's own and forwarded ones.
    pub(super) fn len(&self) -> usize {
        let own_paced = self.paced.iter().filter(|paced| matches!(paced, Paced::Own(..))).count();
        self.own.len() + own_paced + self.forwarded_commands
    }

    /// Takes the commands of the next entry. Own ones go first; a forward is never split.
    pub(super) fn next_batch(&mut self, options: &Options) -> Option<NextBatch> {
        let mut batch = NextBatch::default();
        let mut bytes = 0;
        while !is_full(batch.commands.len(), bytes, options) {
            let Some((_, proposal)) = self.own.pop_front() else { break };
            bytes += proposal.command.size_in_batch();
            batch.commands.push(proposal.command);
            batch.waiters.push(proposal.waiter);
        }
        while !is_full(batch.commands.len(), bytes, options) {
            let Some(forwarded) = self.pop_forwarded() else { break };
            let Forwarded { from, request, .. } = forwarded;
            batch.forwarded.push(Placed { from, request, position: batch.commands.len() as u32 });
            bytes += forwarded.bytes();
            batch.commands.extend(forwarded.commands);
        }
        (!batch.commands.is_empty()).then_some(batch)
    }

    pub(super) fn has_paced(&self) -> bool {
        !self.paced.is_empty()
    }

    /// Takes the commands of an entry that is paced.
    pub(super) fn next_paced(&mut self) -> Option<NextBatch> {
        if self.paced.is_empty() {
            return None;
        }
        Some(match self.paced.remove(0) {
            Paced::Own(_, Proposal { command, waiter }) => {
                NextBatch { commands: vec![command], waiters: vec![waiter], forwarded: Vec::new() }
            }
            Paced::Forwarded(forwarded) => {
                self.release(&forwarded);
                let Forwarded { from, request, commands } = forwarded;
                let placed = Placed { from, request, position: 0 };
                NextBatch { commands, waiters: Vec::new(), forwarded: vec![placed] }
            }
        })
    }

    /// Takes an own command that is paced, to be forwarded by itself.
    pub(super) fn next_paced_forward(&mut self) -> Option<Proposal> {
        let place = self.paced.iter().position(|paced| matches!(paced, Paced::Own(..)))?;
        match self.paced.remove(place) {
            Paced::Own(_, proposal) => Some(proposal),
            Paced::Forwarded(_) => None,
        }
    }

    /// Takes own commands for one message to the leader.
    pub(super) fn next_forward(&mut self, options: &Options) -> Option<(Vec<Command>, Vec<Waiter>)> {
        let (mut commands, mut waiters, mut bytes) = (Vec::new(), Vec::new(), 0);
        while !is_full(commands.len(), bytes, options) && commands.len() < FORWARD_COMMANDS_MAX {
            let Some((_, proposal)) = self.own.pop_front() else { break };
            bytes += proposal.command.size_in_batch();
            commands.push(proposal.command);
            waiters.push(proposal.waiter);
        }
        (!commands.is_empty()).then_some((commands, waiters))
    }

    /// Takes sender and number of all forwards, to be refused.
    pub(super) fn take_forwarded(&mut self) -> Vec<(u64, u64)> {
        (self.forwarded_commands, self.forwarded_bytes) = (0, 0);
        let paced = self.paced.extract_if(.., |paced| matches!(paced, Paced::Forwarded(_)));
        let paced = paced.filter_map(|paced| match paced {
            Paced::Forwarded(forwarded) => Some(forwarded),
            Paced::Own(..) => None,
        });
        let all = self.forwarded.drain(..).chain(paced);
        all.map(|forwarded| (forwarded.from, forwarded.request)).collect()
    }

    /// Refuses own commands that have waited too long.
    pub(super) fn give_up(&mut self, tick: u64, leads: bool) {
        while let Some((_, proposal)) = self.own.pop_front_if(|(since, _)| tick - *since > GIVE_UP_TICKS) {
            let _ = proposal.waiter.send(Err(Lost::NoLeader));
        }
        let late = |paced: &mut Paced| matches!(paced, Paced::Own(since, _) if tick - *since > GIVE_UP_TICKS);
        if !leads {
            self.paced.extract_if(.., late).for_each(|paced| paced.refuse(Lost::NoLeader));
        }
    }

    /// Refuses all own commands.
    pub(super) fn fail(&mut self, lost: Lost) {
        for (_, proposal) in self.own.drain(..) {
            let _ = proposal.waiter.send(Err(lost));
        }
        self.paced.drain(..).for_each(|paced| paced.refuse(lost));
    }
}

impl Paced {
    /// Tells its waiter. That of a forward is another replica, which notices by itself.
    fn refuse(self, lost: Lost) {
        if let Self::Own(_, proposal) = self {
            let _ = proposal.waiter.send(Err(lost));
        }
    }
}

fn is_full(commands: usize, bytes: usize, options: &Options) -> bool {
    commands >= options.batch_commands_max || bytes >= options.batch_bytes_max
}
