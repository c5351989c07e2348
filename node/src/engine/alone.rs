//! Whether this replica is the only member: then reads need not ask anybody what is newest.
//!
//! **Invariant (nobody else answers).** While a node that leads is the only member, every entry is committed by its own log, and
//! every write is answered by its own apply thread, which publishes the state first. So the published state holds all that
//! was answered, and a read of it is linearizable.
//!
//! That begins once everything is applied that was committed when it became so: what former members were answered, and what a
//! start has yet to apply. It ends before the first message goes to a new member.

use std::sync::atomic::{AtomicBool, Ordering};

/// What the raft thread knows of it.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// What was committed when it became the only member.
    since: Option<u64>,
}

/// What readers see of it.
#[derive(Debug, Default)]
pub(crate) struct Alone(AtomicBool);

impl Alone {
    /// The published state is the newest there is.
    pub(super) fn holds(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// It is no longer, or not known to be.
    pub(super) fn end(&self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Watch {
    /// To be called after each step of Raft, before anything of what it wants to be done is done; and when entries were applied.
    pub(super) fn look(&mut self, only_member: bool, committed: u64, applied: u64, alone: &Alone) {
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
    fn it_begins_when_all_is_applied_that_was_committed_and_ends_at_once() {
        let (mut watch, alone) = (Watch::default(), Alone::default());
        watch.look(false, 9, 9, &alone);
        assert!(!alone.holds());
        watch.look(true, 10, 9, &alone);
        assert!(!alone.holds(), "entry 10 may have been answered elsewhere, and is not applied here");
        // What is committed since is answered here only, and not before it is applied.
        watch.look(true, 12, 10, &alone);
        assert!(alone.holds());
        watch.look(true, 20, 11, &alone);
        assert!(alone.holds());
        watch.look(false, 21, 20, &alone);
        assert!(!alone.holds());
        // And from the beginning again.
        watch.look(true, 30, 29, &alone);
        assert!(!alone.holds());
        watch.look(true, 31, 30, &alone);
        assert!(alone.holds());
    }
}
