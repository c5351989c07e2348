//! Members come and go.

use crate::cluster::{CLUSTER, Cluster, Member, in_time, put, put_of, read, settings, until};
use quoin_core::system;
use quoin_engine::join::{JoinAnswer, ask};
use quoin_engine::{Engine, MemberChange, MemberError, ProposeError};

async fn ask_at(address: String, own: String, disk: u64) -> (u64, JoinAnswer) {
    let asking = tokio::task::spawn_blocking(move || ask(&address, &own, disk, None));
    in_time("an answer to who asks", asking).await.unwrap().unwrap()
}

fn progress_of(leader: &Engine, member: u64) -> Option<(u64, bool)> {
    let raft = leader.raft();
    raft.followers.iter().find(|(id, ..)| *id == member).map(|(_, matched, active)| (*matched, *active))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_joins_is_promoted_and_removed_and_told_so() {
    let cluster = Cluster::start(3, &settings());
    let leader = cluster.leader().await;
    for number in 0..50 {
        put(&leader, &format!("k{number}"), number.to_string()).await;
    }
    let (mut newcomer, listener) = Member::new(4, settings());
    let (asked, own) = (cluster.members[0].address.to_string(), newcomer.address.to_string());
    let unknown = ask_at(asked.clone(), own.clone(), 104).await;
    assert_eq!((unknown.0, unknown.1.member), (CLUSTER, None));

    let members = leader.change_members(MemberChange::Add(newcomer.record(true))).await.unwrap();
    assert!(members.iter().any(|member| member.id == 4 && member.learner));
    let early = leader.change_members(MemberChange::Promote(4)).await;
    assert_eq!(early, Err(MemberError::LearnerNotReady), "it has not even started");

    let first = cluster.members[0].engine();
    until(&first, "the first member to apply the change", || first.members().unwrap().len() == 4).await;
    let (_, answer) = ask_at(asked.clone(), own.clone(), 104).await;
    assert_eq!((answer.member, answer.disk, answer.peers.len()), (Some(4), 104, 4));
    // Its id is not given to another disk.
    let (_, again) = ask_at(asked, own, 204).await;
    assert_eq!((again.member, again.disk), (Some(4), 104));
    newcomer.start(listener, None, answer.peers);
    let joined = newcomer.engine();
    let in_sync = || progress_of(&leader, 4).is_some_and(|(matched, _)| matched >= leader.raft().committed);
    until(&leader, "the learner to catch up", in_sync).await;
    assert_eq!(read(&joined, "k49").await.unwrap(), "49");
    // What it says of itself is as of its last tick.
    until(&joined, "it to be a learner", || joined.raft().learners.contains(&4)).await;
    assert!(!joined.raft().voters.contains(&4));

    leader.change_members(MemberChange::Promote(4)).await.unwrap();
    until(&joined, "the vote", || joined.raft().voters.contains(&4)).await;
    assert_eq!(leader.change_members(MemberChange::Promote(4)).await, Err(MemberError::NotLearner));
    put(&joined, "from the new member", "1").await;

    drop(joined);
    let members = leader.change_members(MemberChange::Remove(4)).await.unwrap();
    assert_eq!(members.len(), 3);
    let reason = in_time("being told", newcomer.running().failed()).await;
    assert!(reason.contains("was removed from") && reason.contains("delete its data folder"), "{reason}");
    newcomer.stop().await;
    let again = leader.change_members(MemberChange::Add(newcomer.record(true))).await;
    assert_eq!(again, Err(MemberError::IdExists), "an id is used once");
    put(&leader, "after", "1").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_would_harm_the_cluster_are_refused() {
    let mut cluster = Cluster::start(3, &settings());
    let leader = cluster.leader().await;
    let change = |change| leader.change_members(change);
    assert_eq!(change(MemberChange::Remove(9)).await, Err(MemberError::NotFound));
    let (fourth, _listener) = Member::new(4, settings());
    let taken = cluster.members[0].record(true).peer_addresses;
    let copy = system::Member { peer_addresses: taken.clone(), ..fourth.record(true) };
    assert_eq!(change(MemberChange::Add(copy)).await, Err(MemberError::PeerExists));
    assert_eq!(change(MemberChange::UpdatePeers(2, taken.clone())).await, Err(MemberError::PeerExists));
    assert!(change(MemberChange::UpdatePeers(1, taken)).await.is_ok());
    let followers: Vec<u64> = (1..=3).filter(|id| *id != leader.id()).collect();
    cluster.member(followers[0]).stop().await;
    let gone = || progress_of(&leader, followers[0]).is_some_and(|(_, active)| !active);
    until(&leader, "the stopped member to be missed", gone).await;
    let only_other = change(MemberChange::Remove(followers[1])).await;
    assert_eq!(only_other, Err(MemberError::Unhealthy), "the rest would be no majority");
    let added = change(MemberChange::Add(fourth.record(false))).await;
    assert_eq!(added, Err(MemberError::Unhealthy), "one of those who must agree is away");
    assert_eq!(change(MemberChange::Remove(followers[0])).await.unwrap().len(), 2);
    put(&leader, "k", "1").await;
    until(&leader, "the vote to be gone", || leader.raft().voters.len() == 2).await;
    // With two members that have not started, those that have would be no majority.
    change(MemberChange::Add(fourth.record(false))).await.unwrap();
    until(&leader, "the new voter", || leader.raft().voters.len() == 3).await;
    let (fifth, _other) = Member::new(5, settings());
    let refused = change(MemberChange::Add(fifth.record(false))).await;
    assert_eq!(refused, Err(MemberError::NotStarted), "neither has the fourth");
    let refused = change(MemberChange::Remove(followers[1])).await;
    assert_eq!(
        refused,
        Err(MemberError::NotStarted),
        "it and the fourth would be left, which has not started"
    );
    cluster.stop().await;
}

/// A voter could be added, or removed, beside one that had died just now and still counted as answering.
#[tokio::test(flavor = "multi_thread")]
async fn voters_change_only_beside_those_that_have_answered_for_a_while() {
    let mut slow = settings();
    slow.raft.member_health_ms = 60_000;
    let mut cluster = Cluster::start(3, &slow);
    let leader = cluster.leader().await;
    let followers: Vec<u64> = (1..=3).filter(|id| *id != leader.id()).collect();
    let answering = |id: &u64| progress_of(&leader, *id).is_some_and(|(_, active)| active);
    until(&leader, "the others to answer", || followers.iter().all(answering)).await;
    let change = |change| leader.change_members(change);
    let (fourth, _listener) = Member::new(4, settings());
    assert_eq!(change(MemberChange::Add(fourth.record(false))).await, Err(MemberError::Unhealthy));
    assert_eq!(change(MemberChange::Remove(followers[1])).await, Err(MemberError::Unhealthy));
    change(MemberChange::Add(fourth.record(true))).await.unwrap();
    cluster.member(followers[0]).stop().await;
    until(&leader, "the stopped member to be missed", || !answering(&followers[0])).await;
    assert_eq!(change(MemberChange::Remove(followers[0])).await.unwrap().len(), 3, "who is away can go");
    cluster.stop().await;
}

/// The second removal was checked against the voters of the last tick, and the one that was left had no majority.
#[tokio::test(flavor = "multi_thread")]
async fn removals_in_quick_succession_leave_a_majority() {
    let mut cluster = Cluster::start(4, &settings());
    let leader = cluster.leader().await;
    let followers: Vec<u64> = (1..=4).filter(|id| *id != leader.id()).collect();
    cluster.member(followers[0]).stop().await;
    let gone = || progress_of(&leader, followers[0]).is_some_and(|(_, active)| !active);
    until(&leader, "the stopped member to be missed", gone).await;
    leader.change_members(MemberChange::Remove(followers[1])).await.unwrap();
    let next = leader.change_members(MemberChange::Remove(followers[2])).await;
    assert_eq!(next, Err(MemberError::Unhealthy), "only the leader would answer, of two");
    put(&leader, "k", "1").await;
    cluster.stop().await;
}

/// The way back to one: the survivor answers by itself as soon as nobody else belongs to the cluster.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_shrinks_to_one_and_grows_again() {
    let mut cluster = Cluster::start(2, &settings());
    let leader = cluster.leader().await;
    let other = if leader.id() == 1 { 2 } else { 1 };
    until(&leader, "the other to answer", || progress_of(&leader, other).is_some_and(|(_, active)| active))
        .await;
    leader.change_members(MemberChange::Remove(other)).await.unwrap();
    in_time("being told", cluster.member(other).running().failed()).await;
    cluster.member(other).stop().await;
    put(&leader, "k", "1").await;
    assert_eq!(read(&leader, "k").await.unwrap(), "1");
    let (mut third, listener) = Member::new(3, settings());
    leader.change_members(MemberChange::Add(third.record(false))).await.unwrap();
    let peers = [(leader.id(), cluster.member(leader.id()).address.to_string())].into();
    third.start(listener, None, peers);
    let joined = third.engine();
    assert_eq!(read(&joined, "k").await.unwrap(), "1");
    put(&joined, "k", "2").await;
    assert_eq!(read(&leader, "k").await.unwrap(), "2");
    third.stop().await;
    cluster.stop().await;
}

/// Its disk had to be recorded before it started, and nothing could be recorded without it: a cluster of one that was
/// given a second voter had no leader any more.
#[tokio::test(flavor = "multi_thread")]
async fn the_second_voter_of_a_cluster_is_let_in_from_the_disk_that_asks_first() {
    let cluster = Cluster::start(1, &settings());
    let first = cluster.leader().await;
    put(&first, "k", "1").await;
    let (mut second, listener) = Member::new(2, settings());
    in_time("the addition", first.change_members(MemberChange::Add(second.record(false)))).await.unwrap();
    until(&first, "the second voter", || first.raft().voters.len() == 2).await;
    let (asked, own) = (cluster.members[0].address.to_string(), second.address.to_string());
    let (_, answer) = ask_at(asked.clone(), own.clone(), 102).await;
    assert_eq!((answer.member, answer.disk), (Some(2), 102));
    let (_, again) = ask_at(asked, own, 202).await;
    assert_eq!((again.member, again.disk), (Some(2), 102));
    second.start(listener, None, answer.peers);
    put(&second.engine(), "k", "2").await;
    let recorded = || first.members().unwrap().iter().any(|member| (member.id, member.disk) == (2, 102));
    until(&first, "its disk to be recorded", recorded).await;
    assert_eq!(read(&first, "k").await.unwrap(), "2");
    second.stop().await;
    cluster.stop().await;
}

/// A member that was away when others were added and left could not answer the new leader, of which it did not know.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_was_away_hears_a_leader_that_it_does_not_know() {
    let mut cluster = Cluster::start(3, &settings());
    let leader = cluster.leader().await;
    let away = (1..=3).find(|id| *id != leader.id()).unwrap();
    let third = (1..=3).find(|id| *id != leader.id() && *id != away).unwrap();
    // It is known to all, and does not vote.
    let mut witness = join(&mut cluster, &leader, 5).await;
    let away_engine = cluster.member(away).engine();
    until(&away_engine, "it to know the witness", || away_engine.members().unwrap().len() == 4).await;
    drop(away_engine);
    cluster.member(away).stop().await;
    let mut newcomer = join(&mut cluster, &leader, 4).await;
    leader.change_members(MemberChange::Promote(4)).await.unwrap();
    // As soon as the new voter is known to answer.
    in_time("the removal", async {
        while leader.change_members(MemberChange::Remove(third)).await.is_err() {}
    })
    .await;
    in_time("being told", cluster.member(third).running().failed()).await;
    cluster.member(third).stop().await;
    let knows = witness.engine();
    until(&knows, "the witness to know", || knows.members().unwrap().iter().any(|member| member.id == 4))
        .await;
    in_time("the new leader", async { while leader.transfer_leader(4).await.is_err() {} }).await;
    cluster.member(leader.id()).stop().await;
    // Of three voters only the newcomer runs: the second vote must come from the one that was away, whose log is too
    // old to win.
    cluster.member(away).restart().await;
    put(&newcomer.engine(), "after", "1").await;
    let back = cluster.member(away).engine();
    assert_eq!(read(&back, "after").await.unwrap(), "1");
    drop((leader, back, knows));
    newcomer.stop().await;
    witness.stop().await;
    cluster.stop().await;
}

