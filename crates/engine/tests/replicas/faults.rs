//! A disk that fails and a disk that is full. The log lies on a disk in memory that can be told to.

use crate::cluster::{CLUSTER, Cluster, in_time, put, put_of, read, settings, until};
use quoin_consensus::log::{Disk, DiskFile, Log, LogError, Options, SimDisk};
use quoin_core::system;
use quoin_engine::{
    Consistency, Engine, Founding, Opened, Owner, ProposeError, ReadError, Running, Settings, StoreConfig,
};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// A replica of one on `disk`. The folder, which has its store, must outlive it.
async fn start(disk: &Arc<impl Disk>) -> (TempDir, Running, Engine) {
    let folder = tempfile::tempdir().unwrap();
    let founding = Founding::of(vec![system::Member { id: 1, ..system::Member::default() }]);
    let owner = Owner { cluster: CLUSTER, id: 1, disk: 1, ..Owner::default() };
    let opened = Opened::open(owner, folder.path(), Arc::clone(disk) as _, settings(), Some(&founding));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let running = opened.unwrap().start(listener, BTreeMap::new()).unwrap();
    let engine = running.engine();
    until(&engine, "a leader", || engine.raft().is_leader).await;
    (folder, running, engine)
}

async fn stop(running: Running) {
    in_time("a stop", tokio::task::spawn_blocking(|| running.stop())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_be_synced_ends_the_replica_with_the_reason() {
    let disk = Arc::new(SimDisk::new());
    let (_folder, running, engine) = start(&disk).await;
    put(&engine, "k", "1").await;
    disk.fail_next_sync();
    let lost = in_time("an answer", engine.propose(put_of("k", "2"))).await;
    assert_eq!(lost, Err(ProposeError::Stopped), "nobody knows whether it will be found in the log");
    let reason = in_time("the end", running.failed()).await;
    assert!(reason.contains("sync"), "{reason}");
    let later = in_time("an answer", engine.propose(put_of("k", "3"))).await;
    assert_eq!(later, Err(ProposeError::Stopped));
    let read = in_time("an answer", engine.read(Consistency::Linearizable)).await;
    assert_eq!(read.err(), Some(ReadError::Stopped));
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_writes_until_there_is_room() {
    let disk = Arc::new(SimDisk::new());
    let (_folder, running, engine) = start(&disk).await;
    put(&engine, "k", "1").await;
    disk.set_room(0);
    // More than a segment has, so the log needs a new one.
    let proposing = engine.clone();
    let waiting = tokio::spawn(async move { proposing.propose(put_of("large", vec![1; 100_000])).await });
    until(&engine, "the full disk to be noticed", || engine.no_space()).await;
    assert_eq!(engine.propose(put_of("k", "2")).await, Err(ProposeError::NoSpace));
    disk.set_room(u64::MAX);
    in_time("room", waiting).await.unwrap().unwrap();
    until(&engine, "the room to be noticed", || !engine.no_space()).await;
    put(&engine, "k", "3").await;
    assert_eq!(read(&engine, "k").await.unwrap(), "3");
    stop(running).await;
}

/// The log thread waited for room, and everybody who stopped the replica for the log thread.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_stops_while_its_disk_is_full() {
    let disk = Arc::new(SimDisk::new());
    let (_folder, running, engine) = start(&disk).await;
    disk.set_room(0);
    let proposing = engine.clone();
    let waiting = tokio::spawn(async move { proposing.propose(put_of("large", vec![1; 100_000])).await });
    until(&engine, "the full disk to be noticed", || engine.no_space()).await;
    stop(running).await;
    assert_eq!(in_time("an answer", waiting).await.unwrap(), Err(ProposeError::Stopped));
}

/// The leader led on, and nobody could write for as long as its disk was full.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_disk_is_full_hands_over() {
    let store = StoreConfig { reserve_bytes: 0, ..settings().store };
    let (cluster, disks) = Cluster::start_in_memory(3, &Settings { store, ..settings() });
    let old = cluster.leader().await;
    put(&old, "k", "1").await;
    disks[old.id() as usize - 1].set_room(0);
    // More than a segment has, so the log needs a new one.
    let proposing = old.clone();
    let large = tokio::spawn(async move { proposing.propose(put_of("large", vec![1; 100_000])).await });
    let other = cluster.engines().find(|engine| engine.id() != old.id()).unwrap();
    until(&other, "another leader", || ![0, old.id()].contains(&other.raft().leader)).await;
    for number in 0..10 {
        put(&other, "k", number.to_string()).await;
    }
    assert_eq!(read(&other, "k").await.unwrap(), "9");
    assert_eq!(old.propose(put_of("k", "refused")).await, Err(ProposeError::NoSpace));
    disks[old.id() as usize - 1].set_room(u64::MAX);
    let _ = in_time("an answer", large).await.unwrap();
    assert_eq!(read(&old, "k").await.unwrap(), "9");
    cluster.stop().await;
}

/// The full node's own bounds refused its alarm.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_follower_raises_the_alarm_through_the_leader() {
    let (cluster, disks) = Cluster::start_in_memory(3, &settings());
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    put(&leader, "k", "1").await;
    disks[follower.id() as usize - 1].set_room(0);
    put(&leader, "large", vec![1; 100_000]).await;
    until(&leader, "the alarm", || leader.no_space()).await;
    let alarms = system::alarms(leader.latest().view()).unwrap();
    assert_eq!(alarms.iter().map(|alarm| alarm.member).collect::<Vec<_>>(), [follower.id()]);
    cluster.stop().await;
}

