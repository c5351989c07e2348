//! `quoin bench leases`: leader changes while very many leases are held and very many expire.
//!
//! It starts its own cluster, because it kills leaders. Most leases are ballast. Some are kept alive once a
//! second, over every replica. The others have a key each and expire at a fixed rate. Leaders are killed with
//! SIGKILL meanwhile, and the bench measures how soon writes succeed again and how long keep-alives take. It
//! fails if a lease ends that was kept alive.
//!
//! `clients.rs` does the work, `seen.rs` counts.

mod clients;
mod seen;

use crate::client;
use crate::cluster::{Cluster, Running, free_port_base};
use anyhow::{Context, Result, ensure};
use clap::Args;
use clients::Lease;
use seen::{Phase, Seen};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const REPLICAS: u16 = 3;
/// Time to live of the ballast: longer than any run.
const BALLAST_TTL_S: i64 = 36_000;
const KEPT_TTL_S: i64 = 10;
/// Leases kept alive over one stream.
const KEPT_PER_STREAM: usize = 100;
/// Seconds from the first grant of an expiring lease to the first expiry: time to grant them all.
const GRANT_S: u64 = 120;
/// How long a phase without a kill lasts.
const QUIET: Duration = Duration::from_secs(10);
const EXPIRING: Duration = Duration::from_secs(8);
/// How long a phase that begins with a kill lasts, at least.
const KILLED: Duration = Duration::from_secs(10);
/// How long to wait for leases to expire.
const EXPIRY_TIMEOUT: Duration = Duration::from_secs(300);

/// A run over leases, on a cluster of its own.
#[derive(Args, Clone, Debug)]
pub struct LeasesBench {
    /// Total number of leases
    #[arg(long, default_value_t = 1_000_000)]
    leases: u64,
    /// Leases that expire per second, once they do
    #[arg(long, default_value_t = 10_000)]
    expire_per_second: u64,
    /// How many seconds leases expire for
    #[arg(long, default_value_t = 45, value_name = "SECONDS")]
    expire_seconds: u64,
    /// Leases that are kept alive, once a second
    #[arg(long, default_value_t = 1000)]
    kept: u64,
    /// Number of leaders to kill
    #[arg(long, default_value_t = 3)]
    kills: usize,
    /// Requests in flight while leases are granted
    #[arg(long, default_value_t = 256)]
    clients: u64,
    /// Folder of the replicas' data and logs [default: a temporary folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Starts a cluster of the `program`, measures, and prints the phases.
pub(crate) async fn run(options: LeasesBench, program: &Path) -> Result<()> {
    let expiring = options.expire_per_second.saturating_mul(options.expire_seconds);
    let used = expiring.saturating_add(options.kept);
    ensure!(
        used <= options.leases,
        "--leases {} is less than the {used} that expire or are kept alive",
        options.leases
    );
    ensure!(options.clients > 0, "--clients must be above 0");
    let folder = tempfile::tempdir().context("making a temporary folder")?;
    let cluster = Cluster {
        program: program.to_path_buf(),
        replicas: REPLICAS,
        dir: options.dir.clone().unwrap_or_else(|| folder.path().to_path_buf()),
        port_base: free_port_base(REPLICAS)?,
        certificates: None,
        settings: Vec::new(),
    };
    let mut running = cluster.start().await?;
    let phases = measure(&options, expiring, &mut running).await;
    running.stop().await?;
    seen::print(&phases?, options.json)
}

async fn measure(options: &LeasesBench, expiring: u64, running: &mut Running) -> Result<Vec<Phase>> {
    let addresses = running.endpoints().grpc.clone();
    let (leader, _) = client::find_leader(&addresses).await;
    let channels = client::connect(&addresses[leader..=leader], 16).await?;
    let (clients, seen) = (options.clients, Seen::new());
    let mut tasks = JoinSet::new();

    let start = Instant::now();
    let ballast = options.leases - expiring - options.kept;
    let lease = |number| Lease { id: 1_000_000 + number as i64, ttl_s: BALLAST_TTL_S, with_key: false };
    clients::grant(&channels, clients, ballast, lease).await?;
    note(format_args!("granted {ballast} leases in {:.1} s", start.elapsed().as_secs_f64()))?;

    let lease = |number| Lease { id: 1 + number as i64, ttl_s: KEPT_TTL_S, with_key: true };
    clients::grant(&channels, clients, options.kept, lease).await?;
    let kept: Vec<i64> = (1..=options.kept as i64).collect();
    for (number, ids) in kept.chunks(KEPT_PER_STREAM).enumerate() {
        tasks.spawn(clients::keep_alive(addresses.clone(), number, ids.to_vec(), seen.clone()));
    }
    tasks.spawn(clients::watch_expiries(addresses.clone(), leader + 1, seen.clone()));

    let start = Instant::now();
    let per_second = options.expire_per_second;
    let lease = move |number: u64| {
        // Expiries are not in the order of the ids: a new leader extends every lease, and that must not make
        // them expire at once.
        let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % expiring.max(1);
        let left = Duration::from_secs(GRANT_S).saturating_sub(start.elapsed());
        let ttl_s = (left.as_secs() + place / per_second.max(1)) as i64;
        Lease { id: 1_000_000_000 + number as i64, ttl_s, with_key: true }
    };
    clients::grant(&channels, clients, expiring, lease).await?;
    note(format_args!(
        "granted {expiring} leases with a key each in {:.1} s",
        start.elapsed().as_secs_f64()
    ))?;

    let mut phases = Vec::new();
    let start = Instant::now();
    seen.phase("", start, None);
    tokio::time::sleep(QUIET).await;
    phases.push(seen.phase("all leases held", start, None));
    for kill in 1..=options.kills {
        wait_expiring(&seen, per_second).await?;
        let start = Instant::now();
        tokio::time::sleep(EXPIRING).await;
        phases.push(seen.phase("leases expire", start, None));
        let (leader, _) = client::find_leader(&addresses).await;
        let start = Instant::now();
        running.kill(leader)?;
        let again = clients::write_again(&addresses, leader, start).await?;
        tokio::time::sleep_until((start + KILLED).into()).await;
        phases.push(seen.phase(format!("leader killed, {kill}"), start, Some(again)));
        running.restart(leader)?;
        note(format_args!("leader killed: a write succeeded after {again:.3} s"))?;
    }
    let lost = seen.lost();
    ensure!(lost == 0, "{lost} leases ended although they were kept alive");
    Ok(phases)
}

/// Waits until leases expire at a fifth of the intended rate, as they do after a leader change, or faster.
async fn wait_expiring(seen: &Seen, per_second: u64) -> Result<()> {
    let start = Instant::now();
    loop {
        let before = seen.expired();
        tokio::time::sleep(Duration::from_secs(1)).await;
        if seen.expired() >= before + per_second / 5 {
            seen.phase("", start, None);
            return Ok(());
        }
        ensure!(
            start.elapsed() < EXPIRY_TIMEOUT,
            "no leases expire any more; raise --expire-seconds or lower --kills"
        );
    }
}

/// Progress goes to standard error, apart from the figures.
fn note(text: std::fmt::Arguments<'_>) -> Result<()> {
    Ok(writeln!(std::io::stderr(), "{text}")?)
}
