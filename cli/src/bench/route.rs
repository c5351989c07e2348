//! `quoin bench route`: rules by (VNI, IP). With `--api etcd` the same rules stand as keys in anything that speaks etcd's
//! API, `rules/GROUP/VNI/IP` with the rule's message as the value, so that both are measured by the same code.

use super::load::{self, Client, Count, Shared, Work, count};
use super::targets::{self, Connection, Random};
use super::{Load, name_of, report};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use prost::Message;
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::etcdserverpb::watch_client::WatchClient;
use quoin_proto::quoin::kv::v1 as kv;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::route_client::RouteClient;
use quoin_proto::quoin::route::v1::watch_response::Kind;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

/// The group of all rules that are measured.
const GROUP: &str = "bench";
/// Networks that the rules are spread over.
const NETWORKS: u64 = 16;
/// Rules of one message while the table is filled, and of one of etcd's transactions.
const FILL_BATCH: u64 = 2_000;
const FILL_TXN: u64 = 100;
/// Keys of one page of etcd's listing.
const PAGE: i64 = 10_000;
/// Requests of one stream, as in the report.
const REQUESTS_PER_STREAM: usize = 1_000;

/// A run over rules.
#[derive(Args, Clone, Debug)]
pub(crate) struct RouteBench {
    /// What is done
    #[arg(value_enum, required = true)]
    cases: Vec<Case>,
    /// Whose protocol is spoken
    #[arg(long, value_enum, default_value_t = Api::Route)]
    api: Api,
    /// Rules in the table
    #[arg(long, default_value_t = 100_000)]
    rules: u64,
    /// Rules, or lookups, of one message
    #[arg(long, default_value_t = 1)]
    batch: u64,
    /// Watchers that are told of each update
    #[arg(long, default_value_t = 1)]
    watchers: usize,
    /// The rules are there already
    #[arg(long)]
    no_fill: bool,
    #[command(flatten)]
    load: Load,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Api {
    Route,
    Etcd,
}

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Look one rule up, linearizable
    Get,
    /// Look one rule up in the replica's own state
    GetLocal,
    /// Streams of 1000 requests each, as many as clients, linearizable
    GetStream,
    /// The same from the replica's own state
    GetStreamLocal,
    /// Write rules
    Put,
    /// A new watcher, from its call until it has all rules; one after the other
    NewWatcher,
    /// Updates at --rate, each measured from its request until a watcher has it, for all --watchers
    Update,
}

/// Runs all cases, one after the other.
pub(super) async fn run(mut options: RouteBench) -> Result<()> {
    ensure!(options.rules > 0 && options.batch > 0, "--rules and --batch must be above 0");
    ensure!(options.watchers > 0, "--watchers must be above 0");
    let endpoints = options.load.resolve().await?;
    let connections = targets::connect(&endpoints, options.load.connections).await?;
    if !options.no_fill {
        fill(&connections[0], &options).await.context("writing the rules")?;
    }
    let mut report = report::Report::new(options.load.json);
    for case in options.cases.clone() {
        let counted = measure(case, &connections, &options).await?;
        let name = match options.api {
            Api::Route => name_of(case),
            Api::Etcd => format!("etcd {}", name_of(case)),
        };
        report.add(report::Outcome::new(name, options.load.setting(0), counted))?;
    }
    report.end()
}

