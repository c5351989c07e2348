//! Views of the state, as fresh as the reader asks for.

use super::engine::Engine;
use super::input::Input;
use super::shared::Published;
use quoin_core::{Memory, Progress, Stamp, View};
use quoin_store::LsmStore;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Why a read was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No leader confirmed what is newest.
    #[error("no leader")]
    NoLeader,
    /// This replica lags more than the read allows.
    #[error("replica lags by {lag_entries} entries and {lag_ms} ms, more than allowed")]
    Lagging {
        /// Entries known to be committed and not applied here.
        lag_entries: u64,
        /// Milliseconds since this replica was last known to be up to date.
        lag_ms: u64,
    },
    /// This node is stopping.
    #[error("node is stopping")]
    Stopped,
}

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Sees every write that was answered before the read began, by any replica.
    Linearizable,
    /// Sees this replica's state, unless it lags more than this.
    Local {
        /// Maximum entries that are known to be committed and not applied here. `None`: any number.
        max_lag_entries: Option<u64>,
        /// Maximum milliseconds since this replica was last known to be up to date. `None`: any time.
        max_lag_ms: Option<u64>,
    },
}

impl Consistency {
    /// This replica's state, however old.
    pub const ANY: Self = Self::Local { max_lag_entries: None, max_lag_ms: None };
}

/// The state as of one applied entry, however long it is held.
#[derive(Clone)]
pub struct ReadView {
    published: Arc<Published>,
}

impl ReadView {
    /// The state, for core's queries.
    pub fn view(&self) -> View<'_> {
        View::new(&*self.published.store, self.published.progress.sequence)
    }

    /// The last applied entry and the numbers it reached.
    pub fn progress(&self) -> &Progress {
        &self.published.progress
    }

    /// What the faces keep in memory: at least as new as this state.
    pub fn memory(&self) -> &Memory {
        &self.published.memory
    }

    /// The cluster's time as this replica knows it, and never before the stamp of this state: what times to
    /// live are shown by. The next batch may be stamped a little differently.
    pub fn now(&self) -> Stamp {
        self.published.clock.time().max(self.published.progress.stamp)
    }

    /// The store, for those who must keep old versions readable (`pin`).
    pub fn store(&self) -> &Arc<LsmStore> {
        &self.published.store
    }
}

impl Engine {
    /// A view of the state, as fresh as `consistency` asks.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&self, consistency: Consistency) -> Result<ReadView, ReadError> {
        let outcome = self.read_uncounted(consistency).await;
        let metrics = &self.shared.metrics;
        match (&outcome, consistency) {
            (Ok(_), Consistency::Linearizable) => metrics.reads_linearizable.inc(),
            (Ok(_), Consistency::Local { .. }) => metrics.reads_local.inc(),
            (Err(_), _) => metrics.reads_refused.inc(),
        }
        outcome
    }

    async fn read_uncounted(&self, consistency: Consistency) -> Result<ReadView, ReadError> {
        match consistency {
            Consistency::Linearizable if self.shared.alone.holds() => {}
            Consistency::Linearizable => {
                let (waiter, ready) = oneshot::channel();
                self.shared.inbox.push(Input::Read(waiter));
                match ready.await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return Err(ReadError::NoLeader),
                    Err(_) => return Err(ReadError::Stopped),
                }
            }
            Consistency::Local { max_lag_entries, max_lag_ms } => {
                self.check_lag(max_lag_entries, max_lag_ms)?;
            }
        }
        Ok(self.latest())
    }

    fn check_lag(&self, max_lag_entries: Option<u64>, max_lag_ms: Option<u64>) -> Result<(), ReadError> {
        let unbounded = max_lag_entries.is_none() && max_lag_ms.is_none();
        // The only member lags behind nobody, however long ago its last tick was.
        if unbounded || self.shared.alone.holds() {
            return Ok(());
        }
        let applied = self.latest().progress().index.0;
        let lag_entries = self.raft().committed.saturating_sub(applied);
        let lag_ms = self.shared.lag_ms();
        let too_far = max_lag_entries.is_some_and(|max| lag_entries > max)
            || max_lag_ms.is_some_and(|max| lag_ms > max);
        if too_far { Err(ReadError::Lagging { lag_entries, lag_ms }) } else { Ok(()) }
    }

    /// The newest state of this replica, however old.
    pub fn latest(&self) -> ReadView {
        ReadView { published: self.shared.published.load_full() }
    }
}
