//! Makes the load and keeps the time.
//!
//! Closed loop: each client sends its next request when the last one is answered. Open loop: requests start
//! on schedule, whether or not others are answered, and a latency counts from the scheduled start. A stall of
//! the server thus shows in the latency of every request that it delayed (no coordinated omission).

use crate::machine::{Reading, Usage};
use anyhow::Result;
use hdrhistogram::Histogram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Longer latencies count as this one, a minute, in nanoseconds.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Maximum requests of an open loop in flight. Starts beyond it are dropped and counted.
pub(crate) const OPEN_LOOP_REQUESTS_MAX: usize = 20_000;
/// Pause of a client after an error: an absent server must not make a busy loop of it.
pub(crate) const ERROR_PAUSE: Duration = Duration::from_millis(5);

/// How to run a load.
pub(crate) struct Run {
    pub(crate) clients: usize,
    /// Requests per second of an open loop; `None` for a closed one.
    pub(crate) rate: Option<f64>,
    pub(crate) warm_up: Duration,
    pub(crate) measured: Duration,
    /// Processes whose CPU time is measured.
    pub(crate) server_pids: Vec<u32>,
}

/// What a run counted.
pub(crate) struct Counted {
    /// In nanoseconds.
    pub(crate) latencies: Histogram<u64>,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    /// Length of the measurement.
    pub(crate) seconds: f64,
    /// Answers in each second of the measurement.
    pub(crate) per_second: Vec<u64>,
    pub(crate) usage: Usage,
    /// Starts of an open loop that were dropped because too many requests were in flight.
    pub(crate) dropped: u64,
}

/// What one client counted.
pub(crate) struct Count {
    latencies: Histogram<u64>,
    errors: u64,
    first_error: Option<String>,
}

/// When the measurement begins and ends, and what all clients count together.
pub(crate) struct Shared {
    begin: Instant,
    pub(crate) end: Instant,
    per_second: Vec<AtomicU64>,
    dropped: AtomicU64,
}

impl Count {
    pub(crate) fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are in order");
        Self { latencies, errors: 0, first_error: None }
    }

    fn took(&mut self, latency: Duration, operations: u64) {
        let nanos = latency.as_nanos() as u64;
        self.latencies.saturating_record_n(nanos.clamp(1, LATENCY_NS_MAX), operations);
    }
}

impl Shared {
    /// Counts starts of an open loop that were dropped.
    pub(crate) fn drop_many(&self, operations: u64) {
        self.dropped.fetch_add(operations, Ordering::Relaxed);
    }

    /// Counts an operation that was to start at `intended` and has just ended. Outside the measurement
    /// nothing counts.
    pub(crate) fn record(&self, count: &mut Count, intended: Instant, result: &Result<()>) {
        self.record_many(count, intended, 1, result);
    }

    /// As [`Self::record`], for `operations` that were answered together.
    pub(crate) fn record_many(
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
                count.took(now - intended, operations);
                self.counted(now, operations);
            }
            Err(error) => {
                count.errors += 1;
                count.first_error.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }

    /// Counts operations that were to start at `intended`, one after another, and have ended together just now.
    pub(crate) fn record_arrivals(
        &self,
        count: &mut Count,
        intended: impl Iterator<Item = Result<Instant>>,
    ) -> Result<()> {
        let now = Instant::now();
        let mut arrived = 0;
        for intended in intended {
            let intended = intended?;
            if intended >= self.begin && now < self.end {
                count.took(now - intended, 1);
                arrived += 1;
            }
        }
        if arrived > 0 {
            self.counted(now, arrived);
        }
        Ok(())
    }

    fn counted(&self, now: Instant, operations: u64) {
        let second = (now - self.begin).as_secs() as usize;
        self.per_second[second.min(self.per_second.len() - 1)].fetch_add(operations, Ordering::Relaxed);
    }
}

/// A client of a unary call.
pub(crate) trait Work: Clone + Send + 'static {
    /// Does one operation and waits for its answer.
    fn operation(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// How much one operation counts: the rules of a batch, for example.
    fn weight(&self) -> u64 {
        1
    }
}

/// A client that runs until the end of the measurement.
pub(crate) type Client = JoinHandle<Result<Count>>;

