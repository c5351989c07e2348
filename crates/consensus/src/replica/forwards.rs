//! Commands that this replica has sent to the leader, until the leader says where they stand in its log.
//!
//! **Invariant: Outcomes.** A forward whose answer is lost has an unknown fate: the leader may have proposed
//! it.

use super::effects::{Lost, Waiter};
use std::collections::BTreeMap;

pub(super) struct Forwards {
    /// By number.
    sent: BTreeMap<u64, Sent>,
    last_number: u64,
}

struct Sent {
    to: u64,
    waiters: Vec<Waiter>,
    /// The tick after which nobody waits for the answer any more.
    until_tick: u64,
}

impl Forwards {
    /// Numbers forwards from `seed` on. An earlier process of this member must not have used the same
    /// numbers: the answer to one of its forwards may still come.
    pub(super) fn numbered_from(seed: u64) -> Self {
        Self { sent: BTreeMap::new(), last_number: seed }
    }

    /// Notes that commands of `waiters`, who wait until `until_tick`, are sent to `to`, and returns the number of
    /// the forward.
    pub(super) fn send(&mut self, to: u64, waiters: Vec<Waiter>, until_tick: u64) -> u64 {
        self.last_number = self.last_number.wrapping_add(1);
        self.sent.insert(self.last_number, Sent { to, waiters, until_tick });
        self.last_number
    }

    /// `from` has answered a forward: takes its waiters, unless it was sent to another or they were told something
    /// else meanwhile.
    pub(super) fn answered(&mut self, from: u64, number: u64) -> Option<Vec<Waiter>> {
        if self.sent.get(&number)?.to != from {
            return None;
        }
        self.sent.remove(&number).map(|sent| sent.waiters)
    }

    /// `leader` leads now: another one that has not answered by `until_tick` is not waited for any longer.
    pub(super) fn leads(&mut self, leader: u64, until_tick: u64) {
        for sent in self.sent.values_mut().filter(|sent| sent.to != leader) {
            sent.until_tick = sent.until_tick.min(until_tick);
        }
    }

    /// The connection to `peer` broke.
    pub(super) fn peer_lost(&mut self, peer: u64) {
        for (_, sent) in self.sent.extract_if(.., |_, sent| sent.to == peer) {
            sent.fail(Lost::Unknown);
        }
    }

    /// Tells those who have waited too long.
    pub(super) fn give_up(&mut self, tick: u64) {
        for (_, sent) in self.sent.extract_if(.., |_, sent| tick > sent.until_tick) {
            sent.fail(Lost::Unknown);
        }
    }
}

impl Sent {
    fn fail(self, lost: Lost) {
        for waiter in self.waiters {
            let _ = waiter.send(Err(lost));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_one_that_it_was_sent_to_answers_a_forward() {
        let mut forwards = Forwards::numbered_from(u64::MAX);
        let (waiter, _answer) = tokio::sync::oneshot::channel();
        assert_eq!(forwards.send(2, vec![waiter], 0), 0);
        assert!(forwards.answered(3, 0).is_none());
        assert_eq!(forwards.answered(2, 0).map(|waiters| waiters.len()), Some(1));
        assert!(forwards.answered(2, 0).is_none());
    }
}
