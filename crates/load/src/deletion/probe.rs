//! The other client: one put every ten milliseconds, each by itself.

use crate::client::Channel;
use hdrhistogram::Histogram;
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use serde::Serialize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, JoinSet};

const PERIOD: Duration = Duration::from_millis(10);
/// Longer latencies count as this one: two minutes in microseconds.
const LATENCY_US_MAX: u64 = 120_000_000;
const VALUE_BYTES: usize = 1024;

/// Latencies of puts, each counted from when it was due.
#[derive(Serialize)]
pub(super) struct Latencies {
    pub(super) puts: u64,
    pub(super) failed: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
}

struct Seen {
    latencies: Histogram<u64>,
    failed: u64,
}

/// The running client. It ends when this is dropped.
pub(super) struct Probe {
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

impl Probe {
    pub(super) fn start(channel: Channel) -> Self {
        let seen = Arc::new(Mutex::new(none()));
        let task = tokio::spawn(put(channel, Arc::clone(&seen)));
        Self { seen, task }
    }

    /// The latencies since the last call.
    pub(super) fn take(&self) -> Latencies {
        let Seen { latencies, failed } = std::mem::replace(&mut *lock(&self.seen), none());
        let ms = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        let max_ms = latencies.max() as f64 / 1e3;
        Latencies { puts: latencies.len(), failed, p50_ms: ms(0.5), p99_ms: ms(0.99), max_ms }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Puts when the next put is due, whether the ones before it are answered or not: behind a slow one, a client
/// that waits for each answer would count the same wait many times.
async fn put(channel: Channel, seen: Arc<Mutex<Seen>>) {
    let mut due = Instant::now();
    let mut under_way = JoinSet::new();
    loop {
        tokio::time::sleep_until(due.into()).await;
        while under_way.try_join_next().is_some() {}
        under_way.spawn(put_one(KvClient::new(channel.clone()), due, Arc::clone(&seen)));
        due += PERIOD;
    }
}

async fn put_one(mut kv: KvClient<Channel>, due: Instant, seen: Arc<Mutex<Seen>>) {
    let value = vec![7; VALUE_BYTES].into();
    let done = kv.put(etcd::PutRequest { key: "probe".into(), value, ..Default::default() }).await;
    let mut seen = lock(&seen);
    seen.latencies.saturating_record((due.elapsed().as_micros() as u64).max(1));
    seen.failed += u64::from(done.is_err());
}

fn none() -> Seen {
    let latencies = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are in order");
    Seen { latencies, failed: 0 }
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().expect("no holder panics")
}
