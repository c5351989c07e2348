//! Who belongs to the cluster, and who votes.

use super::engine::Engine;
use super::input::Input;
use super::propose::{ProposeError, answer};
use super::read::Consistency;
use super::status::RaftStatus;
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
    /// Most of those who would vote have never started.
    #[error("re-configuration failed due to not enough started members")]
    NotStarted,
    /// The voters that have answered for long enough would be no majority.
    #[error("unhealthy cluster")]
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
    /// **Invariant: Gone for good.** Once a removal is answered, those that are left need the removed member no more:
    /// most of them have on disk that it is gone. (Who knows only the entry, and not that it is committed, would
    /// still ask the removed member for its vote.) A leader that removes itself is the exception: it cannot ask.
    ///
    /// # Errors
    /// See [`MemberError`].
    pub async fn change_members(&self, change: MemberChange) -> Result<Vec<system::Member>, MemberError> {
        // Before the members: what is in neither of them is found out when the change is proposed.
        let seen = self.raft();
        let view = self.read(Consistency::Linearizable).await.map_err(|_| ProposeError::NoLeader)?;
        let members = system::members(view.view()).map_err(|error| MemberError::Store(error.to_string()))?;
        let removed = match change {
            MemberChange::Remove(id) if id != self.id() => Some(id),
            _ => None,
        };
        let planned = self.plan(change, &members, &seen);
        if planned == Err(MemberError::NotFound) && removed.is_some_and(|id| self.has_removed(id)) {
            // Whoever asks again has had no answer: it was removed just now, perhaps.
            self.spread_commit().await?;
        }
        let (change, operation) = planned?;
        let command = operation.into_command();
        let reply = match change {
            None => self.propose(command).await?,
            Some(change) => {
                let (waiter, reply) = oneshot::channel();
                let changes = vec![change];
                self.shared.inbox.push(Input::ChangeConfiguration { changes, command, seen, waiter });
                answer(reply.await)?
            }
        };
        debug_assert_eq!(reply, Reply::System(system::Reply::Done));
        if removed.is_some() {
            self.spread_commit().await?;
        }
        self.members().map_err(|error| MemberError::Store(error.to_string()))
    }

    fn has_removed(&self, id: u64) -> bool {
        self.shared.removed.lock().contains(&id)
    }

    /// Waits until a majority has on disk that all is committed which is applied here: with the next entry it
    /// hears that, and whoever has an entry on disk has that too.
    async fn spread_commit(&self) -> Result<(), ProposeError> {
        self.propose(system::Operation::Tick(true).into_command()).await?;
        Ok(())
    }

    /// The change of the configuration, if any, and the change of the member records.
    fn plan(
        &self,
        change: MemberChange,
        members: &[system::Member],
        raft: &RaftStatus,
    ) -> Result<(Option<Change>, system::Operation), MemberError> {
        let find = |id| members.iter().find(|member| member.id == id).cloned().ok_or(MemberError::NotFound);
        match change {
            MemberChange::Add(member) => {
                if find(member.id).is_ok() || self.has_removed(member.id) {
                    return Err(MemberError::IdExists);
                }
                if peers_taken(members, member.id, &member.peer_addresses) {
                    return Err(MemberError::PeerExists);
                }
                if member.learner {
                    return Ok((Some(Change::AddLearner(member.id)), system::Operation::SetMember(member)));
                }
                self.check_voters(members, raft, Voter::New)?;
                Ok((Some(Change::AddVoter(member.id)), system::Operation::SetMember(member)))
            }
            MemberChange::Promote(id) => {
                let mut member = find(id)?;
                if !member.learner {
                    return Err(MemberError::NotLearner);
                }
                if !has_most_of_the_log(raft, id) {
                    return Err(MemberError::LearnerNotReady);
                }
                self.check_voters(members, raft, Voter::Promoted)?;
                member.learner = false;
                Ok((Some(Change::AddVoter(id)), system::Operation::SetMember(member)))
            }
            MemberChange::Remove(id) => {
                if !find(id)?.learner {
                    self.check_voters(members, raft, Voter::Leaves(id))?;
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

    /// etcd's rules for voters, with its answers: most of those who will vote have started, and most have answered for a
    /// while (`raft.member_health_ms`), without the one that is to be added or removed. One that does not answer can be
    /// removed, and the only voter can add another.
    ///
    /// Etcd asks who has been connected for five seconds; this, who has answered the leader, since it leads.
    fn check_voters(
        &self,
        members: &[system::Member],
        raft: &RaftStatus,
        coming: Voter,
    ) -> Result<(), MemberError> {
        let follows = |id: u64, how: &dyn Fn(u64, bool) -> bool| {
            raft.followers.iter().any(|(other, matched, active)| *other == id && how(*matched, *active))
        };
        let answers = |id: u64| id == self.id() || follows(id, &|_, active| active);
        let is_healthy = |id: u64| id == self.id() || raft.healthy.contains(&id);
        let has_started = |id: u64| {
            let is_named = members.iter().any(|member| member.id == id && !member.name.is_empty());
            is_named || answers(id) || follows(id, &|matched, _| matched > 0)
        };
        let count =
            |voters: &[u64], holds: &dyn Fn(u64) -> bool| voters.iter().filter(|id| holds(**id)).count();
        let voters: &[u64] = &raft.voters;
        let left: Vec<u64> = voters.iter().copied().filter(|id| coming != Voter::Leaves(*id)).collect();
        let (new, new_started) = match coming {
            Voter::New => (1, 0),
            Voter::Promoted => (1, 1),
            Voter::Leaves(_) => (0, 0),
        };
        let (future, started) = (left.len() + new, count(&left, &has_started) + new_started);
        // A cluster of one grows by a member that has not started.
        let grows = coming == Voter::New && future == 2 && started == 1;
        if started < future / 2 + 1 && !grows {
            return Err(MemberError::NotStarted);
        }
        let healthy = match coming {
            Voter::New => voters.len() == 1 || count(voters, &is_healthy) > future / 2,
            Voter::Promoted => true,
            Voter::Leaves(id) => !answers(id) || count(&left, &is_healthy) > left.len() / 2,
        };
        if healthy { Ok(()) } else { Err(MemberError::Unhealthy) }
    }
}

/// What becomes of a vote.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Voter {
    New,
    Promoted,
    Leaves(u64),
}

/// etcd's rule for promotion: at least nine tenths of what is committed.
fn has_most_of_the_log(raft: &RaftStatus, learner: u64) -> bool {
    let progress = raft.followers.iter().find(|(id, ..)| *id == learner);
    progress.is_some_and(|(_, matched, _)| *matched >= raft.committed - raft.committed / 10)
}

/// Whether a member other than `id` has one of `addresses`.
fn peers_taken(members: &[system::Member], id: u64, addresses: &[String]) -> bool {
    let others = members.iter().filter(|member| member.id != id);
    others.flat_map(|member| &member.peer_addresses).any(|address| addresses.contains(address))
}
