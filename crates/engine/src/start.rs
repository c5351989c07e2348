//! A replica opened from its data folder, run, and stopped.

use super::apply::Applier;
use super::clock::Clock;
use super::engine::Engine;
use super::founders::Founders;
use super::founding::Founding;
use super::guarded;
use super::input::Input;
use super::owner::{Owner, Settle};
use super::peers::PeerHandler;
use super::reserve::Reserve;
use super::resume::{OpenError, resume};
use super::scrub::Scrub;
use super::settings::Settings;
use super::shared::{Published, Shared};
use super::surroundings::Surroundings;
use super::threads::stepped::Stepped;
use super::threads::{Threads, spawn};
use super::upkeep::Upkeep;
use quoin_consensus::GROUP;
use quoin_consensus::log::{Disk, HardState, Log, Options as LogOptions, Record};
use quoin_consensus::mutants;
use quoin_consensus::replica::Replica;
use quoin_consensus::transport::{Endpoint, Transport};
use quoin_core::{View, system};
use quoin_store::{LsmStore, StoreFolder, StoreOptions};
use quoin_tls::Keys;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a stopping replica waits for its store to be written out.
const WRITE_OUT_PATIENCE: Duration = Duration::from_secs(10);

/// A replica whose folder was read, or founded, and that does not run yet.
pub struct Opened {
    shared: Arc<Shared>,
    replica: Replica,
    applier: Applier,
    /// Peer addresses by id, as the store knows them.
    peers: BTreeMap<u64, String>,
    /// Whom to ask before it takes part.
    founders: Option<Founders>,
}

