//! Wall clocks that are wrong.

use crate::cluster::{Cluster, in_time, put, settings, until, value};
use quoin_core::{Stamp, kv};
use quoin_engine::{Consistency, Engine};

const HOUR_MS: i64 = 3_600_000;

/// How far the wall clock is ahead, as the replica has noticed, in seconds.
fn ahead(engine: &Engine) -> f64 {
    engine.metrics().clock_ahead_seconds.get()
}

async fn propose(engine: &Engine, operation: kv::Operation) {
    in_time("a command", engine.propose(operation.into_command())).await.unwrap();
}

async fn put_for(engine: &Engine, key: &'static str, ms: u64) {
    let ttl = Some(kv::Ttl::Milliseconds(ms));
    propose(engine, kv::Operation::Put(kv::Put { key: key.into(), ttl, ..kv::Put::default() })).await;
}

/// How long the lease has left, in milliseconds; `None` if it has ended.
fn left_ms(engine: &Engine, lease: i64) -> Option<u64> {
    let view = engine.latest();
    let (lease, _) = kv::lease(view.view(), view.progress(), lease, false).unwrap()?;
    Some(lease.deadline.0.saturating_sub(view.now().0))
}

/// A leader whose clock jumped an hour ahead ended all leases at once, and nothing else for an hour once the
/// clock was right again.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_clock_jumps_ends_no_lease_early_and_no_key_late() {
    let mut cluster = Cluster::start(3, &settings());
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    propose(&leader, kv::Operation::LeaseGrant(kv::LeaseGrant { id: 1, ttl_s: 600 })).await;
    cluster.member(leader.id()).running().shift_wall_clock(HOUR_MS);
    until(&leader, "the jump to be noticed", || ahead(&leader) > 3000.0).await;
    put(&leader, "stamped after the jump", "1").await;
    let left = left_ms(&leader, 1).expect("its time is not over");
    assert!((1..=600_000).contains(&left), "{left}");
    cluster.member(leader.id()).running().shift_wall_clock(-HOUR_MS);
    until(&leader, "the jump to be noticed", || ahead(&leader) < -3000.0).await;
    put_for(&leader, "short", 1).await;
    until(&leader, "its end", || value(&leader.latest(), "short").is_none()).await;
    // Who leads next, with a clock of its own, goes on from there.
    cluster.member(follower.id()).running().shift_wall_clock(HOUR_MS);
    until(&follower, "the jump to be noticed", || ahead(&follower) > 3000.0).await;
    in_time("a transfer", leader.transfer_leader(follower.id())).await.unwrap();
    put(&follower, "stamped by another", "1").await;
    let left = left_ms(&follower, 1).expect("its time is not over");
    assert!((1..=600_000).contains(&left), "{left}");
    cluster.stop().await;
}

/// A follower judged by its own clock whether a key's time was over.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_whose_clock_is_ahead_takes_no_key_for_ended() {
    let mut cluster = Cluster::start(3, &settings());
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    cluster.member(follower.id()).running().shift_wall_clock(HOUR_MS);
    until(&follower, "the jump to be noticed", || ahead(&follower) > 3000.0).await;
    put_for(&leader, "lock", 600_000).await;
    let view = in_time("a read", follower.read(Consistency::Linearizable)).await.unwrap();
    let Stamp(ends) = kv::get(view.view(), &"lock".into()).unwrap().unwrap().expires.unwrap();
    let left = ends.saturating_sub(view.now().0);
    assert!((1..=600_000).contains(&left), "{left}");
    cluster.stop().await;
}
