//! The kv face's part of the demo: keys written, watched and read, transactions, a lease, and a leader
//! killed.

use super::row::Row;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use quoin_load::client::Channel;
use quoin_load::client::{dial, find_leader};
use quoin_load::cluster::Running;
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::etcdserverpb::lease_client::LeaseClient;
use quoin_proto::quoin::kv::v1 as quoin;
use quoin_proto::quoin::kv::v1::kv_client::KvClient as QuoinKvClient;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

const KEYS: u32 = 5_000;
const VALUE_BYTES: usize = 1024;
const CLIENTS: u32 = 64;

/// Does the job; returns a row for each step.
pub(super) async fn job(running: &mut Running) -> Result<Vec<Row>> {
    let addresses = running.endpoints().grpc.clone();
    let (leader, channel) = find_leader(&addresses).await;
    let follower = dial(&addresses[(leader + 1) % addresses.len()], None).await?;
    let mut rows = Vec::new();
    let mut events = watch(follower.clone()).await?;
    rows.push(puts(&channel).await?);
    rows.push(watched(&mut events).await?);
    rows.push(gets(&channel, "linearizable gets from the leader", false).await?);
    rows.push(gets(&follower, "linearizable gets from a follower", false).await?);
    rows.push(gets(&follower, "local gets from a follower", true).await?);
    rows.push(streamed_puts(&channel).await?);
    rows.push(transfers(&channel).await?);
    rows.push(lease(&channel).await?);
    rows.push(failover(running, leader).await?);
    Ok(rows)
}

fn key(number: u32) -> Bytes {
    Bytes::from(format!("demo/{number:06}"))
}

fn value() -> Bytes {
    Bytes::from(vec![b'q'; VALUE_BYTES])
}

/// Distributes an operation per key over the clients, and waits for all.
async fn spread<F, W>(work: F) -> Result<()>
where
    F: Fn(u32) -> W + Clone + Send + 'static,
    W: Future<Output = Result<()>> + Send,
{
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let work = work.clone();
        clients.spawn(async move {
            for number in (client..KEYS).step_by(CLIENTS as usize) {
                work(number).await?;
            }
            Ok::<(), anyhow::Error>(())
        });
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    Ok(())
}

async fn puts(channel: &Channel) -> Result<Row> {
    let begun = Instant::now();
    let (kv, value) = (KvClient::new(channel.clone()), value());
    spread(move |number| {
        let (mut kv, value) = (kv.clone(), value.clone());
        async move {
            kv.put(etcd::PutRequest { key: key(number), value, ..Default::default() }).await?;
            Ok(())
        }
    })
    .await?;
    Ok(Row::new("puts of 1 KB, 64 clients", KEYS.into(), begun, "each on the disks of two replicas"))
}

async fn gets(channel: &Channel, what: &str, serializable: bool) -> Result<Row> {
    let begun = Instant::now();
    let kv = KvClient::new(channel.clone());
    spread(move |number| {
        let mut kv = kv.clone();
        async move {
            let request = etcd::RangeRequest { key: key(number), serializable, ..Default::default() };
            let reply = kv.range(request).await?.into_inner();
            ensure!(serializable || reply.kvs.len() == 1, "key {number} is missing");
            Ok(())
        }
    })
    .await?;
    Ok(Row::new(what, KEYS.into(), begun, ""))
}

async fn watch(channel: Channel) -> Result<Streaming<etcd::WatchResponse>> {
    let create = etcd::WatchCreateRequest {
        key: Bytes::from_static(b"demo/"),
        range_end: Bytes::from_static(b"demo0"),
        ..Default::default()
    };
    let mut events = quoin_load::client::watch(channel, create).await?;
    let created = events.message().await?.context("the watch ended")?;
    ensure!(created.created, "the watch was not created");
    Ok(events)
}

async fn watched(events: &mut Streaming<etcd::WatchResponse>) -> Result<Row> {
    let begun = Instant::now();
    let (mut seen, mut last) = (0, 0);
    while seen < u64::from(KEYS) {
        let message = events.message().await?.context("the watch ended")?;
        for kv in message.events.into_iter().filter_map(|event| event.kv) {
            ensure!(kv.mod_revision > last, "revision {} came after {last}", kv.mod_revision);
            last = kv.mod_revision;
            seen += 1;
        }
    }
    Ok(Row::new("their events at a follower's watcher", seen, begun, "after the last put was answered"))
}

/// All puts on one stream, many in flight.
async fn streamed_puts(channel: &Channel) -> Result<Row> {
    const IN_FLIGHT: u32 = 512;
    let begun = Instant::now();
    let (requests, outgoing) = tokio::sync::mpsc::channel(4);
    let mut results =
        QuoinKvClient::new(channel.clone()).stream(ReceiverStream::new(outgoing)).await?.into_inner();
    let value = value();
    let operation = |number: u32| quoin::TaggedOperation {
        id: number.into(),
        operation: Some(quoin::Operation {
            operation: Some(quoin::operation::Operation::Put(quoin::PutRequest {
                key: Bytes::from(format!("demo-stream/{number:06}")),
                value: value.clone(),
                ..Default::default()
            })),
        }),
    };
    let (mut sent, mut answered) = (IN_FLIGHT.min(KEYS), 0);
    requests.send(quoin::StreamRequest { operations: (0..sent).map(operation).collect() }).await?;
    while answered < KEYS {
        let message = results.message().await?.context("the stream ended")?;
        let count = message.results.len() as u32;
        answered += count;
        let next = (sent + count).min(KEYS);
        if next > sent {
            requests.send(quoin::StreamRequest { operations: (sent..next).map(operation).collect() }).await?;
        }
        sent = next;
    }
    Ok(Row::new("puts of 1 KB on one stream, 512 in flight", KEYS.into(), begun, ""))
}

