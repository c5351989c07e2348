//! Three replicas.

use crate::cluster::{Cluster, in_time, put, read, settings, until, value};
use quoin_core::kv::{self, txn_operation::Step};
use quoin_core::{Message, Revision};
use quoin_engine::watch::Interest;
use quoin_engine::{Consistency, ReadError};

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_forwards_and_every_replica_reads_what_was_answered_anywhere() {
    let cluster = Cluster::start(3, &settings());
    let leader = cluster.leader().await;
    let follower = cluster.follower().await;
    for (number, proposer) in [&leader, &follower].into_iter().cycle().take(20).enumerate() {
        put(proposer, "k", number.to_string()).await;
        for engine in cluster.engines() {
            assert_eq!(read(&engine, "k").await.unwrap(), number.to_string());
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_on_a_follower_sees_writes_through_the_leader() {
    let cluster = Cluster::start(3, &settings());
    let follower = cluster.follower().await;
    let (key, _) = quoin_core::kv::watch_bounds(b"k", b"");
    let mut watcher = follower.hub().watch(Interest::key(key), Revision(2));
    let leader = cluster.leader().await;
    for number in 0..5 {
        let revision = put(&leader, "k", number.to_string()).await;
        let events = in_time("an event", watcher.next()).await.unwrap();
        assert_eq!(events.iter().map(|event| event.revision).collect::<Vec<_>>(), [revision]);
    }
    cluster.stop().await;
}

fn publish(text: String) -> quoin_core::Command {
    let step = Step::Publish(kv::Publish { channel: "c".into(), payload: text.into() });
    let success = vec![kv::TxnOperation { step: Some(step) }];
    kv::Operation::Txn(kv::Txn { success, ..kv::Txn::default() }).into_command()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_catches_up_tells_nobody_what_was_said_before() {
    let mut cluster = Cluster::start(3, &settings());
    let stopped = cluster.follower().await.id();
    cluster.member(stopped).stop().await;
    let leader = cluster.leader().await;
    for number in 0..50 {
        leader.propose(publish(number.to_string())).await.unwrap();
    }
    cluster.member(stopped).restart().await;
    let engine = cluster.member(stopped).engine();
    engine.messages().want(true);
    until(&engine, "it to know that it is up to date", || engine.is_caught_up()).await;
    leader.propose(publish("now".into())).await.unwrap();
    let heard = in_time("a message", engine.messages().next()).await.messages;
    assert_eq!(heard, [Message { channel: "c".into(), payload: "now".into() }]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_comes_to_every_replica_once_what_was_written_before_it_can_be_read_there() {
    let cluster = Cluster::start(3, &settings());
    let engines: Vec<_> = cluster.engines().collect();
    for engine in &engines {
        engine.messages().want(true);
        until(engine, "it to know that it is up to date", || engine.is_caught_up()).await;
    }
    let speaker = cluster.follower().await;
    for number in 0..20 {
        let text = number.to_string();
        let put = kv::Put { key: "k".into(), value: text.clone().into(), ..kv::Put::default() };
        let publish = kv::Publish { channel: "c".into(), payload: text.clone().into() };
        let steps = [Step::Put(put), Step::Publish(publish.clone())];
        let success = steps.map(|step| kv::TxnOperation { step: Some(step) }).into();
        let txn = kv::Operation::Txn(kv::Txn { success, ..kv::Txn::default() });
        speaker.propose(txn.into_command()).await.unwrap();
        for engine in &engines {
            let heard = in_time("a message", engine.messages().next()).await.messages;
            assert_eq!(
                heard,
                [Message { channel: publish.channel.clone(), payload: publish.payload.clone() }]
            );
            assert_eq!(value(&engine.latest(), "k").unwrap(), text);
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_replica_catches_up() {
    let mut cluster = Cluster::start(3, &settings());
    let stopped = cluster.follower().await.id();
    cluster.member(stopped).stop().await;
    let leader = cluster.leader().await;
    for number in 0..50 {
        put(&leader, &format!("k{number}"), number.to_string()).await;
    }
    cluster.member(stopped).restart().await;
    let engine = cluster.member(stopped).engine();
    assert_eq!(read(&engine, "k49").await.unwrap(), "49");
    let view = engine.latest();
    assert!((0..50).all(|number| value(&view, &format!("k{number}")).unwrap() == number.to_string()));
    until(&engine, "it to know that it is up to date", || engine.is_caught_up()).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_cut_off_serves_old_state_only_to_who_accepts_it() {
    let mut cluster = Cluster::start(3, &settings());
    let leader = cluster.leader().await;
    put(&leader, "k", "1").await;
    drop(leader);
    let follower = cluster.follower().await;
    assert_eq!(read(&follower, "k").await.unwrap(), "1");
    until(&follower, "it to know how far it lags", || follower.status().lag_ms.is_some()).await;
    for id in (1..=3).filter(|id| *id != follower.id()) {
        cluster.member(id).stop().await;
    }
    let bounded = |max_lag_ms| {
        let consistency = Consistency::Local { max_lag_entries: None, max_lag_ms: Some(max_lag_ms) };
        follower.read(consistency)
    };
    until(&follower, "a lag of 200 ms", || follower.status().lag_ms > Some(200)).await;
    let Err(ReadError::Lagging { lag_ms, .. }) = bounded(200).await else {
        panic!("an old state was served")
    };
    assert!(lag_ms > Some(200));
    assert_eq!(value(&bounded(600_000).await.unwrap(), "k").unwrap(), "1");
    assert_eq!(value(&follower.read(Consistency::ANY).await.unwrap(), "k").unwrap(), "1");
    // It had said 0: nothing had told it of more.
    until(&follower, "it to miss its leader", || follower.raft().leader == 0).await;
    let any_number = Consistency::Local { max_lag_entries: Some(u64::MAX - 1), max_lag_ms: None };
    let unknown = follower.read(any_number).await.err();
    assert!(matches!(unknown, Some(ReadError::Lagging { lag_entries: None, .. })), "{unknown:?}");
    let linearizable = in_time("a refusal", follower.read(Consistency::Linearizable)).await;
    assert_eq!(linearizable.err(), Some(ReadError::NoLeader));
    cluster.stop().await;
}

/// Lag was measured against what the replica itself knew, which after a start was its own state: it said 0.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_replica_that_hears_nobody_does_not_know_how_far_it_lags() {
    let mut cluster = Cluster::start(3, &settings());
    let stopped = cluster.follower().await.id();
    put(&cluster.leader().await, "k", "1").await;
    for id in 1..=3 {
        cluster.member(id).stop().await;
    }
    cluster.member(stopped).restart().await;
    let engine = cluster.member(stopped).engine();
    in_time("the log", cluster.member(stopped).running().replayed()).await.unwrap();
    until(&engine, "some ticks", || engine.raft().term > 0).await;
    assert_eq!(engine.status().lag_ms, None);
    assert!(!engine.is_caught_up());
    for (max_lag_entries, max_lag_ms) in [(Some(1_000_000), None), (None, Some(1_000_000))] {
        let refused = engine.read(Consistency::Local { max_lag_entries, max_lag_ms }).await.err();
        assert_eq!(refused, Some(ReadError::Lagging { lag_entries: None, lag_ms: None }));
    }
    engine.read(Consistency::ANY).await.unwrap();
    let page = String::from_utf8(engine.metrics_page()).unwrap();
    assert!(page.contains("\nquoin_lag_seconds inf\n"), "{page}");
    // With a second one there is a majority, and a leader that says how far everybody is.
    cluster.member(stopped % 3 + 1).restart().await;
    let bounded = Consistency::Local { max_lag_entries: Some(0), max_lag_ms: Some(600_000) };
    until(&engine, "it to be up to date", || engine.is_caught_up() && engine.status().lag_ms.is_some()).await;
    engine.read(bounded).await.unwrap();
    cluster.stop().await;
}
