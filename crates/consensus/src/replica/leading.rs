//! Who gives leadership up, who is asked to take it, and what a change of leader means for those who wait.
//!
//! **Invariant: Who leads can write.** A leader hands over when its disk has no room, or has not written an append
//! for several election timeouts, if another voter answers. Until then nobody is better off without it.

use super::{Replica, admission};
use crate::message::{PeerMessage, RaftMessage};
use raft::eraftpb::{self, MessageType};

/// Election timeouts after which a leader whose disk has not written an append hands over.
const STALLED_ELECTIONS: u64 = 3;

/// A leader's request to campaign, until everything that was committed then is applied here, and all of the log is
/// on disk. The library does not campaign while a committed change of the configuration is not applied, and
/// forgets the request; it panics if it wins with entries that are not on disk.
pub(super) struct Summons {
    /// It can be answered once this entry is applied.
    applied: u64,
    /// After this tick the leader has given up waiting.
    until_tick: u64,
    message: Box<eraftpb::Message>,
}

impl Replica {
    /// Campaigns at once if nobody else votes: there is nobody to wait for.
    pub fn lead_alone(&mut self) {
        if self.is_only_voter() {
            // An error means that a committed change of the configuration is yet to be applied: then the election
            // timeout decides.
            let _ = self.raw.campaign();
        }
    }

    /// Hands leadership to `to`. Meanwhile the leader takes no proposals; it goes on after an election
    /// timeout if `to` has not taken over. A follower passes the request on to the leader.
    pub fn transfer_leader(&mut self, to: u64) {
        self.raw.transfer_leader(to);
    }

    /// Follows if this replica leads and its configuration no longer lets it vote. The library would lead on,
    /// and panic when an entry that it proposed before is on its disk.
    pub(super) fn follow_if_removed(&mut self) {
        if !self.is_leader() || self.raw.raft.promotable() {
            return;
        }
        if let Some(successor) = self.successor() {
            self.summon(successor);
        }
        self.raw.raft.become_follower(self.term(), raft::INVALID_ID);
    }

    /// The driver's disk has room, or has not. See the head of this file.
    pub fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    /// Hands over if this replica leads and cannot write.
    pub(super) fn hand_over_if_stalled(&mut self) {
        let patience = STALLED_ELECTIONS * self.options.election_ticks as u64;
        let stalled = self.appends.oldest_tick().is_some_and(|since| self.ticks - since > patience);
        let cannot_write = stalled || self.full;
        if !cannot_write || !self.is_leader() || self.raw.raft.lead_transferee.is_some() {
            return;
        }
        if let Some(successor) = self.successor() {
            tracing::warn!(
                to = format!("{successor:x}"),
                "handing over: the disk of this leader does not write"
            );
            self.raw.transfer_leader(successor);
        }
    }

    /// Of the voters that have answered within an election timeout, the one that has most of the log. Another one
    /// after a while, if several have: the first may be no better off than this leader.
    fn successor(&self) -> Option<u64> {
        let patience = self.options.election_ticks as u64;
        let raft = &self.raw.raft;
        let others = raft.prs().iter().filter(|(id, _)| **id != self.id() && self.has_heard(**id, 1));
        let voters = others.filter(|(id, _)| raft.prs().conf().voters().contains(**id));
        let turn = (self.ticks / patience % 64) as u32;
        voters.max_by_key(|(id, progress)| (progress.matched, id.rotate_left(turn))).map(|(id, _)| *id)
    }

    /// Asks `successor` to campaign at once, so that nobody has to miss this leader first.
    fn summon(&mut self, successor: u64) {
        let mut message = eraftpb::Message::default();
        message.set_msg_type(MessageType::MsgTimeoutNow);
        message.from = self.id();
        message.to = successor;
        message.term = self.term();
        self.effects.messages.push((successor, PeerMessage::Raft(RaftMessage(Box::new(message)))));
    }

    /// A follower asks what is committed.
    ///
    /// A leader knows that once it has committed an entry of its term. The library drops a question that comes
    /// earlier, so it waits here: one per member, which asks again at the earliest when it has an answer or gives
    /// up.
    pub(super) fn asked(&mut self, message: Box<eraftpb::Message>) {
        if self.is_leader() && !self.raw.raft.commit_to_current_term() {
            self.early_questions.insert(message.from, message);
        } else {
            let _ = self.raw.step(*message);
        }
    }

    /// Answers [`Self::asked`] when the time has come.
    pub(super) fn answer_questions(&mut self) {
        if self.early_questions.is_empty() || (self.is_leader() && !self.raw.raft.commit_to_current_term()) {
            return;
        }
        for message in std::mem::take(&mut self.early_questions).into_values() {
            // No longer the leader: the library passes it on.
            let _ = self.raw.step(*message);
        }
    }

    /// Notices that another replica leads. Whoever waits for the former leader need not wait long: it is replaced,
    /// or dead.
    pub(super) fn notice_leader(&mut self) {
        let now = (self.term(), self.leader());
        if std::mem::replace(&mut self.known_leader, now) == now || now.1 == raft::INVALID_ID {
            return;
        }
        self.reads.begin_again();
        if self.is_leader() {
            self.pace.begin(self.raw.raft.raft_log.last_index());
            self.pace.applied(self.applied);
        }
        // It may have proposed what was forwarded to it, and say so yet.
        self.forwards.leads(now.1, self.ticks + self.options.election_ticks as u64);
    }

    /// The leader asks this replica to campaign.
    pub(super) fn summoned(&mut self, message: Box<eraftpb::Message>) {
        let until_tick = self.ticks + self.options.election_ticks as u64;
        self.summons = Some(Summons { applied: self.committed(), until_tick, message });
        self.answer_summons();
    }

    /// Campaigns if a leader has asked for it and the time has come.
    pub(super) fn answer_summons(&mut self) {
        self.summons.take_if(|summons| summons.until_tick < self.ticks);
        if self.summons.is_none() || !admission::is_persisted(&self.raw.raft) {
            return;
        }
        let applied = self.raw.raft.raft_log.applied;
        if let Some(summons) = self.summons.take_if(|summons| summons.applied <= applied) {
            // An error means that it comes too late: another leader is known.
            let _ = self.raw.step(*summons.message);
        }
    }
}
