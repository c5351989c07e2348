//! A replica that is a cluster by itself.

use crate::cluster::{CLUSTER, Cluster, put, put_of, read, revision_of, settings, until, value};
use quoin_core::Revision;
use quoin_engine::Consistency;

#[tokio::test(flavor = "multi_thread")]
async fn one_replica_proposes_and_reads_and_keeps_its_state() {
    let mut cluster = Cluster::start(1, &settings());
    let engine = cluster.leader().await;
    assert_eq!((engine.id(), engine.cluster()), (1, CLUSTER));
    let revision = put(&engine, "a", "1").await;
    assert_eq!(read(&engine, "a").await.unwrap(), "1");
    let old = engine.latest();
    assert_eq!(put(&engine, "a", "2").await, Revision(revision.0 + 1));
    assert_eq!(value(&old, "a").unwrap(), "1", "a view shows one state for as long as it is held");
    assert_eq!(read(&engine, "a").await.unwrap(), "2");
    assert!(engine.is_caught_up());
    let before = engine.status().progress;
    drop((engine, old));
    let member = cluster.member(1);
    member.stop().await;
    member.restart().await;
    let engine = cluster.leader().await;
    assert_eq!(read(&engine, "a").await.unwrap(), "2");
    let after = engine.status().progress;
    assert!(after.term > before.term && after.index > before.index && after.revision == before.revision);
    cluster.stop().await;
}

/// A bound on lag was compared with the time since the last tick, so the only member refused reads of its own state.
#[tokio::test(flavor = "multi_thread")]
async fn the_only_member_lags_behind_nobody() {
    let cluster = Cluster::start(1, &settings());
    let engine = cluster.leader().await;
    let at_once = Consistency::Local { max_lag_entries: Some(0), max_lag_ms: Some(0) };
    // When the first is answered, the entry that opened the term is applied; before the second, the raft thread
    // has heard of it, and nobody else can have answered anything.
    put(&engine, "a", "1").await;
    put(&engine, "a", "2").await;
    let mut late = 0;
    while late < 20 {
        late += usize::from(engine.status().lag_ms > Some(0));
        engine.read(at_once).await.expect("it is the only member");
        tokio::task::yield_now().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_proposed_together_are_applied_in_their_order_and_counted() {
    let cluster = Cluster::start(1, &settings());
    let engine = cluster.leader().await;
    let commands = (0..1000).map(|number| put_of(&format!("k{}", number % 10), number.to_string()));
    let replies = engine.propose_many(commands.collect()).await;
    let revisions: Vec<u64> = replies.into_iter().map(|reply| revision_of(&reply.unwrap()).0).collect();
    assert!(revisions.is_sorted_by(|one, next| one + 1 == *next), "{revisions:?}");
    for key in 0..10 {
        assert_eq!(read(&engine, &format!("k{key}")).await.unwrap(), format!("99{key}"));
    }
    engine.read(Consistency::ANY).await.unwrap();
    let page = String::from_utf8(engine.metrics_page()).unwrap();
    let applied = page.lines().find(|line| line.starts_with("quoin_commands_total{outcome=\"applied\"}"));
    let applied: u64 = applied.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(applied >= 1000, "{page}");
    assert!(
        page.contains("\nquoin_is_leader 1\n")
            && page.contains("\nquoin_reads_total{consistency=\"local\"} 1\n")
    );
    cluster.stop().await;
}

/// A change of the member list reaches every part of a replica that depends on it, and whoever is alone needs
/// no round to read: its reads keep working without any message.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_sees_what_is_applied() {
    let cluster = Cluster::start(1, &settings());
    let engine = cluster.leader().await;
    let (from, to) = quoin_core::kv::watch_bounds(b"a", b"b");
    let interest = quoin_engine::watch::Interest::range(from, to.unwrap());
    let next = Revision(engine.latest().progress().revision.0 + 1);
    let mut watcher = engine.hub().watch(interest, next);
    put(&engine, "b", "not of interest").await;
    let revision = put(&engine, "a", "1").await;
    let events = crate::cluster::in_time("an event", watcher.next()).await.unwrap();
    assert_eq!(events.iter().map(|event| event.revision).collect::<Vec<_>>(), [revision]);
    until(&engine, "the watcher to be in step", || watcher.is_synced()).await;
    cluster.stop().await;
    assert!(watcher.next().await.is_err(), "a watch ends with its replica");
}
