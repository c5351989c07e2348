//! `quoin bench table-switch`: what lookups notice of a table that is switched back and forth under their
//! load.
//!
//! Two versions with the same keys and sizes are published. Every lookup is checked to have the values of the
//! version that it names. Requests in flight at a switch, or within [`MOMENT`] after it, are reported apart
//! from all others.

use crate::client::Channel;
use crate::client::{self, ANSWER_BYTES_MAX, publish_and_activate};
use crate::options::{Load, READY_TIMEOUT, seconds};
use crate::output;
use crate::sample_table::{Keys, build_other, value};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use quoin_proto::quoin::table::v1 as pb;
use quoin_proto::quoin::table::v1::table_client::TableClient;
use quoin_proto::quoin::v1::Local;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long after a switch a request still counts as touched by it.
const MOMENT: Duration = Duration::from_millis(100);
/// Requests that are remembered per client; later ones are not counted.
const REQUESTS_MAX: usize = 10_000_000;

/// A run of switches.
#[derive(Args, Clone, Debug)]
pub struct SwitchBench {
    /// Folder to build both versions in; all replicas must be able to read it
    #[arg(long, value_name = "FOLDER")]
    fill: PathBuf,
    /// Name of the table
    #[arg(long, default_value = "bench-switch")]
    table: String,
    /// Number of keys in each version
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Keys per request
    #[arg(long, default_value_t = 100)]
    batch: usize,
    /// Interval between switches in seconds
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = seconds)]
    every: Duration,
    #[command(flatten)]
    load: Load,
}

/// A request: when it began, and how long it took.
type Timed = (Instant, Duration);

/// A switch: when it was asked for, and when it was answered.
type Switch = (Instant, Instant);

/// Runs the load and the switches, and prints what requests took.
pub(crate) async fn run(mut options: SwitchBench) -> Result<()> {
    ensure!(options.keys > 0 && options.batch > 0, "--keys and --batch must be above 0");
    ensure!(!options.every.is_zero(), "--every must be above 0");
    ensure!(options.load.rate.is_none(), "--rate is not for table-switch, which runs a closed loop");
    let endpoints = options.load.resolve().await?;
    let channels = client::connect(&endpoints, options.load.connections).await?;
    let mut admin = TableClient::new(client::dial(&endpoints[0], None).await?);
    let mut versions = [0; 2];
    for (plus, version) in versions.iter_mut().enumerate() {
        let (folder, table, keys) = (options.fill.clone(), options.table.clone(), options.keys);
        let built = tokio::task::spawn_blocking(move || build_other(&folder, &table, keys, plus as u64));
        *version = publish_and_activate(&mut admin, &options.table, &built.await??, READY_TIMEOUT).await?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..options.load.clients)
        .map(|number| {
            let channel = channels[number % channels.len()].clone();
            let client = Client {
                client: TableClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX),
                table: options.table.clone(),
                keys: Keys::new(options.keys, number as u64 + 1),
                batch: options.batch,
                versions,
            };
            tokio::spawn(client.run(Arc::clone(&stop)))
        })
        .collect();
    tokio::time::sleep(options.load.warm_up).await;
    let begin = Instant::now();
    let switches = switch(&mut admin, &options, versions[1], begin).await;
    stop.store(true, Ordering::Relaxed);
    let mut requests = Vec::new();
    for client in clients {
        requests.extend(client.await??);
    }
    requests.retain(|(start, _)| *start >= begin);
    report(&requests, &switches?, options.load.json)
}

/// Switches back and forth until the measurement ends.
async fn switch(
    admin: &mut TableClient<Channel>,
    options: &SwitchBench,
    second: u64,
    begin: Instant,
) -> Result<Vec<Switch>> {
    let mut switches = Vec::new();
    let end = begin + options.load.seconds;
    let mut next = begin + options.every;
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
        next += options.every;
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
    /// Looks keys up until `stop`. The first error ends the run: there must be none.
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
        let request = pb::LookupRequest { tables: vec![of], consistency: Some(Local::default().into()) };
        let response = self.client.lookup(request).await?.into_inner();
        let values = response.tables.first().context("an answer without a table")?;
        let plus = match self.versions.iter().position(|version| *version == values.version) {
            Some(plus) => plus as u64,
            None => bail!("an answer of version {}, which this run did not publish", values.version),
        };
        let right = values.values.starts_with(&value(first.wrapping_add(plus)))
            && values.values.ends_with(&value(last.wrapping_add(plus)));
        ensure!(right, "an answer of version {} has another version's values", values.version);
        Ok(())
    }
}

/// Latencies in nanoseconds: of the requests that a switch touched, and of the others.
fn split(requests: &[Timed], switches: &[Switch]) -> Result<(Histogram<u64>, Histogram<u64>)> {
    let (mut touched, mut others) = (Histogram::new(3)?, Histogram::new(3)?);
    for (start, took) in requests {
        let touches =
            switches.iter().any(|(asked, done)| *start <= *done + MOMENT && *start + *took >= *asked);
        (if touches { &mut touched } else { &mut others }).record(took.as_nanos() as u64)?;
    }
    Ok((touched, others))
}

fn report(requests: &[Timed], switches: &[Switch], json: bool) -> Result<()> {
    let (touched, others) = split(requests, switches)?;
    let mut answered = Histogram::<u64>::new(3)?;
    for (asked, done) in switches {
        answered.record((*done - *asked).as_nanos() as u64)?;
    }
    let us = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    let rows = [("at a switch", &touched), ("other requests", &others), ("switches themselves", &answered)];
    if json {
        let row = |(what, histogram): (&str, &Histogram<u64>)| {
            json!({
                "what": what, "count": histogram.len(), "p50_us": us(histogram, 0.5),
                "p99_us": us(histogram, 0.99), "p999_us": us(histogram, 0.999), "max_us": us(histogram, 1.0),
            })
        };
        return output::json(&rows.map(row));
    }
    let row = |(what, histogram): (&str, &Histogram<u64>)| {
        let us = |quantile| format!("{:.0}", us(histogram, quantile));
        vec![what.into(), histogram.len().to_string(), us(0.5), us(0.99), us(0.999), us(1.0)]
    };
    output::table(&["what", "count", "p50 us", "p99 us", "p99.9 us", "max us"], &rows.map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_in_flight_at_a_switch_or_soon_after_it_are_touched() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let request = |start, took| (at(start), Duration::from_millis(took));
        let touched = [request(990, 20), request(1005, 1), request(1100, 1), request(900, 500)];
        let others = [request(0, 10), request(980, 10), request(1111, 10)];
        let requests = [&touched[..], &others].concat();
        let (touched, others) = split(&requests, &[(at(1000), at(1010))]).unwrap();
        assert_eq!((touched.len(), others.len()), (4, 3));
    }
}
