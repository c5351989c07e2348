//! `quoin bench table-switch`: what lookups notice of a table that is switched forth and back under their load.
//!
//! Two versions of the same keys and size are published. Every lookup is checked to be of the version that it names. Latencies are told
//! apart: those of requests that were under way at a switch or within [`MOMENT`] after it, and all others.

use super::Load;
use super::sample_table::{Keys, build_other, value};
use super::targets::{self, Connection};
use crate::output;
use crate::table::publish_and_activate;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use quoin_proto::quoin::table::v1 as pb;
use quoin_proto::quoin::table::v1::table_client::TableClient;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tonic::transport::Channel;

/// How long after a switch its moment lasts.
const MOMENT: Duration = Duration::from_millis(100);
/// Seconds that replicas have to fetch a version.
const READY_SECONDS: f64 = 600.0;
/// Requests that are remembered of each client; later ones are not counted.
const REQUESTS_MAX: usize = 10_000_000;

/// A run of switches.
#[derive(Args, Clone, Debug)]
pub(crate) struct SwitchBench {
    /// Where both versions are built: a folder that all replicas can read
    #[arg(long, value_name = "FOLDER")]
    fill: PathBuf,
    /// The table
    #[arg(long, default_value = "bench-switch")]
    table: String,
    /// Keys in each version
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Keys of one request
    #[arg(long, default_value_t = 100)]
    batch: usize,
    /// Seconds between switches
    #[arg(long, default_value_t = 1.0)]
    every: f64,
    #[command(flatten)]
    load: Load,
}

/// One request: when it began, and how long it took.
type Timed = (Instant, Duration);

/// When a switch was asked for, and when it was answered.
type Switch = (Instant, Instant);

pub(crate) async fn run(mut options: SwitchBench) -> Result<()> {
    ensure!(options.keys > 0 && options.batch > 0, "--keys and --batch must be above 0");
    ensure!(options.every > 0.0, "--every must be above 0");
    ensure!(options.load.rate.is_none(), "--rate: switches are measured under full load");
    let endpoints = options.load.resolve().await?;
    let connections = targets::connect(&endpoints, options.load.connections).await?;
    let Connection(channel) = targets::connect(&endpoints, 1).await?.remove(0);
    let mut admin = TableClient::new(channel);
    let mut versions = [0; 2];
    for (plus, version) in versions.iter_mut().enumerate() {
        let (folder, table, keys) = (options.fill.clone(), options.table.clone(), options.keys);
        let built = tokio::task::spawn_blocking(move || build_other(&folder, &table, keys, plus as u64));
        *version = publish_and_activate(&mut admin, &options.table, &built.await??, READY_SECONDS).await?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..options.load.clients)
        .map(|number| {
            let Connection(channel) = &connections[number % connections.len()];
            let client = Client {
                client: TableClient::new(channel.clone()).max_decoding_message_size(64 << 20),
                table: options.table.clone(),
                keys: Keys::new(options.keys, number as u64 + 1),
                batch: options.batch,
                versions,
            };
            tokio::spawn(client.run(Arc::clone(&stop)))
        })
        .collect();
    tokio::time::sleep(Duration::from_secs_f64(options.load.warm_up)).await;
    let begun = Instant::now();
    let switches = switch(&mut admin, &options, versions[1], begun).await;
    stop.store(true, Ordering::Relaxed);
    let mut requests = Vec::new();
    for client in clients {
        requests.extend(client.await??);
    }
    requests.retain(|(start, _)| *start >= begun);
    report(&options, &requests, &switches?)
}

/// Back and forth, until the measured seconds are over; a switch that is refused ends it.
async fn switch(
    admin: &mut TableClient<Channel>,
    options: &SwitchBench,
    second: u64,
    begun: Instant,
) -> Result<Vec<Switch>> {
    let mut switches = Vec::new();
    let end = begun + Duration::from_secs_f64(options.load.seconds);
    let mut next = begun + Duration::from_secs_f64(options.every);
    while next < end {
        tokio::time::sleep_until(next.into()).await;
        let (table, asked) = (options.table.clone(), Instant::now());
        if switches.len() % 2 == 0 {
            admin.rollback(pb::RollbackRequest { table }).await?;
        } else {
            let request = pb::ActivateRequest { table, version: second, without_waiting: false };
            admin.activate(request).await?;
        }
        switches.push((asked, Instant::now()));
        next += Duration::from_secs_f64(options.every);
    }
    tokio::time::sleep_until(end.into()).await;
    Ok(switches)
}

struct Client {
    client: TableClient<Channel>,
    table: String,
    keys: Keys,
    batch: usize,
    versions: [u64; 2],
}

impl Client {
    /// Looks up until it is told to stop. The first error ends it: there must be none.
    async fn run(mut self, stop: Arc<AtomicBool>) -> Result<Vec<Timed>> {
        let mut requests = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            self.lookup().await?;
            if requests.len() < REQUESTS_MAX {
                requests.push((start, start.elapsed()));
            }
        }
        Ok(requests)
    }

    async fn lookup(&mut self) -> Result<()> {
        let keys = self.keys.take(self.batch);
        let (first, last) = (keys[0], keys[self.batch - 1]);
        let of = pb::Keys { table: self.table.clone(), keys, form: 0 };
        let request = pb::LookupRequest { tables: vec![of], linearizable: false };
        let response = self.client.lookup(request).await?.into_inner();
        let values = response.tables.first().context("an answer without a table")?;
        let plus = match self.versions.iter().position(|version| *version == values.version) {
            Some(plus) => plus as u64,
            None => bail!("version {} answered", values.version),
        };
        let right = values.values.starts_with(&value(first.wrapping_add(plus)))
            && values.values.ends_with(&value(last.wrapping_add(plus)));
        ensure!(right, "an answer of version {} has another version's values", values.version);
        Ok(())
    }
}

/// Those that were under way at a switch or in its moment, and the others.
fn told_apart(requests: &[Timed], switches: &[Switch]) -> Result<(Histogram<u64>, Histogram<u64>)> {
    let (mut at, mut others) = (Histogram::new(3)?, Histogram::new(3)?);
    for (start, took) in requests {
        let touched =
            switches.iter().any(|(asked, done)| *start <= *done + MOMENT && *start + *took >= *asked);
        (if touched { &mut at } else { &mut others }).record(took.as_nanos() as u64)?;
    }
    Ok((at, others))
}

fn report(options: &SwitchBench, requests: &[Timed], switches: &[Switch]) -> Result<()> {
    let (at, others) = told_apart(requests, switches)?;
    let mut answered = Histogram::<u64>::new(3)?;
    for (asked, done) in switches {
        answered.record((*done - *asked).as_nanos() as u64)?;
    }
    let us = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    let rows = [("at a switch", &at), ("other requests", &others), ("switches themselves", &answered)];
    if options.load.json {
        let row = |(what, histogram): (&str, &Histogram<u64>)| {
            json!({
                "what": what, "count": histogram.len(), "p50_us": us(histogram, 0.5),
                "p99_us": us(histogram, 0.99), "p999_us": us(histogram, 0.999), "max_us": us(histogram, 1.0),
            })
        };
        return output::json(&rows.map(row).into_iter().collect());
    }
    let row = |(what, histogram): (&str, &Histogram<u64>)| {
        let us = |quantile| format!("{:.0}", us(histogram, quantile));
        vec![what.into(), histogram.len().to_string(), us(0.5), us(0.99), us(0.999), us(1.0)]
    };
    output::table(&["what", "count", "p50 us", "p99 us", "p99.9 us", "max us"], &rows.map(row))
}
