//! Commands that this replica has sent to the leader, until the leader says where they stand in its log.
//!
//! **Invariant: Outcomes.** A forward whose answer is lost has an unknown fate: the leader may have proposed
//! it.

use super::effects::{Lost, Waiter};
use super::options::GIVE_UP_TICKS;
use std::collections::BTreeMap;

pub(super) struct Forwards {
    /// By number.
    sent: BTreeMap<u64, Sent>,
    last_number: u64,
}

struct Sent {
    to: u64,
    waiters: Vec<Waiter>,
    since_tick: u64,
}

impl Forwards {
    /// Numbers forwards from `seed` on. An earlier process of this member must not have used the same
    /// numbers: the answer to one of its forwards may still come.
    pub(super) fn numbered_from(seed: u64) -> Self {
        Self { sent: BTreeMap::new(), last_number: seed }
    }

    /// Notes that commands of `waiters` are sent to `to`, and returns the number of the forward.
    pub(super) fn send(&mut self, to: u64, waiters: Vec<Waiter>, tick: u64) -> u64 {
        self.last_number = self.last_number.wrapping_add(1);
        self.sent.insert(self.last_number, Sent { to, waiters, since_tick: tick });
        self.last_number
    }

    /// `by` has proposed a forward: takes its waiters, unless they were told something else meanwhile.
    pub(super) fn proposed(&mut self, by: u64, number: u64) -> Option<Vec<Waiter>> {
        self.answered(by, number).map(|sent| sent.waiters)
    }

    /// `by` says what became of a forward that it has not proposed.
    pub(super) fn fail(&mut self, by: u64, number: u64, lost: Lost) {
        if let Some(sent) = self.answered(by, number) {
            sent.fail(lost);
        }
    }

    /// Only the member to whom a forward was sent can answer it.
    fn answered(&mut self, by: u64, number: u64) -> Option<Sent> {
        self.sent.get(&number).filter(|sent| sent.to == by)?;
        self.sent.remove(&number)
    }

    /// The connection to `peer` broke.
    pub(super) fn peer_lost(&mut self, peer: u64) {
        for (_, sent) in self.sent.extract_if(.., |_, sent| sent.to == peer) {
            sent.fail(Lost::Unknown);
        }
    }

    /// Tells those who have waited too long.
    pub(super) fn give_up(&mut self, tick: u64) {
        for (_, sent) in self.sent.extract_if(.., |_, sent| tick - sent.since_tick > GIVE_UP_TICKS) {
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
