//! The handle to a replica, and what the replica says of itself.

use super::guarded;
use super::messages::Messages;
use super::metrics::Metrics;
use super::settings::{Limits, Settings};
use super::shared::Shared;
use super::status::{RaftStatus, Status};
use super::watch::Hub;
use quoin_core::{StoreError, system};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

/// How often [`Engine::reclaim`] looks whether it is done.
const RECLAIM_POLL: Duration = Duration::from_millis(20);

/// A handle to a running replica. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

impl Engine {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Runs a thread of the node that it cannot do without: if it panics, the node ends, with the reason.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn spawn(
        &self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<std::thread::JoinHandle<()>> {
        guarded::spawn(&self.shared, name, run)
    }

    /// The metrics. Whoever serves clients counts here too.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// The hub that watchers register with.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.shared.hub
    }

    /// What commands say to whoever listens at this replica.
    pub fn messages(&self) -> &Arc<Messages> {
        &self.shared.messages
    }

    /// The replica's settings.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// The limits of requests.
    pub fn limits(&self) -> &Limits {
        &self.shared.settings.limits
    }

    /// Whether writes that grow the store are refused.
    pub fn no_space(&self) -> bool {
        let shared = &self.shared;
        shared.no_space_alarm.load(Ordering::Relaxed)
            || shared.disk_full.load(Ordering::Relaxed)
            || shared.reserve.is_given()
    }

    /// Bytes that the store can reach before writes are refused: the quota, or without one, its size and the
    /// disk's free space above the reserve.
    pub fn space(&self) -> u64 {
        let config = &self.shared.settings.store;
        let free = self.shared.log.free_space().unwrap_or(0).saturating_sub(config.reserve_bytes);
        match config.quota_bytes {
            0 => self.shared.published.load().store.disk_bytes().saturating_add(free),
            quota => quota,
        }
    }

    /// Writes this replica's store out and merges it, which gives the space of what was deleted and compacted
    /// back to the disk. Takes as long as rewriting the store; the work goes on if nobody waits for it.
    ///
    /// # Errors
    /// The disk has no room for it, or the replica stops.
    pub async fn reclaim(&self) -> Result<(), StoreError> {
        let store = Arc::clone(self.latest().store());
        let number = store.ask_reclaim();
        let mut poll = tokio::time::interval(RECLAIM_POLL);
        loop {
            poll.tick().await;
            if let Some(outcome) = store.reclaimed(number) {
                return outcome;
            }
        }
    }

    /// This member's id.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// The cluster's id.
    pub fn cluster(&self) -> u64 {
        self.shared.cluster
    }

    /// What this replica knows of the consensus.
    pub fn raft(&self) -> Arc<RaftStatus> {
        Arc::clone(&self.shared.raft.borrow())
    }

    /// As [`Self::raft`], for those who wait for a change. Sent at every tick, and at every change of leader,
    /// term, voters or learners.
    pub fn raft_changes(&self) -> watch::Receiver<Arc<RaftStatus>> {
        self.shared.raft.subscribe()
    }

    /// What a status page shows.
    pub fn status(&self) -> Status {
        let latest = self.latest();
        Status {
            id: self.shared.id,
            cluster: self.shared.cluster,
            raft: (*self.raft()).clone(),
            progress: *latest.progress(),
            lag_ms: self.shared.lag_ms(),
            store_bytes: latest.store().disk_bytes() + latest.store().memtable_bytes(),
            log_bytes: self.shared.log.size_on_disk(),
            persisted: latest.store().persisted_index(),
        }
    }

    /// The metrics page, in Prometheus's text format.
    pub fn metrics_page(&self) -> Vec<u8> {
        let stats = self.latest().store().stats();
        let peers = &self.shared.transport().counters;
        self.shared.metrics.page(&self.status(), self.no_space(), &stats, peers)
    }

    /// Whether this replica has applied everything that a leader, confirmed by a majority, has said to be
    /// committed, up to an entry of the current term.
    pub fn is_caught_up(&self) -> bool {
        let (raft, progress) = (self.raft(), *self.latest().progress());
        let lacks_nothing = self.shared.alone.holds() || raft.lag_entries(progress.index) == Some(0);
        lacks_nothing && progress.term.0 == raft.term
    }

    /// All members, as far as this replica has applied.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn members(&self) -> Result<Vec<system::Member>, StoreError> {
        system::members(self.latest().view())
    }
}
