//! What all faces have in common on the wire: how fresh a read is, and pages that are too large.

use crate::harness::{Cluster, PATIENCE, SMALL, endpoint, start, wait};
use crate::ledger::{ask, status_of};
use crate::table::{Resp, build_base, local_list, path, quoin};
use anyhow::{Context, Result, bail, ensure};
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::kv_client::KvClient as EtcdClient;
use quoin_proto::quoin::kv::v1::kv_client::KvClient;
use quoin_proto::quoin::ledger::v1::ledger_client::LedgerClient;
use quoin_proto::quoin::route::v1::route_client::RouteClient;
use quoin_proto::quoin::table::v1::table_client::TableClient;
use quoin_proto::quoin::v1::{Consistency, Local};
use quoin_proto::quoin::{kv, ledger, route, table};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Longer than a replica waits for a leader before it refuses a read.
const TIMEOUT: Duration = Duration::from_secs(30);
const NUMBER: &str = "@world/EUR";

/// The commands that read; `quoin kv get` and `quoin route get` refuse where nothing is found.
const READ_COMMANDS: &[&str] = &[
    "kv get --prefix k",
    "route list --vni 1",
    "route nodes",
    "table lookup t 7",
    "table versions t",
    "ledger account show alice",
    "ledger account list",
    "ledger statement alice",
];

async fn patient_channel(cluster: &Cluster, replica: usize) -> Result<Channel> {
    Ok(endpoint(&cluster.client_address(replica))?.timeout(TIMEOUT).connect().await?)
}

