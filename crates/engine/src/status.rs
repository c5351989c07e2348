//! What a replica says of itself.

use quoin_core::{Index, Progress};

/// What a replica knows of the consensus. Renewed at every tick and at every change of leader or term.
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
    /// Commands that wait to be proposed or forwarded.
    pub queued: usize,
    /// On the leader, for each member: id, newest matching entry, and whether a message of it came within two
    /// election timeouts (never true of the leader itself). Empty on others.
    pub followers: Vec<(u64, u64, bool)>,
    /// Members that vote.
    pub voters: Vec<u64>,
    /// Members that receive the log and do not vote.
    pub learners: Vec<u64>,
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
    /// Milliseconds since this replica was last known to be up to date.
    pub lag_ms: u64,
    /// Bytes of the store, on disk and in memtables.
    pub store_bytes: u64,
    /// Bytes of the log on disk.
    pub log_bytes: u64,
    /// Effects of entries up to this one are on disk in the store, and survive without the log.
    pub persisted: Index,
}