async fn measure(case: Case, connections: &[Connection], options: &RouteBench) -> Result<load::Counted> {
    let run = options.load.plan();
    let pids = &options.load.server_pids;
    let at = |number: usize| connections[number % connections.len()].clone();
    let worker = |number: usize| Worker::new(case, at(number), number, options);
    match (case, options.api) {
        (Case::Get | Case::GetLocal | Case::Put, _) => {
            load::run(&run, pids, |shared| load::unary(&run, shared, worker)).await
        }
        (Case::GetStream | Case::GetStreamLocal, Api::Route) => {
            load::run(&run, pids, |shared| {
                let stream = |number| tokio::spawn(streams(worker(number), Arc::clone(shared)));
                (0..run.clients).map(stream).collect()
            })
            .await
        }
        (Case::GetStream | Case::GetStreamLocal, Api::Etcd) => bail!("etcd's API has no stream of reads"),
        (Case::NewWatcher, _) => {
            load::run(&run, pids, |shared| vec![tokio::spawn(new_watchers(worker(0), Arc::clone(shared)))])
                .await
        }
        (Case::Update, _) => {
            let begun = Instant::now();
            let rate = options.load.rate.context("give the updates per second with --rate")?;
            let watchers = watch_all(connections, options).await?;
            load::run(&run, pids, |shared| {
                let mut clients: Vec<Client> = Vec::with_capacity(watchers.len() + 1);
                clients.push(tokio::spawn(update(worker(0), Arc::clone(shared), begun, rate)));
                for watcher in watchers {
                    clients.push(tokio::spawn(watcher.count(Arc::clone(shared), begun)));
                }
                clients
            })
            .await
        }
    }
}

fn rule(number: u64, user_data: Bytes) -> pb::Rule {
    let [.., a, b, c] = number.to_be_bytes();
    let host = number % 1000;
    pb::Rule {
        vni: u32::try_from(number % NETWORKS).expect("a remainder"),
        ip: format!("10.{a}.{b}.{c}"),
        mac: format!("02:00:00:{a:02x}:{b:02x}:{c:02x}"),
        host_ip: format!("192.168.{}.{}", host / 250, host % 250),
        host_mac: format!("02:01:00:00:{:02x}:{:02x}", host / 250, host % 250),
        group: GROUP.to_owned(),
        revision: 0,
        user_data,
    }
}

fn key(number: u64) -> Bytes {
    let [.., a, b, c] = number.to_be_bytes();
    Bytes::from(format!("rules/{GROUP}/{}/10.{a}.{b}.{c}", number % NETWORKS))
}

fn prefix() -> (Bytes, Bytes) {
    (Bytes::from(format!("rules/{GROUP}/")), Bytes::from(format!("rules/{GROUP}0")))
}

fn put_request(key: Bytes, rule: &pb::Rule) -> etcd::PutRequest {
    etcd::PutRequest { key, value: rule.encode_to_vec().into(), ..etcd::PutRequest::default() }
}

fn routes(connection: &Connection) -> RouteClient<Channel> {
    RouteClient::new(connection.0.clone()).max_decoding_message_size(64 << 20)
}

async fn fill(connection: &Connection, options: &RouteBench) -> Result<()> {
    let rules = options.rules;
    if options.api == Api::Etcd {
        let mut kv = KvClient::new(connection.0.clone());
        for from in (0..rules).step_by(FILL_TXN as usize) {
            kv.txn(txn(from..rules.min(from + FILL_TXN))).await?;
        }
        return Ok(());
    }
    let (messages, outgoing) = mpsc::channel(4);
    let reading = tokio::spawn(async move {
        for from in (0..rules).step_by(FILL_BATCH as usize) {
            let batch =
                (from..rules.min(from + FILL_BATCH)).map(|number| rule(number, Bytes::new())).collect();
            if messages.send(pb::PutRequest { rules: batch, each_for_itself: false }).await.is_err() {
                return;
            }
        }
    });
    routes(connection).put_stream(ReceiverStream::new(outgoing)).await?;
    reading.await?;
    Ok(())
}

fn txn(numbers: std::ops::Range<u64>) -> etcd::TxnRequest {
    let put = |number| etcd::RequestOp {
        request: Some(etcd::request_op::Request::RequestPut(put_request(
            key(number),
            &rule(number, Bytes::new()),
        ))),
    };
    etcd::TxnRequest { success: numbers.map(put).collect(), ..etcd::TxnRequest::default() }
}

