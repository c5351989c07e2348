//! A disk that fails and a disk that is full. The log lies on a disk in memory that can be told to.

use crate::cluster::{CLUSTER, in_time, put, put_of, read, settings, until};
use quoin_consensus::log::SimDisk;
use quoin_core::system;
use quoin_engine::{Consistency, Engine, Founding, Opened, Owner, ProposeError, ReadError, Running};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use tempfile::TempDir;

/// A replica of one on `disk`. The folder, which has its store, must outlive it.
async fn start(disk: &Arc<SimDisk>) -> (TempDir, Running, Engine) {
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
