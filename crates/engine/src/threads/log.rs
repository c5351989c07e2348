//! The log thread: writes everything that waits, with one sync.

use super::send::send;
use crate::input::Input;
use crate::queue::Queue;
use crate::shared::Shared;
use quoin_consensus::log::{LogError, Record};
use quoin_consensus::mutants;
use quoin_consensus::replica::Append;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long nothing is appended before the log thread seals the log: a busy log does without.
const SEAL_AFTER: Duration = Duration::from_millis(100);
/// How long the log thread waits before it tries a full disk again: nobody tells when there is room.
const FULL_DISK_PAUSE: Duration = Duration::from_millis(500);

pub(super) struct LogThread {
    shared: Arc<Shared>,
    appends: Arc<Queue<Append>>,
    /// What is to be written next.
    records: Vec<Record>,
}

/// What came of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is on the disk.
    Done,
    /// The disk has no room: to be tried again.
    Full,
    /// The log takes no more. The replica ends.
    Failed,
}

impl LogThread {
    pub(super) fn new(shared: Arc<Shared>, appends: Arc<Queue<Append>>) -> Self {
        Self { shared, appends, records: Vec::new() }
    }

    pub(super) fn run(mut self) {
        let mut appends = Vec::new();
        let mut seal_at = None;
        while self.appends.take(&mut appends, seal_at) {
            if appends.is_empty() {
                seal_at = None;
                if !self.seal() {
                    return;
                }
                continue;
            }
            seal_at = Some(Instant::now() + SEAL_AFTER);
            loop {
                match self.step(&mut appends) {
                    Written::Done => break,
                    Written::Failed => return,
                    // A replica that stops does not wait for room: these records were not answered for.
                    Written::Full if self.appends.wait_closed(Instant::now() + FULL_DISK_PAUSE) => return,
                    Written::Full => {}
                }
            }
        }
        self.seal();
    }

    /// Writes what `appends` hold, with one sync, and says so. On a full disk nothing happens.
    pub(super) fn step(&mut self, appends: &mut Vec<Append>) -> Written {
        for append in &mut *appends {
            self.records.append(&mut append.records);
        }
        if mutants::is("written-before-sync") {
            self.announce(appends);
        }
        let written = self.write();
        if written == Written::Done {
            self.records.clear();
            // Invariant: Durable before answered. Peers and the raft thread hear of records only after their sync.
            self.announce(appends);
        }
        written
    }

    /// Says that `appends` are written.
    fn announce(&self, appends: &mut Vec<Append>) {
        let Some(last) = appends.last().map(|append| append.number) else { return };
        for (to, message) in appends.drain(..).flat_map(|append| append.messages) {
            send(&self.shared, to, message);
        }
        self.shared.inbox.push(Input::Written(last));
    }

    /// False if the log can no longer be written.
    pub(super) fn seal(&self) -> bool {
        self.shared.log.seal().inspect_err(|error| self.shared.fail(error)).is_ok()
    }

    fn write(&self) -> Written {
        if self.records.is_empty() {
            return Written::Done;
        }
        loop {
            let begun = Instant::now();
            match self.shared.log.append(&self.records) {
                Ok(()) => {
                    self.shared.metrics.log_write_seconds.observe(begun.elapsed().as_secs_f64());
                    self.shared.metrics.log_write_records.observe(self.records.len() as f64);
                    if self.shared.disk_full.swap(false, Ordering::Relaxed) {
                        tracing::info!("the disk has room again: writes go on");
                    }
                    return Written::Done;
                }
                Err(LogError::NoSpace { .. }) if self.shared.reserve.give() => {
                    tracing::error!("the disk is full: its reserve is now used to delete and compact");
                }
                Err(LogError::NoSpace { .. }) => {
                    if !self.shared.disk_full.swap(true, Ordering::Relaxed) {
                        tracing::error!("the disk is full: writes are refused until there is room");
                    }
                    return Written::Full;
                }
                Err(error) => {
                    self.shared.fail(&error);
                    return Written::Failed;
                }
            }
        }
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        self.appends.end();
    }
}
