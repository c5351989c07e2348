//! Whether this replica is the only member. Then linearizable reads need no round: nobody else can know of
//! anything newer.
//!
//! **Invariant: Nobody else answers.** While a leader is the only member, its own log commits every entry,
//! and its own apply thread answers every write, after publishing the state. So the published state holds
//! everything that was answered, and reading it is linearizable.
//!
//! This begins once all entries are applied that were committed when the replica became the only member:
//! former members may have answered for them, and a start has yet to apply them. It ends before the first
//! message to a new member.

use std::sync::atomic::{AtomicBool, Ordering};

/// What readers see.
#[derive(Debug, Default)]
pub(crate) struct Alone(AtomicBool);

/// What the raft thread remembers.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// What was committed when this replica became the only member.
    since: Option<u64>,
}

impl Alone {
    /// Whether the published state is the newest in the cluster.
    pub(crate) fn holds(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// From now on it may not be.
    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Watch {
    /// Updates `alone`. To be called after each step of Raft, before its effects are carried out.
    pub(crate) fn update(&mut self, only_member: bool, committed: u64, applied: u64, alone: &Alone) {
        if !only_member {
            self.since = None;
            return alone.end();
        }
        let since = *self.since.get_or_insert(committed);
        if applied >= since && !alone.holds() {
            alone.0.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_when_everything_committed_before_is_applied_and_ends_at_once() {
        let (mut watch, alone) = (Watch::default(), Alone::default());
        watch.update(false, 9, 9, &alone);
        assert!(!alone.holds());
        watch.update(true, 10, 9, &alone);
        assert!(!alone.holds(), "entry 10 may have been answered elsewhere, and is not applied here");
        // Entries committed since are answered only here, after they are applied.
        watch.update(true, 12, 10, &alone);
        assert!(alone.holds());
        watch.update(true, 20, 11, &alone);
        assert!(alone.holds());
        watch.update(false, 21, 20, &alone);
        assert!(!alone.holds());
        // And from the beginning again.
        watch.update(true, 30, 29, &alone);
        assert!(!alone.holds());
        watch.update(true, 31, 30, &alone);
        assert!(alone.holds());
    }
}
