//! `quoin bench`: the load generator. It speaks etcd's API and Redis's protocol, so it measures etcd and Redis with the very same
//! clients.
//!
//! `load.rs` makes the load and keeps the time (`stream.rs` over streams), `targets.rs` is what one operation does, `resp.rs` a client of Redis's
//! protocol, `machine.rs` reads what the machine did meanwhile, `report.rs` shows it.

mod leases;
mod ledger;
mod load;
mod machine;
mod report;
mod resp;
mod route;
pub(crate) mod sample_table;
mod stream;
mod table;
mod table_switch;
mod targets;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// What is measured.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Keys, over etcd's API or quoin.kv.v1, against any endpoints that speak it
    Kv(KvBench),
    /// Keys, over Redis's protocol, against any endpoints that speak it
    Resp(resp::RespBench),
    /// Rules by network and address
    Route(route::RouteBench),
    /// Lookup tables, one key or a batch at a time
    Table(table::TableBench),
    /// A table switched forth and back while it is looked up: what lookups notice
    TableSwitch(table_switch::SwitchBench),
    /// Leader changes while very many leases are held and end, on a cluster of its own
    Leases(leases::LeasesBench),
    /// Accounts and transfers, over quoin.ledger.v1 or HTTP/JSON
    Ledger(ledger::LedgerBench),
}

/// A run over keys.
#[derive(Args, Clone, Debug)]
pub(crate) struct KvBench {
    /// What is done
    #[arg(value_enum, required = true)]
    cases: Vec<Case>,
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    load: Load,
}

/// What is written and read.
#[derive(Args, Clone, Copy, Debug)]
struct Data {
    /// Different keys
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 1024)]
    value_bytes: usize,
}

/// Who asks, whom, and for how long.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    /// Where the servers are: HOST:PORT,... [default: 127.0.0.1:2379, over Redis's protocol 127.0.0.1:6379]
    #[arg(long, value_delimiter = ',', conflicts_with = "endpoints_file")]
    endpoints: Vec<String>,
    /// Where the servers are, as `quoin playground` writes it; their processes' CPU time is measured too
    #[arg(long, value_name = "FILE")]
    endpoints_file: Option<PathBuf>,
    /// Which of the servers get the load
    #[arg(long, value_enum, default_value_t = Target::Leader)]
    target: Target,
    /// Clients, each with one request under way (streams: requests under way on a stream)
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Connections that the clients share
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Seconds that are measured
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seconds before them
    #[arg(long, default_value_t = 2.0)]
    warm_up: f64,
    /// Requests per second, started on time whether or not others are answered; without it, as many as go
    #[arg(long)]
    rate: Option<f64>,
    /// Processes whose CPU time is measured
    #[arg(long, value_delimiter = ',')]
    server_pids: Vec<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Where the servers' HTTP is, by the endpoints file.
    #[arg(skip)]
    http: Vec<String>,
    /// Where they speak Redis's protocol, by the endpoints file.
    #[arg(skip)]
    resp: Vec<String>,
}

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    /// Write a random key
    Put,
    /// Read a random written key, linearizable
    GetLinearizable,
    /// Read a random written key from the replica's own state
    GetLocal,
    /// Delete a random written key
    Delete,
    /// Seven reads of written keys to one write
    MixExisting,
    /// Seven reads of absent keys to one write
    MixAbsent,
    /// Write over a bidirectional stream of quoin.kv.v1
    StreamPut,
    /// Read over a bidirectional stream of quoin.kv.v1
    StreamGet,
}

/// Which servers get the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    Leader,
    Followers,
    All,
}

#[derive(serde::Deserialize)]
struct EndpointsFile {
    grpc: Vec<String>,
    http: Vec<String>,
    #[serde(default)]
    resp: Vec<String>,
    pids: Vec<u32>,
}

