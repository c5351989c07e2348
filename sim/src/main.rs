//! Runs simulations: one seed for a while, or seed after seed.

use anyhow::{Context, Result};
use clap::Parser;
use quoin_sim::{Settings, run};
use std::io::Write;
use std::time::{Duration, Instant};

/// Simulates a cluster with crashes, partitions and lost writes, and checks what it promises.
#[derive(Parser)]
struct Arguments {
    /// The first seed; the following ones are tried until the time is over.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Real minutes to go on for; 0 runs the one seed.
    #[arg(long, default_value_t = 0.0)]
    minutes: f64,
    /// Simulated seconds with faults, per seed.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let end = Instant::now() + Duration::from_secs_f64(arguments.minutes * 60.0);
    let mut out = std::io::stdout().lock();
    for seed in arguments.seed.. {
        let settings = Settings { seed, duration_ms: arguments.seconds * 1000 };
        let report = run(settings).with_context(|| format!("seed {seed} (repeat with --seed {seed})"))?;
        writeln!(out, "seed {seed}: {report:?}")?;
        if Instant::now() >= end {
            break;
        }
    }
    Ok(())
}
