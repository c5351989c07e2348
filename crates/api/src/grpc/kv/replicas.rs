//! All replicas, and how far each says that it has applied.

use crate::auth;
use crate::error::Error;
use crate::neighbours::Neighbours;
use quoin_core::Index;
use quoin_core::system::Member;
use quoin_engine::{Engine, RaftStatus};
use quoin_proto::etcdserverpb::StatusRequest;
use quoin_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quoin_proto::quoin::kv::v1::{Replica, Role};
use std::time::Duration;
use tokio::task::JoinSet;

/// How long a replica may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks all replicas at once.
///
/// # Errors
/// The members cannot be read.
pub(super) async fn list(engine: &Engine, neighbours: &Neighbours) -> Result<Vec<Replica>, Error> {
    let members = engine.members()?;
    let status = engine.status();
    let mut asking = JoinSet::new();
    for member in members {
        let own = (member.id == status.id).then_some(status.progress.index.0);
        let (neighbours, token) = (neighbours.clone(), auth::passed_on(engine));
        asking.spawn(async move {
            let applied = match own {
                Some(applied) => Some(applied),
                None => tokio::time::timeout(PATIENCE, applied_index(&member, &neighbours, token))
                    .await
                    .ok()
                    .flatten(),
            };
            (member, applied)
        });
    }
    let answers = asking.join_all().await.into_iter();
    let mut replicas: Vec<_> =
        answers.map(|(member, applied)| replica(&status.raft, status.id, member, applied)).collect();
    replicas.sort_unstable_by_key(|replica| replica.id);
    Ok(replicas)
}

async fn applied_index(member: &Member, neighbours: &Neighbours, token: Option<String>) -> Option<u64> {
    let channel = neighbours.dial(member.client_urls.first()?, PATIENCE, PATIENCE).await.ok()?;
    let status =
        MaintenanceClient::new(channel).status(auth::with_token(token, StatusRequest {})).await.ok()?;
    Some(status.into_inner().raft_applied_index)
}

fn replica(raft: &RaftStatus, own: u64, member: Member, applied_index: Option<u64>) -> Replica {
    let role = if member.id == raft.leader {
        Role::Leader
    } else if member.learner {
        Role::Learner
    } else {
        Role::Follower
    };
    // The leader's own log is not among its followers'.
    let matched = raft.followers.iter().find(|(id, ..)| *id == member.id && *id != own);
    Replica {
        id: member.id,
        name: member.name,
        role: role.into(),
        peer_addresses: member.peer_addresses,
        client_urls: member.client_urls,
        self_: member.id == own,
        applied_index,
        lag_entries: applied_index.and_then(|applied| raft.lag_entries(Index(applied))),
        matched_index: matched.map(|(_, index, _)| *index),
    }
}
