//! Requests to write everything out and to merge it, which is how deletions give space back.
//!
//! A request takes three steps, each by the thread whose work it is: the writer seals its memtable between
//! two entries, the flusher writes it out, the compactor merges all tables. Requests that wait are done
//! together.

use crate::layers::Sealed;
use parking_lot::{Condvar, Mutex};
use quoin_core::StoreError;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

/// The requests of one store. They are numbered from 1 on.
#[derive(Default)]
pub(crate) struct Reclaim {
    /// Some request waits for the writer.
    asked: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    asked: u64,
    /// Requests up to this one wait for [`State::until`] to be written out.
    sealed: u64,
    until: Option<Arc<Sealed>>,
    done: u64,
    /// What came of the newest that is done.
    failure: Option<String>,
    closed: bool,
}

impl Reclaim {
    /// Makes a request; returns its number.
    pub(crate) fn ask(&self) -> u64 {
        let mut state = self.state.lock();
        state.asked += 1;
        self.asked.store(true, Release);
        state.asked
    }

    /// Whether the writer is to call [`Self::seal`] before the next entry.
    pub(crate) fn wants_seal(&self) -> bool {
        self.asked.load(Acquire)
    }

    /// Notes that everything written so far is sealed; `seal` does that, and returns the last memtable.
    pub(crate) fn seal(&self, seal: impl FnOnce() -> Option<Arc<Sealed>>) {
        let mut state = self.state.lock();
        self.asked.store(false, Release);
        state.sealed = state.asked;
        state.until = seal();
    }

    /// The request that can be done now: what was written before it is no longer among what `waits`, the sealed
    /// memtables. They are looked at after the request: before it they would lack the memtable that it sealed.
    pub(crate) fn due(&self, waits: impl FnOnce(&Arc<Sealed>) -> bool) -> Option<u64> {
        let state = self.state.lock();
        (state.sealed > state.done && !state.until.as_ref().is_some_and(waits)).then_some(state.sealed)
    }

    /// Whether a request is not done yet.
    pub(crate) fn is_pending(&self) -> bool {
        let state = self.state.lock();
        state.asked > state.done
    }

    /// All requests up to `number` are done, or failed.
    pub(crate) fn finish(&self, number: u64, failure: Option<String>) {
        let mut state = self.state.lock();
        state.done = number;
        state.failure = failure;
        self.changed.notify_all();
    }

    /// Nothing is done any more.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// What came of a request; `None` until it is done.
    pub(crate) fn outcome(&self, number: u64) -> Option<Result<(), StoreError>> {
        self.state.lock().outcome(number)
    }

    /// Waits for a request.
    ///
    /// # Errors
    /// It failed, or the store is closed or takes no more entries.
    pub(crate) fn wait(&self, number: u64) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = state.outcome(number) {
                return outcome;
            }
            self.changed.wait(&mut state);
        }
    }
}

impl State {
    fn outcome(&self, number: u64) -> Option<Result<(), StoreError>> {
        let failed = |failure: String| Some(Err(StoreError::new("merge", failure)));
        match &self.failure {
            _ if self.done < number && self.closed => failed("the store was closed".into()),
            _ if self.done < number => None,
            Some(failure) => failed(failure.clone()),
            None => Some(Ok(())),
        }
    }
}
