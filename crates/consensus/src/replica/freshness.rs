//! How fresh a replica's state is, measured against a leader that a majority has confirmed.
//!
//! A heartbeat carries the leader's clock, and its answer repeats that. So the leader knows at which moment a
//! majority last took it for the leader: until then nobody else can have answered a write. The answer also
//! carries the follower's clock. With that the leader tells each follower, in its next heartbeat, what is
//! committed and which moment of the follower's own clock that covers ([`Freshness`]).
//!
//! Clocks are only compared with themselves, and must run at the same rate. A message that comes late makes what
//! it says older, never younger. What is not known is not assumed: after a start, under a leader of an older
//! version, and after a change of leader nothing is known until the new leader has said it.
//!
//! The numbers travel in fields that the protocol leaves empty in heartbeats and their answers; 0 is unknown.

use super::Replica;
use raft::eraftpb::{ConfState, Message, MessageType};
use std::collections::BTreeMap;

/// Everything that was answered anywhere before a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// Who has applied entries up to this index has applied all that was answered by then.
    pub committed: u64,
    /// The moment, in milliseconds of the clock that the driver sets.
    pub as_of_ms: u64,
}

/// The driver's clock. The numbers that peers see begin anywhere: those of an earlier process of this member must
/// not be taken for this one's.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    start: u64,
    ms: u64,
}

impl Clock {
    /// As [`Replica::pass`].
    pub(super) fn pass(&mut self, now_ms: u64) {
        self.ms = self.ms.max(now_ms);
    }

    pub(super) fn starting_from(seed: u64) -> Self {
        Self { start: (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 17) | 1, ms: 0 }
    }

    fn now(self) -> u64 {
        self.start + self.ms
    }

    /// Whether `time` is one that this clock has shown.
    fn has_shown(self, time: u64) -> bool {
        (self.start..=self.now()).contains(&time)
    }

    fn driver_ms(self, time: u64) -> u64 {
        time.saturating_sub(self.start)
    }
}

/// What a replica knows of its own freshness and, as a leader, of its followers'.
#[derive(Default)]
pub(super) struct Fresh {
    /// The term and the leader that all of this is of.
    reign: (u64, u64),
    /// There may be something new for the driver.
    changed: bool,
    own: Option<Freshness>,
    /// The leader's clock in its last heartbeat, for the answer.
    echo: u64,
    /// On a leader, by follower.
    answers: BTreeMap<u64, Answer>,
}

/// A follower's newest answer to a heartbeat.
struct Answer {
    /// The leader's clock when it sent the heartbeat, and when it got the answer.
    sent: u64,
    received: u64,
    /// The follower's clock when it answered.
    followers: u64,
}

impl Fresh {
    /// Forgets everything if `reign` is not the one that it is of.
    fn under(&mut self, reign: (u64, u64)) -> &mut Self {
        if self.reign != reign {
            *self = Self { reign, ..Self::default() };
        }
        self
    }

    /// A leader that needs nobody else's answer is confirmed by the time alone.
    pub(super) fn tick(&mut self) {
        self.changed = true;
    }

    /// When a majority last confirmed the leader `id`, by its own clock, which says `now`. 0 is unknown.
    fn confirmed_at(&self, id: u64, now: u64, configuration: &ConfState) -> u64 {
        let confirmed = |voter: u64| {
            if voter == id { now } else { self.answers.get(&voter).map_or(0, |answer| answer.sent) }
        };
        let newest = majority_time(&configuration.voters, confirmed);
        if configuration.voters_outgoing.is_empty() {
            return newest;
        }
        newest.min(majority_time(&configuration.voters_outgoing, confirmed))
    }
}

/// The newest time that a majority of `voters` has reached. Voters are few: this allocates nothing.
fn majority_time(voters: &[u64], time: impl Fn(u64) -> u64) -> u64 {
    let reached = |moment: &u64| voters.iter().filter(|voter| time(**voter) >= *moment).count();
    let times = voters.iter().map(|voter| time(*voter));
    times.filter(|moment| reached(moment) > voters.len() / 2).max().unwrap_or(0)
}

