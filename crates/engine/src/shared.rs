//! What the threads of a replica share.

use super::alone::Alone;
use super::clock::Clock;
use super::compare::{Compare, Pace};
use super::files::Lending;
use super::input::{Input, Inputs};
use super::messages::Messages;
use super::metrics::Metrics;
use super::owner::{Owner, Settle};
use super::purge::Holds;
use super::reserve::Reserve;
use super::scrub::Findings;
use super::settings::Settings;
use super::status::RaftStatus;
use super::surroundings::{Request, Surroundings};
use super::watch::{Hub, Options, Source};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use quoin_consensus::log::Log;
use quoin_consensus::message::PeerMessage;
use quoin_consensus::mutants;
use quoin_consensus::transport::Transport;
use quoin_core::{Memory, Progress, View, system};
use quoin_store::{LsmStore, StoreFolder, StoreOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;

/// The state that readers see, replaced as a whole after each applied entry.
pub(crate) struct Published {
    pub(crate) store: Arc<LsmStore>,
    /// At least as new as `progress`.
    pub(crate) memory: Memory,
    pub(crate) progress: Progress,
    pub(crate) clock: Arc<Clock>,
}

/// What the threads of a replica share. Neither hub nor transport own it: when the last handle to a stopped
/// replica is gone, its files are closed.
pub(crate) struct Shared {
    pub(crate) id: u64,
    pub(crate) cluster: u64,
    /// The disk that it runs on.
    pub(crate) disk: u64,
    /// Whether it may take part: see `founders.rs`.
    settled: AtomicBool,
    /// The disks of members, as far as they are known. They never change.
    pub(crate) disks: Mutex<BTreeMap<u64, u64>>,
    pub(crate) settings: Settings,
    pub(crate) inbox: Inputs,
    pub(crate) log: Arc<Log>,
    /// What of the log followers need that are sent a snapshot.
    pub(crate) holds: Mutex<Holds>,
    pub(crate) stores: Mutex<StoreFolder>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) messages: Arc<Messages>,
    transport: OnceLock<Arc<Transport>>,
    /// In a simulation, what stands where connections and threads would.
    pub(crate) surroundings: Option<Arc<Surroundings>>,
    pub(crate) published: Arc<ArcSwap<Published>>,
    pub(crate) reserve: Reserve,
    /// Sent anew at every tick and at every change of leader or term.
    pub(crate) raft: watch::Sender<Arc<RaftStatus>>,
    pub(crate) alone: Alone,
    /// Peer addresses by id.
    pub(crate) members: Mutex<BTreeMap<u64, String>>,
    /// Members that left. Their ids are never used again.
    pub(crate) removed: Mutex<BTreeSet<u64>>,
    /// When members were last asked about one that is not known here, in milliseconds of [`Self::now_ms`].
    pub(crate) asked_about_newcomers: Mutex<Option<u64>>,
    pub(crate) no_space_alarm: AtomicBool,
    pub(crate) disk_full: AtomicBool,
    /// The stamp, in milliseconds, from which something is due to expire.
    pub(crate) next_deadline: AtomicU64,
    /// Microseconds that it took to apply the last entry that was there to let something expire.
    pub(crate) expiry_us: AtomicU64,
    /// Milliseconds of [`Clock::monotonic_ms`] at which this replica was last known to be up to date. 0: never
    /// yet.
    fresh_at_ms: AtomicU64,
    pub(crate) metrics: Metrics,
    pub(crate) findings: Findings,
    pub(crate) compare: Compare,
    pub(crate) lending: Lending,
    pub(crate) clock: Arc<Clock>,
    /// Whether requests need rights, by the newest state.
    pub(crate) auth_on: AtomicBool,
    /// The same, and the auth revision.
    pub(crate) auth_changes: watch::Sender<(bool, u64)>,
    /// Whether everything is applied that was known to be committed before the start.
    replayed: watch::Sender<bool>,
    /// Why the replica stopped by itself.
    failure: watch::Sender<Option<String>>,
    /// Whoever proposes what may take long holds this. **Invariant: Bounded.** The others wait, for as long as their
    /// clients do.
    pub(crate) paced: tokio::sync::Mutex<()>,
    pub(crate) in_flight: AtomicUsize,
    pub(crate) in_flight_bytes: AtomicUsize,
    /// Linearizable reads that wait.
    pub(crate) reads_in_flight: AtomicUsize,
}