impl Opened {
    /// Opens the replica of `owner`: its store in `folder`, its log on `disk`, which must hold the lock
    /// of the folder. An empty store begins with `founding`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        owner: Owner,
        folder: &Path,
        disk: Arc<dyn Disk>,
        settings: Settings,
        founding: Option<&Founding>,
    ) -> Result<Self, OpenError> {
        Self::open_in(None, owner, folder, disk, settings, founding)
    }

    /// As [`Self::open`], for a replica whose clocks, connections and threads are simulated: see [`Stepped`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_simulated(
        surroundings: &Arc<Surroundings>,
        owner: Owner,
        folder: &Path,
        disk: Arc<dyn Disk>,
        settings: Settings,
        founding: Option<&Founding>,
    ) -> Result<Self, OpenError> {
        Self::open_in(Some(Arc::clone(surroundings)), owner, folder, disk, settings, founding)
    }

    fn open_in(
        surroundings: Option<Arc<Surroundings>>,
        owner: Owner,
        folder: &Path,
        disk: Arc<dyn Disk>,
        settings: Settings,
        founding: Option<&Founding>,
    ) -> Result<Self, OpenError> {
        let reserve = Reserve::open(folder, settings.reserve_file_bytes());
        // A start writes, too: it must not fail where it could empty the disk.
        if disk.free_space().is_ok_and(|free| free < reserve.bytes()) && reserve.give() {
            tracing::error!("the disk is nearly full: its reserve is now used to delete and compact");
        }
        let stores = StoreFolder::open(&folder.join("store"))?;
        let stepped = surroundings.is_some();
        let store =
            Arc::new(stores.open_store(GROUP.0, StoreOptions { stepped, ..settings.store_options() })?);
        let options = LogOptions {
            cluster: owner.cluster,
            node: owner.id,
            disk: owner.disk,
            segment_bytes: settings.log.segment_bytes,
            cache_bytes: settings.log.cache_bytes,
        };
        let log = Arc::new(Log::open(disk, options)?);
        if owner.settled && log.hard_state(GROUP).is_none() && !mutants::is("log-loss-unnoticed") {
            return Err(OpenError::LogGone { id: owner.id, disk: owner.disk });
        }
        if let Some(founding) = founding {
            founding.write(&store)?;
        }
        let mut options = settings.raft.options(&settings.limits);
        options.seed = surroundings.as_ref().map_or(options.seed, |surroundings| surroundings.seed);
        let (replica, applier) = resume(owner.id, &log, &*store, options)?;
        if log.hard_state(GROUP).is_none() {
            // From now on the disk has a log, and what is missing was lost.
            log.append(&[Record::HardState(GROUP, HardState { term: 0, vote: 0, commit: 0 })])?;
        }
        let progress = applier.progress();
        let (mut owner, mut peers) = (owner, BTreeMap::new());
        for member in system::members(View::new(&*store, progress.sequence))? {
            owner.disks.extend((member.disk != 0).then_some((member.id, member.disk)));
            peers.extend(member.peer_addresses.first().map(|address| (member.id, address.clone())));
        }
        let clock = Arc::new(Clock::simulated(surroundings.as_ref()));
        let published = Published { store, memory: applier.memory(), progress, clock };
        let shared = Shared::new(owner, settings, log, stores, published, reserve, surroundings);
        Ok(Self { shared, replica, applier, peers, founders: None })
    }

    /// For a replica that has not taken part in its cluster from this disk: it does once `settle` has
    /// returned, which is called when a `founder` has been answered by all others, and at once for other
    /// members.
    ///
    /// # Errors
    /// `settle` was called at once and failed.
    pub fn settle_with(mut self, founder: bool, settle: Settle) -> io::Result<Self> {
        let others: BTreeSet<u64> =
            self.peers.keys().copied().filter(|id| founder && *id != self.shared.id).collect();
        if others.is_empty() {
            settle(&BTreeMap::new())?;
        } else {
            self.shared.unsettle();
            self.founders = Some(Founders::new(others, settle));
        }
        Ok(self)
    }

    /// Its parts, for a test that runs single threads of it.
    #[cfg(test)]
    pub(crate) fn into_parts(self) -> (Arc<Shared>, Replica, Applier) {
        (self.shared, self.replica, self.applier)
    }

    /// Runs the replica without threads: the caller takes their steps. It must have been
    /// [opened](Self::open_simulated) for that. `known_peers` as in [`Self::start`].
    ///
    /// # Panics
    /// It was opened for this machine.
    pub fn step(self, mut known_peers: BTreeMap<u64, String>) -> Stepped {
        let Self { shared, replica, applier, peers, founders } = self;
        known_peers.extend(peers);
        assert!(shared.surroundings.is_some(), "opened for a simulation");
        shared.set_peers(&known_peers);
        Stepped::new(shared, replica, applier, founders)
    }

    /// Runs the replica, with peers without TLS. See [`Self::start_with`].
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(self, listener: TcpListener, known_peers: BTreeMap<u64, String>) -> io::Result<Running> {
        self.start_with(listener, known_peers, None)
    }

    /// Runs the replica. Peers reach it on `listener`, with `keys` over mutual TLS alone; `known_peers` are peer
    /// addresses by id that its store may not know yet. Call within a tokio runtime.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start_with(
        self,
        listener: TcpListener,
        mut known_peers: BTreeMap<u64, String>,
        keys: Option<Arc<Keys>>,
    ) -> io::Result<Running> {
        let Self { shared, replica, applier, peers, founders } = self;
        known_peers.extend(peers);
        let peer_address = listener.local_addr()?;
        let runtime = tokio::runtime::Handle::current();
        let handler = Arc::new(PeerHandler::new(&shared, Some(runtime.clone())));
        let (address, who) = (shared.settings.peer_address.clone(), (shared.cluster, shared.id, shared.disk));
        let patience = 2 * shared.settings.raft.election_timeout();
        let transport = Transport::start(
            Endpoint { listener, address, keys },
            who,
            GROUP,
            handler,
            &known_peers,
            patience,
        )?;
        shared.set_transport(transport);
        let threads = spawn(&shared, replica, applier)?;
        let upkeep = Upkeep::start(Arc::clone(&shared), runtime.clone())?;
        let scrub = Scrub::start(&shared, runtime)?;
        let asking = founders.map(|founders| ask(&shared, founders)).transpose()?;
        Ok(Running { shared, threads, upkeep, scrub, asking, peer_address })
    }
}

