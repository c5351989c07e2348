//! Runs one simulation, or one seed after another for a while.

use anyhow::{Context, Result};
use clap::Parser;
use quoin_sim::{Settings, run};
use std::io::Write;
use std::time::{Duration, Instant};

/// Simulates a cluster with crashes, partitions and torn writes, and checks its guarantees
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
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let end = Instant::now() + Duration::from_secs_f64(arguments.minutes * 60.0);
    let mut out = std::io::stdout().lock();
    for seed in arguments.seed.. {
        let settings = Settings { seed, duration_ms: arguments.seconds * 1000 };
        let report = run(settings).with_context(|| format!("seed {seed} (reproduce with --seed {seed})"))?;
        writeln!(out, "seed {seed}: {report:?}")?;
        if Instant::now() >= end {
            break;
        }
    }
    Ok(())
}