/// One client.
#[derive(Clone)]
struct Worker {
    case: Case,
    api: Api,
    connection: Connection,
    routes: RouteClient<Channel>,
    etcd: KvClient<Channel>,
    random: Random,
    rules: u64,
    batch: u64,
}

impl Worker {
    fn new(case: Case, connection: Connection, number: usize, options: &RouteBench) -> Self {
        Self {
            case,
            api: options.api,
            routes: routes(&connection),
            etcd: KvClient::new(connection.0.clone()).max_decoding_message_size(64 << 20),
            connection,
            random: Random::seeded(number as u64),
            rules: options.rules,
            batch: options.batch,
        }
    }

    fn random_number(&mut self) -> u64 {
        self.random.next() % self.rules
    }

    fn consistency(&self) -> Option<kv::Consistency> {
        let local = matches!(self.case, Case::GetLocal | Case::GetStreamLocal);
        let level = kv::consistency::Level::Local(kv::Local::default());
        local.then_some(kv::Consistency { level: Some(level) })
    }

    fn get_request(&mut self) -> pb::GetRequest {
        let lookup = |request_id, number: u64| {
            let [.., a, b, c] = number.to_be_bytes();
            pb::Lookup { request_id, vni: (number % NETWORKS) as u32, ip: format!("10.{a}.{b}.{c}") }
        };
        let lookups = (0..self.batch).map(|id| lookup(id, self.random_number())).collect();
        pb::GetRequest { lookups, consistency: self.consistency() }
    }

    async fn get(&mut self) -> Result<()> {
        match self.api {
            Api::Route => {
                let request = self.get_request();
                let reply = self.routes.get(request).await?.into_inner();
                ensure!(reply.answers.iter().all(|answer| answer.found), "a rule is missing");
            }
            Api::Etcd => {
                let key = key(self.random_number());
                let serializable = self.case == Case::GetLocal;
                let request = etcd::RangeRequest { key, serializable, ..etcd::RangeRequest::default() };
                let reply = self.etcd.range(request).await?.into_inner();
                let value = reply.kvs.into_iter().next().context("a rule is missing")?.value;
                pb::Rule::decode(value)?;
            }
        }
        Ok(())
    }

    async fn put(&mut self, user_data: Bytes) -> Result<()> {
        match self.api {
            Api::Route => {
                // Neighbours in the table: no rule twice in one message.
                let first = self.random_number();
                let rule = |offset| rule((first + offset) % self.rules, user_data.clone());
                let rules = (0..self.batch.min(self.rules)).map(rule).collect();
                self.routes.put(pb::PutRequest { rules, each_for_itself: false }).await?;
            }
            Api::Etcd if self.batch == 1 => {
                let number = self.random_number();
                self.etcd.put(put_request(key(number), &rule(number, user_data))).await?;
            }
            Api::Etcd => {
                let first = self.random_number() % self.rules.saturating_sub(self.batch).max(1);
                self.etcd.txn(txn(first..first + self.batch)).await?;
            }
        }
        Ok(())
    }
}

impl Work for Worker {
    async fn operation(&mut self) -> Result<()> {
        match self.case {
            Case::Put => self.put(Bytes::new()).await,
            _ => self.get().await,
        }
    }

    fn weight(&self) -> u64 {
        self.batch
    }
}

/// One stream after the other: 1000 requests, their answers, the end.
async fn streams(mut worker: Worker, shared: Arc<Shared>) -> Result<Count> {
    let mut count = count();
    while Instant::now() < shared.end {
        let begun = Instant::now();
        let requests: Vec<_> = (0..REQUESTS_PER_STREAM).map(|_| worker.get_request()).collect();
        let mut answers = worker.routes.get_stream(tokio_stream::iter(requests)).await?.into_inner();
        let mut found = 0;
        while let Some(message) = answers.message().await? {
            found += message.answers.iter().filter(|answer| answer.found).count();
        }
        let wanted = REQUESTS_PER_STREAM * worker.batch as usize;
        let result = if found == wanted {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{found} answers to {wanted} lookups"))
        };
        shared.record_many(&mut count, begun, found as u64, &result);
    }
    Ok(count)
}

