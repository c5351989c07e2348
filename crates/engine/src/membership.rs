//! Who belongs to the cluster, and who votes.

use super::engine::Engine;
use super::input::Input;
use super::propose::{ProposeError, answer};
use super::read::Consistency;
use quoin_consensus::Change;
use quoin_core::{Reply, system};
use tokio::sync::oneshot;

/// A change of the member list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// Adds a voter or learner. The caller draws its id.
    Add(system::Member),
    /// Makes a learner a voter.
    Promote(u64),
    /// Removes a member for good: its id is never used again.
    Remove(u64),
    /// Replaces a member's peer addresses.
    UpdatePeers(u64, Vec<String>),
}

/// Why the member list was not changed. The texts are etcd's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// No member has this id.
    #[error("member not found")]
    NotFound,
    /// The id is in use, or was.
    #[error("member ID already exist")]
    IdExists,
    /// Another member has one of these peer addresses.
    #[error("Peer URLs already exists")]
    PeerExists,
    /// The member votes already.
    #[error("can only promote a learner member")]
    NotLearner,
    /// The learner is too far behind to vote.
    #[error("can only promote a learner member which is in sync with leader")]
    LearnerNotReady,
    /// The voters that answer now would be no majority.
    #[error("re-configuration failed due to not enough started members")]
    Unhealthy,
    /// The command got no reply.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// The store failed.
    #[error("store: {0}")]
    Store(String),
}

impl Engine {
    /// Changes the member list and, with it, who votes; returns the new list. Only the leader can.
    ///
    /// # Errors
    /// See [`MemberError`].
    pub async fn change_members(&self, change: MemberChange) -> Result<Vec<system::Member>, MemberError> {
        let view = self.read(Consistency::Linearizable).await.map_err(|_| ProposeError::NoLeader)?;
        let members = system::members(view.view()).map_err(|error| MemberError::Store(error.to_string()))?;
        let (change, operation) = self.plan(change, &members)?;
        let command = operation.into_command();
        let reply = match change {
            None => self.propose(command).await?,
            Some(change) => {
                let (waiter, reply) = oneshot::channel();
                let changes = vec![change];
                self.shared.inbox.push(Input::ChangeConfiguration { changes, command, waiter });
                answer(reply.await)?
            }
        };
        debug_assert_eq!(reply, Reply::System(system::Reply::Done));
        self.members().map_err(|error| MemberError::Store(error.to_string()))
    }

    /// The change of the configuration, if any, and the change of the member records.
    fn plan(
        &self,
        change: MemberChange,
        members: &[system::Member],
    ) -> Result<(Option<Change>, system::Operation), MemberError> {
        let find = |id| members.iter().find(|member| member.id == id).cloned().ok_or(MemberError::NotFound);
        match change {
            MemberChange::Add(member) => {
                if find(member.id).is_ok() || self.shared.removed.lock().contains(&member.id) {
                    return Err(MemberError::IdExists);
                }
                if peers_taken(members, member.id, &member.peer_addresses) {
                    return Err(MemberError::PeerExists);
                }
                if member.learner {
                    return Ok((Some(Change::AddLearner(member.id)), system::Operation::SetMember(member)));
                }
                self.check_healthy_after(None)?;
                Ok((Some(Change::AddVoter(member.id)), system::Operation::SetMember(member)))
            }
            MemberChange::Promote(id) => {
                let mut member = find(id)?;
                if !member.learner {
                    return Err(MemberError::NotLearner);
                }
                if !self.has_most_of_the_log(id) {
                    return Err(MemberError::LearnerNotReady);
                }
                member.learner = false;
                Ok((Some(Change::AddVoter(id)), system::Operation::SetMember(member)))
            }
            MemberChange::Remove(id) => {
                if !find(id)?.learner {
                    self.check_healthy_after(Some(id))?;
                }
                Ok((Some(Change::Remove(id)), system::Operation::RemoveMember(id)))
            }
            MemberChange::UpdatePeers(id, addresses) => {
                let mut member = find(id)?;
                if peers_taken(members, id, &addresses) {
                    return Err(MemberError::PeerExists);
                }
                member.peer_addresses = addresses;
                Ok((None, system::Operation::SetMember(member)))
            }
        }
    }

    /// etcd's rule for promotion: at least nine tenths of what is committed.
    fn has_most_of_the_log(&self, learner: u64) -> bool {
        let raft = self.raft();
        let progress = raft.followers.iter().find(|(id, ..)| *id == learner);
        progress.is_some_and(|(_, matched, _)| *matched >= raft.committed - raft.committed / 10)
    }

    /// Refuses to add a voter, or to remove `removed`, if the voters that answer now would then be no
    /// majority.
    fn check_healthy_after(&self, removed: Option<u64>) -> Result<(), MemberError> {
        let raft = self.raft();
        let voters: Vec<u64> = raft.voters.iter().copied().filter(|id| Some(*id) != removed).collect();
        let active =
            |id: &&u64| raft.followers.iter().any(|(follower, _, active)| follower == *id && *active);
        let answering = voters.iter().filter(|id| **id == self.id() || active(id)).count();
        let future = voters.len() + usize::from(removed.is_none());
        if answering > future / 2 || (removed.is_none() && answering == voters.len()) {
            Ok(())
        } else {
            Err(MemberError::Unhealthy)
        }
    }
}

/// Whether a member other than `id` has one of `addresses`.
fn peers_taken(members: &[system::Member], id: u64, addresses: &[String]) -> bool {
    let others = members.iter().filter(|member| member.id != id);
    others.flat_map(|member| &member.peer_addresses).any(|address| addresses.contains(address))
}
