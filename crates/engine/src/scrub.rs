//! Reading again what lies on the disk, in the background and at a bounded rate: a disk forgets without telling,
//! and what is read seldom is found to be damaged when it is needed.
//!
//! A pass reads the log's segments that take no more appends, the store's files, and what others have
//! [added](Engine::scrub_also). Damage is logged with file and offset, told by this replica's status, and raises
//! the alarm CORRUPT through the log.
//!
//! A replica with damage goes on: whatever is read is checked, so nothing damaged is answered or sent. It leads
//! only if no other can (`upkeep.rs`): a leader reads its old entries for others, and stops where it cannot. What
//! this deliberately does not do: mend.

use super::engine::Engine;
use super::guarded;
use super::shared::Shared;
use super::upkeep::raise;
use parking_lot::Mutex;
use quoin_consensus::log::{LogError, Pace, Scrubbed};
use quoin_core::system::{Alarm, AlarmKind};
use quoin_store::ScrubbedTable;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Handle;

/// The pause before an alarm that was not recorded is raised again.
const RAISE_AGAIN: Duration = Duration::from_secs(1);

/// Bytes that are not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file, in the data folder.
    pub file: String,
    /// Offset of the damaged block, if it is known.
    pub offset: Option<u64>,
    /// What is wrong there.
    pub problem: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, problem } = self;
        match offset {
            Some(offset) => write!(f, "{file} is damaged at byte {offset}: {problem}"),
            None => write!(f, "{file} is damaged: {problem}"),
        }
    }
}

/// Reads files again as the pace says. Returns how many it found to be damaged.
type Part = Box<dyn Fn(Pace<'_>) -> u64 + Send>;

/// What the scrubber has found, and what it reads besides log and store.
#[derive(Default)]
pub(crate) struct Findings {
    /// What the last pass found, and the one under way.
    damage: Mutex<Vec<Damage>>,
    others: Mutex<Vec<Part>>,
}

impl Findings {
    /// What was found otherwise.
    pub(crate) fn add(&self, damage: Damage) {
        self.damage.lock().push(damage);
    }

    pub(crate) fn is_damaged(&self) -> bool {
        !self.damage.lock().is_empty()
    }
}

impl Engine {
    /// What this replica has found to be damaged on its disk, since its start.
    pub fn damage(&self) -> Vec<Damage> {
        self.shared.findings.damage.lock().clone()
    }

    /// Adds files to read again in each pass. `read` returns how many it found to be damaged, and mends them.
    pub fn scrub_also(&self, read: impl Fn(Pace<'_>) -> u64 + Send + 'static) {
        self.shared.findings.others.lock().push(Box::new(read));
    }
}

/// The running thread.
pub(crate) struct Scrub {
    /// Dropped to stop it.
    alive: mpsc::Sender<()>,
    handle: JoinHandle<()>,
}

impl Scrub {
    pub(crate) fn start(shared: &Arc<Shared>, runtime: Handle) -> io::Result<Self> {
        let (alive, stopped) = mpsc::channel();
        let scrubbed = Arc::clone(shared);
        let handle = guarded::spawn(shared, "scrub", move || {
            let settings = &scrubbed.settings.scrub;
            if settings.bytes_per_second == 0 {
                return;
            }
            let every = Duration::from_secs(settings.every_s);
            loop {
                let begun = Instant::now();
                let mut pass = Pass { shared: &scrubbed, stopped: &stopped, found: Vec::new(), ended: false };
                pass.run(&runtime);
                let rest = every.saturating_sub(begun.elapsed());
                if pass.ended || stopped.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Self { alive, handle })
    }

    /// Stops the thread and waits until it has ended.
    pub(crate) fn stop(self) {
        drop(self.alive);
        // A panic ended the replica when it happened: it was caught then.
        let _ = self.handle.join();
    }
}

/// One reading of everything.
struct Pass<'a> {
    shared: &'a Arc<Shared>,
    stopped: &'a Receiver<()>,
    found: Vec<Damage>,
    /// The replica stops.
    ended: bool,
}

impl Pass<'_> {
    fn run(&mut self, runtime: &Handle) {
        self.log();
        self.store();
        self.others();
        if self.ended {
            return;
        }
        // What an earlier pass found may be gone: purged, merged, replaced by a snapshot.
        self.shared.findings.damage.lock().clone_from(&self.found);
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        self.shared.metrics.scrub_finished.set(now.as_secs_f64());
        if !self.found.is_empty() {
            self.raise(runtime);
        }
    }

    fn log(&mut self) {
        let (log, mut after) = (Arc::clone(&self.shared.log), 0);
        while let Some(Scrubbed { number, outcome }) = log.scrub(after, &mut |bytes| self.pace(bytes)) {
            after = number;
            match outcome {
                Ok(()) => {}
                Err(LogError::Corrupt { file, offset, problem }) => {
                    self.note(Damage { file: format!("log/{file}"), offset: Some(offset), problem });
                }
                Err(error) => {
                    self.note(Damage { file: "log".into(), offset: None, problem: error.to_string() });
                }
            }
        }
    }

    fn store(&mut self) {
        let mut store = Arc::clone(&self.shared.published.load().store);
        let (mut from, mut until) = (0, store.next_table());
        while let Some(read) = store.scrub(from, until, &mut |bytes| self.pace(bytes)) {
            let ScrubbedTable { number, outcome } = read;
            from = number + 1;
            if let Err(error) = outcome {
                let file = error.path().display().to_string();
                self.note(Damage { file, offset: None, problem: error.problem() });
            }
            let live = Arc::clone(&self.shared.published.load().store);
            if !Arc::ptr_eq(&live, &store) {
                // A snapshot replaced it.
                (from, until) = (0, live.next_table());
                store = live;
            }
        }
    }

    fn others(&mut self) {
        let shared = self.shared;
        let others = shared.findings.others.lock();
        for read in others.iter() {
            let damaged = read(&mut |bytes| self.pace(bytes));
            self.shared.metrics.damage_found.inc_by(damaged);
        }
    }

    /// Waits for as long as reading `bytes` may take; whether to go on.
    fn pace(&mut self, bytes: u64) -> bool {
        self.shared.metrics.scrubbed_bytes.inc_by(bytes);
        let rate = self.shared.settings.scrub.bytes_per_second.max(1);
        let wait = Duration::from_secs_f64(bytes as f64 / rate as f64);
        self.ended |= self.stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout);
        !self.ended
    }

    fn note(&mut self, damage: Damage) {
        tracing::error!(%damage, "this replica's disk has damaged what was synced: replace the member");
        self.shared.metrics.damage_found.inc();
        // Told at once: a pass may take hours.
        self.shared.findings.damage.lock().push(damage.clone());
        self.found.push(damage);
    }

    /// Until the log has it.
    fn raise(&mut self, runtime: &Handle) {
        let alarm = Alarm { member: self.shared.id, kind: AlarmKind::Corrupt as i32 };
        while !runtime.block_on(raise(self.shared, alarm.clone())) {
            if self.stopped.recv_timeout(RAISE_AGAIN) != Err(RecvTimeoutError::Timeout) {
                self.ended = true;
                return;
            }
        }
    }
}