async fn new_watchers(mut worker: Worker, shared: Arc<Shared>) -> Result<Count> {
    let mut count = count();
    while Instant::now() < shared.end {
        let begun = Instant::now();
        let seen = match worker.api {
            Api::Route => snapshot(&mut worker.routes).await?,
            Api::Etcd => listing(&mut worker).await?,
        };
        let rules = worker.rules;
        let result =
            if seen >= rules { Ok(()) } else { Err(anyhow::anyhow!("{seen} of {rules} rules came")) };
        shared.record(&mut count, begun, &result);
    }
    Ok(count)
}

async fn snapshot(routes: &mut RouteClient<Channel>) -> Result<u64> {
    let request = pb::WatchRequest { groups: vec![GROUP.to_owned()], ..pb::WatchRequest::default() };
    let mut messages = routes.watch(request).await?.into_inner();
    let mut seen = 0;
    loop {
        let message = messages.message().await?.context("the server ended the watch")?;
        seen += message.rules.len() as u64;
        if message.kind() == Kind::SnapshotEnd {
            return Ok(seen);
        }
    }
}

/// What a client of etcd does: lists in pages at one revision, then watches from there.
async fn listing(worker: &mut Worker) -> Result<u64> {
    let (mut key, range_end) = prefix();
    let (mut revision, mut seen) = (0, 0);
    loop {
        let request = etcd::RangeRequest {
            key: key.clone(),
            range_end: range_end.clone(),
            revision,
            limit: PAGE,
            ..etcd::RangeRequest::default()
        };
        let reply = worker.etcd.range(request).await?.into_inner();
        if revision == 0 {
            revision = reply.header.map_or(0, |header| header.revision);
        }
        for kv in &reply.kvs {
            pb::Rule::decode(kv.value.clone())?;
        }
        seen += reply.kvs.len() as u64;
        match reply.kvs.last() {
            Some(last) if reply.more => key = [&last.key[..], b"\0"].concat().into(),
            _ => break,
        }
    }
    let mut watching = etcd_watch(&worker.connection, revision + 1).await?;
    watching.message().await?.context("the server ended the watch")?;
    Ok(seen)
}

async fn etcd_watch(
    connection: &Connection,
    start_revision: i64,
) -> Result<tonic::Streaming<etcd::WatchResponse>> {
    let (key, range_end) = prefix();
    let create =
        etcd::WatchCreateRequest { key, range_end, start_revision, ..etcd::WatchCreateRequest::default() };
    let union = etcd::watch_request::RequestUnion::CreateRequest(create);
    let request = etcd::WatchRequest { request_union: Some(union) };
    let outgoing = tokio_stream::StreamExt::chain(tokio_stream::iter([request]), tokio_stream::pending());
    let mut watch = WatchClient::new(connection.0.clone()).max_decoding_message_size(64 << 20);
    Ok(watch.watch(outgoing).await?.into_inner())
}

/// Of a rule, only when it was due: a thousand watchers in one process must not cost more than what they watch.
#[derive(Clone, PartialEq, Message)]
struct Due {
    #[prost(bytes = "bytes", tag = "8")]
    user_data: Bytes,
}

/// Of an event, only its rule.
#[derive(Clone, PartialEq, Message)]
struct DueEvent {
    #[prost(message, optional, tag = "2")]
    put: Option<Due>,
}

/// Of a `WatchResponse`, only its events.
#[derive(Clone, PartialEq, Message)]
struct DueEvents {
    #[prost(message, repeated, tag = "3")]
    events: Vec<DueEvent>,
}

/// A watcher of updates.
enum Watcher {
    Route(tonic::Streaming<DueEvents>),
    Etcd(tonic::Streaming<etcd::WatchResponse>),
}

