//! What a replica refuses before it is done, and what becomes of commands that no leader takes.

use crate::cluster::{Cluster, in_time, put, put_of, settings};
use quoin_engine::{Consistency, Engine, Limits, ProposeError, RaftConfig, ReadError, Settings};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Polls a proposal once: that admits it, and without a leader it waits.
fn begin<F: Future>(proposal: Pin<&mut F>) -> Poll<F::Output> {
    proposal.poll(&mut Context::from_waker(Waker::noop()))
}

fn bounded() -> Settings {
    let limits = Limits {
        request_bytes_max: 1000,
        commands_in_flight_max: 3,
        command_bytes_in_flight_max: 100_000,
        ..Limits::default()
    };
    Settings { raft: RaftConfig { tick_ms: 10, ..RaftConfig::default() }, limits, ..settings() }
}

async fn propose(engine: &Engine, bytes: usize) -> Result<(), ProposeError> {
    engine.propose(put_of("k", vec![0; bytes])).await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_beyond_the_bounds_are_refused_and_those_without_a_leader_given_up() {
    let cluster = Cluster::start_one_of(3, &bounded());
    let engine = cluster.members[0].engine();
    assert!(!engine.is_caught_up());
    let refused = propose(&engine, 80_000).await;
    assert!(matches!(refused, Err(ProposeError::TooLarge { bytes: 80_000.., max: ..80_000 })), "{refused:?}");
    let mut large = Box::pin(propose(&engine, 60_000));
    assert!(begin(large.as_mut()).is_pending());
    assert_eq!(propose(&engine, 60_000).await, Err(ProposeError::Busy), "too many bytes");
    let mut small = [Box::pin(propose(&engine, 1)), Box::pin(propose(&engine, 1))];
    assert!(small.iter_mut().all(|proposal| begin(proposal.as_mut()).is_pending()));
    assert_eq!(propose(&engine, 1).await, Err(ProposeError::Busy), "too many commands");
    for proposal in small {
        assert_eq!(in_time("giving up", proposal).await, Err(ProposeError::NoLeader));
    }
    assert_eq!(in_time("giving up", large).await, Err(ProposeError::NoLeader));
    cluster.stop().await;
}

/// Its share was given back, and its command stayed in memory: clients that gave up and asked again filled that.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_of_a_client_that_has_gone_counts_until_it_is_answered() {
    let raft = RaftConfig { tick_ms: 50, ..RaftConfig::default() };
    let cluster = Cluster::start_one_of(3, &Settings { raft, ..bounded() });
    let engine = cluster.members[0].engine();
    let mut gone = Box::pin(propose(&engine, 60_000));
    assert!(begin(gone.as_mut()).is_pending());
    drop(gone);
    assert_eq!(propose(&engine, 60_000).await, Err(ProposeError::Busy));
    // It is given up like any other.
    let next = in_time("its share", async {
        loop {
            match propose(&engine, 60_000).await {
                Err(ProposeError::Busy) => tokio::task::yield_now().await,
                taken => return taken,
            }
        }
    });
    assert_eq!(next.await, Err(ProposeError::NoLeader));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_answers_those_who_wait_and_refuses_those_who_come() {
    let cluster = Cluster::start_one_of(3, &settings());
    let engine = cluster.members[0].engine();
    let mut waiting = Box::pin(propose(&engine, 1));
    assert!(begin(waiting.as_mut()).is_pending());
    cluster.stop().await;
    assert_eq!(in_time("an answer", waiting).await, Err(ProposeError::NoLeader));
    assert_eq!(in_time("an answer", propose(&engine, 1)).await, Err(ProposeError::Stopped));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_commands_together_are_refused_one_by_one() {
    let cluster = Cluster::start(1, &bounded());
    let engine = cluster.leader().await;
    put(&engine, "before", "1").await;
    let sizes = [1, 80_000, 1, 1, 1];
    let commands = sizes.map(|bytes| put_of("k", vec![0; bytes]));
    let replies = engine.propose_many(commands.into()).await;
    let errors: Vec<_> = replies.into_iter().map(Result::err).collect();
    assert!(matches!(
        errors[..],
        [None, Some(ProposeError::TooLarge { .. }), None, None, Some(ProposeError::Busy)]
    ));
    cluster.stop().await;
}

/// It was refused for ever: with its own bytes it was above the bound before it began.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_larger_than_the_bound_on_bytes_goes_alone() {
    let limits = Limits { command_bytes_in_flight_max: 1000, ..Limits::default() };
    let cluster = Cluster::start(1, &Settings { limits, ..settings() });
    let engine = cluster.leader().await;
    // The member's own record goes first, and once.
    in_time("the command to be alone", async {
        while let Err(error) = propose(&engine, 2000).await {
            assert_eq!(error, ProposeError::Busy);
        }
    })
    .await;
    let mut one = Box::pin(propose(&engine, 2000));
    let begun = begin(one.as_mut());
    // Only while the first is under way is there no room for a second.
    let second = propose(&engine, 2000).await;
    assert!(second.is_ok() || second == Err(ProposeError::Busy) && begun.is_pending(), "{second:?}");
    if begun.is_pending() {
        in_time("an answer", one).await.unwrap();
    }
    cluster.stop().await;
}

/// Nothing bounded the reads that waited for a leader.
#[tokio::test(flavor = "multi_thread")]
async fn reads_beyond_the_bound_are_refused() {
    let limits = Limits { reads_in_flight_max: 2, ..Limits::default() };
    let raft = RaftConfig { tick_ms: 10, ..RaftConfig::default() };
    let cluster = Cluster::start_one_of(3, &Settings { limits, raft, ..settings() });
    let engine = cluster.members[0].engine();
    let mut waiting: Vec<_> = (0..2).map(|_| Box::pin(engine.read(Consistency::Linearizable))).collect();
    assert!(waiting.iter_mut().all(|read| begin(read.as_mut()).is_pending()));
    assert_eq!(engine.read(Consistency::Linearizable).await.err(), Some(ReadError::Busy));
    engine.read(Consistency::ANY).await.expect("it waits for nobody");
    // A client that disconnects gives its share back.
    waiting.pop();
    let mut another = Box::pin(engine.read(Consistency::Linearizable));
    assert!(begin(another.as_mut()).is_pending());
    for read in [waiting.remove(0), another] {
        assert_eq!(in_time("giving up", read).await.err(), Some(ReadError::NoLeader));
    }
    cluster.stop().await;
}
