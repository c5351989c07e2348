//! How much of the log is kept: for followers that were away, and for those that are sent a snapshot.
//!
//! **Invariant: Bounded.** Beyond what the store has not on disk, the log has at most `log.keep_bytes`, or
//! `log.snapshot_keep_bytes` while a follower is sent a snapshot or catches up from one, and at most
//! `log.keep_entries`. A follower that needs an older entry is sent a snapshot.

use super::shared::Shared;
use quoin_consensus::GROUP;
use quoin_consensus::log::LogError;
use quoin_consensus::mutants;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a follower that got a snapshot may make no progress before the log is not kept for it any more.
const STALL_MAX: Duration = Duration::from_secs(60);

/// What of the log followers need that are sent a snapshot, by the numbers of the streams: a leader that was deposed and
/// is back may begin another one to a follower while the one before, which nobody hears, has not ended.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    last: u64,
    held: BTreeMap<u64, Hold>,
}

#[derive(Debug)]
struct Hold {
    /// The follower.
    to: u64,
    /// The entries after this one are needed.
    after: u64,
    /// When the follower made progress last, by the replica's clock; `None` while the snapshot is streamed.
    progress: Option<Duration>,
}

impl Holds {
    /// `to` is about to be sent a snapshot of the state at entry `index`, or a later one. Returns the stream's number.
    pub(crate) fn begin(&mut self, to: u64, index: u64) -> u64 {
        self.last += 1;
        self.held.retain(|_, hold| hold.to != to || hold.progress.is_none());
        self.held.insert(self.last, Hold { to, after: index, progress: None });
        self.last
    }

    /// The stream with this number has ended.
    pub(crate) fn ended(&mut self, number: u64, success: bool, now: Duration) {
        match self.held.get_mut(&number) {
            Some(hold) if success => hold.progress = Some(now),
            _ => drop(self.held.remove(&number)),
        }
    }

    /// How much of the entries up to `wanted` may go. `followers` are what the leader knows: id, newest matching
    /// entry, whether it is active. Forgets those who do not need to be waited for.
    fn allow(&mut self, wanted: u64, followers: &[(u64, u64, bool)], now: Duration) -> u64 {
        self.held.retain(|_, hold| {
            let Some(progress) = &mut hold.progress else { return true };
            let Some((_, matched, _)) = followers.iter().find(|(follower, ..)| *follower == hold.to) else {
                return false;
            };
            if *matched > hold.after {
                (hold.after, *progress) = (*matched, now);
            }
            hold.after < wanted && now.saturating_sub(*progress) < STALL_MAX
        });
        let held = self.held.values().map(|hold| hold.after).fold(wanted, u64::min);
        if mutants::is("purged-while-streamed") { wanted } else { held }
    }
}

/// Purges what need not be kept.
///
/// # Errors
/// The log failed.
pub(crate) fn purge(shared: &Shared) -> Result<(), LogError> {
    let (log, settings) = (&shared.log, &shared.settings.log);
    // A campaign reads all entries that the consensus does not know to be applied, and panics where they are gone.
    let applied = shared.raft.borrow().applied;
    let store = &shared.published.load().store;
    let persisted =
        if mutants::is("purged-unpersisted") { applied } else { store.persisted_index().0.min(applied) };
    let beyond = |bytes| log.beyond(GROUP, bytes, settings.keep_entries).min(persisted);
    let wanted = beyond(settings.keep_bytes);
    let allowed = shared.holds.lock().allow(wanted, &shared.raft.borrow().followers, shared.now());
    // While space is short, nobody's catching up is worth more of it, and before it is, nobody's is worth the alarm.
    let free = log.free_space().unwrap_or(u64::MAX);
    let short = shared.no_space_alarm.load(Ordering::Relaxed) || free < shared.settings.store.reserve_bytes;
    let forced = if short { wanted } else { beyond(settings.snapshot_keep_bytes.max(settings.keep_bytes)) };
    log.purge(GROUP, allowed.max(forced))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_kept_for_a_follower_until_it_has_caught_up_from_its_snapshot() {
        let (mut holds, now) = (Holds::default(), Duration::ZERO);
        assert_eq!(holds.allow(500, &[], now), 500);
        let stream = holds.begin(2, 100);
        let at = |matched| [(2, matched, true)];
        assert_eq!(holds.allow(500, &at(7), now + 10 * STALL_MAX), 100, "while it is streamed");
        holds.ended(stream, true, now);
        assert_eq!(holds.allow(600, &at(7), now), 100, "until it is installed");
        assert_eq!(holds.allow(700, &at(400), now), 400, "from where it has come to");
        assert_eq!(holds.allow(700, &at(700), now), 700);
        assert_eq!(holds.allow(900, &at(700), now), 900, "once is enough: the usual rest is kept for it");
    }

    #[test]
    fn the_log_is_not_kept_for_one_that_failed_or_stalls_or_is_gone() {
        let (mut holds, now) = (Holds::default(), Duration::ZERO);
        let followers = [(2, 7, true)];
        let stream = holds.begin(2, 100);
        holds.ended(stream, false, now);
        assert_eq!(holds.allow(500, &followers, now), 500, "another snapshot follows");
        let stream = holds.begin(2, 100);
        holds.ended(stream, true, now);
        assert_eq!(holds.allow(500, &followers, now + STALL_MAX / 2), 100);
        assert_eq!(holds.allow(500, &followers, now + STALL_MAX), 500, "it makes no progress");
        let stream = holds.begin(2, 100);
        holds.ended(stream, true, now);
        assert_eq!(holds.allow(500, &[], now), 500, "this replica does not lead any more");
        holds.ended(stream + 1, true, now);
    }
    /// A leader that was deposed and led again began another snapshot, and purged the log under it when the one before,
    /// which had stalled, failed: the follower needed a third one (the simulator's seed 135).
    #[test]
    fn a_stream_that_fails_takes_nothing_from_the_one_after_it() {
        let (mut holds, now) = (Holds::default(), Duration::ZERO);
        let followers = [(2, 7, true)];
        let stalled = holds.begin(2, 100);
        let running = holds.begin(2, 300);
        assert_eq!(holds.allow(500, &followers, now), 100);
        holds.ended(stalled, false, now);
        assert_eq!(holds.allow(500, &followers, now), 300);
        holds.ended(running, true, now);
        assert_eq!(holds.allow(500, &followers, now), 300);
    }
}