/// It was confirmed by the leader and then waited for an entry for which there was no room: for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_linearizable_read_on_a_replica_that_cannot_catch_up_is_refused_in_time() {
    let store = StoreConfig { reserve_bytes: 0, ..settings().store };
    let (cluster, disks) = Cluster::start_in_memory(3, &Settings { store, ..settings() });
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    put(&leader, "k", "1").await;
    assert_eq!(read(&follower, "k").await.unwrap(), "1");
    disks[follower.id() as usize - 1].set_room(0);
    // More than a segment has, so the log needs a new one.
    put(&leader, "k", vec![1; 100_000]).await;
    let refused = in_time("an answer", follower.read(Consistency::Linearizable)).await.err();
    assert!(matches!(refused, Some(ReadError::Lagging { .. })), "{refused:?}");
    disks[follower.id() as usize - 1].set_room(u64::MAX);
    until(&follower, "the room to be noticed", || follower.is_caught_up()).await;
    assert_eq!(read(&follower, "k").await.unwrap().len(), 100_000);
    cluster.stop().await;
}

/// What breaks a disk's driver, when that is told to.
#[derive(Default)]
struct Broken {
    sync: AtomicBool,
    read: AtomicBool,
}

/// A disk whose driver breaks its own invariant when told to.
#[derive(Default)]
struct BreakingDisk {
    disk: SimDisk,
    broken: Arc<Broken>,
}

struct BreakingFile {
    file: Arc<dyn DiskFile>,
    broken: Arc<Broken>,
}

impl BreakingDisk {
    fn new() -> Self {
        Self { disk: SimDisk::new(), ..Self::default() }
    }

    fn wrap(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(BreakingFile { file, broken: Arc::clone(&self.broken) })
    }
}

impl Disk for BreakingDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.create(name, bytes).map(|file| self.wrap(file))
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(name).map(|file| self.wrap(file))
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn free_space(&self) -> io::Result<u64> {
        self.disk.free_space()
    }
}

impl DiskFile for BreakingFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn write_at(&self, offset: u64, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.file.write_at(offset, parts)
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        assert!(!self.broken.read.load(Ordering::SeqCst), "the driver is broken");
        self.file.read_at(offset, buffer)
    }
    fn sync(&self) -> io::Result<()> {
        assert!(!self.broken.sync.load(Ordering::SeqCst), "the driver is broken");
        self.file.sync()
    }
}

/// Whoever waited for the log thread waited for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_thread_that_panics_ends_the_replica_with_the_reason() {
    let disk = Arc::new(BreakingDisk::new());
    let (_folder, running, engine) = start(&disk).await;
    put(&engine, "k", "1").await;
    disk.broken.sync.store(true, Ordering::SeqCst);
    let lost = in_time("an answer", engine.propose(put_of("k", "2"))).await;
    assert_eq!(lost, Err(ProposeError::Stopped), "nobody knows whether it will be found in the log");
    let reason = in_time("the end", running.failed()).await;
    assert!(reason.contains("\"log\" panicked") && reason.contains("the driver is broken"), "{reason}");
    stop(running).await;
}

/// The replica went on without a raft thread: it neither led nor followed, and nobody was told.
#[tokio::test(flavor = "multi_thread")]
async fn a_raft_thread_that_panics_ends_the_replica_with_the_reason() {
    let disk = Arc::new(BreakingDisk::new());
    let (_folder, running, engine) = start(&disk).await;
    put(&engine, "k", "1").await;
    disk.broken.read.store(true, Ordering::SeqCst);
    // Larger than the log's cache, so that the raft thread reads it from the disk when it is committed.
    let lost = in_time("an answer", engine.propose(put_of("large", vec![1; 100_000]))).await;
    assert_eq!(lost, Err(ProposeError::Stopped), "it is in the log");
    let reason = in_time("the end", running.failed()).await;
    assert!(reason.contains("\"raft\" panicked") && reason.contains("the driver is broken"), "{reason}");
    let read = in_time("an answer", engine.read(Consistency::Linearizable)).await;
    assert_eq!(read.err(), Some(ReadError::Stopped));
    stop(running).await;
}

/// A block that was synced, and damaged afterwards, was taken for one that a crash had torn, and cut.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_log_says_that_its_last_block_was_synced() {
    const SEGMENT: &str = "0000000000000001.log";
    let disk = Arc::new(SimDisk::new());
    let (_folder, running, engine) = start(&disk).await;
    // After that it writes nothing by itself.
    let introduced =
        || engine.members().unwrap().iter().all(|own| own.disk == 1 && !own.client_urls.is_empty());
    until(&engine, "its introduction", introduced).await;
    put(&engine, "k", "the last one").await;
    let damaged = || {
        let mut bytes = disk.bytes(SEGMENT).unwrap();
        let place = bytes.windows(12).position(|window| window == b"the last one").unwrap();
        bytes[place] ^= 1;
        let copy = SimDisk::new();
        for (name, bytes) in [(SEGMENT, bytes), ("newest", disk.bytes("newest").unwrap())] {
            copy.create(name, 0).unwrap();
            copy.set_bytes(name, bytes);
        }
        let options = Options { cluster: CLUSTER, node: 1, disk: 1, segment_bytes: 1 << 16, cache_bytes: 0 };
        matches!(Log::open(Arc::new(copy), options), Err(LogError::Corrupt { .. }))
    };
    until(&engine, "the seal", damaged).await;
    stop(running).await;
}
