//! What a replica does without being asked.

use crate::cluster::{Cluster, Member, in_time, put, revision_of, settings, until};
use bytes::Bytes;
use quoin_core::kv;
use quoin_core::system::{self, Alarm, AlarmKind, Operation};
use quoin_engine::{Engine, Founding, HistoryConfig, LogConfig, Settings, StoreConfig};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};
use tempfile::TempDir;

#[tokio::test(flavor = "multi_thread")]
async fn every_member_introduces_itself_to_the_cluster() {
    let cluster = Cluster::start(3, &settings());
    for engine in cluster.engines() {
        let introduced = |engine: &Engine| {
            let mut members = engine.members().unwrap().into_iter();
            members.all(|member| {
                member.name == format!("n{}", member.id) && member.client_urls == ["http://client"]
            })
        };
        until(&engine, "all names and URLs", || introduced(&engine)).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_beyond_the_bound_is_compacted() {
    let history = HistoryConfig { keep_revisions: 10, ..HistoryConfig::default() };
    let cluster = Cluster::start(1, &Settings { history, ..settings() });
    let engine = cluster.leader().await;
    for number in 0..100 {
        put(&engine, "k", number.to_string()).await;
    }
    let kept = |engine: &Engine| {
        let progress = engine.status().progress;
        progress.revision.0 - progress.compacted.0
    };
    until(&engine, "compaction", || kept(&engine) <= 10).await;
    assert_eq!(kept(&engine), 10);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_beyond_its_quota_raises_the_alarm_on_every_replica() {
    let store = StoreConfig { quota_bytes: 1, ..settings().store };
    let cluster = Cluster::start(3, &Settings { store, ..settings() });
    let leader = cluster.leader().await;
    assert_eq!(leader.space(), 1);
    for engine in cluster.engines() {
        until(&engine, "the alarm", || engine.no_space()).await;
    }
    cluster.stop().await;
}

async fn disarm(cluster: &Cluster, leader: &Engine) {
    for engine in cluster.engines() {
        let alarm = Alarm { member: engine.id(), kind: AlarmKind::Nospace as i32 };
        leader.propose(Operation::ClearAlarm(alarm).into_command()).await.unwrap();
    }
}

/// Nothing merged while writes were refused, so the space of deleted keys never came back: the alarm could
/// only be cleared by a larger quota.
#[tokio::test(flavor = "multi_thread")]
async fn deleting_and_compacting_under_the_alarm_brings_every_replica_below_its_quota() {
    const QUOTA: u64 = 1 << 20;
    // Larger than the quota: what is in memory counts, too.
    let store = StoreConfig { quota_bytes: QUOTA, memtable_bytes: 4 << 20, ..settings().store };
    let cluster = Cluster::start(3, &Settings { store, ..settings() });
    let leader = cluster.leader().await;
    // More than the quota, and too little for a memtable to be written out.
    for key in 0..30 {
        put(&leader, &format!("k{key}"), vec![7; 50_000]).await;
    }
    for engine in cluster.engines() {
        until(&engine, "the alarm", || engine.no_space()).await;
    }
    let all = kv::Delete { key: "k".into(), range_end: "l".into(), prev_kv: false };
    let deleted = leader.propose(kv::Operation::Delete(all).into_command()).await.unwrap();
    let compact = Operation::Compact(revision_of(&deleted).0).into_command();
    leader.propose(compact).await.unwrap();
    for engine in cluster.engines() {
        until(&engine, "room", || engine.status().store_bytes < QUOTA / 4).await;
    }
    disarm(&cluster, &leader).await;
    for engine in cluster.engines() {
        until(&engine, "the end of the alarm", || !engine.no_space()).await;
    }
    put(&leader, "k", "v").await;
    assert!(!leader.no_space());
    cluster.stop().await;
}

/// A file system of its own, in memory; `None` where none can be mounted.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={bytes}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "none"]).arg(folder.path()).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then_some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // An error: it stays until the machine stops.
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

/// A full disk refused everything, deletions too: only space made by others could help.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_filled_by_others_can_be_emptied_by_deleting() {
    let Some(disk) = SmallDisk::mount(32 << 20) else {
        println!("not tested: no file system can be mounted here");
        return;
    };
    let log = LogConfig { segment_bytes: 1 << 20, keep_bytes: 2 << 20, ..settings().log };
    let store = StoreConfig { reserve_bytes: 6 << 20, memtable_bytes: 1 << 20, ..settings().store };
    let (mut member, listener) = Member::new(1, Settings { log, store, ..settings() });
    member.folder = TempDir::new_in(disk.0.path()).unwrap();
    let founding = Founding::of(vec![member.record(false)]);
    member.start(listener, Some(&founding), BTreeMap::new());
    let engine = member.engine();
    until(&engine, "a leader", || engine.raft().is_leader).await;
    for number in 0..100 {
        put(&engine, &format!("k{number}"), vec![7; 100_000]).await;
    }
    let reserve = member.folder.path().join("reserve");
    until(&engine, "the reserve", || reserve.exists()).await;
    // A replica starts on a full disk, too.
    drop(engine);
    member.stop().await;
    // Another program takes all that is left.
    let other = disk.0.path().join("other");
    let mut file = File::create(&other).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    member.restart().await;
    let engine = member.engine();
    until(&engine, "a leader", || engine.raft().is_leader).await;
    until(&engine, "the reserve to be given back", || !reserve.exists()).await;
    until(&engine, "the alarm", || !system::alarms(engine.latest().view()).unwrap().is_empty()).await;
    for number in 0..100 {
        let key = Bytes::from(format!("k{number}"));
        let delete = kv::Operation::Delete(kv::Delete { key, ..kv::Delete::default() });
        in_time("a deletion", engine.propose(delete.into_command())).await.unwrap();
    }
    let newest = engine.status().progress.revision;
    in_time("compaction", engine.propose(Operation::Compact(newest.0).into_command())).await.unwrap();
    until(&engine, "room", || engine.status().store_bytes < 1 << 20).await;
    let alarm = Alarm { member: 1, kind: AlarmKind::Nospace as i32 };
    engine.propose(Operation::ClearAlarm(alarm).into_command()).await.unwrap();
    until(&engine, "the reserve to be taken again", || reserve.exists()).await;
    until(&engine, "the end of the alarm", || !engine.no_space()).await;
    put(&engine, "k", "v").await;
    member.stop().await;
}

/// A log above its bound was purged of all that the store had on disk, so that a replica that had been away for a moment
/// needed a snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_leaves_what_is_to_be_kept() {
    // Far more than the memtables hold: all else is on disk in the store.
    let log = LogConfig { keep_bytes: 1 << 20, ..settings().log };
    let settings = Settings { log, ..settings() };
    let (keep, segment) = (settings.log.keep_bytes, settings.log.segment_bytes);
    let cluster = Cluster::start(1, &settings);
    let engine = cluster.leader().await;
    assert!(300 * 10_000 > 2 * keep, "what is written is more than is to be kept");
    for number in 0..300 {
        put(&engine, &format!("k{}", number % 7), vec![1; 10_000]).await;
    }
    until(&engine, "a purge of the log", || engine.status().log_bytes <= keep).await;
    let left = engine.status().log_bytes;
    assert!(left > keep - 2 * segment, "{left} of {keep} bytes");
    cluster.stop().await;
}
