//! What a replica says of itself.

use quoin_core::{Index, Progress};

/// What a replica knows of the consensus. Renewed at every tick and at every change of leader, term,
/// voters or learners.
#[derive(Clone, Debug, Default)]
pub struct RaftStatus {
    /// The leader's id, 0 for none.
    pub leader: u64,
    /// The term.
    pub term: u64,
    /// Whether this node is the leader.
    pub is_leader: bool,
    /// The newest entry known to be committed.
    pub committed: u64,
    /// The newest entry that the leader, confirmed by a majority, has said to be committed; `None` while this
    /// replica knows no such leader. It may be ahead of `committed`, and is what lag is measured against.
    pub known_committed: Option<u64>,
    /// The newest entry that the consensus knows to be applied. It may still read all later ones in the log.
    pub applied: u64,
    /// Commands that wait to be proposed or forwarded.
    pub queued: usize,
    /// On the leader, for each member: id, newest matching entry, and whether a message of it came within two
    /// election timeouts (never true of the leader itself). Empty on others.
    pub followers: Vec<(u64, u64, bool)>,
    /// On the leader, the members that have answered it for `raft.member_health_ms` without a break. Empty on others.
    pub healthy: Vec<u64>,
    /// Members that vote.
    pub voters: Vec<u64>,
    /// Members that receive the log and do not vote.
    pub learners: Vec<u64>,
}

impl RaftStatus {
    /// How many committed entries a replica lacks that has applied entries up to `applied`; `None` if that is not
    /// known.
    pub fn lag_entries(&self, applied: Index) -> Option<u64> {
        let known = self.known_committed?.max(self.committed);
        Some(known.saturating_sub(applied.0))
    }
}

/// What a status page shows.
#[derive(Clone, Debug)]
pub struct Status {
    /// This member's id.
    pub id: u64,
    /// The cluster's id.
    pub cluster: u64,
    /// The consensus, as this replica knows it.
    pub raft: RaftStatus,
    /// The last applied entry and the numbers it reached.
    pub progress: Progress,
    /// Milliseconds since this replica was last known to be up to date; `None` if it never was since its start.
    pub lag_ms: Option<u64>,
    /// Bytes of the store, on disk and in memtables.
    pub store_bytes: u64,
    /// Bytes of the log on disk.
    pub log_bytes: u64,
    /// Effects of entries up to this one are on disk in the store, and survive without the log.
    pub persisted: Index,
}
