//! Leadership changes hands.

use crate::cluster::{Cluster, in_time, put, read, settings, until};
use quoin_engine::ProposeError;

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stops_hands_over_first() {
    let mut cluster = Cluster::start(3, &settings());
    let leader = cluster.leader().await;
    put(&leader, "k", "1").await;
    let (old, term) = (leader.id(), leader.raft().term);
    until(&leader, "two active followers", || active(&leader) == 2).await;
    in_time("handing over", leader.hand_over()).await;
    let raft = leader.raft();
    assert!(raft.leader != 0 && raft.leader != old && raft.term == term + 1, "{raft:?}");
    drop(leader);
    cluster.member(old).stop().await;
    let leader = cluster.leader().await;
    assert_eq!((leader.id(), leader.raft().term), (raft.leader, raft.term), "nobody had to be elected");
    assert_eq!(read(&leader, "k").await.unwrap(), "1");
    put(&leader, "k", "2").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_goes_to_the_member_that_is_named() {
    let cluster = Cluster::start(3, &settings());
    let leader = cluster.leader().await;
    let follower = cluster.follower().await;
    assert_eq!(follower.transfer_leader(follower.id()).await, Err(ProposeError::NoLeader));
    in_time("a transfer", leader.transfer_leader(follower.id())).await.unwrap();
    assert_eq!(leader.raft().leader, follower.id());
    let leader = cluster.leader().await;
    assert_eq!(leader.id(), follower.id());
    // Nobody has this id.
    assert_eq!(in_time("giving up", leader.transfer_leader(99)).await, Err(ProposeError::Unknown));
    put(&leader, "k", "1").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_successor_just_stops() {
    let cluster = Cluster::start(1, &settings());
    let engine = cluster.leader().await;
    in_time("handing over to nobody", engine.hand_over()).await;
    assert!(engine.raft().is_leader);
    cluster.stop().await;
}

fn active(leader: &quoin_engine::Engine) -> usize {
    leader.raft().followers.iter().filter(|(_, _, active)| *active).count()
}
