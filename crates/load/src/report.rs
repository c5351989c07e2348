//! The figures of a run: a row per case for people, or all of them as JSON.

use crate::output;
use crate::runner::Counted;
use anyhow::Result;
use serde::Serialize;
use std::io::Write;

/// One case's figures. Latencies are in microseconds, CPU is in microseconds per operation.
#[derive(Serialize)]
pub(crate) struct Outcome {
    case: String,
    clients: usize,
    connections: usize,
    rate: Option<f64>,
    value_bytes: usize,
    operations: u64,
    errors: u64,
    first_error: Option<String>,
    dropped: u64,
    per_second: f64,
    mean_us: f64,
    p50_us: f64,
    p90_us: f64,
    p95_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    server_cpu_us: Option<f64>,
    client_cpu_us: f64,
    idle: f64,
    steal: f64,
    slowest_second: u64,
    seconds: Vec<u64>,
}

/// The options of a run that its report repeats.
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) clients: usize,
    pub(crate) connections: usize,
    pub(crate) rate: Option<f64>,
    pub(crate) value_bytes: usize,
    /// Whether the servers' CPU time was measured.
    pub(crate) servers: bool,
}

impl Outcome {
    pub(crate) fn new(case: String, setting: Setting, counted: Counted) -> Self {
        let operations = counted.latencies.len();
        let us = |quantile| counted.latencies.value_at_quantile(quantile) as f64 / 1e3;
        let per_operation = |seconds: f64| seconds * 1e6 / (operations.max(1) as f64);
        let usage = counted.usage;
        Self {
            case,
            clients: setting.clients,
            connections: setting.connections,
            rate: setting.rate,
            value_bytes: setting.value_bytes,
            operations,
            errors: counted.errors,
            first_error: counted.first_error,
            dropped: counted.dropped,
            per_second: operations as f64 / counted.seconds,
            mean_us: counted.latencies.mean() / 1e3,
            p50_us: us(0.5),
            p90_us: us(0.9),
            p95_us: us(0.95),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: counted.latencies.max() as f64 / 1e3,
            server_cpu_us: setting.servers.then(|| per_operation(usage.servers_s)),
            client_cpu_us: per_operation(usage.client_s),
            idle: usage.idle,
            steal: usage.steal,
            slowest_second: counted.per_second.iter().min().copied().unwrap_or(0),
            seconds: counted.per_second,
        }
    }
}

/// Prints one case's row, below the head if it is the first.
fn print_row(outcome: &Outcome, first: bool) -> Result<()> {
    let mut out = std::io::stdout();
    if first {
        writeln!(
            out,
            "{:<20} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10} {:>6} {:>6} {:>7}",
            "case",
            "clients",
            "per s",
            "p50",
            "p95",
            "p99",
            "p99.9",
            "server CPU",
            "client CPU",
            "idle",
            "steal",
            "errors"
        )?;
    }
    let server = outcome.server_cpu_us.map_or_else(|| "-".into(), |us| format!("{us:.1} us"));
    writeln!(
        out,
        "{:<16} {:>7} {:>9.0} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10} {:>5.0}% {:>5.0}% {:>7}",
        outcome.case,
        outcome.clients,
        outcome.per_second,
        duration(outcome.p50_us),
        duration(outcome.p95_us),
        duration(outcome.p99_us),
        duration(outcome.p999_us),
        server,
        format!("{:.1} us", outcome.client_cpu_us),
        outcome.idle * 100.0,
        outcome.steal * 100.0,
        outcome.errors
    )?;
    if let Some(error) = &outcome.first_error {
        writeln!(out, "  first error: {error}")?;
    }
    if outcome.dropped > 0 {
        writeln!(out, "  {} requests were not started: too many were in flight", outcome.dropped)?;
    }
    Ok(())
}

fn duration(us: f64) -> String {
    if us < 1000.0 { format!("{us:.0} us") } else { format!("{:.1} ms", us / 1e3) }
}

/// Prints outcomes: each as it comes, or all as JSON at the end.
pub(crate) struct Report {
    json: bool,
    outcomes: Vec<Outcome>,
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, outcomes: Vec::new() }
    }

    /// Adds a case's outcome and prints its row.
    pub(crate) fn add(&mut self, outcome: Outcome) -> Result<()> {
        if !self.json {
            print_row(&outcome, self.outcomes.is_empty())?;
        }
        self.outcomes.push(outcome);
        Ok(())
    }

    /// Prints all outcomes if they are to be JSON.
    pub(crate) fn end(self) -> Result<()> {
        if self.json { output::json(&self.outcomes) } else { Ok(()) }
    }
}
