//! A build's progress on standard error: one line that is rewritten on a terminal, a new line every five
//! seconds elsewhere.

use quoin_table::build::Progress;
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a phase lasts before its speed is shown.
const RATE_SECONDS_MIN: f64 = 0.1;

/// Shows how far a build is. Many threads may call it; most calls print nothing.
pub(crate) struct Bar {
    began: Instant,
    terminal: bool,
    state: Mutex<State>,
}

struct State {
    shown: Instant,
    writing_since: Option<Instant>,
}

impl Bar {
    pub(crate) fn new() -> Self {
        let began = Instant::now();
        let state = Mutex::new(State { shown: began, writing_since: None });
        Self { began, terminal: std::io::stderr().is_terminal(), state }
    }

    /// The time since the build began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn show(&self, progress: Progress) {
        // Another thread is printing.
        let Ok(mut state) = self.state.try_lock() else { return };
        let every = Duration::from_millis(if self.terminal { 100 } else { 5000 });
        if let Progress::Writing { .. } = progress {
            state.writing_since.get_or_insert_with(Instant::now);
        }
        if state.shown.elapsed() < every {
            return;
        }
        state.shown = Instant::now();
        let since = state.writing_since.unwrap_or(self.began).elapsed().as_secs_f64();
        let line = line(progress, since, self.elapsed().as_secs_f64());
        let mut out = std::io::stderr().lock();
        // An error means that nobody reads standard error.
        let _ = if self.terminal { write!(out, "\r\x1b[K{line}") } else { writeln!(out, "{line}") };
        let _ = out.flush();
    }

    /// Clears the line.
    pub(crate) fn end(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(progress: Progress, phase_seconds: f64, seconds: f64) -> String {
    let (what, part, rows, rate) = match progress {
        Progress::Reading { rows, bytes, bytes_total } => {
            ("reading", bytes as f64 / bytes_total.max(1) as f64, rows, rows as f64 / seconds)
        }
        Progress::Writing { parts, parts_total, rows } => {
            let part = parts as f64 / parts_total.max(1) as f64;
            ("writing", part, rows, part * rows as f64 / phase_seconds)
        }
    };
    let part = part.clamp(0.0, 1.0);
    let filled = (part * 30.0) as usize;
    let bar = format!("{}{}", "#".repeat(filled), ".".repeat(30 - filled));
    let mut line = format!("{what} [{bar}] {:3.0}% {rows} rows", part * 100.0);
    // What a phase has done in its first moment says nothing of its speed.
    if phase_seconds >= RATE_SECONDS_MIN {
        line += &format!(", {:.2} M rows/s", rate / 1e6);
        if part > 0.01 {
            line += &format!(", {:.0} s left", phase_seconds * (1.0 - part) / part);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_percent_rate_and_time_left() {
        let reading = Progress::Reading { rows: 3_000_000, bytes: 25, bytes_total: 100 };
        let shown = line(reading, 2.0, 2.0);
        assert_eq!(
            shown,
            "reading [#######.......................]  25% 3000000 rows, 1.50 M rows/s, 6 s left"
        );
    }

    /// The first line of the second phase said "2500000.00 M rows/s".
    #[test]
    fn a_phase_that_has_just_begun_has_no_rate() {
        let writing = Progress::Writing { parts: 1, parts_total: 4, rows: 10_000_000 };
        assert_eq!(line(writing, 1e-6, 9.0), "writing [#######.......................]  25% 10000000 rows");
    }
}
