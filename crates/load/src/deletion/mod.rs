//! `quoin bench deletion`: what other clients notice while very many keys go.
//!
//! It starts its own cluster, because it reads the memory of the replicas. Keys are written, and then they go in
//! one of three ways: with their lease, by one deadline that all of them have, or by deletions of ranges.
//! Meanwhile one client puts a key at a fixed rate. The bench prints how long its puts take before and during,
//! how much memory the replicas take, and whether the leader changed.
//!
//! `probe.rs` is the other client, `keys.rs` writes keys and lets them go.

mod keys;
mod probe;

use crate::client;
use crate::cluster::{Cluster, Running, free_port_base};
use crate::{machine, output};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use probe::{Latencies, Probe};
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the other client is alone.
const QUIET: Duration = Duration::from_secs(5);

/// A run over deletions, on a cluster of its own.
#[derive(Args, Clone, Debug)]
pub struct DeletionBench {
    /// Keys that go, in each way
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 16)]
    value_size: usize,
    /// How the keys go
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Way::Lease, Way::Deadline, Way::Ranges])]
    ways: Vec<Way>,
    /// Keys of one deletion of a range
    #[arg(long, default_value_t = 100_000)]
    range_keys: u64,
    /// Number of replicas
    #[arg(long, default_value_t = 3)]
    replicas: u16,
    /// Folder of the replicas' data and logs [default: a temporary folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Program whose replicas are measured [default: this one]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How keys go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// Their lease is revoked
    Lease,
    /// The deadline of all of them comes
    Deadline,
    /// They are deleted, range by range
    Ranges,
}

/// The figures of one way.
#[derive(Serialize)]
struct Figures {
    way: Way,
    keys: u64,
    seconds: f64,
    quiet: Latencies,
    during: Latencies,
    /// The most memory that a replica had resident, before and during.
    resident_mb_before: u64,
    resident_mb_during: u64,
    terms: u64,
}

/// Starts a cluster of the `program`, measures, and prints the figures.
pub(crate) async fn run(options: DeletionBench, program: &Path) -> Result<()> {
    ensure!(options.keys > 0 && options.range_keys > 0, "--keys and --range-keys must be above 0");
    let folder = tempfile::tempdir().context("making a temporary folder")?;
    let cluster = Cluster {
        program: options.program.clone().unwrap_or_else(|| program.to_path_buf()),
        replicas: options.replicas,
        dir: options.dir.clone().unwrap_or_else(|| folder.path().to_path_buf()),
        port_base: free_port_base(options.replicas)?,
        certificates: None,
        settings: Vec::new(),
    };
    let running = cluster.start().await?;
    let mut all = Vec::new();
    for way in &options.ways {
        all.push(measure(&options, *way, &running).await?);
    }
    running.stop().await?;
    print(&all, options.json)
}

async fn measure(options: &DeletionBench, way: Way, running: &Running) -> Result<Figures> {
    let endpoints = running.endpoints();
    let (leader, channel) = client::find_leader(&endpoints.grpc).await;
    let channels = client::connect(&endpoints.grpc[leader..=leader], 4).await?;
    let keys = keys::write(&channels, options.keys, options.value_size, way).await?;

    let probe = Probe::start(channels[0].clone());
    tokio::time::sleep(QUIET).await;
    let (quiet, resident_mb_before, term) = (probe.take(), resident_mb(running), term(&channel).await?);
    keys.wait_until_due().await;
    // What was put while it waited belongs to neither.
    probe.take();
    let start = Instant::now();
    let mut gone = tokio::spawn(keys.go(channels[1].clone(), options.range_keys));
    let mut resident_mb_during = resident_mb_before;
    let mut look = tokio::time::interval(Duration::from_millis(50));
    loop {
        tokio::select! {
            gone = &mut gone => break gone??,
            _ = look.tick() => resident_mb_during = resident_mb_during.max(resident_mb(running)),
        }
    }
    Ok(Figures {
        way,
        keys: options.keys,
        seconds: start.elapsed().as_secs_f64(),
        quiet,
        during: probe.take(),
        resident_mb_before,
        resident_mb_during,
        terms: self::term(&channel).await? - term,
    })
}

fn resident_mb(running: &Running) -> u64 {
    let pids = running.endpoints().pids.iter();
    pids.map(|pid| machine::resident_bytes(*pid)).max().unwrap_or(0) >> 20
}

/// The term, which grows with every change of leader.
async fn term(channel: &crate::client::Channel) -> Result<u64> {
    let mut maintenance = MaintenanceClient::new(channel.clone());
    Ok(maintenance.status(etcd::StatusRequest {}).await?.into_inner().raft_term)
}

fn print(all: &[Figures], json: bool) -> Result<()> {
    if json {
        return output::json(&all);
    }
    let ms = |latencies: &Latencies| {
        format!("{:.1} / {:.1} / {:.0} ms", latencies.p50_ms, latencies.p99_ms, latencies.max_ms)
    };
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|figures| {
            vec![
                format!("{:?}", figures.way).to_lowercase(),
                format!("{:.1} s", figures.seconds),
                format!("{:.0}", figures.keys as f64 / figures.seconds),
                ms(&figures.quiet),
                ms(&figures.during),
                figures.during.failed.to_string(),
                format!("{} / {} MiB", figures.resident_mb_before, figures.resident_mb_during),
                figures.terms.to_string(),
            ]
        })
        .collect();
    let head = [
        "way",
        "took",
        "keys/s",
        "put alone p50/p99/max",
        "put meanwhile p50/p99/max",
        "failed",
        "memory before/most",
        "new terms",
    ];
    output::table(&head, &rows)
}
