//! Who votes and who learns, in Quoin's own types and encoding. The library's types stay inside this crate.

use bytes::Bytes;
use prost::Message as _;
use raft::eraftpb::{self, ConfChangeType, ConfChangeV2, ConfState};
use std::collections::BTreeSet;

/// Who votes and who learns. Encoded, ids are in ascending order; otherwise in any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Members that vote, and whose copies of the log count.
    pub voters: Vec<u64>,
    /// Members that receive the log and do not vote.
    pub learners: Vec<u64>,
    /// Voters before a change that is under way. Until it ends, every decision needs a majority of these as
    /// well.
    pub voters_outgoing: Vec<u64>,
    /// Voters that become learners when the change ends.
    pub learners_next: Vec<u64>,
    /// The leader ends the change without being asked.
    pub auto_leave: bool,
}

/// One change of a configuration. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Add a voter, or promote a learner.
    AddVoter(u64),
    /// Remove a member.
    Remove(u64),
    /// Add a member that receives the log and does not vote, or demote a voter.
    AddLearner(u64),
}

/// The stored form. The numbers are on disk.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Record {
    #[prost(fixed64, repeated, tag = "1")]
    voters: Vec<u64>,
    #[prost(fixed64, repeated, tag = "2")]
    learners: Vec<u64>,
    #[prost(fixed64, repeated, tag = "3")]
    voters_outgoing: Vec<u64>,
    #[prost(fixed64, repeated, tag = "4")]
    learners_next: Vec<u64>,
    #[prost(bool, tag = "5")]
    auto_leave: bool,
}

impl Configuration {
    /// A configuration in which all of `ids` vote.
    pub fn of_voters(ids: impl IntoIterator<Item = u64>) -> Self {
        Self { voters: ids.into_iter().collect(), ..Self::default() }
    }

    /// Whether changes can have led to this configuration: somebody votes, each member has one part in each
    /// half, and what a change that is under way leaves behind is there only while it is.
    pub(crate) fn is_valid(&self) -> bool {
        let Self { voters, learners, voters_outgoing, learners_next, auto_leave } = self;
        let all_differ = |lists: [&[u64]; 3]| {
            let mut seen = BTreeSet::new();
            lists.into_iter().flatten().all(|id| *id != 0 && seen.insert(*id))
        };
        let joint = !voters_outgoing.is_empty();
        !voters.is_empty()
            && all_differ([voters, learners, learners_next])
            && all_differ([voters_outgoing, learners, &[]])
            && learners_next.iter().all(|id| voters_outgoing.contains(id))
            && (joint || !auto_leave)
    }

    /// Writes the stored form.
    pub fn encode(&self) -> Bytes {
        let sorted = |ids: &[u64]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        let record = Record {
            voters: sorted(&self.voters),
            learners: sorted(&self.learners),
            voters_outgoing: sorted(&self.voters_outgoing),
            learners_next: sorted(&self.learners_next),
            auto_leave: self.auto_leave,
        };
        record.encode_to_vec().into()
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// The bytes are not a configuration.
    pub fn decode(bytes: &[u8]) -> Result<Self, prost::DecodeError> {
        let Record { voters, learners, voters_outgoing, learners_next, auto_leave } = Record::decode(bytes)?;
        Ok(Self { voters, learners, voters_outgoing, learners_next, auto_leave })
    }
}

impl Configuration {
    pub(crate) fn from_library(state: &ConfState) -> Self {
        Self {
            voters: state.voters.clone(),
            learners: state.learners.clone(),
            voters_outgoing: state.voters_outgoing.clone(),
            learners_next: state.learners_next.clone(),
            auto_leave: state.auto_leave,
        }
    }

    pub(crate) fn to_library(&self) -> ConfState {
        let mut state = ConfState::default();
        state.voters.clone_from(&self.voters);
        state.learners.clone_from(&self.learners);
        state.voters_outgoing.clone_from(&self.voters_outgoing);
        state.learners_next.clone_from(&self.learners_next);
        state.auto_leave = self.auto_leave;
        state
    }
}

impl Change {
    /// The number that says which change it is, on disk and on the wire, and the member.
    pub(crate) fn parts(self) -> (u32, u64) {
        match self {
            Self::AddVoter(id) => (ConfChangeType::AddNode as u32, id),
            Self::Remove(id) => (ConfChangeType::RemoveNode as u32, id),
            Self::AddLearner(id) => (ConfChangeType::AddLearnerNode as u32, id),
        }
    }

    /// The change with this number; `None` for an unknown one.
    pub(crate) fn of_parts(kind: u32, id: u64) -> Option<Self> {
        [Self::AddVoter(id), Self::Remove(id), Self::AddLearner(id)]
            .into_iter()
            .find(|known| known.parts().0 == kind)
    }
}

/// Changes as the library takes them. More than one pass through a joint configuration.
pub(crate) fn changes_to_library(changes: &[Change]) -> ConfChangeV2 {
    let mut all = ConfChangeV2::default();
    for change in changes {
        let mut single = eraftpb::ConfChangeSingle::default();
        let (kind, id) = match *change {
            Change::AddVoter(id) => (ConfChangeType::AddNode, id),
            Change::Remove(id) => (ConfChangeType::RemoveNode, id),
            Change::AddLearner(id) => (ConfChangeType::AddLearnerNode, id),
        };
        single.set_change_type(kind);
        single.node_id = id;
        all.changes.push(single);
    }
    all
}