impl Replica {
    /// As [`Self::freshness`], if it may have changed since the last call.
    pub fn take_freshness(&mut self) -> Option<Freshness> {
        std::mem::take(&mut self.fresh.changed).then(|| self.freshness()).flatten()
    }

    /// What this replica must have applied to be how fresh; `None` while that is not known.
    pub fn freshness(&mut self) -> Option<Freshness> {
        let reign = (self.term(), self.leader());
        if !self.is_leader() {
            // A learner, or a replica whose disk hangs, does not campaign, and so never gives its leader up.
            let lately = self.has_heard(reign.1, 2);
            return self.fresh.under(reign).own.filter(|_| lately);
        }
        if !self.raw.raft.commit_to_current_term() {
            // The leader before may have answered for more than is known to be committed here.
            return None;
        }
        let (id, committed, now) = (self.id(), self.committed(), self.clock.now());
        let confirmed = self.fresh.under(reign).confirmed_at(id, now, self.raw.raft.store().configuration());
        (confirmed > 0).then(|| Freshness { committed, as_of_ms: self.clock.driver_ms(confirmed) })
    }

    /// A heartbeat of the leader, or an answer to one, has come and was taken.
    pub(super) fn note_beat(&mut self, beat: &Beat) {
        let reign = (self.term(), self.leader());
        if beat.term != reign.0 {
            return;
        }
        let (clock, leads) = (self.clock, self.is_leader());
        let fresh = self.fresh.under(reign);
        fresh.changed = true;
        match beat.kind {
            MessageType::MsgHeartbeat if beat.from == reign.1 => {
                fresh.echo = beat.log_term;
                let known = beat.reject_hint > 0 && clock.has_shown(beat.commit_term);
                let as_of_ms = clock.driver_ms(beat.commit_term);
                fresh.own =
                    known.then_some(Freshness { committed: beat.reject_hint, as_of_ms }).or(fresh.own);
            }
            MessageType::MsgHeartbeatResponse if leads && clock.has_shown(beat.reject_hint) => {
                let answer =
                    Answer { sent: beat.reject_hint, received: clock.now(), followers: beat.log_term };
                let newest = fresh.answers.get(&beat.from).is_none_or(|known| known.sent <= answer.sent);
                if newest {
                    fresh.answers.insert(beat.from, answer);
                }
            }
            _ => {}
        }
    }

    /// Adds what this replica knows to a heartbeat, or to the answer to one.
    pub(super) fn mark_beat(&mut self, message: &mut Message) {
        let reign = (self.term(), self.leader());
        let clock = self.clock;
        match message.get_msg_type() {
            MessageType::MsgHeartbeat => {
                message.log_term = clock.now();
                if !self.raw.raft.commit_to_current_term() {
                    return;
                }
                let (id, committed) = (self.id(), self.committed());
                let configuration = self.raw.raft.store().configuration();
                let fresh = self.fresh.under(reign);
                let confirmed = fresh.confirmed_at(id, clock.now(), configuration);
                let Some(answer) = fresh.answers.get(&message.to).filter(|_| confirmed > 0) else { return };
                message.reject_hint = committed;
                // When the answer was received, the follower's clock was not before what the answer says.
                let moment = answer.followers.saturating_add(confirmed).saturating_sub(answer.received);
                message.commit_term = moment;
            }
            MessageType::MsgHeartbeatResponse => {
                let fresh = self.fresh.under(reign);
                if message.to == reign.1 && message.term == reign.0 {
                    (message.reject_hint, message.log_term) = (fresh.echo, clock.now());
                }
            }
            _ => {}
        }
    }
}

/// What a heartbeat or its answer says, before the library takes it.
pub(super) struct Beat {
    kind: MessageType,
    from: u64,
    term: u64,
    reject_hint: u64,
    log_term: u64,
    commit_term: u64,
}

impl Beat {
    /// `None` if the message is neither.
    pub(super) fn of(message: &Message) -> Option<Self> {
        let kind = message.get_msg_type();
        let beats = matches!(kind, MessageType::MsgHeartbeat | MessageType::MsgHeartbeatResponse);
        let Message { from, term, reject_hint, log_term, commit_term, .. } = *message;
        beats.then_some(Self { kind, from, term, reject_hint, log_term, commit_term })
    }
}
