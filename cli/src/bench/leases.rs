//! `quoin bench leases`: does a leader change go on while very many leases are held, and very many expire?
//!
//! Starts a cluster of its own, because it kills leaders. Most leases are ballast; some are kept alive once a second, over
//! every replica; the others have a key each and end at a fixed rate. Then leaders are killed with `kill -9` while
//! leases end, and it is measured when writes succeed again and how long keep-alives take. None that is kept alive may end.

use super::targets::{self, Connection};
use crate::demo::{find_leader, free_port_base};
use crate::playground::{Playground, Running};
use anyhow::{Context, Result, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::etcdserverpb::lease_client::LeaseClient;
use quoin_proto::etcdserverpb::watch_client::WatchClient;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

/// Seconds to live of the ballast: longer than any run.
const BALLAST_TTL_S: i64 = 36_000;
const KEPT_TTL_S: i64 = 10;
/// Leases kept alive over one stream.
const KEPT_PER_STREAM: i64 = 100;
/// Seconds from the granting of the first mortal lease until they begin to end: time to grant them all.
const MORTAL_TTL_S: u64 = 120;
/// Latencies from a microsecond to two minutes.
const LATENCY_US_MAX: u64 = 120_000_000;

/// A run over leases, on a cluster of its own.
#[derive(Args, Clone, Debug)]
pub(crate) struct LeasesBench {
    /// Leases in all
    #[arg(long, default_value_t = 1_000_000)]
    leases: u64,
    /// Leases that end in a second, once they do
    #[arg(long, default_value_t = 10_000)]
    expire_per_second: u64,
    /// Seconds' worth of leases that end
    #[arg(long, default_value_t = 45)]
    expire_seconds: u64,
    /// Leases that are kept alive, once a second
    #[arg(long, default_value_t = 1000)]
    kept: i64,
    /// Leaders to kill
    #[arg(long, default_value_t = 3)]
    kills: usize,
    /// Requests under way while leases are granted
    #[arg(long, default_value_t = 256)]
    clients: u64,
    /// Where the replicas keep their data and logs; without it, in a temporary folder
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One stretch of the run.
#[derive(Serialize)]
struct Phase {
    what: String,
    seconds: f64,
    expired_per_second: f64,
    keep_alives: u64,
    keep_alive_p50_ms: f64,
    keep_alive_p99_ms: f64,
    keep_alive_max_ms: f64,
    /// From the kill to the first write that succeeds, where a leader was killed.
    write_again_s: Option<f64>,
}

/// What the clients of the run see, since it was last asked for.
struct Seen {
    latencies: Mutex<Histogram<u64>>,
    expired: AtomicU64,
    lost: AtomicU64,
}

impl Seen {
    fn new() -> Arc<Self> {
        let latencies = Mutex::new(histogram());
        Arc::new(Self { latencies, expired: AtomicU64::new(0), lost: AtomicU64::new(0) })
    }

    fn latencies(&self) -> MutexGuard<'_, Histogram<u64>> {
        self.latencies.lock().expect("nobody panics with it")
    }

    fn phase(&self, what: impl Into<String>, since: Instant, write_again_s: Option<f64>) -> Phase {
        let latencies = std::mem::replace(&mut *self.latencies(), histogram());
        let ms = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        let seconds = since.elapsed().as_secs_f64();
        Phase {
            what: what.into(),
            seconds,
            expired_per_second: self.expired.swap(0, Ordering::Relaxed) as f64 / seconds,
            keep_alives: latencies.len(),
            keep_alive_p50_ms: ms(0.5),
            keep_alive_p99_ms: ms(0.99),
            keep_alive_max_ms: latencies.max() as f64 / 1e3,
            write_again_s,
        }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("bounds that are in order")
}

/// Runs it and prints what came of it.
pub(super) async fn run(options: LeasesBench) -> Result<()> {
    let mortal = options.expire_per_second * options.expire_seconds;
    let kept = u64::try_from(options.kept).context("--kept must not be negative")?;
    ensure!(
        mortal + kept <= options.leases,
        "--leases {} are fewer than those that end or are kept",
        options.leases
    );
    let folder = tempfile::tempdir().context("making a temporary folder")?;
    let playground = Playground {
        replicas: 3,
        dir: options.dir.clone().unwrap_or_else(|| folder.path().to_path_buf()),
        port_base: free_port_base()?,
        endpoints_file: None,
        settings: Vec::new(),
    };
    let mut running = playground.start().await?;
    let phases = measure(&options, mortal, &mut running).await;
    running.stop().await?;
    print(&phases?, options.json)
}

async fn measure(options: &LeasesBench, mortal: u64, running: &mut Running) -> Result<Vec<Phase>> {
    let addresses = running.endpoints.grpc.clone();
    let (leader, _) = find_leader(&addresses).await?;
    let connections = targets::connect(&addresses[leader..=leader], 16).await?;
    let seen = Seen::new();
    let mut tasks = JoinSet::new();
    let ballast = options.leases - mortal - options.kept as u64;
    let begun = Instant::now();
    grant(
        &connections,
        options.clients,
        ballast,
        Arc::new(|number| (1_000_000 + number as i64, BALLAST_TTL_S, false)),
    )
    .await?;
    note(format_args!("granted {ballast} leases in {:.1} s", begun.elapsed().as_secs_f64()))?;
    grant(
        &connections,
        options.clients,
        options.kept as u64,
        Arc::new(|number| (1 + number as i64, KEPT_TTL_S, true)),
    )
    .await?;
    for (place, first) in (1..=options.kept).step_by(KEPT_PER_STREAM as usize).enumerate() {
        let ids: Vec<i64> = (first..=options.kept).take(KEPT_PER_STREAM as usize).collect();
        tasks.spawn(keep_alive(addresses.clone(), place, ids, Arc::clone(&seen)));
    }
    tasks.spawn(watch_expiries(addresses.clone(), leader, Arc::clone(&seen)));

    let begun = Instant::now();
    let per_second = options.expire_per_second;
    let plan = move |number: u64| {
        // In no order, so that a term's new time for every lease does not bring them to one moment.
        let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % mortal;
        let left = Duration::from_secs(MORTAL_TTL_S).saturating_sub(begun.elapsed());
        (1_000_000_000 + number as i64, (left.as_secs() + place / per_second) as i64, true)
    };
    grant(&connections, options.clients, mortal, Arc::new(plan)).await?;
    note(format_args!("granted {mortal} leases with a key each in {:.1} s", begun.elapsed().as_secs_f64()))?;

    let mut phases = Vec::new();
    seen.phase("", begun, None);
    let quiet = Instant::now();
    tokio::time::sleep(Duration::from_secs(10)).await;
    phases.push(seen.phase("all leases held", quiet, None));
    for kill in 1..=options.kills {
        wait_expiring(&seen, options.expire_per_second).await?;
        let since = Instant::now();
        tokio::time::sleep(Duration::from_secs(8)).await;
        phases.push(seen.phase("leases end", since, None));
        let (leader, _) = find_leader(&addresses).await?;
        let since = Instant::now();
        running.kill(leader)?;
        let again = write_again(&addresses, leader, since).await?;
        tokio::time::sleep_until((since + Duration::from_secs(10)).into()).await;
        phases.push(seen.phase(format!("leader killed, {kill}"), since, Some(again)));
        running.restart(leader)?;
        note(format_args!("leader killed: a write succeeded after {again:.3} s"))?;
    }
    ensure!(
        seen.lost.load(Ordering::Relaxed) == 0,
        "{} leases ended though they were kept alive",
        seen.lost.load(Ordering::Relaxed)
    );
    Ok(phases)
}

/// Waits until leases end at about the rate that was asked for, or as they do after a leader change: a fifth of it.
async fn wait_expiring(seen: &Seen, per_second: u64) -> Result<()> {
    let begun = Instant::now();
    loop {
        let before = seen.expired.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(1)).await;
        if seen.expired.load(Ordering::Relaxed) >= before + per_second / 5 {
            seen.phase("", begun, None);
            return Ok(());
        }
        ensure!(
            begun.elapsed() < Duration::from_secs(300),
            "no leases end; are there enough --expire-seconds?"
        );
    }
}

/// Progress goes where it does not mix with the figures.
fn note(text: std::fmt::Arguments<'_>) -> Result<()> {
    Ok(writeln!(std::io::stderr(), "{text}")?)
}

/// What the lease of a number is: id, seconds to live, and whether a key is attached.
type Plan = Arc<dyn Fn(u64) -> (i64, i64, bool) + Send + Sync>;

/// Grants `count` leases.
async fn grant(connections: &[Connection], clients: u64, count: u64, plan: Plan) -> Result<()> {
    let mut running = JoinSet::new();
    for client in 0..clients {
        let channel = connections[client as usize % connections.len()].0.clone();
        let (mut leases, mut kv) = (LeaseClient::new(channel.clone()), KvClient::new(channel));
        let plan = Arc::clone(&plan);
        running.spawn(async move {
            for number in (client..count).step_by(clients as usize) {
                let (id, ttl, with_key) = plan(number);
                leases.lease_grant(etcd::LeaseGrantRequest { id, ttl }).await?;
                if with_key {
                    let key = format!("leased/{id}").into();
                    kv.put(etcd::PutRequest { key, lease: id, ..Default::default() }).await?;
                }
            }
            Ok::<(), anyhow::Error>(())
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(())
}

/// Keeps `ids` alive, once a second, over whichever replica answers. A latency counts from the second's begin, however
/// often the stream had to be made anew.
async fn keep_alive(addresses: Vec<String>, place: usize, ids: Vec<i64>, seen: Arc<Seen>) {
    let mut turn = place;
    let mut due = Instant::now();
    loop {
        // An error: the replica is down or has no leader. The next one's turn.
        let _ = keep_alive_over(&addresses[turn % addresses.len()], &ids, &mut due, &seen).await;
        turn += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn keep_alive_over(address: &str, ids: &[i64], due: &mut Instant, seen: &Seen) -> Result<()> {
    let connection = targets::connect(&[address.to_string()], 1).await?.remove(0);
    let (requests, outgoing) = mpsc::channel(ids.len());
    let mut answers =
        LeaseClient::new(connection.0).lease_keep_alive(ReceiverStream::new(outgoing)).await?.into_inner();
    loop {
        tokio::time::sleep_until((*due).into()).await;
        for id in ids {
            requests.send(etcd::LeaseKeepAliveRequest { id: *id }).await?;
        }
        let mut waiting = ids.len();
        while waiting > 0 {
            let patience = Duration::from_secs(2);
            let answer = tokio::time::timeout(patience, answers.message()).await??;
            let answer = answer.context("the stream ended")?;
            waiting -= 1;
            if answer.ttl <= 0 {
                seen.lost.fetch_add(1, Ordering::Relaxed);
            }
            let us = due.elapsed().as_micros() as u64;
            seen.latencies().saturating_record(us.max(1));
        }
        *due += Duration::from_secs(1);
    }
}

/// Counts the keys that are deleted with their leases, wherever a replica tells of them.
async fn watch_expiries(addresses: Vec<String>, first: usize, seen: Arc<Seen>) {
    let mut next = 0;
    for turn in first + 1.. {
        // An error: the replica is down. The next one's turn, from where this one ended.
        let _ = watch_over(&addresses[turn % addresses.len()], &mut next, &seen).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn watch_over(address: &str, next: &mut i64, seen: &Seen) -> Result<()> {
    let connection = targets::connect(&[address.to_string()], 1).await?.remove(0);
    let create = etcd::WatchCreateRequest {
        key: "leased/".into(),
        range_end: "leased0".into(),
        start_revision: *next,
        filters: vec![etcd::watch_create_request::FilterType::Noput.into()],
        ..Default::default()
    };
    let request =
        etcd::WatchRequest { request_union: Some(etcd::watch_request::RequestUnion::CreateRequest(create)) };
    let outgoing = tokio_stream::iter([request]).chain(tokio_stream::pending());
    let mut answers = WatchClient::new(connection.0).watch(outgoing).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        seen.expired.fetch_add(answer.events.len() as u64, Ordering::Relaxed);
        if let Some(last) = answer.events.last().and_then(|event| event.kv.as_ref()) {
            *next = last.mod_revision + 1;
        }
    }
    Ok(())
}

/// Seconds from the kill to the first write that succeeds.
async fn write_again(addresses: &[String], dead: usize, since: Instant) -> Result<f64> {
    let alive: Vec<String> = addresses
        .iter()
        .enumerate()
        .filter(|(place, _)| *place != dead)
        .map(|(_, address)| address.clone())
        .collect();
    let connections = targets::connect(&alive, alive.len()).await?;
    for turn in 0.. {
        let mut kv = KvClient::new(connections[turn % connections.len()].0.clone());
        let put = kv.put(etcd::PutRequest { key: "again".into(), ..Default::default() });
        if matches!(tokio::time::timeout(Duration::from_millis(500), put).await, Ok(Ok(_))) {
            break;
        }
        ensure!(since.elapsed() < Duration::from_secs(60), "no write succeeds");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(since.elapsed().as_secs_f64())
}

fn print(phases: &[Phase], json: bool) -> Result<()> {
    let mut out = std::io::stdout();
    if json {
        serde_json::to_writer_pretty(&mut out, phases)?;
        return Ok(writeln!(out)?);
    }
    writeln!(
        out,
        "{:<18} {:>8} {:>10} {:>11} {:>9} {:>9} {:>9} {:>12}",
        "", "seconds", "expired/s", "keep-alives", "p50", "p99", "max", "write again"
    )?;
    for phase in phases {
        let again = phase.write_again_s.map_or_else(|| "-".into(), |seconds| format!("{seconds:.3} s"));
        writeln!(
            out,
            "{:<18} {:>8.1} {:>10.0} {:>11} {:>6.1} ms {:>6.1} ms {:>6.0} ms {:>12}",
            phase.what,
            phase.seconds,
            phase.expired_per_second,
            phase.keep_alives,
            phase.keep_alive_p50_ms,
            phase.keep_alive_p99_ms,
            phase.keep_alive_max_ms,
            again
        )?;
    }
    Ok(())
}
