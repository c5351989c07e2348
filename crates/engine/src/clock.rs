//! The clocks of this machine, and the cluster's time as this replica knows it.
//!
//! **Invariant: Time is data.** The wall clock is read here and nowhere else, and only to tell the leader how
//! late it is here. What expires, and when, is decided by stamps; what clients are shown meanwhile, by
//! [`Clock::time`].

use crate::surroundings::Surroundings;
use quoin_core::Stamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A wall clock that is further from the cluster's time than this is wrong, and its owner is told.
pub(crate) const AHEAD_MAX: Duration = Duration::from_secs(5);

/// Clocks, and the cluster's time.
pub(crate) struct Clock {
    started: Instant,
    /// What shows the time in a simulation.
    simulated: Option<Arc<Surroundings>>,
    /// What must be added to the monotonic clock to have the cluster's time, in milliseconds.
    offset_ms: AtomicI64,
    /// How far the wall clock was moved by [`Self::shift_wall`].
    shifted_ms: AtomicI64,
}

impl Clock {
    /// A clock that does not know the cluster's time yet.
    pub(crate) fn new() -> Self {
        let (offset_ms, shifted_ms) = (AtomicI64::new(0), AtomicI64::new(0));
        Self { started: Instant::now(), simulated: None, offset_ms, shifted_ms }
    }

    /// The clocks of a process in a simulation.
    pub(crate) fn simulated(surroundings: Option<&Arc<Surroundings>>) -> Self {
        Self { simulated: surroundings.cloned(), ..Self::new() }
    }

    /// Milliseconds since this was made.
    pub(crate) fn monotonic_ms(&self) -> u64 {
        self.monotonic_us() / 1000
    }

    /// Microseconds since this was made. A simulation counts milliseconds.
    pub(crate) fn monotonic_us(&self) -> u64 {
        match &self.simulated {
            None => self.started.elapsed().as_micros() as u64,
            Some(simulated) => simulated.monotonic_ms() * 1000,
        }
    }

    /// The cluster's time, as far as this replica knows it. Whoever shows a state takes the stamp of the
    /// state if that is later.
    pub(crate) fn time(&self) -> Stamp {
        let now = i64::try_from(self.monotonic_ms()).unwrap_or(i64::MAX);
        let time = now.saturating_add(self.offset_ms.load(Ordering::Relaxed));
        Stamp(u64::try_from(time).unwrap_or(0))
    }

    /// The raft thread says what the time is.
    pub(crate) fn set_offset(&self, offset_ms: i64) {
        self.offset_ms.store(offset_ms, Ordering::Relaxed);
    }

    /// Milliseconds since the Unix epoch, by this machine's wall clock.
    pub(crate) fn wall(&self) -> Stamp {
        let ms = match &self.simulated {
            None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
            Some(simulated) => simulated.wall_ms(),
        };
        Stamp(ms.saturating_add_signed(self.shifted_ms.load(Ordering::Relaxed)))
    }

    /// Moves the wall clock, as an operator or NTP may.
    pub(crate) fn shift_wall(&self, ms: i64) {
        self.shifted_ms.store(ms, Ordering::Relaxed);
    }
}

/// Tells of a wall clock that is wrong: when it becomes so, again while it lasts, and when it is right again.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    told: Option<Instant>,
}

/// How often a wrong clock is told of.
const TELL_AGAIN: Duration = Duration::from_secs(600);

impl Watch {
    /// The wall clock is `ahead_ms` ahead of the cluster's time, or behind it. What is to be told, if
    /// anything.
    pub(crate) fn look(&mut self, ahead_ms: i64, now: Instant) -> Option<String> {
        let wrong = ahead_ms.unsigned_abs() > AHEAD_MAX.as_millis() as u64;
        if !wrong {
            return self.told.take().map(|_| "this machine's clock is right again".into());
        }
        if self.told.is_some_and(|told| now.duration_since(told) < TELL_AGAIN) {
            return None;
        }
        self.told = Some(now);
        let seconds = ahead_ms.unsigned_abs() as f64 / 1e3;
        let side = if ahead_ms > 0 { "ahead of" } else { "behind" };
        Some(format!(
            "this machine's clock is {seconds:.1} s {side} the cluster's time: set it right (is NTP running?). Times to \
             live and timeouts go by the cluster's time, which follows the clocks of a majority by at most 50 ms a \
             second. If these clocks are right and the time is wrong, stop all replicas and start them again"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_clock_is_told_of_once_in_a_while_with_how_wrong_it_is() {
        let (mut watch, now) = (Watch::default(), Instant::now());
        assert_eq!(watch.look(4999, now), None);
        let told = watch.look(3_600_000, now).unwrap();
        assert!(told.contains("3600.0 s ahead of the cluster's time"), "{told}");
        assert_eq!(watch.look(3_600_000, now + TELL_AGAIN / 2), None);
        assert!(watch.look(3_600_000, now + TELL_AGAIN).is_some());
        assert!(watch.look(0, now + TELL_AGAIN).unwrap().contains("right again"));
        assert_eq!(watch.look(0, now + TELL_AGAIN), None);
        let told = watch.look(-60_000, now).unwrap();
        assert!(told.contains("60.0 s behind the cluster's time"), "{told}");
    }

    #[test]
    fn the_clusters_time_does_not_follow_the_wall_clock() {
        let clock = Clock::new();
        clock.set_offset(1_000_000);
        clock.shift_wall(3_600_000);
        assert!(clock.wall().0 > 3_600_000 && clock.time() < Stamp(1_000_000 + 3_600_000));
    }
}