async fn watch_all(connections: &[Connection], options: &RouteBench) -> Result<Vec<Watcher>> {
    let newest = match options.api {
        Api::Route => {
            let nodes = routes(&connections[0]).nodes(pb::NodesRequest::default()).await?.into_inner();
            nodes.header.map_or(0, |header| header.revision)
        }
        Api::Etcd => 0,
    };
    let mut watchers = Vec::with_capacity(options.watchers);
    for number in 0..options.watchers {
        let connection = &connections[number % connections.len()];
        watchers.push(match options.api {
            Api::Route => {
                let request = pb::WatchRequest {
                    groups: vec![GROUP.to_owned()],
                    from_revision: newest + 1,
                    ..pb::WatchRequest::default()
                };
                Watcher::Route(watch(connection, request).await?)
            }
            Api::Etcd => {
                let mut watch = etcd_watch(connection, 0).await?;
                watch.message().await?.context("the server ended the watch")?;
                Watcher::Etcd(watch)
            }
        });
    }
    Ok(watchers)
}

async fn watch(connection: &Connection, request: pb::WatchRequest) -> Result<tonic::Streaming<DueEvents>> {
    let mut client = tonic::client::Grpc::new(connection.0.clone()).max_decoding_message_size(64 << 20);
    client.ready().await?;
    let path = http::uri::PathAndQuery::from_static("/quoin.route.v1.Route/Watch");
    let codec = tonic_prost::ProstCodec::<pb::WatchRequest, DueEvents>::default();
    Ok(client.server_streaming(tonic::Request::new(request), path, codec).await?.into_inner())
}

impl Watcher {
    /// Records each update when it comes.
    async fn count(mut self, shared: Arc<Shared>, begun: Instant) -> Result<Count> {
        let mut count = count();
        let patience = shared.end + Duration::from_millis(200);
        while let Ok(rules) = tokio::time::timeout_at(patience.into(), self.next()).await {
            for rule in rules? {
                let Ok(nanos) = <[u8; 8]>::try_from(&rule.user_data[..]) else { continue };
                let sent = begun + Duration::from_nanos(u64::from_be_bytes(nanos));
                shared.record(&mut count, sent, &Ok(()));
            }
        }
        Ok(count)
    }

    async fn next(&mut self) -> Result<Vec<Due>> {
        match self {
            Self::Route(messages) => {
                let message = messages.message().await?.context("the server ended a watch")?;
                Ok(message.events.into_iter().filter_map(|event| event.put).collect())
            }
            Self::Etcd(messages) => {
                let message = messages.message().await?.context("the server ended a watch")?;
                let values = message.events.into_iter().filter_map(|event| event.kv).map(|kv| kv.value);
                values.map(|value| Ok(Due::decode(value)?)).collect()
            }
        }
    }
}

/// Writes at `rate`; each rule carries when it was due. Its own latencies are not counted: the watchers' are.
async fn update(worker: Worker, shared: Arc<Shared>, begun: Instant, rate: f64) -> Result<Count> {
    let interval = Duration::from_secs_f64(1.0 / rate);
    let mut due = Instant::now();
    let mut count = count();
    let (failed, mut failures) = mpsc::channel(1);
    while due < shared.end {
        tokio::time::sleep_until(due.into()).await;
        let nanos = u64::try_from((due - begun).as_nanos()).unwrap_or(u64::MAX);
        let (mut worker, failed) = (worker.clone(), failed.clone());
        worker.random = Random::seeded(nanos);
        tokio::spawn(async move {
            if let Err(error) = worker.put(nanos.to_be_bytes().to_vec().into()).await {
                // One is enough to be told.
                let _ = failed.try_send(error);
            }
        });
        due += interval;
    }
    if let Ok(error) = failures.try_recv() {
        shared.record(&mut count, shared.end - Duration::from_nanos(1), &Err(error));
    }
    Ok(count)
}
