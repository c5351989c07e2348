//! When this replica was last up to date: what it must have applied to be how fresh, until it has.

use quoin_consensus::replica::Freshness;
use quoin_core::Index;
use std::collections::VecDeque;

/// Maximum moments that wait: a leader sends several a second. Beyond that the newest replaces the one before it,
/// and a replica that lags so far looks older than it is.
const WAITING_MAX: usize = 256;

/// Moments at which this replica will have been up to date, oldest first, each with the entry that it must apply.
#[derive(Default)]
pub(super) struct Lag {
    waiting: VecDeque<Freshness>,
}

impl Lag {
    /// What the leader says.
    pub(super) fn note(&mut self, freshness: Freshness) {
        let full = self.waiting.len() >= WAITING_MAX;
        match self.waiting.back_mut() {
            Some(last) if full || last.committed == freshness.committed => *last = freshness,
            _ => self.waiting.push_back(freshness),
        }
    }

    /// Entries up to `index` are applied: the newest moment, in milliseconds of the replica's clock, at which this
    /// replica turns out to have been up to date.
    pub(super) fn applied(&mut self, index: Index) -> Option<u64> {
        let reached = |freshness: &mut Freshness| freshness.committed <= index.0;
        std::iter::from_fn(|| self.waiting.pop_front_if(reached)).map(|freshness| freshness.as_of_ms).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A replica that was always one heartbeat behind was never up to date: the next heartbeat moved the mark.
    #[test]
    fn a_replica_that_is_always_a_little_behind_is_as_old_as_that() {
        let mut lag = Lag::default();
        let beat = |number: u64| Freshness { committed: 10 * number, as_of_ms: 100 * number };
        (1..=3).for_each(|number| lag.note(beat(number)));
        assert_eq!(lag.applied(Index(9)), None);
        assert_eq!(lag.applied(Index(25)), Some(200));
        lag.note(beat(4));
        assert_eq!(lag.applied(Index(35)), Some(300));
        // Nothing new is committed.
        lag.note(Freshness { committed: 40, as_of_ms: 500 });
        assert_eq!(lag.applied(Index(40)), Some(500));
        assert_eq!(lag.applied(Index(50)), None);
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut lag = Lag::default();
        for number in 1..10_000 {
            lag.note(Freshness { committed: number, as_of_ms: number });
        }
        assert_eq!(lag.waiting.len(), WAITING_MAX);
        assert_eq!(lag.applied(Index(9_998)), Some(WAITING_MAX as u64 - 1));
        assert_eq!(lag.applied(Index(9_999)), Some(9_999));
    }
}
