//! A replica that was away for longer than the log is kept.

use crate::cluster::{CLUSTER, Cluster, put, put_of, read, settings, until, value};
use quoin_consensus::GROUP;
use quoin_consensus::log::{Log, Options, RealDisk};
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lost_track_is_sent_a_snapshot() {
    const KEYS: u64 = 2000;
    let mut cluster = Cluster::start(3, &settings());
    let away = cluster.follower().await.id();
    put(&cluster.leader().await, "before", "1").await;
    let stopped_at = cluster.member(away).engine().status().progress.index;
    cluster.member(away).stop().await;
    let leader = cluster.leader().await;
    let commands = (0..KEYS).map(|key| put_of(&format!("k{key}"), vec![key as u8; 1000]));
    for reply in leader.propose_many(commands.collect()).await {
        reply.unwrap();
    }
    // Whoever leads then must not have what it needs.
    let written = leader.status().progress.index;
    for engine in cluster.engines() {
        until(&engine, "all of it to be applied", || engine.status().progress.index >= written).await;
        until(&engine, "a purge of the log", || engine.status().log_bytes < 1 << 20).await;
    }
    cluster.member(away).restart().await;
    let back = cluster.member(away).engine();
    put(&leader, "after", "1").await;
    assert_eq!(read(&back, "after").await.unwrap(), "1");
    let view = back.latest();
    assert_eq!(value(&view, "before").unwrap(), "1");
    assert!((0..KEYS).all(|key| value(&view, &format!("k{key}")).unwrap() == vec![key as u8; 1000]));
    put(&back, "and it goes on", "1").await;
    drop((leader, back, view));
    let member = cluster.member(away);
    member.stop().await;
    member.wait_unlocked().await;
    let disk = RealDisk::open(&member.folder.path().join("log")).unwrap();
    let options =
        Options { cluster: CLUSTER, node: away, disk: 100 + away, segment_bytes: 1 << 16, cache_bytes: 0 };
    let log = Log::open(Arc::new(disk), options).unwrap();
    assert!(log.first_index(GROUP) > stopped_at.0 + 1, "its log goes on behind a snapshot");
    drop(log);
    cluster.member(away).restart().await;
    assert_eq!(read(&cluster.member(away).engine(), "and it goes on").await.unwrap(), "1");
    cluster.stop().await;
}
