//! Making load and keeping time.
//!
//! Closed loop: each client sends its next request when it has the answer. Open loop: requests start at their
//! time, whether or not others are answered, and a latency counts from the intended start, so a stall of the
//! server is in the figures of all whom it kept waiting (no coordinated omission).

use super::machine::{Reading, Usage};
use anyhow::Result;
use hdrhistogram::Histogram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// The longest latency that is told apart, in nanoseconds: a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Requests of an open loop that may be under way at once; beyond them the load generator says that it is
/// overrun instead of eating all memory.
pub(super) const OPEN_LOOP_REQUESTS_MAX: usize = 20_000;

/// How a run goes.
pub(super) struct Run {
    pub(super) clients: usize,
    pub(super) rate: Option<f64>,
    pub(super) warm_up: Duration,
    pub(super) measured: Duration,
}

/// What a run counted.
pub(super) struct Counted {
    pub(super) latencies: Histogram<u64>,
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    pub(super) seconds: f64,
    /// Answers in each second that was measured.
    pub(super) per_second: Vec<u64>,
    pub(super) usage: Usage,
    /// Starts of an open loop that were dropped because too many were under way.
    pub(super) dropped: u64,
}

/// One client's own count.
pub(super) struct Count {
    latencies: Histogram<u64>,
    errors: u64,
    first_error: Option<String>,
}

pub(super) struct Shared {
    begin: Instant,
    pub(super) end: Instant,
    per_second: Vec<AtomicU64>,
    dropped: AtomicU64,
}

impl Shared {
    /// Starts of an open loop that did not happen.
    pub(super) fn drop_many(&self, operations: u64) {
        self.dropped.fetch_add(operations, Ordering::Relaxed);
    }

    pub(super) fn record(&self, count: &mut Count, intended: Instant, result: &Result<()>) {
        self.record_many(count, intended, 1, result);
    }

    /// As [`Self::record`], for `operations` that were answered together.
    pub(super) fn record_many(
        &self,
        count: &mut Count,
        intended: Instant,
        operations: u64,
        result: &Result<()>,
    ) {
        let now = Instant::now();
        if intended < self.begin || now >= self.end {
            return;
        }
        match result {
            Ok(()) => {
                let latency = (now - intended).as_nanos() as u64;
                count.latencies.saturating_record_n(latency.clamp(1, LATENCY_NS_MAX), operations);
                let second = (now - self.begin).as_secs() as usize;
                self.per_second[second.min(self.per_second.len() - 1)]
                    .fetch_add(operations, Ordering::Relaxed);
            }
            Err(error) => {
                count.errors += 1;
                count.first_error.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }
}

pub(super) fn count() -> Count {
    let latencies = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("bounds that are in order");
    Count { latencies, errors: 0, first_error: None }
}

/// One client of a unary call: what it does again and again.
pub(super) trait Work: Clone + Send + 'static {
    /// Does one operation and waits for its answer.
    fn operation(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// As how much one operation counts: rules of a batch, for example.
    fn weight(&self) -> u64 {
        1
    }
}

/// A client under way.
pub(super) type Client = JoinHandle<Result<Count>>;

/// Runs the load that `start` starts, and counts.
pub(super) async fn run(
    run: &Run,
    pids: &[u32],
    start: impl FnOnce(&Arc<Shared>) -> Vec<Client>,
) -> Result<Counted> {
    let begin = Instant::now() + run.warm_up;
    let end = begin + run.measured;
    let seconds = run.measured.as_secs_f64().ceil() as usize;
    let per_second = (0..seconds.max(1)).map(|_| AtomicU64::new(0)).collect();
    let shared = Arc::new(Shared { begin, end, per_second, dropped: AtomicU64::new(0) });
    let clients = start(&shared);
    tokio::time::sleep_until(begin.into()).await;
    let before = Reading::take(pids);
    tokio::time::sleep_until(end.into()).await;
    let usage = before.until(&Reading::take(pids));
    let mut all = count();
    for client in clients {
        let one = client.await??;
        all.latencies.add(one.latencies)?;
        all.errors += one.errors;
        all.first_error = all.first_error.or(one.first_error);
    }
    Ok(Counted {
        latencies: all.latencies,
        errors: all.errors,
        first_error: all.first_error,
        seconds: run.measured.as_secs_f64(),
        per_second: shared.per_second.iter().map(|second| second.load(Ordering::Relaxed)).collect(),
        usage,
        dropped: shared.dropped.load(Ordering::Relaxed),
    })
}

/// Starts the clients of a unary call: closed loop, or open at the run's rate.
pub(super) fn unary<W: Work>(run: &Run, shared: &Arc<Shared>, worker: impl Fn(usize) -> W) -> Vec<Client> {
    let client = |number: usize| {
        let worker = worker(number);
        let (shared, clients) = (Arc::clone(shared), run.clients);
        let rate = run.rate.map(|rate| rate / clients as f64);
        tokio::spawn(async move {
            Ok(match rate {
                None => closed(worker, &shared).await,
                Some(rate) => open(worker, shared, number, clients, rate).await,
            })
        })
    };
    (0..run.clients).map(client).collect()
}

async fn closed(mut worker: impl Work, shared: &Shared) -> Count {
    let mut count = count();
    loop {
        let start = Instant::now();
        if start >= shared.end {
            return count;
        }
        let result = worker.operation().await;
        shared.record_many(&mut count, start, worker.weight(), &result);
        if result.is_err() {
            // A server that is away must not turn this into a busy loop.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// One client's share of an open loop: its starts are spread evenly, and between those of the others.
async fn open(worker: impl Work, shared: Arc<Shared>, number: usize, clients: usize, rate: f64) -> Count {
    let interval = Duration::from_secs_f64(1.0 / rate);
    let mut intended = Instant::now() + interval.mul_f64(number as f64 / clients as f64);
    let under_way = Arc::new(AtomicUsize::new(0));
    let under_way_max = (OPEN_LOOP_REQUESTS_MAX / clients).max(1);
    let counts = Arc::new(std::sync::Mutex::new(count()));
    while intended < shared.end {
        tokio::time::sleep_until(intended.into()).await;
        if under_way.fetch_add(1, Ordering::Relaxed) < under_way_max {
            let (mut worker, shared) = (worker.clone(), Arc::clone(&shared));
            let (counts, under_way) = (Arc::clone(&counts), Arc::clone(&under_way));
            tokio::spawn(async move {
                let result = worker.operation().await;
                under_way.fetch_sub(1, Ordering::Relaxed);
                let mut counts = counts.lock().expect("no client panics");
                shared.record_many(&mut counts, intended, worker.weight(), &result);
            });
        } else {
            under_way.fetch_sub(1, Ordering::Relaxed);
            shared.drop_many(1);
        }
        intended += interval;
    }
    while under_way.load(Ordering::Relaxed) > 0 && Instant::now() < shared.end + Duration::from_secs(1) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut counts = counts.lock().expect("no client panics");
    std::mem::replace(&mut *counts, count())
}
