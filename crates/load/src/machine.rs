//! CPU time of the machine, the servers and this process during a run, and the memory of a server, from `/proc`.
//! Zero where there is no `/proc`.

use std::fs;

/// Linux counts CPU time for user space in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// Counters at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    total: u64,
    idle: u64,
    steal: u64,
    own_s: f64,
    servers_s: f64,
}

/// CPU time between two readings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Idle share of all processors' time, 0 to 1.
    pub(crate) idle: f64,
    /// Share that the hypervisor gave to other guests, 0 to 1.
    pub(crate) steal: f64,
    /// Seconds that this process used.
    pub(crate) client_s: f64,
    /// Seconds that the servers used.
    pub(crate) servers_s: f64,
}

impl Reading {
    /// Reads the counters of now; `pids` are the servers.
    pub(crate) fn take(pids: &[u32]) -> Self {
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

    /// The usage from `self` to `later`.
    pub(crate) fn until(&self, later: &Self) -> Usage {
        let since = |later: u64, earlier: u64| later.saturating_sub(earlier) as f64;
        let total = since(later.total, self.total).max(1.0);
        Usage {
            idle: since(later.idle, self.idle) / total,
            steal: since(later.steal, self.steal) / total,
            client_s: later.own_s - self.own_s,
            servers_s: later.servers_s - self.servers_s,
        }
    }
}

/// Resident memory of a process.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kib = line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// User and system time of all threads of a process.
fn process_seconds(pid: &str) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name stands in parentheses and may contain anything, so fields are counted from its end.
    let Some((_, fields)) = stat.rsplit_once(')') else { return 0.0 };
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    ticks as f64 / TICKS_PER_SECOND
}
