//! What comes to the raft thread.

use super::queue::Queue;
use super::status::RaftStatus;
use quoin_consensus::message::PeerMessage;
use quoin_consensus::replica::{Proposal, ReadWaiter, Waiter};
use quoin_consensus::{Change, Configuration, GroupId};
use quoin_core::{Command, Index};
use quoin_store::Importer;
use std::sync::Arc;

/// One input of the raft thread.
pub(crate) enum Input {
    /// A message of a peer.
    Message { from: u64, group: GroupId, message: PeerMessage },
    /// The connection to a peer broke.
    PeerLost(u64),
    /// A command of a client of this node.
    Propose(Proposal),
    /// Likewise, one that may take long to apply.
    ProposePaced(Proposal),
    /// A linearizable read.
    Read(ReadWaiter),
    /// The log thread has written the append of this number.
    Written(u64),
    /// The apply thread has applied entries up to this one.
    Applied(Index),
    /// A change of who votes, with the command that changes the member list. It was found to be safe for those who voted
    /// and learned in `seen`, and is refused if others do by now.
    ChangeConfiguration { changes: Vec<Change>, command: Command, seen: Arc<RaftStatus>, waiter: Waiter },
    /// Leadership is to go to this member.
    Transfer(u64),
    /// A snapshot was received whole.
    SnapshotReceived(Box<ReceivedSnapshot>),
    /// The stream of a snapshot has ended.
    SnapshotSent { to: u64, success: bool },
    /// The replica is to end.
    Stop,
}

/// The inbox of the raft thread.
pub(crate) type Inputs = Queue<Input>;

/// A whole snapshot that may replace the store.
pub(crate) struct ReceivedSnapshot {
    pub(crate) from: u64,
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) configuration: Configuration,
    pub(crate) importer: Importer,
}
