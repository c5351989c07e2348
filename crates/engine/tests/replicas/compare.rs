//! Replicas whose states differ, though every byte on their disks is as it was written.

use crate::cluster::{Cluster, in_time, put, read, settings, until};
use bytes::Bytes;
use quoin_core::kv::{Increment, Operation};
use quoin_core::system::AlarmKind;
use quoin_core::{Store, system};

/// What changes the memory of one replica: the next write reads another number there.
fn corrupt(engine: &quoin_engine::Engine) {
    let view = engine.latest();
    let (store_key, record) = (b"\x01kk", view.view().get(b"\x01kk").unwrap().unwrap());
    let mut other = record.to_vec();
    assert_eq!(other.pop(), Some(b'1'));
    other.push(b'2');
    view.store().put(store_key, Bytes::from(other), view.progress().sequence);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_state_differs_from_a_majoritys_raises_the_alarm_and_ends() {
    let mut cluster = Cluster::start(3, &settings());
    let leader = cluster.leader().await;
    put(&leader, "k", "1").await;
    let wrong = cluster.follower().await;
    assert_eq!(read(&wrong, "k").await.unwrap(), "1");
    corrupt(&wrong);
    let increment = || Operation::Increment(Increment { key: "k".into(), by: 1 }).into_command();
    // More than one window of entries.
    for _ in 0..600 {
        leader.propose(increment()).await.unwrap();
    }
    let id = wrong.id();
    let reason = in_time("its end", cluster.member(id).running().failed()).await;
    assert!(reason.contains("differs from what a majority wrote"), "{reason}");
    assert!(wrong.damage().iter().any(|damage| reason == damage.to_string()), "{:?}", wrong.damage());
    let corrupt = || {
        let view = leader.latest();
        let alarms = system::alarms(view.view()).unwrap();
        alarms.iter().any(|alarm| alarm.member == id && alarm.kind() == AlarmKind::Corrupt)
    };
    until(&leader, "the alarm", corrupt).await;
    assert!(leader.damage().is_empty());
    assert_eq!(read(&leader, "k").await.unwrap(), "601");
    cluster.stop().await;
}
