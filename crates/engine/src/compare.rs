//! Replicas compare what they have applied: bytes that a disk has changed are found by `scrub.rs`, states that differ though
//! every byte is as it was written are found here.
//!
//! Each replica keeps hashes over what it wrote at the entries of its last windows, of [`Pace::window`] entries each, that it
//! has applied whole since it started. The leader tells its own now and then through the log, the others answer with theirs for the
//! same windows, and everybody counts: a replica of which a voters' majority differs, and agrees, is wrong. It raises the
//! alarm CORRUPT and ends, since what it answers is wrong and no checksum stops it. Where there is no majority, as of two
//! replicas, all that differ raise the alarm and go on.
//!
//! What this deliberately does not do: read the state. A difference is found once an entry writes something else because of it.
//! Replicas of different versions are not compared, and neither is what was applied before a start or a snapshot.

use super::scrub::Damage;
use super::shared::Shared;
use super::upkeep;
use parking_lot::Mutex;
use quoin_core::system::{Alarm, AlarmKind, Effects, Operation};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Windows that are remembered: a million entries.
const WINDOWS_MAX: usize = 4096;
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How much is compared at once, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Entries whose effects have one hash.
    window: u64,
    /// How long after a leader has begun it begins again, if there is a new window.
    every: Duration,
}

impl Pace {
    pub(crate) const USUAL: Self = Self { window: 256, every: Duration::from_secs(30) };
    /// A simulation lasts for seconds.
    pub(crate) const SIMULATED: Self = Self { window: 8, every: Duration::from_secs(1) };
}

/// What a replica has applied and been told.
#[derive(Debug)]
pub(crate) struct Compare {
    pace: Pace,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whole windows, ascending, without gaps.
    windows: VecDeque<(u64, u64)>,
    /// The window under way, and its hash, if it was applied from its first entry on.
    current: Option<(u64, u64)>,
    /// The first and last window that replicas were asked about last, and what they told.
    asked: (u64, u64),
    told: BTreeMap<u64, u64>,
    /// Whether this replica has told its own.
    answered: bool,
    /// When this replica has begun last, by its clock.
    begun: Option<Duration>,
    /// What is wrong, until it is dealt with.
    verdict: Option<Verdict>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// A majority has something else.
    Wrong,
    /// Nobody knows who is right.
    Differs,
}

impl Compare {
    pub(crate) fn new(pace: Pace) -> Self {
        Self { pace, state: Mutex::default() }
    }

    /// An entry was applied.
    pub(crate) fn applied(&self, index: u64, effects: u64) {
        let (window, place) = (index / self.pace.window, index % self.pace.window);
        let mut state = self.state.lock();
        let current = match state.current.filter(|(current, _)| *current == window) {
            Some((_, hash)) => Some(hash),
            None => (place == 0).then_some(0),
        };
        state.current = current.map(|hash| (window, fold(hash, effects)));
        if place == self.pace.window - 1
            && let Some(whole) = state.current.take()
        {
            if state.windows.back().is_some_and(|(last, _)| last + 1 != window) {
                state.windows.clear();
            }
            state.windows.push_back(whole);
            if state.windows.len() > WINDOWS_MAX {
                state.windows.pop_front();
            }
        }
    }

    /// A snapshot took the place of what was applied.
    pub(crate) fn installed(&self) {
        let mut state = self.state.lock();
        (state.current, state.told) = (None, BTreeMap::new());
        state.windows.clear();
    }

    /// A replica has told what it wrote.
    pub(crate) fn told(&self, effects: &Effects, own: u64, voters: &[u64]) {
        if effects.version != VERSION || !voters.contains(&effects.member) {
            return;
        }
        let (asked, mut state) = ((effects.first, effects.last), self.state.lock());
        if state.asked != asked {
            (state.asked, state.answered, state.told) = (asked, false, BTreeMap::new());
        }
        state.told.insert(effects.member, effects.hash);
        state.answered |= effects.member == own;
        if let Some(verdict) = state.judge(own, voters) {
            state.verdict = Some(verdict);
        }
    }
}

impl State {
    /// A hash over windows, if all of them are remembered.
    fn hash(&self, (first, last): (u64, u64)) -> Option<u64> {
        let from = first.checked_sub(self.windows.front()?.0)?;
        let asked = self.windows.iter().skip(usize::try_from(from).ok()?);
        let asked = asked.take_while(|(window, _)| *window <= last);
        let (mut hash, mut next) = (0, first);
        for (_, of_window) in asked {
            (hash, next) = (fold(hash, *of_window), next + 1);
        }
        (next == last + 1).then_some(hash)
    }

    /// The windows that the leader asks about: those since the last time that it still has.
    fn next(&self) -> Option<(u64, u64)> {
        let (oldest, last) = (self.windows.front()?.0, self.windows.back()?.0);
        let first = oldest.max(self.asked.1 + 1);
        (first <= last).then_some((first, last))
    }

    fn judge(&self, own: u64, voters: &[u64]) -> Option<Verdict> {
        let ours = *self.told.get(&own)?;
        let count = |hash: u64| self.told.values().filter(|other| **other == hash).count();
        let majority = voters.len() / 2 + 1;
        let agreed = self.told.values().copied().find(|hash| count(*hash) >= majority);
        match agreed {
            Some(agreed) => (agreed != ours).then_some(Verdict::Wrong),
            None => (self.told.len() == voters.len()).then_some(Verdict::Differs),
        }
    }
}

