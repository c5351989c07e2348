//! Runs one simulation, or one seed after another for a while.

use anyhow::{Result, bail};
use clap::Parser;
use quoin_sim::{Settings, run, shortest};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Simulates a cluster with crashes, partitions, lost disks and wrong clocks, and checks its guarantees
#[derive(Parser)]
struct Arguments {
    /// The first seed; with --minutes, the following seeds run too
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Real minutes to keep starting new seeds; 0 runs one seed
    #[arg(long, default_value_t = 0.0)]
    minutes: f64,
    /// Simulated seconds with faults, per seed
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// How many seeds run at once
    #[arg(long, default_value_t = 1)]
    jobs: u64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let (begun, simulated_ms, next) = (Instant::now(), AtomicU64::new(0), AtomicU64::new(arguments.seed));
    let end = begun + Duration::from_secs_f64(arguments.minutes * 60.0);
    let work = || -> Result<()> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            simulated_ms.fetch_add(one(seed, arguments.seconds)?, Ordering::Relaxed);
            if Instant::now() >= end {
                return Ok(());
            }
        }
    };
    let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..arguments.jobs).map(|_| scope.spawn(work)).collect();
        jobs.into_iter().map(|job| job.join().expect("a job that panics has said why")).collect()
    });
    let (simulated, real) = (simulated_ms.into_inner() as f64 / 1e3, begun.elapsed().as_secs_f64());
    let seeds = next.into_inner() - arguments.seed;
    writeln!(std::io::stdout(), "{seeds} seeds, {simulated:.0} simulated seconds in {real:.0} s")?;
    outcomes.into_iter().collect()
}

/// Runs one seed; the milliseconds that were simulated.
fn one(seed: u64, seconds: u64) -> Result<u64> {
    let settings = Settings { seed, duration_ms: seconds * 1000 };
    match run(settings) {
        Ok(report) => {
            writeln!(std::io::stdout(), "seed {seed}: {report:?}")?;
            Ok(report.simulated_ms)
        }
        Err(failure) => {
            let (again, short) =
                (format!("--seed {seed} --seconds {seconds}"), shortest(settings, failure.at_ms));
            bail!("seed {seed} ({again}) {failure}\nthe shortest storm that fails lasts {short} ms");
        }
    }
}
