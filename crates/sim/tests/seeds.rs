//! Twenty seeds run without a violation, and a seed reproduces its run.

use quoin_sim::{Report, Settings, run};

fn simulate(seed: u64) -> Report {
    match run(Settings { seed, duration_ms: 8_000 }) {
        Ok(report) => report,
        Err(error) => panic!("seed {seed}: {error:#}"),
    }
}

#[test]
fn twenty_seeds_keep_every_promise() {
    let reports: Vec<Report> = (1..=20).map(simulate).collect();
    // A simulation without writes, reads and faults proves nothing.
    assert!(reports.iter().all(|report| report.counts.writes > 100), "{reports:?}");
    assert!(reports.iter().all(|report| report.counts.reads > 20), "{reports:?}");
    assert!(reports.iter().map(|report| report.crashes).sum::<u64>() > 20, "{reports:?}");
    assert!(reports.iter().map(|report| report.partitions).sum::<u64>() > 10, "{reports:?}");
    assert!(reports.iter().map(|report| report.clocks_moved).sum::<u64>() > 20, "{reports:?}");
    assert!(reports.iter().map(|report| report.snapshots).sum::<u64>() > 0, "{reports:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    assert_eq!(simulate(42), simulate(42));
}
