//! Replicas, and what the tests do to them.

use bytes::Bytes;
use quoin_consensus::log::{Disk, RealDisk, SimDisk};
use quoin_core::{Command, Reply, Revision, kv, system};
use quoin_engine::{
    Consistency, Engine, Founding, HistoryConfig, LedgerConfig, Limits, LogConfig, OpenError, Opened, Owner,
    ProposeError, RaftConfig, ReadError, ReadView, Running, ScrubConfig, Settings, StoreConfig,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const CLUSTER: u64 = 7;
/// Nothing that a test waits for takes longer, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Small files and short ticks.
pub(crate) fn settings() -> Settings {
    Settings {
        name: String::new(),
        peer_address: String::new(),
        client_urls: vec!["http://client".into()],
        raft: RaftConfig { tick_ms: 20, member_health_ms: 0, ..RaftConfig::default() },
        log: LogConfig {
            segment_bytes: 1 << 16,
            cache_bytes: 1 << 16,
            keep_bytes: 1 << 18,
            ..LogConfig::default()
        },
        store: StoreConfig { memtable_bytes: 1 << 16, ..StoreConfig::default() },
        ledger: LedgerConfig::default(),
        history: HistoryConfig::default(),
        scrub: ScrubConfig::default(),
        limits: Limits::default(),
    }
}

/// One replica with its folder, running or not.
pub(crate) struct Member {
    pub(crate) id: u64,
    pub(crate) address: SocketAddr,
    pub(crate) folder: TempDir,
    settings: Settings,
    pub(crate) owner: Owner,
    /// What its identity would say once it is settled: the disks of the other founders.
    settled: Arc<Mutex<Option<BTreeMap<u64, u64>>>>,
    running: Option<Running>,
}

impl Member {
    /// A replica without a folder yet, and the listener that its first start needs.
    pub(crate) fn new(id: u64, settings: Settings) -> (Self, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let settings = Settings { name: format!("n{id}"), peer_address: address.to_string(), ..settings };
        let owner = Owner { cluster: CLUSTER, id, disk: 100 + id, ..Owner::default() };
        let (folder, settled) = (tempfile::tempdir().unwrap(), Arc::default());
        (Self { id, address, folder, settings, owner, settled, running: None }, listener)
    }

    /// Its record in the member list, as founders and those who add it write it.
    pub(crate) fn record(&self, learner: bool) -> system::Member {
        system::Member {
            id: self.id,
            name: String::new(),
            peer_addresses: vec![self.address.to_string()],
            client_urls: Vec::new(),
            learner,
            disk: 0,
        }
    }

    /// Starts it on its disk.
    pub(crate) fn start(
        &mut self,
        listener: TcpListener,
        founding: Option<&Founding>,
        known_peers: BTreeMap<u64, String>,
    ) {
        self.start_opened(self.open(founding).unwrap(), founding, listener, known_peers);
    }

    fn start_opened(
        &mut self,
        mut opened: Opened,
        founding: Option<&Founding>,
        listener: TcpListener,
        known_peers: BTreeMap<u64, String>,
    ) {
        if !self.owner.settled {
            let settled = Arc::clone(&self.settled);
            let settle = move |disks: &BTreeMap<u64, u64>| {
                *settled.lock().unwrap() = Some(disks.clone());
                Ok(())
            };
            opened = opened.settle_with(founding.is_some(), Box::new(settle)).unwrap();
        }
        self.running = Some(opened.start(listener, known_peers).unwrap());
    }

    /// Reads, or founds, what is on its disk.
    pub(crate) fn open(&self, founding: Option<&Founding>) -> Result<Opened, OpenError> {
        let disk = Arc::new(RealDisk::open(&self.folder.path().join("log")).unwrap());
        self.open_on(disk, founding)
    }

    fn open_on(&self, disk: Arc<dyn Disk>, founding: Option<&Founding>) -> Result<Opened, OpenError> {
        Opened::open(self.owner.clone(), self.folder.path(), disk, self.settings.clone(), founding)
    }

    /// Starts it again after [`Self::stop`].
    pub(crate) async fn restart(&mut self) {
        let listener = self.listen_again().await;
        self.note_settled();
        self.start(listener, None, BTreeMap::new());
    }

    /// What a start learns from its identity.
    pub(crate) fn note_settled(&mut self) {
        if let Some(disks) = self.settled.lock().unwrap().take() {
            (self.owner.settled, self.owner.disks) = (true, disks);
        }
    }

    /// Takes another disk, which is empty.
    pub(crate) async fn lose_disk(&mut self) -> TcpListener {
        let listener = self.listen_again().await;
        self.folder = tempfile::tempdir().unwrap();
        self.owner = Owner { cluster: CLUSTER, id: self.id, disk: 200 + self.id, ..Owner::default() };
        *self.settled.lock().unwrap() = None;
        listener
    }

    /// A copy of what is on its disk, while it runs.
    pub(crate) fn copy_folder(&self) -> TempDir {
        fn copy(from: &Path, to: &Path) {
            for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
                let target = to.join(entry.file_name());
                if entry.file_type().unwrap().is_dir() {
                    std::fs::create_dir(&target).unwrap();
                    copy(&entry.path(), &target);
                } else {
                    std::fs::copy(entry.path(), target).unwrap();
                }
            }
        }
        let folder = tempfile::tempdir().unwrap();
        copy(self.folder.path(), folder.path());
        folder
    }

    pub(crate) async fn listen_again(&self) -> TcpListener {
        self.wait_unlocked().await;
        loop {
            // The port is free once the accepting thread of the former run has ended.
            if let Ok(listener) = TcpListener::bind(self.address) {
                return listener;
            }
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    pub(crate) fn engine(&self) -> Engine {
        self.running().engine()
    }

    pub(crate) async fn stop(&mut self) {
        let running = self.running.take().expect("it runs");
        in_time("a stop", tokio::task::spawn_blocking(|| running.stop())).await.unwrap();
    }

    /// Waits until no thread of a former run holds the folder.
    pub(crate) async fn wait_unlocked(&self) {
        let lock = File::open(self.folder.path().join("log/LOCK")).unwrap();
        in_time("the folder's lock", tokio::task::spawn_blocking(move || lock.lock()))
            .await
            .unwrap()
            .unwrap();
    }
}

/// Replicas that found a cluster together.
pub(crate) struct Cluster {
    pub(crate) members: Vec<Member>,
}

impl Cluster {
    /// Founds a cluster of `count` members, with ids from 1.
    pub(crate) fn start(count: u64, settings: &Settings) -> Self {
        let (mut cluster, listeners, founding) = Self::found(count, settings);
        for (member, listener) in cluster.members.iter_mut().zip(listeners) {
            member.start(listener, Some(&founding), BTreeMap::new());
        }
        cluster
    }

    /// As [`Self::start`], with the members' logs on disks in memory, which are returned in the order of the members.
    pub(crate) fn start_in_memory(count: u64, settings: &Settings) -> (Self, Vec<Arc<SimDisk>>) {
        let (mut cluster, listeners, founding) = Self::found(count, settings);
        let disks: Vec<_> = (0..count).map(|_| Arc::new(SimDisk::new())).collect();
        for ((member, listener), disk) in cluster.members.iter_mut().zip(listeners).zip(&disks) {
            let opened = member.open_on(Arc::clone(disk) as _, Some(&founding)).unwrap();
            member.start_opened(opened, Some(&founding), listener, BTreeMap::new());
        }
        (cluster, disks)
    }

    /// As [`Self::start`], but starts only the first member, as one that the others know: there is no
    /// majority.
    pub(crate) fn start_one_of(count: u64, settings: &Settings) -> Self {
        let (mut cluster, listeners, founding) = Self::found(count, settings);
        let listener = listeners.into_iter().next().unwrap();
        let opened = cluster.members[0].open(Some(&founding)).unwrap();
        cluster.members[0].running = Some(opened.start(listener, BTreeMap::new()).unwrap());
        cluster
    }

    pub(crate) fn found(count: u64, settings: &Settings) -> (Self, Vec<TcpListener>, Founding) {
        let (members, listeners): (Vec<_>, Vec<_>) =
            (1..=count).map(|id| Member::new(id, settings.clone())).unzip();
        let founding = Founding::of(members.iter().map(|member| member.record(false)).collect());
        (Self { members }, listeners, founding)
    }

    /// What the founders began with.
    pub(crate) fn founding(&self) -> Founding {
        Founding::of(self.members.iter().map(|member| member.record(false)).collect())
    }

    pub(crate) fn member(&mut self, id: u64) -> &mut Member {
        self.members.iter_mut().find(|member| member.id == id).expect("a founder")
    }

    /// Handles to the replicas that run.
    pub(crate) fn engines(&self) -> impl Iterator<Item = Engine> {
        self.members.iter().filter(|member| member.running.is_some()).map(Member::engine)
    }

    /// Waits until all replicas that run name one leader among them.
    pub(crate) async fn leader(&self) -> Engine {
        let engines: Vec<Engine> = self.engines().collect();
        let leader = || {
            let leader = engines[0].raft().leader;
            let all = engines.iter().all(|engine| engine.raft().leader == leader);
            engines.iter().find(|engine| all && engine.id() == leader && engine.raft().is_leader)
        };
        until(&engines[0], "one leader", || leader().is_some()).await;
        leader().expect("just seen").clone()
    }

    /// A replica that runs and does not lead.
    pub(crate) async fn follower(&self) -> Engine {
        let leader = self.leader().await.id();
        self.engines().find(|engine| engine.id() != leader).expect("more than one runs")
    }

    pub(crate) async fn stop(mut self) {
        for member in self.members.iter_mut().filter(|member| member.running.is_some()) {
            member.stop().await;
        }
    }
}

/// What comes of `future`, which must come.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// Waits until `condition` holds, which is looked at whenever `engine` publishes its status.
pub(crate) async fn until(engine: &Engine, what: &str, mut condition: impl FnMut() -> bool) {
    let mut status = engine.raft_changes();
    in_time(what, async {
        while !condition() {
            status.changed().await.expect("the engine keeps the sender");
        }
    })
    .await;
}

pub(crate) fn put_of(key: &str, value: impl Into<Bytes>) -> Command {
    let key = Bytes::copy_from_slice(key.as_bytes());
    kv::Operation::Put(kv::Put { key, value: value.into(), ..kv::Put::default() }).into_command()
}

/// Puts a key, and returns the revision of that. A change of leader is no failure: tries again while it was
/// not done.
pub(crate) async fn put(engine: &Engine, key: &str, value: impl Into<Bytes>) -> Revision {
    let command = put_of(key, value);
    in_time("a put", async {
        loop {
            match engine.propose(command.clone()).await {
                Ok(reply) => return revision_of(&reply),
                Err(ProposeError::NoLeader | ProposeError::LeaderChanged) => {}
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await
}

pub(crate) fn revision_of(reply: &Reply) -> Revision {
    let Reply::Kv(kv::Reply { revision, .. }) = reply else { panic!("not a reply to a put: {reply:?}") };
    *revision
}

/// The value of a key as of `view`.
pub(crate) fn value(view: &ReadView, key: &str) -> Option<Bytes> {
    kv::get(view.view(), &Bytes::copy_from_slice(key.as_bytes())).unwrap().map(|found| found.value)
}

/// The value of a key, read linearizably. A replica that lags is no failure: tries again.
pub(crate) async fn read(engine: &Engine, key: &str) -> Option<Bytes> {
    in_time("a read", async {
        loop {
            match engine.read(Consistency::Linearizable).await {
                Ok(view) => return value(&view, key),
                Err(ReadError::Lagging { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await
}
