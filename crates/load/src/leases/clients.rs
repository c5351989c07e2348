//! The clients of a run: they grant leases, keep them alive, watch them expire, and write after a leader was
//! killed.

use super::seen::Seen;
use crate::client;
use crate::client::Channel;
use anyhow::{Context, Result, ensure};
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::etcdserverpb::lease_client::LeaseClient;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

/// Pause before another replica is asked.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How long a keep-alive waits for its answer before another replica is asked.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a write may take before another replica is asked.
const WRITE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long writes may fail after a leader was killed.
const WRITE_AGAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// A lease to grant.
pub(super) struct Lease {
    pub(super) id: i64,
    pub(super) ttl_s: i64,
    /// Whether a key is attached.
    pub(super) with_key: bool,
}

/// Grants `count` leases with `clients` requests in flight; `lease` says what each is.
pub(super) async fn grant(
    channels: &[Channel],
    clients: u64,
    count: u64,
    lease: impl Fn(u64) -> Lease + Clone + Send + 'static,
) -> Result<()> {
    let mut running = JoinSet::new();
    for client in 0..clients {
        let channel = channels[client as usize % channels.len()].clone();
        let (mut leases, mut kv) = (LeaseClient::new(channel.clone()), KvClient::new(channel));
        let lease = lease.clone();
        running.spawn(async move {
            for number in (client..count).step_by(clients as usize) {
                let Lease { id, ttl_s, with_key } = lease(number);
                leases.lease_grant(etcd::LeaseGrantRequest { id, ttl: ttl_s }).await?;
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

/// Keeps `ids` alive once a second, over whichever replica answers. Latencies count from the start of the
/// second, however often the stream had to be reopened.
pub(super) async fn keep_alive(addresses: Vec<String>, first: usize, ids: Vec<i64>, seen: Arc<Seen>) {
    let mut due = Instant::now();
    for turn in first.. {
        // An error means that the replica is down or has no leader. Another one is asked.
        let _ = keep_alive_over(&addresses[turn % addresses.len()], &ids, &mut due, &seen).await;
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

async fn keep_alive_over(address: &str, ids: &[i64], due: &mut Instant, seen: &Seen) -> Result<()> {
    let channel = client::dial(address, None).await?;
    let (requests, outgoing) = mpsc::channel(ids.len());
    let mut answers =
        LeaseClient::new(channel).lease_keep_alive(ReceiverStream::new(outgoing)).await?.into_inner();
    loop {
        tokio::time::sleep_until((*due).into()).await;
        for id in ids {
            requests.send(etcd::LeaseKeepAliveRequest { id: *id }).await?;
        }
        for _ in ids {
            let answer = tokio::time::timeout(KEEP_ALIVE_TIMEOUT, answers.message()).await??;
            if answer.context("the stream ended")?.ttl <= 0 {
                seen.lose();
            }
            seen.kept_alive(due.elapsed());
        }
        *due += Duration::from_secs(1);
    }
}

/// Counts the keys that are deleted with their leases, at whichever replica answers.
pub(super) async fn watch_expiries(addresses: Vec<String>, first: usize, seen: Arc<Seen>) {
    let mut next = 0;
    for turn in first.. {
        // An error means that the replica is down. Another one is asked, from where this one stopped.
        let _ = watch_over(&addresses[turn % addresses.len()], &mut next, &seen).await;
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

async fn watch_over(address: &str, next: &mut i64, seen: &Seen) -> Result<()> {
    let create = etcd::WatchCreateRequest {
        key: "leased/".into(),
        range_end: "leased0".into(),
        start_revision: *next,
        filters: vec![etcd::watch_create_request::FilterType::Noput.into()],
        ..Default::default()
    };
    let mut answers = client::watch(client::dial(address, None).await?, create).await?;
    while let Some(answer) = answers.message().await? {
        seen.expire(answer.events.len() as u64);
        if let Some(last) = answer.events.last().and_then(|event| event.kv.as_ref()) {
            *next = last.mod_revision + 1;
        }
    }
    Ok(())
}

/// Writes until a write succeeds; returns the seconds since `killed`. Replica `dead` is not asked.
pub(super) async fn write_again(addresses: &[String], dead: usize, killed: Instant) -> Result<f64> {
    let mut alive = addresses.to_vec();
    alive.remove(dead);
    let channels = client::connect(&alive, alive.len()).await?;
    for channel in channels.iter().cycle() {
        let mut kv = KvClient::new(channel.clone());
        let put = kv.put(etcd::PutRequest { key: "again".into(), ..Default::default() });
        if matches!(tokio::time::timeout(WRITE_TIMEOUT, put).await, Ok(Ok(_))) {
            break;
        }
        let timeout = WRITE_AGAIN_TIMEOUT;
        ensure!(killed.elapsed() < timeout, "no write succeeded for {} s", timeout.as_secs());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(killed.elapsed().as_secs_f64())
}
