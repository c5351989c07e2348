//! `quoin bench table`: lookups in the sample table over `quoin.table.v1` or Redis's protocol
//! (`over_resp.rs`), or of the same keys and values in Redis. `switch.rs` measures what lookups notice of
//! switches.
//!
//! With `--fill FOLDER` the table is built and published first (in Redis, written). An operation of a case is
//! a request, with one key or a batch; keys per second and CPU per key stand below each row.

mod over_resp;
mod switch;

pub(crate) use switch::SwitchBench;
pub(crate) use switch::run as switch;

use crate::client::Channel;
use crate::client::{self, ANSWER_BYTES_MAX, publish_and_activate};
use crate::options::{Load, READY_TIMEOUT, name_of};
use crate::report::{Outcome, Report};
use crate::resp::{Wire, driver, setup};
use crate::runner::{self, Counted, Work};
use crate::sample_table::{self, Keys, VALUE_BYTES, value};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use over_resp::{Ask, Batches};
use quoin_proto::quoin::table::v1 as pb;
use quoin_proto::quoin::table::v1::table_client::TableClient;
use quoin_proto::quoin::v1::Local;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A run over a table.
#[derive(Args, Clone, Debug)]
pub struct TableBench {
    /// Cases to measure, in this order
    #[arg(value_enum, required = true)]
    cases: Vec<Case>,
    /// Name of the table
    #[arg(long, default_value = "bench")]
    table: String,
    /// Number of keys in the table
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Linearizable lookups; without it a replica answers from its own state
    #[arg(long)]
    linearizable: bool,
    /// Keys per request (case batch)
    #[arg(long, default_value_t = 100)]
    batch: usize,
    /// Protocol and command of a lookup
    #[arg(long, value_enum, default_value_t = Api::Grpc)]
    api: Api,
    /// Build the table in this folder, which all replicas must be able to read, and publish it first (with
    /// --api redis: write its keys to Redis)
    #[arg(long, value_name = "FOLDER")]
    fill: Option<PathBuf>,
    #[command(flatten)]
    wire: Wire,
    #[command(flatten)]
    load: Load,
}

/// Protocol and command of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Api {
    /// quoin.table.v1
    Grpc,
    /// TABLE.LOOKUP over Redis's protocol: keys and values as one string each
    Lookup,
    /// TABLE.MGET over Redis's protocol: decimal keys
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

/// Measures the cases in turn.
pub(crate) async fn run(options: TableBench) -> Result<()> {
    ensure!(options.keys > 0 && options.batch > 0, "--keys and --batch must be above 0");
    match options.api {
        Api::Grpc => over_grpc(options).await,
        Api::Lookup => over_resp(options, Ask::Lookup).await,
        Api::Mget => over_resp(options, Ask::TableMget).await,
        Api::Redis => {
            ensure!(options.load.endpoints_file.is_none(), "--api redis takes --endpoints, not a file");
            over_resp(options, Ask::Mget).await
        }
    }
}

async fn over_grpc(mut options: TableBench) -> Result<()> {
    ensure!(options.wire.pipeline == 1, "--pipeline needs an --api over Redis's protocol");
    let endpoints = options.load.resolve().await?;
    let channels = client::connect(&endpoints, options.load.connections).await?;
    if let Some(folder) = &options.fill {
        publish(folder, &options, &endpoints).await?;
    }
    let mut report = Report::new(options.load.json);
    for case in options.cases.clone() {
        let worker = |number: usize| {
            let channel = channels[number % channels.len()].clone();
            Worker {
                client: TableClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX),
                table: options.table.clone(),
                keys: Keys::new(options.keys, number as u64 + 1),
                batch: options.batch_of(case),
                linearizable: options.linearizable,
            }
        };
        let plan = options.load.plan();
        let counted = runner::run(&plan, |shared| runner::unary(&plan, shared, worker)).await?;
        options.report(&mut report, case, counted)?;
    }
    report.end()
}

async fn over_resp(mut options: TableBench, ask: Ask) -> Result<()> {
    let shape = options.wire.shape()?;
    let endpoints = options.load.resolve_resp().await?;
    match &options.fill {
        None => {}
        Some(_) if ask == Ask::Mget => fill_redis(&endpoints, options.keys).await?,
        Some(folder) => {
            ensure!(
                options.load.endpoints_file.is_some(),
                "--fill publishes over gRPC: give --endpoints-file, or publish with 'quoin bench table --api grpc --fill'"
            );
            publish(folder, &options, &options.load.endpoints).await?;
        }
    }
    let mut report = Report::new(options.load.json);
    for case in options.cases.clone() {
        let connections = setup::connect(&endpoints, options.load.clients, options.hello(ask))?;
        let plan = options.load.plan();
        let script = |number: usize| {
            Batches::new(ask, &options.table, options.keys, options.batch_of(case), number as u64 + 1)
        };
        let counted =
            runner::run(&plan, |shared| driver::clients(&plan, shape, connections, shared, script)).await?;
        options.report(&mut report, case, counted)?;
    }
    report.end()
}

impl TableBench {
    fn batch_of(&self, case: Case) -> usize {
        if case == Case::Single { 1 } else { self.batch }
    }

    /// The commands that a connection begins with: lookups are local unless `--linearizable` is given, as
    /// over gRPC.
    fn hello(&self, ask: Ask) -> &'static [&'static str] {
        if self.linearizable || ask == Ask::Mget { &[] } else { &["READONLY"] }
    }

    fn report(&self, report: &mut Report, case: Case, counted: Counted) -> Result<()> {
        let line = (!self.load.json).then(|| per_key(&counted, self.batch_of(case)));
        let name = self.wire.name(format!("{} {}", name_of(case), name_of(self.api)));
        report.add(Outcome::new(name, self.load.setting(VALUE_BYTES), counted))?;
        if let Some(line) = line {
            writeln!(std::io::stdout(), "  {line}")?;
        }
        Ok(())
    }
}

/// Builds the table, publishes it at the first of `endpoints`, over gRPC, and activates it.
async fn publish(folder: &Path, options: &TableBench, endpoints: &[String]) -> Result<()> {
    let (folder, keys, table) = (folder.to_path_buf(), options.keys, options.table.clone());
    let built = tokio::task::spawn_blocking(move || sample_table::build(&folder, &table, keys)).await??;
    let mut client = TableClient::new(client::dial(&endpoints[0], None).await?);
    publish_and_activate(&mut client, &options.table, &built, READY_TIMEOUT).await?;
    Ok(())
}

/// Writes the same keys and values to Redis.
async fn fill_redis(endpoints: &[String], keys: u64) -> Result<()> {
    let endpoints = endpoints.to_vec();
    let keys = (0..keys).map(sample_table::key);
    tokio::task::spawn_blocking(move || setup::fill(&endpoints, keys, over_resp::set)).await?
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

/// One client over gRPC.
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
        let consistency = (!self.linearizable).then(|| Local::default().into());
        let request = pb::LookupRequest { tables: vec![of], consistency };
        let response = self.client.lookup(request).await?.into_inner();
        let values = response.tables.first().context("an answer without a table")?;
        let found: u32 = values.found.iter().map(|byte| byte.count_ones()).sum();
        ensure!(found as usize == self.batch, "{found} of {} keys were found", self.batch);
        ensure!(values.values.ends_with(&value(last)), "key {last} has a wrong value");
        Ok(())
    }
}
