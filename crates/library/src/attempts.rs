//! Fetching beside the keeper: each layer on a thread of its own, and again after a failure, with longer
//! pauses each time.
//!
//! A layer is fetched by one thread at a time, so that attempts never write into each other's folder. A layer
//! that nobody wants any more is stopped at its next piece.
//!
//! **Invariant: Bounded.** At most [`AT_ONCE_MAX`] threads fetch. Further layers wait for their turn.

use super::fetch::{self, FetchError, Job};
use quoin_core::table::failure_reason;
use quoin_table::Layer;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Maximum layers that are fetched or checked at once.
const AT_ONCE_MAX: usize = 2;
/// The pause after the first failure. Each further failure doubles it.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// The longest pause after a failure.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The longest pause after an attempt that fetched everything in vain: trying again helps only if somebody puts the
/// files right, and publishing again, which tells so, begins anew at once.
const PAUSE_COSTLY_MAX: Duration = Duration::from_secs(1800);
/// How much these threads give way to those that serve.
const NICENESS: i32 = 10;

/// The state of a layer.
pub(super) enum State {
    /// It is mapped.
    Fetched(Arc<Layer>),
    /// It is being fetched, or waits for its turn.
    UnderWay,
    /// The last attempt failed. The next one begins by itself.
    Failed { reason: String, transient: bool },
}

/// What to do after a failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AfterFailure {
    /// Nothing: the log knows, or there is another attempt.
    Wait,
    /// Tell the log.
    Tell,
}

/// All layers that are being fetched, by id.
pub(super) struct Attempts {
    runtime: tokio::runtime::Handle,
    layers: HashMap<String, Attempt>,
    /// Threads that were told to stop and have not ended yet, with the id of their layer.
    ending: Vec<(String, Handle)>,
    /// Whether a layer waits for its turn.
    waiting: bool,
}

type Handle = JoinHandle<Result<Layer, FetchError>>;

#[derive(Default)]
struct Attempt {
    running: Option<Running>,
    fetched: Option<Arc<Layer>>,
    failures: u32,
    failure: Option<(String, bool)>,
    /// Whether the log knew of the failure.
    told: bool,
    not_before: Option<Instant>,
}

struct Running {
    /// Dropped to stop the thread.
    _alive: watch::Sender<()>,
    handle: Handle,
}

impl Attempts {
    pub(super) fn new(runtime: tokio::runtime::Handle) -> Self {
        Self { runtime, layers: HashMap::new(), ending: Vec::new(), waiting: false }
    }

    /// Whether [`Self::ask`] may give another answer than before.
    pub(super) fn have_moved(&self, now: Instant) -> bool {
        let moved = |attempt: &Attempt| match &attempt.running {
            Some(running) => running.handle.is_finished(),
            None => attempt.not_before.is_some_and(|at| at <= now),
        };
        let ended = self.ending.iter().any(|(_, handle)| handle.is_finished());
        ended || self.layers.values().any(moved) || (self.waiting && self.running() < AT_ONCE_MAX)
    }

    fn running(&self) -> usize {
        let running = self.layers.values().filter(|attempt| attempt.running.is_some()).count();
        running + self.ending.len()
    }

    /// Stops the attempts for all layers but these.
    pub(super) fn retain(&mut self, needed: &BTreeSet<String>) {
        self.waiting = false;
        self.ending.retain(|(_, handle)| !handle.is_finished());
        for (id, attempt) in self.layers.extract_if(|id, _| !needed.contains(id)) {
            self.ending.extend(attempt.running.map(|running| (id, running.handle)));
        }
    }

    /// Forgets a layer that the caller holds now.
    pub(super) fn done(&mut self, id: &str) {
        self.layers.remove(id);
    }

    /// The log was told of the last failure.
    pub(super) fn told(&mut self, id: &str) {
        if let Some(attempt) = self.layers.get_mut(id) {
            attempt.told = true;
        }
    }

