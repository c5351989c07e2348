//! Fifty seeds run without a violation, and a seed reproduces its run.

use quoin_sim::{Report, Settings, run};

fn simulate(seed: u64) -> Report {
    match run(Settings { seed, duration_ms: 8_000 }) {
        Ok(report) => report,
        Err(failure) => panic!("seed {seed} {failure}"),
    }
}

#[test]
fn fifty_seeds_keep_every_promise() {
    let reports: Vec<Report> = (1..=50).map(simulate).collect();
    // A simulation without writes, reads and faults proves nothing.
    let sum = |count: fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
    assert!(sum(|report| report.counts.writes) > 1000, "{reports:?}");
    assert!(sum(|report| report.counts.reads) > 500, "{reports:?}");
    assert!(sum(|report| report.counts.local_reads) > 100, "{reports:?}");
    assert!(sum(|report| report.counts.transfers) > 300, "{reports:?}");
    assert!(sum(|report| report.counts.chains) > 30, "{reports:?}");
    assert!(sum(|report| report.counts.fenced) > 10, "{reports:?}");
    assert!(sum(|report| report.counts.paced) > 100, "{reports:?}");
    assert!(sum(|report| report.counts.transactions) > 200, "{reports:?}");
    assert!(sum(|report| report.counts.hashes) > 200, "{reports:?}");
    assert!(sum(|report| report.counts.rules) > 200, "{reports:?}");
    assert!(sum(|report| report.counts.tables) > 50, "{reports:?}");
    assert!(sum(|report| report.counts.watched) > 500, "{reports:?}");
    assert!(sum(|report| report.counts.crashes) > 50, "{reports:?}");
    assert!(sum(|report| report.counts.partitions) > 20, "{reports:?}");
    assert!(sum(|report| report.counts.clocks_moved) > 20, "{reports:?}");
    assert!(sum(|report| report.counts.snapshots) > 5, "{reports:?}");
    assert!(sum(|report| report.counts.members_replaced) > 0, "{reports:?}");
    assert!(sum(|report| report.counts.members_resized) > 0, "{reports:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    assert_eq!(simulate(42), simulate(42));
}
