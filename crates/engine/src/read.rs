//! Views of the state, as fresh as the reader asks for.

use super::admission;
use super::engine::Engine;
use super::input::Input;
use super::shared::{Published, Shared};
use quoin_consensus::replica::Lost;
use quoin_core::{Memory, Progress, Stamp, View};
use quoin_store::LsmStore;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// Why a read was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Too many linearizable reads wait on this node.
    #[error("too many requests")]
    Busy,
    /// No leader confirmed what is newest.
    #[error("no leader")]
    NoLeader,
    /// This replica lags more than the read allows, or does not know how far it lags. It may be unable to catch
    /// up: its disk is full, or it waits for a snapshot.
    #[error("replica lags by {} entries and {} ms, more than allowed", known(.lag_entries), known(.lag_ms))]
    Lagging {
        /// Entries that are committed and not applied here, if that is known.
        lag_entries: Option<u64>,
        /// Milliseconds since this replica was last known to be up to date. `None`: never since its start.
        lag_ms: Option<u64>,
    },
    /// Users or roles have changed since the read was admitted.
    #[error("users or roles have changed while the request was under way; try again")]
    OldRevision,
    /// This node is stopping.
    #[error("node is stopping")]
    Stopped,
}

fn known(lag: &Option<u64>) -> String {
    lag.map_or_else(|| "an unknown number of".into(), |lag| lag.to_string())
}

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Sees every write that was answered before the read began, by any replica.
    Linearizable,
    /// Sees this replica's state, unless it lags more than this.
    Local {
        /// Maximum entries that are committed and not applied here. While this replica knows no leader that a
        /// majority has confirmed, the number is unknown and above any bound. `None`: any number.
        max_lag_entries: Option<u64>,
        /// Maximum milliseconds since this replica was last known to be up to date. It learns that from
        /// heartbeats, one or two intervals late. Unknown after a start, which is above any bound. `None`: any
        /// time.
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

/// A waiting read's share of the bound, given back when it is served or nobody waits for it any more.
struct Admission<'a>(&'a Shared);

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.0.reads_in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// **Invariant: Newest rights.** While users count, the state must have the users and roles by which the read was
/// admitted. What carries no revision was begun before they counted, and nobody has judged it.
fn check_admission(view: &ReadView) -> Result<(), ReadError> {
    if admission::present() == Some(view.memory().auth.revision()) {
        Ok(())
    } else {
        Err(ReadError::OldRevision)
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
                let _admission = self.admit_read()?;
                let (waiter, ready) = oneshot::channel();
                self.shared.inbox.push(Input::Read(waiter));
                match ready.await {
                    Ok(Ok(())) => {}
                    Ok(Err(Lost::Unknown)) => return Err(self.lagging()),
                    Ok(Err(_)) => return Err(ReadError::NoLeader),
                    Err(_) => return Err(ReadError::Stopped),
                }
            }
            Consistency::Local { max_lag_entries, max_lag_ms } => {
                self.check_lag(max_lag_entries, max_lag_ms)?;
            }
        }
        let view = self.latest();
        if self.auth_on() {
            check_admission(&view)?;
        }
        Ok(view)
    }

    /// **Invariant: Bounded.** At most `limits.reads_in_flight_max` reads wait. Counting them costs two additions
    /// per read that needs a round.
    fn admit_read(&self) -> Result<Admission<'_>, ReadError> {
        let shared = &*self.shared;
        let admission = Admission(shared);
        let before = shared.reads_in_flight.fetch_add(1, Ordering::Relaxed);
        if before >= shared.settings.limits.reads_in_flight_max {
            Err(ReadError::Busy)
        } else {
            Ok(admission)
        }
    }

    fn check_lag(&self, max_lag_entries: Option<u64>, max_lag_ms: Option<u64>) -> Result<(), ReadError> {
        let unbounded = max_lag_entries.is_none() && max_lag_ms.is_none();
        // The only member lags behind nobody, however long ago its last tick was.
        if unbounded || self.shared.alone.holds() {
            return Ok(());
        }
        let (lag_entries, lag_ms) = self.lag();
        // What is not known is not within any bound.
        let exceeds =
            |lag: Option<u64>, max: Option<u64>| max.is_some_and(|max| lag.is_none_or(|lag| lag > max));
        let too_far = exceeds(lag_entries, max_lag_entries) || exceeds(lag_ms, max_lag_ms);
        if too_far { Err(ReadError::Lagging { lag_entries, lag_ms }) } else { Ok(()) }
    }

    /// Entries that are committed and not applied here, and milliseconds since it was up to date.
    fn lag(&self) -> (Option<u64>, Option<u64>) {
        (self.raft().lag_entries(self.latest().progress().index), self.shared.lag_ms())
    }

    fn lagging(&self) -> ReadError {
        let (lag_entries, lag_ms) = self.lag();
        ReadError::Lagging { lag_entries, lag_ms }
    }

    /// The newest state of this replica, however old.
    pub fn latest(&self) -> ReadView {
        ReadView { published: self.shared.published.load_full() }
    }
}
