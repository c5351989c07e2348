//! Commands that take long, and those of others.

use crate::cluster::{Cluster, in_time, put, put_of, revision_of, settings};
use quoin_core::kv;

/// A put waited behind all large deletions that had come before it, of all clients.
#[tokio::test(flavor = "multi_thread")]
async fn of_what_takes_long_one_goes_at_a_time_and_others_go_in_between() {
    let cluster = Cluster::start(3, &settings());
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    for key in ["a", "b", "c", "d"] {
        put(&leader, key, "1").await;
    }
    let delete = |key: &'static str| {
        kv::Operation::Delete(kv::Delete { key: key.into(), ..kv::Delete::default() }).into_command()
    };
    for engine in [leader, follower] {
        let keys = if engine.raft().is_leader { ["a", "b"] } else { ["c", "d"] };
        // They come in this order.
        let all = async {
            tokio::join!(
                biased;
                engine.propose_paced(delete(keys[0])),
                engine.propose_paced(delete(keys[1])),
                engine.propose(put_of("p", "1")),
            )
        };
        let (first, second, between) = in_time("the answers", all).await;
        let of = |reply: Result<_, _>| revision_of(&reply.unwrap());
        let (first, second, between) = (of(first), of(second), of(between));
        assert!(first < second && between < second, "{first:?} {between:?} {second:?}");
        assert_eq!(engine.metrics().commands_paced.get(), 2);
    }
    cluster.stop().await;
}