/// One read of each face, with its name.
async fn reads(
    channel: &Channel,
    consistency: Option<Consistency>,
) -> [(&'static str, Result<(), Status>); 6] {
    let get = kv::v1::GetRequest { key: "k".into(), consistency, ..Default::default() };
    let rule = route::v1::Lookup { request_id: 1, vni: 1, ip: "10.0.0.1".into() };
    let rules = route::v1::GetRequest { lookups: vec![rule], consistency };
    let nodes = route::v1::NodesRequest { consistency };
    let account = Some(ledger::v1::get_account_request::Account::Number(NUMBER.into()));
    let account = ledger::v1::GetAccountRequest { account, at: None, consistency };
    let keys = table::v1::Keys { table: "t".into(), keys: vec![7], form: 0 };
    let lookup = table::v1::LookupRequest { tables: vec![keys], consistency };
    let list = table::v1::ListRequest { table: "t".into(), consistency };
    let (mut kv, mut route) = (KvClient::new(channel.clone()), RouteClient::new(channel.clone()));
    let mut route_nodes = route.clone();
    let mut ledger = LedgerClient::new(channel.clone());
    let mut tables = (TableClient::new(channel.clone()), TableClient::new(channel.clone()));
    let (get, rules, nodes, account, lookup, list) = tokio::join!(
        kv.get(get),
        route.get(rules),
        route_nodes.nodes(nodes),
        ledger.get_account(account),
        tables.0.lookup(lookup),
        tables.1.list(list),
    );
    [
        ("kv", get.map(drop)),
        ("rules", rules.map(drop)),
        ("nodes", nodes.map(drop)),
        ("ledger", account.map(drop)),
        ("table", lookup.map(drop)),
        ("tables", list.map(drop)),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_local_reads_are_answered_and_all_others_refused_in_every_face() -> Result<()> {
    let mut cluster = start(&[])?;
    let folder = tempfile::tempdir()?;
    let built = build_base(folder.path(), 'a')?;
    let endpoints = cluster.endpoints();
    quoin(&["table", "publish", path(&built)?, "--activate", "--endpoints", &endpoints])?;
    quoin(&["ledger", "account", "create", "alice", "--currency", "EUR", "--endpoints", &endpoints])?;
    let channel = patient_channel(&cluster, 0).await?;
    for (name, read) in reads(&channel, None).await {
        read.with_context(|| format!("{name}, with a majority"))?;
    }
    let mut tables = TableClient::new(channel.clone());
    let listed = tables.list(local_list()).await?.into_inner();
    ensure!(listed.tables.len() == 1, "one table, not {listed:?}");

    cluster.kill(1)?;
    cluster.kill(2)?;
    let local = Some(Consistency::from(Local::default()));
    for (name, read) in reads(&channel, local).await {
        read.with_context(|| format!("{name}, local"))?;
    }
    for command in READ_COMMANDS {
        let asked = [*command, "--local --endpoints", &cluster.client_address(0)].join(" ");
        quoin(&asked.split(' ').collect::<Vec<_>>())?;
    }
    for consistency in [None, Some(Consistency::default())] {
        for (name, read) in reads(&channel, consistency).await {
            match read {
                Err(status) if status.code() == Code::Unavailable => {}
                other => bail!("{name}, linearizable without a majority: {other:?}"),
            }
        }
    }
    let bounded = Some(Consistency::from(Local { lag_ms_max: Some(1), ..Local::default() }));
    wait("the replica to know that it may lag", || async {
        let all = reads(&channel, bounded).await;
        all.iter().all(|(_, read)| read.as_ref().is_err_and(|status| status.code() == Code::Unavailable))
    })
    .await?;

    let http = cluster.http_address(0);
    let account = "/v1/accounts/@world%2FEUR";
    let status = async |path: &str| status_of(&ask(&http, "GET", path, "", "").await?);
    for path in [account, "/v1/accounts", "/v1/transfers"] {
        ensure!(status(&format!("{path}?local=true")).await? == 200, "{path}, local");
        ensure!(status(&format!("{path}?local=true&lag_ms_max=1")).await? == 503, "{path}, too far behind");
        ensure!(status(&format!("{path}?lag_ms_max=1")).await? == 400, "{path}, a bound without local");
    }
    let mut redis = Resp::connect(&cluster, 0)?;
    redis.says(&[b"READONLY"], b"+OK\r\n")?;
    redis.says(&[b"TABLE.LIST"], b"*1\r\n$1\r\nt\r\n")?;
    redis.says(&[b"READWRITE"], b"+OK\r\n")?;
    redis.says(&[b"TABLE.LIST"], b"-CLUSTERDOWN ")
}

/// Lag was measured against what the replica itself had, which after a start was its own state: it said 0 to everybody.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_replica_that_hears_nobody_is_not_ready_and_says_that_its_lag_is_unknown() -> Result<()> {
    let mut cluster = start(SMALL)?;
    let lags = |address: &str| {
        let said: serde_json::Value =
            serde_json::from_str(&quoin(&["cluster", "status", "--json", "--endpoints", address])?)?;
        let replicas = said["replicas"].as_array().context("replicas")?;
        Ok::<_, anyhow::Error>(replicas.iter().map(|replica| replica["lag"].as_u64()).collect::<Vec<_>>())
    };
    wait("nobody to lag", || async {
        let lags = lags(&cluster.client_address(0))?;
        ensure!(lags == [Some(0); 3], "{lags:?}");
        Ok(())
    })
    .await?;
    cluster.kill_all()?;
    cluster.spawn(0)?;
    wait("it to serve", || async { cluster.page(0, "/livez") }).await?;
    ensure!(cluster.page(0, "/readyz")?.status == 503, "it is ready without a leader");
    let lag_s = cluster.metric(0, "quoin_lag_seconds")?;
    ensure!(lag_s == f64::INFINITY, "quoin_lag_seconds {lag_s}");
    let lags = lags(&cluster.client_address(0))?;
    ensure!(lags == [None; 3], "quoin cluster status: {lags:?}");
    let mut redis = tokio::net::TcpStream::connect(cluster.resp_address(0)).await?;
    redis.write_all(b"INFO\r\n").await?;
    let mut said = String::new();
    while !said.contains("quoin_lag_ms:") || !said.ends_with('\n') {
        let mut bytes = [0; 4096];
        let read = redis.read(&mut bytes).await?;
        ensure!(read > 0, "INFO ended early: {said}");
        said.push_str(std::str::from_utf8(&bytes[..read])?);
    }
    ensure!(said.contains("quoin_lag_ms:unknown\r\n"), "{said}");
    Ok(())
}

/// tonic's clients refuse answers above 4 MiB unless told otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn a_listing_of_several_mebibytes_is_read_whole() -> Result<()> {
    let cluster = start(&[])?;
    let mut kv = EtcdClient::new(patient_channel(&cluster, 0).await?);
    for key in ["k1", "k2", "k3", "k4", "k5"] {
        let value = vec![b'v'; 1 << 20].into();
        kv.put(etcd::PutRequest { key: key.into(), value, ..Default::default() }).await?;
    }
    let listed = quoin(&["kv", "get", "k", "--prefix", "--endpoints", &cluster.endpoints()])?;
    ensure!(listed.len() > 5 << 20, "only {} bytes were printed", listed.len());
    Ok(())
}

/// Bytes were counted when a request was whole and decoded: 4,000 puts of 1.4 MB took 3 GB.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_charged_before_their_bytes_come_on_every_wire() -> Result<()> {
    let cluster = start(&["--limits-command-bytes-in-flight-max=3000000"])?;
    let begin = async |address: String, text: &str| -> Result<TcpStream> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(text.as_bytes()).await?;
        Ok(stream)
    };
    const SET: &str = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1400000\r\n";
    const POST: &str = "POST /v1/transfers HTTP/1.1\r\nhost: x\r\ncontent-length: 1400000\r\n\r\n";
    let mut kv = EtcdClient::new(patient_channel(&cluster, 0).await?);
    let put =
        || etcd::PutRequest { key: "k".into(), value: vec![b'v'; 1_400_000].into(), ..Default::default() };
    // Both have announced what they will send, and sent nothing of it. One that came beside a put was refused itself.
    let mut held = Vec::new();
    let end = Instant::now() + PATIENCE;
    loop {
        ensure!(Instant::now() < end, "no put was refused");
        held.push(begin(cluster.resp_address(0), SET).await?);
        held.push(begin(cluster.http_address(0), POST).await?);
        if kv.put(put()).await.is_err_and(|status| status.code() == Code::ResourceExhausted) {
            break;
        }
    }
    let mut refused = String::new();
    begin(cluster.resp_address(0), SET).await?.read_to_string(&mut refused).await?;
    ensure!(refused.starts_with("-BUSY "), "{refused}");
    let mut answer = [0; 12];
    begin(cluster.http_address(0), POST).await?.read_exact(&mut answer).await?;
    assert_eq!(&answer, b"HTTP/1.1 429");
    // What is small is charged, too, and there is room for it.
    let small = etcd::PutRequest { key: "k".into(), value: "v".into(), ..Default::default() };
    kv.put(small).await?;
    drop(held);
    wait("a put to be admitted", || {
        let (mut kv, put) = (kv.clone(), put());
        async move { kv.put(put).await.is_ok() }
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_beyond_its_maximum_is_refused_on_every_wire() -> Result<()> {
    let cluster = start(&[])?;
    let channel = patient_channel(&cluster, 0).await?;
    let (mut ledger, mut route) = (LedgerClient::new(channel.clone()), RouteClient::new(channel));
    let accounts = |limit| ledger::v1::ListAccountsRequest { limit, ..Default::default() };
    let statement =
        |limit| ledger::v1::StatementRequest { id: vec![1; 16].into(), limit, ..Default::default() };
    let of = Some(route::v1::list_request::Of::Vni(1));
    let rules = |limit| route::v1::ListRequest { of: of.clone(), limit, ..Default::default() };
    let objects = |limit| route::v1::ListObjectsRequest { kind: 1, limit, ..Default::default() };

    ledger.list_accounts(accounts(1000)).await?;
    route.list(rules(10_000)).await?;
    route.list_objects(objects(10_000)).await?;
    let unknown = ledger.statement(statement(1000)).await.map(drop).unwrap_err();
    ensure!(unknown.code() == Code::NotFound, "a statement of an account that does not exist: {unknown}");
    for (refused, text) in [
        (ledger.list_accounts(accounts(1001)).await.map(drop), "1001 is not between 1 and 1000"),
        (ledger.statement(statement(5000)).await.map(drop), "5000 is not between 1 and 1000"),
        (route.list(rules(10_001)).await.map(drop), "10001 is not between 1 and 10000"),
        (route.list_objects(objects(10_001)).await.map(drop), "10001 is not between 1 and 10000"),
    ] {
        let status = refused.err().with_context(|| format!("{text}, and was answered"))?;
        let expected = (Code::InvalidArgument, format!("quoin: limit: {text}"));
        assert_eq!((status.code(), status.message().to_owned()), expected);
    }
    let http = cluster.http_address(0);
    for path in ["/v1/accounts", "/v1/transfers"] {
        let answer = ask(&http, "GET", &format!("{path}?limit=1001"), "", "").await?;
        ensure!(answer.contains("1001 is not between 1 and 1000"), "{path}: {answer}");
        assert_eq!(status_of(&answer)?, 400);
    }
    Ok(())
}

/// Whoever confused the ports saw a broken connection, and frames that could not be decoded.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_on_a_wrong_port_is_told_which_one_it_is() -> Result<()> {
    let cluster = start(SMALL)?;
    for (port, name) in
        [(cluster.resp_address(0), "port for Redis's protocol"), (cluster.http_address(0), "HTTP port")]
    {
        let output = cluster.quoin(&["kv", "get", "k", "--endpoints", &port]).output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && text.contains(&format!("this is Quoin's {name}")), "{text}");
    }
    Ok(())
}
