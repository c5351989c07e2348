//! `quoin bench table`: the report's table of random keys with 40-byte values, looked up over `quoin.table.v1`.
//!
//! `--fill FOLDER` builds and publishes it first. A case's operations are requests, one key or a batch each; keys per second and CPU per
//! key stand below each row.

use super::load::{self, Counted, Work};
use super::sample_table::{VALUE_BYTES, build, random, value};
use super::targets::{self, Connection};
use super::{Load, name_of, report};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use quoin_proto::quoin::table::v1 as pb;
use quoin_proto::quoin::table::v1::table_client::TableClient;
use std::io::Write;
use std::path::PathBuf;
use tonic::transport::Channel;

/// Seconds that replicas have to fetch the table.
const READY_SECONDS: f64 = 600.0;

/// A run over a table.
#[derive(Args, Clone, Debug)]
pub(crate) struct TableBench {
    /// What is done
    #[arg(value_enum, required = true)]
    cases: Vec<Case>,
    /// The table
    #[arg(long, default_value = "bench")]
    table: String,
    /// Keys in the table
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Keys of one request
    #[arg(long, default_value_t = 100)]
    batch: usize,
    /// Build the table in this folder, which all replicas can read, and publish it first
    #[arg(long, value_name = "FOLDER")]
    fill: Option<PathBuf>,
    #[command(flatten)]
    load: Load,
}

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// One key per request
    Single,
    /// A batch of keys per request
    Batch,
}

pub(crate) async fn run(mut options: TableBench) -> Result<()> {
    ensure!(options.keys > 0 && options.batch > 0, "--keys and --batch must be above 0");
    let endpoints = options.load.resolve().await?;
    let connections = targets::connect(&endpoints, options.load.connections).await?;
    if let Some(folder) = &options.fill {
        let (folder, keys, table) = (folder.clone(), options.keys, options.table.clone());
        let location = tokio::task::spawn_blocking(move || build(&folder, &table, keys)).await??;
        let Connection(channel) = &connections[0];
        publish(channel.clone(), &options.table, location).await?;
    }
    let mut report = report::Report::new(options.load.json);
    for case in options.cases.clone() {
        let batch = if case == Case::Single { 1 } else { options.batch };
        let plan = options.load.plan();
        let worker = |number: usize| {
            let Connection(channel) = &connections[number % connections.len()];
            Worker {
                client: TableClient::new(channel.clone()).max_decoding_message_size(64 << 20),
                table: options.table.clone(),
                keys: options.keys,
                batch,
                random: random(number as u64 + 1),
            }
        };
        let counted =
            load::run(&plan, &options.load.server_pids, |shared| load::unary(&plan, shared, worker)).await?;
        let per_key = (!options.load.json).then(|| per_key(&counted, batch));
        report.add(report::Outcome::new(name_of(case), options.load.setting(VALUE_BYTES), counted))?;
        if let Some(line) = per_key {
            writeln!(std::io::stdout(), "  {line}")?;
        }
    }
    report.end()
}

fn per_key(counted: &Counted, batch: usize) -> String {
    let keys = (counted.latencies.len() * batch as u64).max(1) as f64;
    let ns = |seconds: f64| seconds * 1e9 / keys;
    format!(
        "{:.2} million keys/s in batches of {batch}; CPU per key: servers {:.0} ns, client {:.0} ns",
        keys / counted.seconds / 1e6,
        ns(counted.usage.servers_s),
        ns(counted.usage.client_s)
    )
}

#[derive(Clone)]
struct Worker {
    client: TableClient<Channel>,
    table: String,
    keys: u64,
    batch: usize,
    random: u64,
}

impl Work for Worker {
    async fn operation(&mut self) -> Result<()> {
        let mut key = || {
            self.random = random(self.random);
            random(self.random % self.keys)
        };
        let keys: Vec<u64> = (0..self.batch).map(|_| key()).collect();
        let last = keys[self.batch - 1];
        let of = pb::Keys { table: self.table.clone(), keys, form: 0 };
        let request = pb::LookupRequest { tables: vec![of], linearizable: false };
        let response = self.client.lookup(request).await?.into_inner();
        let values = response.tables.first().context("an answer without a table")?;
        let found: u32 = values.found.iter().map(|byte| byte.count_ones()).sum();
        ensure!(found as usize == self.batch, "{found} of {} keys were found", self.batch);
        ensure!(values.values.ends_with(&value(last)), "key {last} has another value");
        Ok(())
    }
}

async fn publish(channel: Channel, table: &str, location: PathBuf) -> Result<()> {
    let mut client = TableClient::new(channel);
    let location = location.to_str().context("a folder whose name is UTF-8")?.to_string();
    let request = pb::PublishRequest { table: table.into(), location, ..Default::default() };
    let version = client.publish(request).await?.into_inner().version;
    crate::table::activate_when_ready(&mut client, table, version, READY_SECONDS).await?;
    Ok(())
}
