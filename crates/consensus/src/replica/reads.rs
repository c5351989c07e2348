//! Linearizable reads: rounds in which a majority confirms that the leader still leads.
//!
//! One round serves all reads that wait when it begins; those that come during it wait for the next. A round
//! begins again when it stays unanswered, since a message or a leader may have been lost.
//!
//! A leader asks no more voters than it needs: those that answered first since the last tick. So a read costs
//! two messages per voter of a majority, not per member.

use super::effects::{Barrier, Lost, ReadWaiter};
use super::options::GIVE_UP_TICKS;
use raft::eraftpb::ConfState;

/// Ticks after which an unanswered round begins again.
const RETRY_TICKS: u64 = 10;

pub(super) struct Reads {
    id: u64,
    /// Each with the tick at which it came.
    waiting: Vec<(u64, ReadWaiter)>,
    round: Option<Round>,
    last_number: u64,
    /// Voters that answered this leader first since the last tick, no more than make a majority with it.
    confirming: Vec<u64>,
}

struct Round {
    number: u64,
    started_at_tick: u64,
    waiters: Vec<(u64, ReadWaiter)>,
}

impl Reads {
    /// The reads of replica `id`. Numbers rounds from `seed` on. An earlier process of this member must not
    /// have used the same numbers: the leader may still hold one of its rounds, with the commit index of
    /// then.
    pub(super) fn numbered_from(seed: u64, id: u64) -> Self {
        Self { id, waiting: Vec::new(), round: None, last_number: seed, confirming: Vec::new() }
    }

    pub(super) fn push(&mut self, waiter: ReadWaiter, tick: u64) {
        self.waiting.push((tick, waiter));
    }

    /// Begins a round for all that wait, unless one is under way. Returns the context that tells it from
    /// others.
    pub(super) fn begin(&mut self, tick: u64) -> Option<Vec<u8>> {
        if self.waiting.is_empty() || self.round.is_some() {
            return None;
        }
        self.last_number = self.last_number.wrapping_add(1);
        let waiters = std::mem::take(&mut self.waiting);
        self.round = Some(Round { number: self.last_number, started_at_tick: tick, waiters });
        // The leader tells rounds apart by context alone: the id keeps ours apart from other replicas'.
        Some([self.id.to_le_bytes(), self.last_number.to_le_bytes()].concat())
    }

    /// The round with this context was confirmed: its reads may proceed from `index` on.
    pub(super) fn confirmed(&mut self, index: u64, context: &[u8]) -> Option<Barrier> {
        let round = self.round.take_if(|round| context.ends_with(&round.number.to_le_bytes()))?;
        Some(Barrier { index, waiters: round.waiters.into_iter().map(|(_, waiter)| waiter).collect() })
    }

    /// A tick has passed: begins a lost round again, and refuses reads that have waited too long.
    pub(super) fn tick(&mut self, tick: u64) {
        // All are asked again now and then, so that nobody waits for a voter that has become slow or deaf.
        self.confirming.clear();
        if self.round.as_ref().is_some_and(|round| tick - round.started_at_tick > RETRY_TICKS) {
            self.begin_again();
        }
        for (_, waiter) in self.waiting.extract_if(.., |(since, _)| tick - *since > GIVE_UP_TICKS) {
            let _ = waiter.send(Err(Lost::NoLeader));
        }
    }

    /// Another replica leads: the round under way, if there is one, begins again there.
    pub(super) fn begin_again(&mut self) {
        if let Some(mut lost) = self.round.take() {
            lost.waiters.append(&mut self.waiting);
            self.waiting = lost.waiters;
        }
    }

    /// Refuses all reads that wait for a round.
    pub(super) fn fail(&mut self, lost: Lost) {
        for (_, waiter) in self.waiting.drain(..) {
            let _ = waiter.send(Err(lost));
        }
    }

    /// A connection broke: the voter behind it may be among those that are asked.
    pub(super) fn peer_lost(&mut self) {
        self.confirming.clear();
    }

    /// `from` has answered a round.
    pub(super) fn note_answer(&mut self, from: u64, configuration: &ConfState) {
        let votes = configuration.voters.contains(&from);
        if votes && !self.is_confirmed(configuration) && !self.confirming.contains(&from) {
            self.confirming.push(from);
        }
    }

    /// Whether a round must ask `to`.
    pub(super) fn needs(&self, to: u64, configuration: &ConfState) -> bool {
        self.confirming.contains(&to) || !self.is_confirmed(configuration)
    }

    /// Whether enough voters are known that answer. Never while two configurations are in force.
    fn is_confirmed(&self, ConfState { voters, voters_outgoing, .. }: &ConfState) -> bool {
        let confirming = self.confirming.len() + usize::from(voters.contains(&self.id));
        voters_outgoing.is_empty() && confirming > voters.len() / 2
    }
}
