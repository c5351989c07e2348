//! For how long each member has answered this leader without a break.

use std::collections::BTreeMap;

/// See the module. A leader knows it since it leads; others know nothing.
#[derive(Default)]
pub(super) struct Answering {
    /// By member: since when, in milliseconds of this replica's clock.
    since_ms: BTreeMap<u64, u64>,
}

impl Answering {
    /// The connection to `member` broke: what it answers from now on counts anew.
    pub(super) fn broke(&mut self, member: u64) {
        self.since_ms.remove(&member);
    }

    /// What the replica says of its followers: id, newest matching entry, whether it answers.
    pub(super) fn note(&mut self, followers: &[(u64, u64, bool)], now_ms: u64) {
        let answer = |id: &u64| followers.iter().any(|(other, _, active)| other == id && *active);
        self.since_ms.retain(|id, _| answer(id));
        for (id, _, _) in followers.iter().filter(|(_, _, active)| *active) {
            self.since_ms.entry(*id).or_insert(now_ms);
        }
    }

    /// Those that have answered for at least `health_ms`.
    pub(super) fn healthy(&self, health_ms: u64, now_ms: u64) -> Vec<u64> {
        let healthy = self.since_ms.iter().filter(|(_, since)| now_ms - **since >= health_ms);
        healthy.map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_break_begins_the_time_anew() {
        let mut answering = Answering::default();
        let both = [(1, 0, false), (2, 5, true), (3, 5, true)];
        answering.note(&both, 1_000);
        assert!(answering.healthy(5_000, 5_999).is_empty());
        assert_eq!(answering.healthy(5_000, 6_000), [2, 3]);
        answering.broke(2);
        answering.note(&both, 6_000);
        assert_eq!(answering.healthy(5_000, 10_999), [3], "a connection that broke");
        answering.note(&[(1, 0, false), (2, 5, true), (3, 5, false)], 7_000);
        answering.note(&both, 7_001);
        assert_eq!(answering.healthy(5_000, 11_000), [2], "one that was silent");
        answering.note(&[], 12_000);
        answering.note(&both, 12_000);
        assert!(answering.healthy(5_000, 13_000).is_empty(), "leadership");
        assert_eq!(answering.healthy(0, 12_000), [2, 3]);
    }
}