/// A running replica.
pub struct Running {
    shared: Arc<Shared>,
    threads: Threads,
    upkeep: Upkeep,
    scrub: Scrub,
    /// The thread that asks the other founders; its sender is dropped to stop it.
    asking: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
    peer_address: SocketAddr,
}

fn ask(shared: &Arc<Shared>, founders: Founders) -> io::Result<(mpsc::Sender<()>, JoinHandle<()>)> {
    let (alive, stopped) = mpsc::channel();
    let asking = Arc::clone(shared);
    Ok((alive, guarded::spawn(shared, "founders", move || founders.ask(&asking, &stopped))?))
}

impl Running {
    /// A handle to it.
    pub fn engine(&self) -> Engine {
        Engine::new(Arc::clone(&self.shared))
    }

    /// Moves this replica's wall clock to `ms` ahead of this machine's, as an operator or NTP may. For tests.
    pub fn shift_wall_clock(&self, ms: i64) {
        self.shared.clock.shift_wall(ms);
    }

    /// Waits until everything is applied that is known to have been committed before the start. Clients must not
    /// be served earlier: they could see less than they saw before.
    ///
    /// # Errors
    /// The replica has stopped by itself, for this reason.
    pub async fn replayed(&self) -> Result<(), String> {
        tokio::select! {
            reason = self.shared.failed() => Err(reason),
            () = self.shared.replayed() => Ok(()),
        }
    }

    /// Waits until the replica stops by itself; returns the reason.
    pub async fn failed(&self) -> String {
        self.shared.failed().await
    }

    /// Stops the replica and writes its store out. Blocks until that is done.
    pub fn stop(self) {
        let Self { shared, threads, upkeep, scrub, asking, peer_address } = self;
        if let Some((alive, thread)) = asking {
            drop(alive);
            // A panic has been reported by the guard of the thread.
            let _ = thread.join();
        }
        upkeep.stop();
        scrub.stop();
        shared.inbox.push(Input::Stop);
        threads.join();
        shared.transport().stop(peer_address);
        shared.hub.stop();
        write_out(Arc::clone(&shared.published.load().store));
    }
}

