//! How the writer, the flusher and the compactor wait for one another, and the fault or stop that ends all
//! three.
//!
//! **Invariant: Three kinds of no.** Once a background thread has met a fault, the store takes no more
//! entries: [`Signals::health`] fails from then on, and the node stops.

use crate::compactor::is_full;
use crate::damage::EngineFault;
use parking_lot::{Condvar, Mutex};
use quoin_core::StoreError;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

/// The pause between two attempts on a full disk.
const DISK_FULL_PAUSE: Duration = Duration::from_secs(1);

/// Who waits for what. The lock guards each decision to wait; most of the state that decides is elsewhere.
#[derive(Default)]
pub(crate) struct Signals {
    compaction: Mutex<Compaction>,
    flusher: Condvar,
    compactor: Condvar,
    writer: Condvar,
    stopped: Condvar,
    stop: Arc<AtomicBool>,
    fault: Mutex<Option<Arc<Fault>>>,
}

#[derive(Default)]
struct Compaction {
    wanted: bool,
}

/// Why the store takes no more entries.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{thread} stopped: {source}")]
    Engine { thread: &'static str, source: EngineFault },
    #[error("{thread} panicked: {message}")]
    Panic { thread: &'static str, message: String },
}

impl Signals {
    /// Set when the store is closed; long work ends early then.
    pub(crate) fn stop_flag(&self) -> &Arc<AtomicBool> {
        &self.stop
    }

    /// Whether the store is being closed.
    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Acquire)
    }

    /// Tells both background threads to end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Release);
        self.wake_all();
    }

    /// Records the first fault. Work cut short because the store is closing is not a fault.
    pub(crate) fn fail(&self, fault: Fault) {
        if !self.stopping() {
            tracing::error!(%fault, "the store met a fault and takes no more entries");
            self.fault.lock().get_or_insert_with(|| Arc::new(fault));
        }
        self.wake_all();
    }

    /// Fails once a fault was recorded.
    pub(crate) fn health(&self) -> Result<(), StoreError> {
        match &*self.fault.lock() {
            Some(fault) => Err(StoreError::new("background", fault.clone())),
            None => Ok(()),
        }
    }

    /// A memtable was sealed.
    pub(crate) fn wake_flusher(&self) {
        let _lock = self.compaction.lock();
        self.flusher.notify_one();
    }

    /// There may be something to compact or to drop.
    pub(crate) fn wake_compactor(&self) {
        self.compaction.lock().wanted = true;
        self.compactor.notify_one();
    }

    /// A flush or a compaction was published.
    pub(crate) fn wake_writer(&self) {
        let _lock = self.compaction.lock();
        self.writer.notify_all();
    }

    fn wake_all(&self) {
        let _lock = self.compaction.lock();
        self.flusher.notify_all();
        self.compactor.notify_all();
        self.writer.notify_all();
        self.stopped.notify_all();
    }

    /// Makes the writer wait until `enough` holds.
    pub(crate) fn wait_until(&self, enough: impl Fn() -> bool) -> Result<(), StoreError> {
        let mut lock = self.compaction.lock();
        loop {
            self.health()?;
            if enough() {
                return Ok(());
            }
            self.writer.wait(&mut lock);
        }
    }

    /// Makes the flusher wait until `next` yields work; `None` when it must end.
    pub(crate) fn wait_for_flush<T>(&self, next: impl Fn() -> Option<T>) -> Option<T> {
        let mut lock = self.compaction.lock();
        loop {
            if self.stopping() {
                return None;
            }
            if let Some(work) = next() {
                return Some(work);
            }
            self.flusher.wait(&mut lock);
        }
    }

    /// Makes the compactor wait until it was woken; `false` when it must end.
    pub(crate) fn wait_for_compaction(&self) -> bool {
        let mut lock = self.compaction.lock();
        while !lock.wanted && !self.stopping() {
            self.compactor.wait(&mut lock);
        }
        lock.wanted = false;
        !self.stopping()
    }

    /// Whether the compactor was woken. It counts as having heard.
    pub(crate) fn is_compaction_wanted(&self) -> bool {
        std::mem::take(&mut self.compaction.lock().wanted)
    }

    /// Repeats `work` while the disk is full. A failed attempt leaves the tree as it was, and a full disk
    /// stops the log as well, so nothing piles up meanwhile.
    pub(crate) fn retry_while_disk_full(
        &self,
        work: impl Fn() -> lsm_tree::Result<()>,
    ) -> lsm_tree::Result<()> {
        let mut reported = false;
        loop {
            match work() {
                Err(error) if is_full(&error) && !self.stopping() => {
                    if !std::mem::replace(&mut reported, true) {
                        tracing::error!("the disk is full: flushing waits until there is space");
                    }
                    self.pause();
                }
                done => return done,
            }
        }
    }

    /// Makes a background thread wait before it tries a full disk again, or until it must end.
    pub(crate) fn pause(&self) {
        let mut lock = self.compaction.lock();
        if !self.stopping() {
            self.stopped.wait_for(&mut lock, DISK_FULL_PAUSE);
        }
    }
}
