//! What a replica does without being asked.

use crate::cluster::{Cluster, put, settings, until};
use quoin_engine::{Engine, HistoryConfig, Settings, StoreConfig};

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