    /// What to do about a layer that has failed for `reason`, while the log says that it failed for `said`. What the log
    /// was told and does not say any more was published again: it begins anew.
    pub(super) fn after_failure(
        &mut self,
        id: &str,
        said: Option<&str>,
        reason: &str,
        now: Instant,
    ) -> AfterFailure {
        let attempt = self.layers.get_mut(id);
        match (said, attempt) {
            // Perhaps before this process started.
            (Some(said), attempt) if said == failure_reason(reason) => {
                attempt.into_iter().for_each(|attempt| attempt.told = true);
                AfterFailure::Wait
            }
            (None, Some(attempt)) if attempt.told => {
                (attempt.told, attempt.failures, attempt.failure) = (false, 0, None);
                attempt.not_before = attempt.not_before.map(|at| at.min(now + PAUSE_FIRST));
                // One that is under way asks the place where the content was published before.
                let stopped = attempt.running.take();
                self.ending.extend(stopped.map(|running| (id.to_owned(), running.handle)));
                AfterFailure::Wait
            }
            _ => AfterFailure::Tell,
        }
    }

    /// The state of layer `id`. Begins an attempt if one is due.
    pub(super) fn ask(&mut self, id: &str, now: Instant, job: impl Fn() -> Job) -> State {
        let free = self.running() < AT_ONCE_MAX && self.ending.iter().all(|(ending, _)| ending != id);
        let attempt = self.layers.entry(id.into()).or_default();
        attempt.gather(now);
        if let Some(layer) = &attempt.fetched {
            return State::Fetched(Arc::clone(layer));
        }
        let due = attempt.running.is_none() && attempt.not_before.is_none_or(|at| at <= now);
        if due && free {
            match start(&self.runtime, job()) {
                Ok(running) => attempt.running = Some(running),
                Err(error) => attempt.failed((format!("starting a thread: {error}"), true), PAUSE_MAX, now),
            }
        } else if due {
            self.waiting = true;
        }
        match &attempt.failure {
            Some((reason, transient)) => State::Failed { reason: reason.clone(), transient: *transient },
            None => State::UnderWay,
        }
    }
}

impl Attempt {
    /// Takes the result of the thread, if it has ended.
    fn gather(&mut self, now: Instant) {
        let Some(running) = self.running.take_if(|running| running.handle.is_finished()) else { return };
        match running.handle.join() {
            Ok(Ok(layer)) => {
                (self.failure, self.not_before) = (None, None);
                self.fetched = Some(Arc::new(layer));
            }
            Ok(Err(error)) => {
                let longest = if error.is_costly() { PAUSE_COSTLY_MAX } else { PAUSE_MAX };
                self.failed((error.to_string(), error.is_transient()), longest, now);
            }
            Err(_) => {
                let why = "the thread that fetched it panicked: see this replica's log".into();
                self.failed((why, false), PAUSE_COSTLY_MAX, now);
            }
        }
    }

    fn failed(&mut self, failure: (String, bool), longest: Duration, now: Instant) {
        let pause = longest.min(PAUSE_FIRST * 2u32.pow(self.failures.min(16)));
        self.failures += 1;
        self.failure = Some(failure);
        self.not_before = Some(now + pause);
    }
}

fn start(runtime: &tokio::runtime::Handle, job: Job) -> std::io::Result<Running> {
    let (alive, mut stopped) = watch::channel(());
    let runtime = runtime.clone();
    let handle = std::thread::Builder::new().name("table-fetch".into()).spawn(move || {
        give_way();
        let location = job.location.clone();
        runtime.block_on(async {
            tokio::select! {
                layer = fetch::layer(&job) => layer,
                _ = stopped.changed() => Err(FetchError::Stopped { location }),
            }
        })
    })?;
    Ok(Running { _alive: alive, handle })
}