/// Starts clients with `start`, waits for the end of the measurement, and adds up what they counted.
pub(crate) async fn run(run: &Run, start: impl FnOnce(&Arc<Shared>) -> Vec<Client>) -> Result<Counted> {
    let begin = Instant::now() + run.warm_up;
    let end = begin + run.measured;
    let seconds = run.measured.as_secs_f64().ceil() as usize;
    let per_second = (0..seconds.max(1)).map(|_| AtomicU64::new(0)).collect();
    let shared = Arc::new(Shared { begin, end, per_second, dropped: AtomicU64::new(0) });
    let clients = start(&shared);
    tokio::time::sleep_until(begin.into()).await;
    let before = Reading::take(&run.server_pids);
    tokio::time::sleep_until(end.into()).await;
    let usage = before.until(&Reading::take(&run.server_pids));
    let mut all = Count::new();
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

/// Starts the clients of a unary call: a closed loop, or an open one at the run's rate.
pub(crate) fn unary<W: Work>(run: &Run, shared: &Arc<Shared>, worker: impl Fn(usize) -> W) -> Vec<Client> {
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
    let mut count = Count::new();
    loop {
        let start = Instant::now();
        if start >= shared.end {
            return count;
        }
        let result = worker.operation().await;
        shared.record_many(&mut count, start, worker.weight(), &result);
        if result.is_err() {
            tokio::time::sleep(ERROR_PAUSE).await;
        }
    }
}

/// One client's share of an open loop. Its starts are evenly spaced and interleaved with those of the other
/// clients.
async fn open(worker: impl Work, shared: Arc<Shared>, number: usize, clients: usize, rate: f64) -> Count {
    let interval = Duration::from_secs_f64(1.0 / rate);
    let mut intended = Instant::now() + interval.mul_f64(number as f64 / clients as f64);
    let in_flight = Arc::new(AtomicUsize::new(0));
    let in_flight_max = (OPEN_LOOP_REQUESTS_MAX / clients).max(1);
    let counts = Arc::new(std::sync::Mutex::new(Count::new()));
    while intended < shared.end {
        tokio::time::sleep_until(intended.into()).await;
        if in_flight.fetch_add(1, Ordering::Relaxed) < in_flight_max {
            let (mut worker, shared) = (worker.clone(), Arc::clone(&shared));
            let (counts, in_flight) = (Arc::clone(&counts), Arc::clone(&in_flight));
            tokio::spawn(async move {
                let result = worker.operation().await;
                in_flight.fetch_sub(1, Ordering::Relaxed);
                let mut counts = counts.lock().expect("no holder panics");
                shared.record_many(&mut counts, intended, worker.weight(), &result);
            });
        } else {
            in_flight.fetch_sub(1, Ordering::Relaxed);
            shared.drop_many(1);
        }
        intended += interval;
    }
    while in_flight.load(Ordering::Relaxed) > 0 && Instant::now() < shared.end + Duration::from_secs(1) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut counts = counts.lock().expect("no holder panics");
    std::mem::replace(&mut *counts, Count::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(begin: Instant) -> Shared {
        let per_second = (0..2).map(|_| AtomicU64::new(0)).collect();
        Shared { begin, end: begin + Duration::from_secs(3600), per_second, dropped: AtomicU64::new(0) }
    }

    #[test]
    fn a_latency_counts_from_the_scheduled_start_and_only_within_the_measurement() {
        let now = Instant::now();
        let (shared, mut count) = (shared(now - Duration::from_secs(10)), Count::new());
        shared.record_many(&mut count, now - Duration::from_secs(5), 3, &Ok(()));
        assert_eq!(count.latencies.len(), 3);
        assert!(count.latencies.max() >= 5_000_000_000, "{} ns", count.latencies.max());
        shared.record(&mut count, now - Duration::from_secs(20), &Ok(()));
        assert_eq!(count.latencies.len(), 3, "it started before the measurement");
        shared.record(&mut count, now, &Err(anyhow::anyhow!("first")));
        shared.record(&mut count, now, &Err(anyhow::anyhow!("second")));
        assert_eq!((count.errors, count.first_error.as_deref()), (2, Some("first")));
        let later = Shared { end: now, ..self::shared(now - Duration::from_secs(10)) };
        later.record(&mut count, now - Duration::from_secs(1), &Ok(()));
        assert_eq!(count.latencies.len(), 3, "it ended after the measurement");
    }
}