/// Moves units between two counters in transactions that compare before they write.
async fn transfers(channel: &Channel) -> Result<Row> {
    const TRANSFERS: u64 = 200;
    let begun = Instant::now();
    let mut kv = KvClient::new(channel.clone());
    let mut conflicts = 0;
    for (name, amount) in [("demo-a", TRANSFERS), ("demo-b", 0)] {
        let value = amount.to_string().into();
        kv.put(etcd::PutRequest { key: name.into(), value, ..Default::default() }).await?;
    }
    let mut done = 0;
    while done < TRANSFERS {
        let (from, from_revision) = counter(&mut kv, "demo-a").await?;
        let (to, to_revision) = counter(&mut kv, "demo-b").await?;
        let txn = etcd::TxnRequest {
            compare: vec![unchanged("demo-a", from_revision), unchanged("demo-b", to_revision)],
            success: vec![set("demo-a", from - 1), set("demo-b", to + 1)],
            failure: Vec::new(),
        };
        if kv.txn(txn).await?.into_inner().succeeded { done += 1 } else { conflicts += 1 }
    }
    let (left, _) = counter(&mut kv, "demo-a").await?;
    let (moved, _) = counter(&mut kv, "demo-b").await?;
    ensure!((left, moved) == (0, TRANSFERS), "{left} left and {moved} moved of {TRANSFERS}");
    Ok(Row::new(
        "compare-and-write transactions, one client",
        TRANSFERS,
        begun,
        format!("{conflicts} conflicts"),
    ))
}

async fn counter(kv: &mut KvClient<Channel>, name: &'static str) -> Result<(u64, i64)> {
    let reply = kv.range(etcd::RangeRequest { key: name.into(), ..Default::default() }).await?.into_inner();
    let kv = reply.kvs.first().context("the counter is gone")?;
    Ok((std::str::from_utf8(&kv.value)?.parse()?, kv.mod_revision))
}

fn unchanged(key: &'static str, revision: i64) -> etcd::Compare {
    etcd::Compare {
        result: etcd::compare::CompareResult::Equal.into(),
        target: etcd::compare::CompareTarget::Mod.into(),
        key: key.into(),
        target_union: Some(etcd::compare::TargetUnion::ModRevision(revision)),
        ..Default::default()
    }
}

fn set(key: &'static str, value: u64) -> etcd::RequestOp {
    let put = etcd::PutRequest { key: key.into(), value: value.to_string().into(), ..Default::default() };
    etcd::RequestOp { request: Some(etcd::request_op::Request::RequestPut(put)) }
}

/// Attaches a key to a lease, and waits until it is gone.
async fn lease(channel: &Channel) -> Result<Row> {
    let begun = Instant::now();
    let lease = LeaseClient::new(channel.clone())
        .lease_grant(etcd::LeaseGrantRequest { ttl: 1, id: 0 })
        .await?
        .into_inner();
    let mut kv = KvClient::new(channel.clone());
    let put = etcd::PutRequest { key: "demo-lease".into(), lease: lease.id, ..Default::default() };
    kv.put(put).await?;
    let present = || etcd::RangeRequest { key: "demo-lease".into(), ..Default::default() };
    ensure!(kv.range(present()).await?.into_inner().count == 1, "the leased key is missing");
    while kv.range(present()).await?.into_inner().count == 1 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(Row::new("key gone with its lease", 1, begun, format!("granted for {} s", lease.ttl)))
}

/// Kills the leader, and waits for the first write that succeeds.
async fn failover(running: &mut Running, leader: usize) -> Result<Row> {
    let mut addresses = running.endpoints().grpc.clone();
    running.kill(leader)?;
    let begun = Instant::now();
    addresses.remove(leader);
    loop {
        let (_, channel) = find_leader(&addresses).await;
        let put = etcd::PutRequest { key: "demo-failover".into(), ..Default::default() };
        if KvClient::new(channel).put(put).await.is_ok() {
            break;
        }
    }
    let row = Row::new("leader killed, first write that succeeds", 1, begun, "");
    let (_, channel) = find_leader(&addresses).await;
    let all = etcd::RangeRequest {
        key: Bytes::from_static(b"demo/"),
        range_end: Bytes::from_static(b"demo0"),
        count_only: true,
        ..Default::default()
    };
    let count = KvClient::new(channel).range(all).await?.into_inner().count;
    ensure!(count == i64::from(KEYS), "{count} of {KEYS} keys are left after the leader was killed");
    running.restart(leader)?;
    Ok(row)
}
