//! A replica that has lost its disk, or a part of it, does not take part as the member that it was.

use crate::cluster::{Cluster, Member, in_time, put, read, settings, until};
use quoin_consensus::log::LogError;
use quoin_engine::{MemberChange, OpenError};
use std::collections::BTreeMap;
use std::fs;

/// It founded again silently, voted again, and acknowledged writes were lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_founder_with_an_empty_disk_is_told_and_ends() {
    let mut cluster = Cluster::start(3, &settings());
    put(&cluster.leader().await, "k", "1").await;
    let lost = cluster.follower().await.id();
    cluster.member(lost).stop().await;
    // The others know the disk from the founding, and have not recorded it yet, or have.
    let founding = cluster.founding();
    let member = cluster.member(lost);
    let listener = member.lose_disk().await;
    member.start(listener, Some(&founding), BTreeMap::new());
    let reason = in_time("being told", member.running().failed()).await;
    assert!(reason.contains("already bootstrapped") && reason.contains("add it anew"), "{reason}");
    member.stop().await;
    put(&cluster.leader().await, "k", "2").await;
    cluster.stop().await;
}

/// The same for a member that was added, and whose disk only the log's record names.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_was_added_is_not_let_in_from_another_disk() {
    let cluster = Cluster::start(3, &settings());
    let leader = cluster.leader().await;
    let (mut fourth, listener) = Member::new(4, settings());
    leader.change_members(MemberChange::Add(fourth.record(true))).await.unwrap();
    let peers: BTreeMap<u64, String> =
        cluster.members.iter().map(|member| (member.id, member.address.to_string())).collect();
    fourth.start(listener, None, peers.clone());
    let recorded = || leader.members().unwrap().iter().any(|member| (member.id, member.disk) == (4, 104));
    until(&leader, "its disk to be recorded", recorded).await;
    fourth.stop().await;
    let listener = fourth.lose_disk().await;
    fourth.start(listener, None, peers);
    let reason = in_time("being told", fourth.running().failed()).await;
    assert!(reason.contains("another disk"), "{reason}");
    fourth.stop().await;
    cluster.stop().await;
}

/// It had no other founders to ask, founded again, led itself, and answered clients, while the others went on.
#[tokio::test(flavor = "multi_thread")]
async fn the_only_founder_of_a_cluster_that_grew_is_told_and_ends() {
    let mut cluster = Cluster::start(1, &settings());
    let (founding, first) = (cluster.founding(), cluster.leader().await);
    let (mut other, listener) = Member::new(2, settings());
    in_time("the addition", first.change_members(MemberChange::Add(other.record(true)))).await.unwrap();
    other.start(listener, None, [(1, cluster.members[0].address.to_string())].into());
    let engine = other.engine();
    let recorded = || engine.members().unwrap().iter().any(|member| (member.id, member.disk) == (1, 101));
    until(&engine, "the founder's disk", recorded).await;
    drop((first, engine));
    let founder = cluster.member(1);
    founder.stop().await;
    let listener = founder.lose_disk().await;
    founder.start(listener, Some(&founding), BTreeMap::new());
    let reason = in_time("being told", founder.running().failed()).await;
    assert!(reason.contains("already bootstrapped on another disk"), "{reason}");
    founder.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn founders_start_one_after_the_other_and_restart_meanwhile() {
    let (mut cluster, listeners, founding) = Cluster::found(3, &settings());
    let mut listeners = listeners.into_iter();
    let mut start =
        |member: &mut Member| member.start(listeners.next().unwrap(), Some(&founding), BTreeMap::new());
    start(&mut cluster.members[0]);
    start(&mut cluster.members[1]);
    // The first one, which has not been answered by all, goes and comes back.
    let first = cluster.member(1);
    first.stop().await;
    let listener = first.listen_again().await;
    first.start(listener, Some(&founding), BTreeMap::new());
    start(&mut cluster.members[2]);
    put(&cluster.leader().await, "k", "1").await;
    let recorded = |engine: &quoin_engine::Engine| {
        engine.members().unwrap().iter().all(|member| member.disk == 100 + member.id)
    };
    let leader = cluster.leader().await;
    until(&leader, "all disks to be recorded", || recorded(&leader)).await;
    // From then on a majority is enough.
    let away = cluster.follower().await.id();
    cluster.member(away).stop().await;
    put(&cluster.leader().await, "k", "2").await;
    cluster.member(away).restart().await;
    assert_eq!(read(&cluster.member(away).engine(), "k").await.unwrap(), "2");
    cluster.stop().await;
}

/// A replica without its log, or without the end of it, voted and acknowledged as if it had never done so.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_its_log_or_the_end_of_it_does_not_start() {
    let mut cluster = Cluster::start(1, &settings());
    let engine = cluster.leader().await;
    for key in 0..4 {
        put(&engine, &format!("k{key}"), vec![1; 40_000]).await;
    }
    drop(engine);
    let founding = cluster.founding();
    let member = cluster.member(1);
    member.stop().await;
    member.wait_unlocked().await;
    member.note_settled();
    let log = member.folder.path().join("log");
    let mut segments: Vec<_> = fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    segments.sort();
    let last = segments.pop().unwrap();
    let bytes = fs::read(&last).unwrap();
    fs::remove_file(&last).unwrap();
    let missing = member.open(None).err().unwrap();
    assert!(matches!(missing, OpenError::Log(LogError::Corrupt { .. })), "{missing}");
    fs::write(&last, bytes).unwrap();
    drop(member.open(None).unwrap());
    fs::remove_dir_all(&log).unwrap();
    let gone = member.open(Some(&founding)).err().unwrap();
    assert!(
        gone.to_string().contains("the log of member 0000000000000001 is gone from disk 0000000000000065"),
        "{gone}"
    );
}