/// Writes the store out, so that the next start has little to replay. Gives up if the disk does not take it
/// in time.
fn write_out(store: Arc<LsmStore>) {
    let (done, written) = std::sync::mpsc::channel();
    // A thread of its own: it may be left behind, waiting for room on a full disk.
    std::thread::spawn(move || done.send(store.flush()));
    match written.recv_timeout(WRITE_OUT_PATIENCE) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the store was not written out; the log has everything"),
        Err(_) => tracing::warn!("the store was not written out in time; the log has everything"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::propose::ProposeError;
    use crate::purge;
    use crate::settings::LogConfig;
    use crate::status::RaftStatus;
    use bytes::Bytes;
    use quoin_consensus::log::{Entry, EntryKind, RealDisk, Record, SimDisk};
    use quoin_core::store::MemoryStore;
    use quoin_core::system::Operation;
    use quoin_core::{Index, Progress, Store};

    fn owner() -> Owner {
        Owner { cluster: 7, id: 1, disk: 9, ..Owner::default() }
    }

    /// A replica whose applier is at another entry than its log, which a correct one never is.
    fn inconsistent(folder: &Path) -> Opened {
        let founding = Founding::of(vec![system::Member { id: 1, ..system::Member::default() }]);
        let disk = Arc::new(RealDisk::open(&folder.join("log")).unwrap());
        let mut opened = Opened::open(owner(), folder, disk, Settings::default(), Some(&founding)).unwrap();
        opened.applier = Applier::open(&MemoryStore::new()).unwrap();
        opened
    }

    /// The store may persist an entry before the raft thread hears that it is applied. Had the log been purged up
    /// to there, the next campaign panicked.
    #[tokio::test]
    async fn the_log_is_kept_from_the_entry_that_the_consensus_does_not_know_to_be_applied() {
        let folder = tempfile::tempdir().unwrap();
        let log = LogConfig {
            segment_bytes: 1 << 20,
            keep_bytes: 0,
            snapshot_keep_bytes: 0,
            ..LogConfig::default()
        };
        let settings = Settings { log, ..Settings::default() };
        let founding = Founding::of(vec![system::Member { id: 1, ..system::Member::default() }]);
        let disk = Arc::new(RealDisk::open(&folder.path().join("log")).unwrap());
        let opened = Opened::open(owner(), folder.path(), disk, settings, Some(&founding)).unwrap();
        let shared = &opened.shared;
        for index in 2..10 {
            let data = vec![0; 1 << 19].into();
            let entry = Entry { index, term: 1, kind: EntryKind::Normal, context: Bytes::new(), data };
            shared.log.append(&[Record::Entry(GROUP, entry)]).unwrap();
        }
        let store = Arc::clone(&shared.published.load().store);
        let Progress { sequence, .. } = shared.published.load().progress;
        store.put(b"something", Bytes::from_static(b"written"), sequence);
        store.batch_applied(Index(9)).unwrap();
        store.flush().unwrap();
        assert_eq!(store.persisted_index(), Index(9));
        purge::purge(shared).unwrap();
        assert_eq!(shared.log.first_index(GROUP), 2);
        let status = RaftStatus { applied: 9, ..RaftStatus::default() };
        shared.raft.send_replace(Arc::new(status));
        purge::purge(shared).unwrap();
        assert!(shared.log.first_index(GROUP) > 2);
    }

    /// The log that was kept for a follower filled the disk, and the alarm stopped all writes of the cluster.
    #[tokio::test]
    async fn what_is_kept_for_a_follower_goes_before_space_is_short() {
        let folder = tempfile::tempdir().unwrap();
        let log = LogConfig { segment_bytes: 1 << 20, keep_bytes: 0, ..LogConfig::default() };
        let settings = Settings { log, ..Settings::default() };
        let founding = Founding::of(vec![system::Member { id: 1, ..system::Member::default() }]);
        let disk = Arc::new(SimDisk::new());
        let opened =
            Opened::open(owner(), folder.path(), Arc::clone(&disk) as _, settings, Some(&founding)).unwrap();
        let shared = &opened.shared;
        for index in 2..10 {
            let data = vec![0; 1 << 19].into();
            let entry = Entry { index, term: 1, kind: EntryKind::Normal, context: Bytes::new(), data };
            shared.log.append(&[Record::Entry(GROUP, entry)]).unwrap();
        }
        let store = Arc::clone(&shared.published.load().store);
        store.batch_applied(Index(9)).unwrap();
        store.put(b"something", Bytes::from_static(b"written"), shared.published.load().progress.sequence);
        store.flush().unwrap();
        shared.raft.send_replace(Arc::new(RaftStatus { applied: 9, ..RaftStatus::default() }));
        shared.holds.lock().begin(2, 3);
        purge::purge(shared).unwrap();
        assert_eq!(shared.log.first_index(GROUP), 4, "the follower is sent a snapshot");
        disk.set_room(shared.settings.store.reserve_bytes - 1);
        purge::purge(shared).unwrap();
        assert!(shared.log.first_index(GROUP) > 4);
    }

    /// The other threads waited for ever for one that had panicked, and clients for their answers.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_thread_that_panics_ends_the_replica_and_leaves_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let running = inconsistent(folder.path()).start(listener, BTreeMap::new()).unwrap();
        let engine = running.engine();
        let waiting = engine.propose(Operation::Tick(true).into_command());
        // Proposed before the panic, or after it.
        let answer = tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap();
        assert!(matches!(answer, Err(ProposeError::Stopped | ProposeError::NoLeader)), "{answer:?}");
        let reason = tokio::time::timeout(Duration::from_secs(60), running.failed()).await.unwrap();
        assert!(reason.contains("\"apply\" panicked, a broken invariant: "), "{reason}");
        tokio::task::spawn_blocking(|| running.stop()).await.unwrap();
    }
}