impl Shared {
    pub(crate) fn new(
        owner: Owner,
        settings: Settings,
        log: Arc<Log>,
        stores: StoreFolder,
        published: Published,
        reserve: Reserve,
        surroundings: Option<Arc<Surroundings>>,
    ) -> Arc<Self> {
        let clock = Arc::clone(&published.clock);
        let policy = (published.memory.auth.enabled(), published.memory.auth.revision());
        let pace = if surroundings.is_some() { Pace::SIMULATED } else { Pace::USUAL };
        let published = Arc::new(ArcSwap::from_pointee(published));
        let hub = Hub::new(
            Arc::new(Latest(Arc::clone(&published))),
            Options { inline: surroundings.is_some(), ..Options::default() },
        );
        Arc::new(Self {
            id: owner.id,
            cluster: owner.cluster,
            disk: owner.disk,
            settled: AtomicBool::new(true),
            disks: Mutex::new(owner.disks),
            settings,
            inbox: Inputs::default(),
            log,
            holds: Mutex::default(),
            stores: Mutex::new(stores),
            hub,
            messages: Arc::default(),
            transport: OnceLock::new(),
            surroundings,
            published,
            reserve,
            raft: watch::Sender::default(),
            alone: Alone::default(),
            members: Mutex::default(),
            removed: Mutex::default(),
            asked_about_newcomers: Mutex::default(),
            no_space_alarm: AtomicBool::new(false),
            disk_full: AtomicBool::new(false),
            next_deadline: AtomicU64::new(u64::MAX),
            expiry_us: AtomicU64::new(0),
            fresh_at_ms: AtomicU64::new(0),
            metrics: Metrics::default(),
            findings: Findings::default(),
            compare: Compare::new(pace),
            lending: Lending::default(),
            clock,
            auth_on: AtomicBool::new(policy.0),
            auth_changes: watch::Sender::new(policy),
            replayed: watch::Sender::default(),
            failure: watch::Sender::default(),
            paced: tokio::sync::Mutex::default(),
            in_flight: AtomicUsize::new(0),
            in_flight_bytes: AtomicUsize::new(0),
            reads_in_flight: AtomicUsize::new(0),
        })
    }

    /// Completes what [`Self::new`] made. Once, before the replica's own threads start.
    pub(crate) fn set_transport(&self, transport: Arc<Transport>) {
        assert!(self.transport.set(transport).is_ok(), "a replica starts once");
    }

    pub(crate) fn transport_if_set(&self) -> Option<&Arc<Transport>> {
        self.transport.get()
    }

    pub(crate) fn transport(&self) -> &Arc<Transport> {
        self.transport.get().expect("set before the replica's threads start")
    }

    /// Sends or queues a message. False if it was dropped.
    pub(crate) fn send(&self, to: u64, message: PeerMessage) -> bool {
        match &self.surroundings {
            None => self.transport().send(to, message),
            Some(surroundings) => surroundings.send(to, message),
        }
    }

    /// Keeps connections to exactly these peers: addresses by id.
    pub(crate) fn set_peers(&self, addresses: &BTreeMap<u64, String>) {
        match &self.surroundings {
            None => self.transport().set_peers(addresses),
            Some(surroundings) => surroundings.ask(Request::Peers(addresses.clone())),
        }
    }

    /// Closes the connections that removed members have made.
    pub(crate) fn part_with(&self, removed: &BTreeSet<u64>) {
        match &self.surroundings {
            None => self.transport().part_with(removed),
            Some(surroundings) => surroundings.ask(Request::Part(removed.clone())),
        }
    }

    /// The options of this replica's stores, but for merging, which may leave room for the log.
    pub(crate) fn store_options(&self) -> StoreOptions {
        StoreOptions { stepped: self.surroundings.is_some(), ..self.settings.store.options() }
    }

