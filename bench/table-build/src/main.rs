//! Measures the table builder alone: rows per second and processor time per row, with all threads.
//!
//! Usage: `cargo run --release -- ROWS FOLDER`. The input is
//! FOLDER/sample-ROWS.parquet: u64 keys with 40-byte values, about 48 bytes per row, created on the first
//! run. `quoin table build` accepts the same file.

mod sample;

use anyhow::{Context, Result};
use quoin_table::build::{Options, build};
use std::path::Path;
use std::time::Instant;

const ROUNDS: usize = 3;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let rows: u64 = arguments.next().context("usage: ROWS FOLDER")?.parse()?;
    let folder = arguments.next().context("usage: ROWS FOLDER")?;
    let folder = Path::new(&folder);
    let input = folder.join(format!("sample-{rows}.parquet"));
    if !input.exists() {
        sample::write(&input, rows)?;
        println!("wrote {}", input.display());
    }
    for _ in 0..ROUNDS {
        let output = tempfile::tempdir_in(folder)?;
        let options = Options::new("sample", vec![input.clone()], output.path().into());
        let (began, cpu) = (Instant::now(), cpu_ns());
        let built = build(&options, &|_| {})?;
        let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_ns() - cpu);
        println!(
            "{} rows in {seconds:.2} s, {:.2} M rows/s, {} ns of processor time per row",
            built.rows,
            built.rows as f64 / seconds / 1e6,
            cpu / built.rows.max(1),
        );
    }
    Ok(())
}

/// Processor time of this process, all threads together, in nanoseconds.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
