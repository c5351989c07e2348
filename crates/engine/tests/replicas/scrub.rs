//! What the disk damages while the replica runs.

use crate::cluster::{Cluster, put, read, settings, until};
use quoin_core::system::{self, Alarm, AlarmKind};
use quoin_engine::{Engine, LogConfig, ScrubConfig, Settings};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

fn eager() -> Settings {
    let log = LogConfig { keep_bytes: 1 << 30, ..settings().log };
    Settings { log, scrub: ScrubConfig { bytes_per_second: 1 << 30, every_s: 1 }, ..settings() }
}

fn flip(file: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

fn alarms(engine: &Engine) -> Vec<Alarm> {
    system::alarms(engine.latest().view()).unwrap()
}

fn corrupt(member: u64) -> Vec<Alarm> {
    vec![Alarm { member, kind: AlarmKind::Corrupt as i32 }]
}

/// It was found when a follower needed the entry, or at the next start: the replica stopped, perhaps when the others
/// had the same.
#[tokio::test(flavor = "multi_thread")]
async fn damage_in_the_log_is_named_and_raises_the_alarm_and_its_replica_leads_no_more() {
    let mut cluster = Cluster::start(3, &eager());
    let old = cluster.leader().await;
    for number in 0..10 {
        put(&old, &format!("k{number}"), vec![number; 20_000]).await;
    }
    let other = cluster.engines().find(|engine| engine.id() != old.id()).unwrap();
    let segment = cluster.member(old.id()).folder.path().join("log/0000000000000001.log");
    flip(&segment, 30_000);
    until(&old, "the damage", || !old.damage().is_empty()).await;
    let damage = &old.damage()[0];
    assert_eq!(damage.file, "log/0000000000000001.log");
    assert!(damage.offset.is_some_and(|offset| (48..30_000).contains(&offset)), "{damage}");
    until(&other, "the alarm", || alarms(&other) == corrupt(old.id())).await;
    until(&other, "another leader", || ![0, old.id()].contains(&other.raft().leader)).await;
    // It serves on: what it answers is checked.
    put(&old, "k0", "new").await;
    assert_eq!(read(&old, "k0").await.unwrap(), "new");
    assert!(old.metrics().damage_found.get() > 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_in_the_store_is_named_and_raises_the_alarm() {
    let mut cluster = Cluster::start(1, &eager());
    let engine = cluster.leader().await;
    // The system's records are in the first block, and are read with every alarm: the damage is to be in another.
    put(&engine, "a", vec![7; 5_000]).await;
    put(&engine, "k", vec![7; 50_000]).await;
    engine.latest().store().flush().unwrap();
    until(&engine, "a pass", || engine.metrics().scrub_finished.get() > 0.0).await;
    assert!(engine.damage().is_empty() && alarms(&engine).is_empty());
    let tables = cluster.member(1).folder.path().join("store/1/tables");
    let files = fs::read_dir(tables).unwrap().map(|entry| entry.unwrap().path());
    let largest = files.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    flip(&largest, 30_000);
    until(&engine, "the alarm", || alarms(&engine) == corrupt(1)).await;
    let damage = engine.damage();
    assert_eq!(damage[0].file, largest.display().to_string(), "{damage:?}");
    cluster.stop().await;
}
