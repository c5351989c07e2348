//! When a running script is to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a command's scripts may run, over all attempts.
pub(super) const TIME_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

/// Why a script was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Time,
    Killed,
}

/// What a running script asks now and then. One script at a time runs under it.
pub(super) struct Stop {
    began: Instant,
    /// Microseconds after `began`.
    deadline: AtomicU64,
    /// Counts SCRIPT KILL on the node.
    kills: Arc<AtomicU64>,
    /// The count when the script began.
    kills_before: AtomicU64,
    over: AtomicBool,
}

impl Stop {
    pub(super) fn new(kills: Arc<AtomicU64>) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            began: Instant::now(),
            deadline: zero(),
            kills,
            kills_before: zero(),
            over: AtomicBool::new(false),
        }
    }

    /// A script begins that may run for so long.
    pub(super) fn begin(&self, time: Duration) {
        let deadline = (self.began.elapsed() + time).as_micros();
        self.deadline.store(u64::try_from(deadline).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.kills_before.store(self.kills.load(Ordering::Relaxed), Ordering::Relaxed);
        self.over.store(false, Ordering::Relaxed);
    }

    /// Whether the script is to end; from then on always.
    pub(super) fn is_over(&self) -> bool {
        let late = || self.began.elapsed().as_micros() >= u128::from(self.deadline.load(Ordering::Relaxed));
        if self.has_ended() || self.is_killed() || late() {
            self.over.store(true, Ordering::Relaxed);
            return true;
        }
        false
    }

    /// # Errors
    /// The script is to end.
    pub(super) fn check(&self) -> mlua::Result<()> {
        if self.is_over() { Err(mlua::Error::runtime("the script's time is over")) } else { Ok(()) }
    }

    /// Whether it was told to end.
    pub(super) fn has_ended(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Ends the script, whatever it catches.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(super) fn why(&self) -> Ended {
        if self.is_killed() { Ended::Killed } else { Ended::Time }
    }

    fn is_killed(&self) -> bool {
        self.kills.load(Ordering::Relaxed) != self.kills_before.load(Ordering::Relaxed)
    }
}