    /// It takes no part before [`Self::settle`].
    pub(crate) fn unsettle(&self) {
        self.settled.store(false, Ordering::Relaxed);
    }

    /// Lets it take part, once `settle` has written that down.
    pub(crate) fn settle(&self, disks: BTreeMap<u64, u64>, settle: Settle) {
        if let Err(error) = settle(&disks) {
            return self.fail(&format!("writing the identity: {error}"));
        }
        self.disks.lock().extend(disks);
        self.settled.store(true, Ordering::Release);
    }

    /// The name of a member; empty if it is not known here.
    pub(crate) fn name_of(&self, member: u64) -> String {
        let published = self.published.load_full();
        let members = system::members(View::new(&*published.store, published.progress.sequence));
        // An error: then it is not known.
        let known = members.unwrap_or_default().into_iter().find(|known| known.id == member);
        known.map(|known| known.name).unwrap_or_default()
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// Ends the replica after a fault: its state may be incomplete.
    pub(crate) fn fail(&self, error: &dyn std::fmt::Display) {
        tracing::error!(%error, "this node stops: its state can no longer be trusted to be complete");
        self.end(error.to_string());
    }

    /// Ends the replica because the cluster does not want it.
    pub(crate) fn cast_out(&self, reason: &str) {
        tracing::error!(reason, "this node stops");
        self.end(reason.to_string());
    }

    fn end(&self, reason: String) {
        // The first reason stands: later ones follow from it.
        self.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            failure.get_or_insert(reason);
            first
        });
        self.inbox.push(Input::Stop);
    }

    /// Why the replica has ended by itself, if it has.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    /// Waits until the replica ends by itself; returns the reason.
    pub(crate) async fn failed(&self) -> String {
        let mut failure = self.failure.subscribe();
        let failed = failure.wait_for(Option::is_some).await.expect("the sender is a field of self");
        failed.clone().expect("waited for a reason")
    }

    /// Everything is applied that was known to be committed before the start.
    pub(crate) fn set_replayed(&self) {
        self.replayed.send_replace(true);
    }

    /// Whether [`Self::set_replayed`] was called.
    pub(crate) fn has_replayed(&self) -> bool {
        *self.replayed.borrow()
    }

    /// Waits for [`Self::set_replayed`].
    pub(crate) async fn replayed(&self) {
        let mut replayed = self.replayed.subscribe();
        replayed.wait_for(|replayed| *replayed).await.expect("the sender is a field of self");
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    /// Time since the start.
    pub(crate) fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms())
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.raft.borrow().is_leader
    }

    /// The leader's id, 0 for none.
    pub(crate) fn leader(&self) -> u64 {
        self.raft.borrow().leader
    }

    /// This replica turns out to have been up to date at `ms` of [`Self::now_ms`].
    pub(crate) fn set_fresh_at(&self, ms: u64) {
        self.fresh_at_ms.fetch_max(ms.max(1), Ordering::Relaxed);
    }

    /// Whether this replica has been up to date since its start. Until then what it applies may be long past: no news
    /// for whoever listens.
    pub(crate) fn has_been_fresh(&self) -> bool {
        self.fresh_at_ms.load(Ordering::Relaxed) > 0 || self.has_replayed() && self.is_leader()
    }

    /// Milliseconds since this replica was last known to be up to date. `None`: never since its start.
    pub(crate) fn lag_ms(&self) -> Option<u64> {
        if mutants::is("lag-unknown-is-none") {
            return Some(0);
        }
        let fresh_at_ms = self.fresh_at_ms.load(Ordering::Relaxed);
        (fresh_at_ms > 0).then(|| self.now_ms().saturating_sub(fresh_at_ms))
    }
}

/// The published state, for watchers that read history.
struct Latest(Arc<ArcSwap<Published>>);

impl Source for Latest {
    fn latest(&self) -> (Arc<dyn quoin_core::Store>, Progress, Box<dyn std::any::Any + Send>) {
        // The pin comes first: whatever is forgotten later, the history of the progress read after it is
        // still there.
        let pin = self.0.load().store.pin_now();
        let published = self.0.load_full();
        (Arc::clone(&published.store) as _, published.progress, Box::new(pin))
    }
}