fn fold(hash: u64, next: u64) -> u64 {
    (hash ^ next).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// A round of the upkeep: tells what this replica has written, if it was asked or leads, and does what follows.
pub(crate) async fn round(shared: &Arc<Shared>) {
    let verdict = shared.compare.state.lock().verdict;
    if let Some(verdict) = verdict {
        return conclude(shared, verdict).await;
    }
    let tell = {
        let (now, mut state) = (shared.now(), shared.compare.state.lock());
        let due = state.begun.is_none_or(|begun| now.saturating_sub(begun) >= shared.compare.pace.every);
        let asked = !state.answered && !state.told.is_empty();
        match state.hash(state.asked).filter(|_| asked) {
            Some(hash) => Some((state.asked, hash)),
            None if shared.is_leader() && due => {
                state.begun = Some(now);
                state.next().and_then(|next| Some((next, state.hash(next)?)))
            }
            None => None,
        }
    };
    if let Some(((first, last), hash)) = tell {
        let effects = Effects { member: shared.id, first, last, hash, version: VERSION.into() };
        upkeep::propose(shared, Operation::Effects(effects)).await;
    }
}

/// Raises the alarm, until the log has it, and ends if this replica is wrong.
async fn conclude(shared: &Arc<Shared>, verdict: Verdict) {
    let (first, last) = shared.compare.state.lock().asked;
    let window = shared.compare.pace.window;
    let (first, last) = (first * window, last * window + window - 1);
    let others = if verdict == Verdict::Wrong { "a majority" } else { "others" };
    let problem = format!("what it wrote at entries {first} to {last} differs from what {others} wrote");
    let damage = Damage { file: "store".into(), offset: None, problem };
    tracing::error!(%damage, "this replica's state is wrong: replace the member (quoin doctor DIR --rebuild)");
    let alarm = Alarm { member: shared.id, kind: AlarmKind::Corrupt as i32 };
    if !upkeep::raise(shared, alarm).await {
        return;
    }
    shared.findings.add(damage.clone());
    shared.compare.state.lock().verdict = None;
    if verdict == Verdict::Wrong {
        shared.fail(&damage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = Pace::USUAL.window;

    fn applied(compare: &Compare, indexes: std::ops::Range<u64>) {
        indexes.for_each(|index| compare.applied(index, index));
    }

    #[test]
    fn only_whole_windows_are_told_and_a_snapshot_begins_anew() {
        let compare = Compare::new(Pace::USUAL);
        applied(&compare, 2..3 * WINDOW + 9);
        assert_eq!(compare.state.lock().next(), Some((1, 2)), "the first window began before");
        assert_eq!(compare.state.lock().hash((0, 2)), None);
        compare.installed();
        applied(&compare, 5 * WINDOW + 1..7 * WINDOW);
        assert_eq!(compare.state.lock().next(), Some((6, 6)));
    }

    #[test]
    fn a_hash_is_of_the_same_windows_wherever_the_others_begin() {
        let (one, two) = (Compare::new(Pace::USUAL), Compare::new(Pace::USUAL));
        applied(&one, 1..9 * WINDOW);
        applied(&two, 3 * WINDOW..7 * WINDOW);
        let (one, two) = (one.state.lock(), two.state.lock());
        assert!(one.hash((4, 6)).is_some());
        assert_eq!(one.hash((4, 6)), two.hash((4, 6)));
        assert_eq!(two.hash((4, 7)), None);
        assert_ne!(one.hash((4, 5)), one.hash((5, 6)));
    }

    #[test]
    fn who_differs_from_a_majority_is_wrong() {
        let tell = |compare: &Compare, own, member, hash, voters: &[u64]| {
            let version = VERSION.to_owned();
            compare.told(&Effects { member, first: 1, last: 2, hash, version }, own, voters);
            compare.state.lock().verdict
        };
        let (all, compare) = ([1, 2, 3], Compare::new(Pace::USUAL));
        assert_eq!(tell(&compare, 3, 1, 7, &all), None);
        assert_eq!(tell(&compare, 3, 3, 8, &all), None, "one of three may be wrong");
        assert_eq!(tell(&compare, 3, 9, 7, &all), None, "no voter");
        assert_eq!(tell(&compare, 3, 2, 7, &all), Some(Verdict::Wrong));
        let right = Compare::new(Pace::USUAL);
        for (member, hash) in [(1, 7), (3, 8), (2, 7)] {
            assert_eq!(tell(&right, 1, member, hash, &all), None);
        }
        let two = Compare::new(Pace::USUAL);
        assert_eq!(tell(&two, 1, 1, 7, &[1, 2]), None);
        assert_eq!(tell(&two, 1, 2, 8, &[1, 2]), Some(Verdict::Differs));
        let older = Effects { member: 2, first: 1, last: 2, hash: 9, version: "older".into() };
        let other = Compare::new(Pace::USUAL);
        other.told(&older, 1, &[1, 2]);
        assert_eq!(other.state.lock().told, BTreeMap::new());
    }
}
