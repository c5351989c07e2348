//! What the clients of a run see, phase by phase.

use crate::output;
use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Longer latencies count as this one: two minutes in microseconds.
const LATENCY_US_MAX: u64 = 120_000_000;

/// The figures of one phase.
#[derive(Serialize)]
pub(super) struct Phase {
    what: String,
    seconds: f64,
    expired_per_second: f64,
    keep_alives: u64,
    keep_alive_p50_ms: f64,
    keep_alive_p99_ms: f64,
    keep_alive_max_ms: f64,
    /// Seconds from the kill to the first write that succeeds, where a leader was killed.
    write_again_s: Option<f64>,
}

/// What was counted since the last phase ended.
pub(super) struct Seen {
    latencies: Mutex<Histogram<u64>>,
    expired: AtomicU64,
    lost: AtomicU64,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are in order")
}

impl Seen {
    pub(super) fn new() -> Arc<Self> {
        let latencies = Mutex::new(histogram());
        Arc::new(Self { latencies, expired: AtomicU64::new(0), lost: AtomicU64::new(0) })
    }

    fn latencies(&self) -> MutexGuard<'_, Histogram<u64>> {
        self.latencies.lock().expect("no holder panics")
    }

    /// Counts an answered keep-alive.
    pub(super) fn kept_alive(&self, latency: Duration) {
        self.latencies().saturating_record((latency.as_micros() as u64).max(1));
    }

    /// Counts a lease that ended although it was kept alive.
    pub(super) fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Counts expired leases.
    pub(super) fn expire(&self, leases: u64) {
        self.expired.fetch_add(leases, Ordering::Relaxed);
    }

    pub(super) fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// Ends a phase that began at `since`; the counts start again from zero.
    pub(super) fn phase(&self, what: impl Into<String>, since: Instant, write_again_s: Option<f64>) -> Phase {
        let latencies = std::mem::replace(&mut *self.latencies(), histogram());
        let ms = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        let seconds = since.elapsed().as_secs_f64();
        Phase {
            what: what.into(),
            seconds,
            expired_per_second: self.expired.swap(0, Ordering::Relaxed) as f64 / seconds,
            keep_alives: latencies.len(),
            keep_alive_p50_ms: ms(0.5),
            keep_alive_p99_ms: ms(0.99),
            keep_alive_max_ms: latencies.max() as f64 / 1e3,
            write_again_s,
        }
    }
}

pub(super) fn print(phases: &[Phase], json: bool) -> Result<()> {
    if json {
        return output::json(&phases);
    }
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{:<18} {:>8} {:>10} {:>11} {:>9} {:>9} {:>9} {:>12}",
        "", "seconds", "expired/s", "keep-alives", "p50", "p99", "max", "write again"
    )?;
    for phase in phases {
        let again = phase.write_again_s.map_or_else(|| "-".into(), |seconds| format!("{seconds:.3} s"));
        writeln!(
            out,
            "{:<18} {:>8.1} {:>10.0} {:>11} {:>6.1} ms {:>6.1} ms {:>6.0} ms {:>12}",
            phase.what,
            phase.seconds,
            phase.expired_per_second,
            phase.keep_alives,
            phase.keep_alive_p50_ms,
            phase.keep_alive_p99_ms,
            phase.keep_alive_max_ms,
            again
        )?;
    }
    Ok(())
}
