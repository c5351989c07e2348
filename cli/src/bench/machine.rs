//! What the machine and the servers did during a run, from `/proc`. Where there is no `/proc`, nothing is shown.

use std::fs;

/// Clock ticks in a second: what Linux counts processor time in, for user space.
const TICKS_PER_SECOND: f64 = 100.0;

/// Counters at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    total: u64,
    idle: u64,
    steal: u64,
    own_s: f64,
    servers_s: f64,
}

/// What happened between two readings.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(super) struct Usage {
    /// Share of all processors' time, 0 to 1.
    pub(super) idle: f64,
    /// Share taken by other guests of the host, 0 to 1.
    pub(super) steal: f64,
    /// Seconds of processor time of this process.
    pub(super) client_s: f64,
    /// Seconds of processor time of the servers.
    pub(super) servers_s: f64,
}

impl Reading {
    pub(super) fn take(pids: &[u32]) -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let numbers: Vec<u64> = stat
            .lines()
            .next()
            .map(|line| line.split_whitespace().skip(1).filter_map(|number| number.parse().ok()).collect())
            .unwrap_or_default();
        let at = |place: usize| numbers.get(place).copied().unwrap_or(0);
        Self {
            total: numbers.iter().take(8).sum(),
            idle: at(3) + at(4),
            steal: at(7),
            own_s: process_seconds("self"),
            servers_s: pids.iter().map(|pid| process_seconds(&pid.to_string())).sum(),
        }
    }

    /// What happened since `self`.
    pub(super) fn until(&self, later: &Self) -> Usage {
        let total = (later.total - self.total).max(1) as f64;
        Usage {
            idle: (later.idle - self.idle) as f64 / total,
            steal: (later.steal - self.steal) as f64 / total,
            client_s: later.own_s - self.own_s,
            servers_s: later.servers_s - self.servers_s,
        }
    }
}

/// User and system time of a process, all its threads.
fn process_seconds(pid: &str) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold anything; the numbers are counted from behind it.
    let Some((_, fields)) = stat.rsplit_once(')') else { return 0.0 };
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    ticks as f64 / TICKS_PER_SECOND
}
