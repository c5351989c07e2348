//! Handing leadership to another member.

use super::engine::Engine;
use super::input::Input;
use super::propose::ProposeError;
use std::time::Duration;

/// How long a leader that stops waits for its successor.
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(2);

impl Engine {
    /// Hands leadership to `to`. Returns once this replica sees `to` lead.
    ///
    /// # Errors
    /// This node is not the leader, or `to` did not take over within two of the longest election timeouts.
    pub async fn transfer_leader(&self, to: u64) -> Result<(), ProposeError> {
        if !self.shared.is_leader() {
            return Err(ProposeError::NoLeader);
        }
        let mut status = self.raft_changes();
        self.shared.inbox.push(Input::Transfer(to));
        let raft = &self.shared.settings.raft;
        // Each election timeout is drawn between one and two times this many ticks.
        let patience = Duration::from_millis(raft.tick_ms * raft.election_ticks as u64 * 4);
        let transferred = tokio::time::timeout(patience, status.wait_for(|status| status.leader == to)).await;
        if matches!(transferred, Ok(Ok(_))) { Ok(()) } else { Err(ProposeError::Unknown) }
    }

    /// Hands leadership, if this node has it, to the voter that has most of the log. For a node that stops:
    /// returns after a short time even if nobody has taken over, since the others then elect a leader, which
    /// takes them longer.
    pub async fn hand_over(&self) {
        self.hand_over_to(|_| true).await;
    }

    /// As [`Self::hand_over`], to one of those that `fits`.
    pub(crate) async fn hand_over_to(&self, fits: impl Fn(u64) -> bool) {
        if let Some(successor) = self.successor(fits) {
            let _ = tokio::time::timeout(HAND_OVER_PATIENCE, self.transfer_leader(successor)).await;
        }
    }

    fn successor(&self, fits: impl Fn(u64) -> bool) -> Option<u64> {
        let raft = self.raft();
        let candidates = raft
            .followers
            .iter()
            .filter(|(id, _, active)| *active && *id != self.id() && raft.voters.contains(id) && fits(*id));
        candidates.max_by_key(|(_, matched, _)| *matched).map(|(id, ..)| *id)
    }
}