/// Runs all cases, one after the other.
pub(crate) async fn run(bench: Bench) -> Result<()> {
    match bench {
        Bench::Kv(options) => run_kv(options).await,
        Bench::Resp(options) => resp::run(options).await,
        Bench::Route(options) => route::run(options).await,
        Bench::Table(options) => table::run(options).await,
        Bench::TableSwitch(options) => table_switch::run(options).await,
        Bench::Leases(options) => leases::run(options).await,
        Bench::Ledger(options) => ledger::run(options).await,
    }
}

async fn run_kv(mut options: KvBench) -> Result<()> {
    ensure!(options.data.keys > 0, "--keys must be above 0");
    let endpoints = options.load.resolve().await?;
    let mut report = report::Report::new(options.load.json);
    for case in &options.cases {
        report.add(measure(*case, &endpoints, &options).await?)?;
    }
    report.end()
}

impl Load {
    /// Reads the endpoints file, checks what was given, and picks the servers that get the load.
    async fn resolve(&mut self) -> Result<Vec<String>> {
        self.read("127.0.0.1:2379")?;
        targets::choose(&self.endpoints, self.target).await
    }

    /// As [`Self::resolve`], where they speak Redis's protocol. Endpoints that were given by hand all get the load: Redis cannot
    /// be asked who leads.
    async fn resolve_resp(&mut self) -> Result<Vec<String>> {
        self.read("127.0.0.1:6379")?;
        // There each client has a connection.
        self.connections = self.clients;
        if self.endpoints_file.is_none() {
            return Ok(self.endpoints.clone());
        }
        let chosen = targets::choose(&self.endpoints, self.target).await?;
        let both = self.endpoints.iter().zip(&self.resp);
        let resp: Vec<_> =
            both.filter(|(grpc, _)| chosen.contains(grpc)).map(|(_, resp)| resp.clone()).collect();
        ensure!(!resp.is_empty(), "the endpoints file does not say where Redis's protocol is spoken");
        Ok(resp)
    }

    fn read(&mut self, default: &str) -> Result<()> {
        if let Some(file) = &self.endpoints_file {
            let text = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
            let file: EndpointsFile = serde_json::from_slice(&text).context("the endpoints file")?;
            self.endpoints = file.grpc;
            self.http = file.http;
            self.resp = file.resp;
            self.server_pids = file.pids;
        } else if self.endpoints.is_empty() {
            self.endpoints = vec![default.to_string()];
        }
        ensure!(self.clients > 0 && self.connections > 0, "--clients and --connections must be above 0");
        ensure!(self.seconds > 0.0, "--seconds must be above 0");
        if let Some(rate) = self.rate
            && rate <= 0.0
        {
            bail!("--rate {rate} must be above 0");
        }
        Ok(())
    }

    /// How a run goes.
    fn plan(&self) -> load::Run {
        load::Run {
            clients: self.clients,
            rate: self.rate,
            warm_up: Duration::from_secs_f64(self.warm_up),
            measured: Duration::from_secs_f64(self.seconds),
        }
    }

    fn setting(&self, value_bytes: usize) -> report::Setting {
        report::Setting {
            clients: self.clients,
            connections: self.connections,
            rate: self.rate,
            value_bytes,
            servers: !self.server_pids.is_empty(),
        }
    }
}

async fn measure(case: Case, endpoints: &[String], options: &KvBench) -> Result<report::Outcome> {
    let load = &options.load;
    let connections = targets::connect(endpoints, load.connections).await?;
    let plan = targets::Plan::new(case, options.data.keys, options.data.value_bytes);
    if plan.reads_written_keys() {
        targets::fill(&connections, &plan).await.context("writing the keys that will be read")?;
    }
    let run = load.plan();
    let counted = load::run(&run, &load.server_pids, |shared| {
        if plan.is_stream() {
            stream::clients(&connections, &plan, shared, load.clients)
        } else {
            let worker = |number: usize| plan.worker(&connections[number % connections.len()], number as u64);
            load::unary(&run, shared, worker)
        }
    });
    Ok(report::Outcome::new(name_of(case), load.setting(options.data.value_bytes), counted.await?))
}

/// A case's name, as it is given.
fn name_of(case: impl ValueEnum) -> String {
    case.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
}
