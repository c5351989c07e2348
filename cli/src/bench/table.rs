//! `quoin bench table`: the report's table of random keys with 40-byte values, looked up over `quoin.table.v1` or Redis's protocol
//! (`over_resp.rs`); or the same keys and values in a Redis.
//!
//! `--fill FOLDER` builds and publishes it first (in a Redis, writes it). A case's operations are requests, one key or a batch each; keys per second and CPU per
//! key stand below each row.

mod over_resp;

use super::load::{self, Counted, Work};
use super::resp::{Wire, driver};
use super::sample_table::{Keys, VALUE_BYTES, build, random, value};
use super::targets::{self, Connection};
use super::{Load, name_of, report};
use crate::table::publish_and_activate;
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use over_resp::{Ask, Batches};
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
    /// Ask the leader first what is newest; without it a replica answers from its own state
    #[arg(long)]
    linearizable: bool,
    /// Keys of one request
    #[arg(long, default_value_t = 100)]
    batch: usize,
    /// How it is asked for
    #[arg(long, value_enum, default_value_t = Api::Grpc)]
    api: Api,
    /// Build the table in this folder, which all replicas can read, and publish it first (a Redis is written to instead)
    #[arg(long, value_name = "FOLDER")]
    fill: Option<PathBuf>,
    #[command(flatten)]
    wire: Wire,
    #[command(flatten)]
    load: Load,
}

/// What a lookup goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Api {
    /// quoin.table.v1
    Grpc,
    /// TABLE.LOOKUP of Redis's protocol: keys and values as one string each
    Lookup,
    /// TABLE.MGET of Redis's protocol: decimal keys
    Mget,
    /// MGET of a Redis that has the same keys
    Redis,
}

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// One key per request
    Single,
    /// A batch of keys per request
    Batch,
}

pub(crate) async fn run(options: TableBench) -> Result<()> {
    ensure!(options.keys > 0 && options.batch > 0, "--keys and --batch must be above 0");
    match options.api {
        Api::Grpc => over_grpc(options).await,
        Api::Lookup => over_resp(options, Ask::Lookup).await,
        Api::Mget => over_resp(options, Ask::TableMget).await,
        Api::Redis => {
            ensure!(options.load.endpoints_file.is_none(), "a Redis is told by --endpoints");
            over_resp(options, Ask::Mget).await
        }
    }
}

async fn over_grpc(mut options: TableBench) -> Result<()> {
    ensure!(options.wire.pipeline == 1, "--pipeline is for Redis's protocol, see --api");
    let endpoints = options.load.resolve().await?;
    let connections = targets::connect(&endpoints, options.load.connections).await?;
    if options.fill.is_some() {
        fill(&options, &endpoints).await?;
    }
    let mut report = report::Report::new(options.load.json);
    for case in options.cases.clone() {
        let batch = options.batch_of(case);
        let plan = options.load.plan();
        let worker = |number: usize| {
            let Connection(channel) = &connections[number % connections.len()];
            Worker {
                client: TableClient::new(channel.clone()).max_decoding_message_size(64 << 20),
                table: options.table.clone(),
                keys: Keys::new(options.keys, number as u64 + 1),
                batch,
                linearizable: options.linearizable,
            }
        };
        let counted =
            load::run(&plan, &options.load.server_pids, |shared| load::unary(&plan, shared, worker)).await?;
        options.report(&mut report, case, counted)?;
    }
    report.end()
}

async fn over_resp(mut options: TableBench, ask: Ask) -> Result<()> {
    let shape = options.wire.shape()?;
    let endpoints = options.load.resolve_resp().await?;
    match (&options.fill, ask) {
        (None, _) => {}
        (Some(_), Ask::Mget) => fill_redis(&endpoints, options.keys).await?,
        (Some(_), _) => {
            ensure!(
                options.load.endpoints_file.is_some(),
                "--fill publishes over gRPC: give an --endpoints-file, or publish with 'quoin bench table --api grpc --fill'"
            );
            fill(&options, &options.load.endpoints).await?;
        }
    }
    let mut report = report::Report::new(options.load.json);
    for case in options.cases.clone() {
        let connections = driver::connect(&endpoints, options.load.clients, options.hello(ask))?;
        let plan = options.load.plan();
        let script = |number: usize| {
            Batches::new(ask, &options.table, options.keys, options.batch_of(case), number as u64 + 1)
        };
        let counted = load::run(&plan, &options.load.server_pids, |shared| {
            driver::clients(&plan, shape, connections, shared, script)
        });
        options.report(&mut report, case, counted.await?)?;
    }
    report.end()
}

impl TableBench {
    fn batch_of(&self, case: Case) -> usize {
        if case == Case::Single { 1 } else { self.batch }
    }

    /// What a connection says first: lookups over gRPC are local unless asked otherwise, so these are too.
    fn hello(&self, ask: Ask) -> &'static [&'static str] {
        if self.linearizable || ask == Ask::Mget { &[] } else { &["READONLY"] }
    }

    fn report(&self, report: &mut report::Report, case: Case, counted: Counted) -> Result<()> {
        let line = (!self.load.json).then(|| per_key(&counted, self.batch_of(case)));
        let name = self.wire.name(format!("{} {}", name_of(case), name_of(self.api)));
        report.add(report::Outcome::new(name, self.load.setting(VALUE_BYTES), counted))?;
        if let Some(line) = line {
            writeln!(std::io::stdout(), "  {line}")?;
        }
        Ok(())
    }
}

/// Builds the table and has it published and activated at one of `endpoints`, over gRPC.
async fn fill(options: &TableBench, endpoints: &[String]) -> Result<()> {
    let folder = options.fill.clone().context("a folder to build the table in")?;
    let (keys, table) = (options.keys, options.table.clone());
    let location = tokio::task::spawn_blocking(move || build(&folder, &table, keys)).await??;
    let connections = targets::connect(endpoints, 1).await?;
    let Connection(channel) = connections.into_iter().next().context("one connection")?;
    publish_and_activate(&mut TableClient::new(channel), &options.table, &location, READY_SECONDS).await?;
    Ok(())
}

/// Writes the same keys and values into a Redis.
async fn fill_redis(endpoints: &[String], keys: u64) -> Result<()> {
    let endpoints = endpoints.to_vec();
    let set = |key| move |out: &mut Vec<u8>| over_resp::set(key, out);
    tokio::task::spawn_blocking(move || driver::fill(&endpoints, (0..keys).map(random).map(set))).await?
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
    keys: Keys,
    batch: usize,
    linearizable: bool,
}

impl Work for Worker {
    async fn operation(&mut self) -> Result<()> {
        let keys = self.keys.take(self.batch);
        let last = keys[self.batch - 1];
        let of = pb::Keys { table: self.table.clone(), keys, form: 0 };
        let request = pb::LookupRequest { tables: vec![of], linearizable: self.linearizable };
        let response = self.client.lookup(request).await?.into_inner();
        let values = response.tables.first().context("an answer without a table")?;
        let found: u32 = values.found.iter().map(|byte| byte.count_ones()).sum();
        ensure!(found as usize == self.batch, "{found} of {} keys were found", self.batch);
        ensure!(values.values.ends_with(&value(last)), "key {last} has another value");
        Ok(())
    }
}
