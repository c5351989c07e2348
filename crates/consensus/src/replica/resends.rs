//! When a follower whose snapshot failed is sent another one.
//!
//! The library asks again as soon as it hears of the failure and of the follower, many times a second. So it
//! hears of a failure late: after one election timeout the first time, and then after twice as long each
//! time, up to [`DOUBLINGS_MAX`] times, and up to half of that later, so that followers that fail together do
//! not come back together.

use crate::mutants;
use std::collections::BTreeMap;

/// How often the wait is doubled: from 0.4 s to half a minute, with the default ticks.
const DOUBLINGS_MAX: u32 = 6;

#[derive(Debug, Default)]
pub(super) struct Resends {
    /// By follower.
    failed: BTreeMap<u64, Failed>,
}

#[derive(Debug)]
struct Failed {
    /// Snapshots that failed in a row.
    count: u32,
    /// The tick at which the library hears of it; `None` once it has.
    due: Option<u64>,
}

impl Resends {
    /// A snapshot to `to` arrived whole.
    pub(super) fn arrived(&mut self, to: u64) {
        self.failed.remove(&to);
    }

    /// A snapshot to `to` failed at `tick`. `draw` is a random number.
    pub(super) fn failed(&mut self, to: u64, tick: u64, election_ticks: u64, draw: u64) {
        let failed = self.failed.entry(to).or_insert(Failed { count: 0, due: None });
        let wait = election_ticks << failed.count.min(DOUBLINGS_MAX);
        failed.count += 1;
        let wait = if mutants::is("resent-at-once") { 0 } else { wait + draw % (wait / 2 + 1) };
        failed.due = Some(tick + wait);
    }

    /// The followers whose wait is over at `tick`.
    pub(super) fn take_due(&mut self, tick: u64) -> Vec<u64> {
        let due = self.failed.iter_mut().filter(|(_, failed)| failed.due.is_some_and(|due| due <= tick));
        due.map(|(to, failed)| {
            failed.due = None;
            *to
        })
        .collect()
    }

    /// This replica does not lead any more.
    pub(super) fn forget(&mut self) {
        self.failed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_waits_twice_as_long_up_to_a_bound() {
        let mut resends = Resends::default();
        let mut tick = 0;
        for doublings in [0, 1, 2, 3, 4, 5, 6, 6, 6] {
            let (shortest, longest) = (10 << doublings, 15 << doublings);
            resends.failed(7, tick, 10, u64::MAX - doublings);
            assert_eq!(resends.take_due(tick + shortest - 1), [0; 0]);
            assert_eq!(resends.take_due(tick + longest), [7]);
            assert_eq!(resends.take_due(tick + longest), [0; 0], "once");
            tick += longest;
        }
        resends.arrived(7);
        resends.failed(7, 0, 10, 0);
        assert_eq!(resends.take_due(10), [7], "a success ends the series");
        resends.failed(7, 0, 10, 0);
        resends.forget();
        assert_eq!(resends.take_due(u64::MAX), [0; 0]);
    }
}