/// Lowers this thread's priority below that of the threads that serve.
fn give_way() {
    // Linux has a niceness per thread. On other systems, or if it is refused, the thread competes.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICENESS);
    #[cfg(not(target_os = "linux"))]
    let _ = NICENESS;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_of_their_kind() {
        let now = Instant::now();
        let mut attempt = Attempt::default();
        let mut pauses = |longest, times| {
            (0..times)
                .map(|_| {
                    attempt.failed(("why".into(), false), longest, now);
                    attempt.not_before.unwrap() - now
                })
                .last()
                .unwrap()
        };
        assert_eq!(pauses(PAUSE_MAX, 1), PAUSE_FIRST);
        assert_eq!(pauses(PAUSE_MAX, 20), PAUSE_MAX);
        assert_eq!(pauses(PAUSE_COSTLY_MAX, 1), PAUSE_COSTLY_MAX);
    }

    /// An attempt that has ended so.
    fn ended(attempt: &mut Attempt, error: FetchError, now: Instant) -> Duration {
        let handle = std::thread::spawn(|| Err(error));
        while !handle.is_finished() {
            std::thread::yield_now();
        }
        attempt.running = Some(Running { _alive: watch::channel(()).0, handle });
        attempt.gather(now);
        attempt.not_before.unwrap() - now
    }

    fn in_vain() -> FetchError {
        quoin_table::TableError::Other { file: "values".into(), what: "another digest".into() }.into()
    }

    #[test]
    fn an_attempt_that_fetched_everything_in_vain_is_repeated_less_and_less_often() {
        let now = Instant::now();
        let (mut vain, mut away) = (Attempt::default(), Attempt::default());
        let away_again = || FetchError::Stopped { location: "/a".into() };
        for _ in 0..20 {
            ended(&mut vain, in_vain(), now);
            ended(&mut away, away_again(), now);
        }
        assert_eq!(ended(&mut vain, in_vain(), now), PAUSE_COSTLY_MAX);
        assert_eq!(ended(&mut away, away_again(), now), PAUSE_MAX);
    }

    /// Publishing again is how somebody says that the files have been put right.
    #[tokio::test]
    async fn what_was_published_again_is_fetched_at_once_if_the_log_knew_of_the_failure() {
        let now = Instant::now();
        let mut attempts = Attempts::new(tokio::runtime::Handle::current());
        let mut attempt = Attempt::default();
        for _ in 0..20 {
            ended(&mut attempt, in_vain(), now);
        }
        attempts.layers.insert("id".into(), attempt);
        assert_eq!(attempts.after_failure("id", None, "why", now), AfterFailure::Tell);
        attempts.told("id");
        assert_eq!(attempts.after_failure("id", None, "why", now), AfterFailure::Wait);
        assert!(!attempts.have_moved(now) && attempts.have_moved(now + PAUSE_FIRST));
        assert_eq!(attempts.after_failure("id", None, "why", now), AfterFailure::Tell, "once");
        assert_eq!(attempts.after_failure("id", Some("else"), "why", now), AfterFailure::Tell);
    }

    /// The log cuts long reasons, so they seemed to be new each time: telling it again had it tell again, without an end.
    #[tokio::test]
    async fn a_reason_that_the_log_has_cut_is_not_told_again() {
        let mut attempts = Attempts::new(tokio::runtime::Handle::current());
        let why = "é".repeat(700);
        let mut next = |said| attempts.after_failure("id", said, &why, Instant::now());
        assert_eq!(next(None), AfterFailure::Tell);
        assert_eq!(next(Some(failure_reason(&why))), AfterFailure::Wait);
        assert!(failure_reason(&why).len() < why.len());
    }

    /// After a restart a replica did not take publishing again for a reason to fetch again before half an hour was over.
    #[tokio::test]
    async fn a_failure_that_the_log_knew_before_a_restart_is_begun_anew_too() {
        let now = Instant::now();
        let mut attempts = Attempts::new(tokio::runtime::Handle::current());
        let mut attempt = Attempt::default();
        for _ in 0..20 {
            ended(&mut attempt, in_vain(), now);
        }
        attempts.layers.insert("id".into(), attempt);
        assert_eq!(attempts.after_failure("id", Some("why"), "why", now), AfterFailure::Wait);
        assert!(!attempts.have_moved(now + PAUSE_FIRST));
        assert_eq!(attempts.after_failure("id", None, "why", now), AfterFailure::Wait);
        assert!(attempts.have_moved(now + PAUSE_FIRST));
    }
}
