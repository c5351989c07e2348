//! A line of the demo's report.

use anyhow::Result;
use std::io::Write;
use std::time::{Duration, Instant};

/// What was done, how often, and how long it took.
pub(super) struct Row {
    what: String,
    count: u64,
    took: Duration,
    note: String,
}

impl Row {
    /// A row for what has taken from `since` until now.
    pub(super) fn new(what: impl Into<String>, count: u64, since: Instant, note: impl Into<String>) -> Self {
        Self { what: what.into(), count, took: since.elapsed(), note: note.into() }
    }
}

/// Prints the rows of one face.
pub(super) fn print(face: &str, rows: &[Row]) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "\n{face:<48} {:>8} {:>10} {:>12}", "count", "took", "per second")?;
    for Row { what, count, took, note } in rows {
        let rate = *count as f64 / took.as_secs_f64().max(1e-9);
        let ms = took.as_secs_f64() * 1e3;
        writeln!(out, "{what:<48} {count:>8} {ms:>7.1} ms {rate:>12.0}  {note}")?;
    }
    Ok(())
}