/// A learner that has joined and caught up.
async fn join(cluster: &mut Cluster, leader: &Engine, id: u64) -> Member {
    let (mut newcomer, listener) = Member::new(id, settings());
    leader.change_members(MemberChange::Add(newcomer.record(true))).await.unwrap();
    let (asked, own) = (cluster.member(leader.id()).address.to_string(), newcomer.address.to_string());
    let (_, answer) = ask_at(asked, own, 100 + id).await;
    newcomer.start(listener, None, answer.peers);
    let in_sync = || progress_of(leader, id).is_some_and(|(matched, _)| matched >= leader.raft().committed);
    until(leader, "the learner to catch up", in_sync).await;
    newcomer
}

/// Its raft thread panicked when entries that it had proposed after its removal were written.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_is_removed_under_load() {
    let mut cluster = Cluster::start(3, &settings());
    let leader = cluster.leader().await;
    let gone = leader.id();
    let answering = |id| progress_of(&leader, id).is_some_and(|(_, active)| active);
    until(&leader, "the others to answer", || (1..=3).all(|id| id == gone || answering(id))).await;
    let load = |engine: Engine, writer: usize| {
        tokio::spawn(async move {
            for number in 0.. {
                match engine.propose(put_of(&format!("{writer}/{number}"), vec![0; 1000])).await {
                    Ok(_) | Err(ProposeError::NoLeader | ProposeError::LeaderChanged) => {}
                    Err(_) => return number,
                }
            }
            unreachable!("it ends with the replica")
        })
    };
    let writers: Vec<_> = (0..32).map(|writer| load(leader.clone(), writer)).collect();
    put(&leader, "under load", "1").await;
    let removed = in_time("the removal", leader.change_members(MemberChange::Remove(gone))).await;
    assert!(matches!(removed, Ok(_) | Err(MemberError::Propose(ProposeError::Stopped))), "{removed:?}");
    let reason = in_time("being told", cluster.member(gone).running().failed()).await;
    assert!(reason.contains("was removed from"), "{reason}");
    for writer in writers {
        assert!(in_time("the end of the load", writer).await.unwrap() > 0);
    }
    drop(leader);
    cluster.member(gone).stop().await;
    let leader = cluster.leader().await;
    assert_eq!(leader.members().unwrap().len(), 2);
    put(&leader, "after", "1").await;
    assert_eq!(read(&cluster.follower().await, "under load").await.unwrap(), "1");
    cluster.stop().await;
}

/// Two of the three that were left knew that the change was in the log, not that it was committed: when the third was lost for
/// good, they asked for votes that only the removed member could have given, and the cluster never had a leader again.
#[tokio::test(flavor = "multi_thread")]
async fn once_a_removal_is_answered_those_that_are_left_need_the_removed_member_no_more() {
    let mut cluster = Cluster::start(4, &settings());
    let leader = cluster.leader().await;
    let followers: Vec<u64> = (1..=4).filter(|id| *id != leader.id()).collect();
    leader.change_members(MemberChange::Remove(followers[0])).await.unwrap();
    // What would be on their disks if the power failed now.
    let left: Vec<_> = followers[1..].iter().map(|id| (*id, cluster.member(*id).copy_folder())).collect();
    drop(leader);
    for member in &mut cluster.members {
        member.stop().await;
    }
    for (id, folder) in left {
        cluster.member(id).folder = folder;
        cluster.member(id).restart().await;
    }
    let leader = cluster.leader().await;
    put(&leader, "k", "1").await;
    cluster.stop().await;
}
