//! What replicas tell each other. `frame.rs` has the bytes.

use quoin_core::Command;
use raft::eraftpb;

/// What one replica tells another.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    /// A message of the consensus protocol.
    Raft(RaftMessage),
    /// Commands for the leader to propose.
    Forward {
        /// The sender's number for this forward, which the reply repeats.
        request: u64,
        /// The commands, in order.
        commands: Vec<Command>,
        /// They may take long to apply: they get an entry of their own, in their turn.
        paced: bool,
    },
    /// The answer to a [`PeerMessage::Forward`].
    ForwardReply {
        /// The number of the forward.
        request: u64,
        /// Where the commands stand in the log, or why they do not.
        outcome: ForwardOutcome,
    },
}

/// The fate of forwarded commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardOutcome {
    /// Proposed as part of one entry. If the entry that is committed at `index` has another term, they were
    /// not done.
    Proposed {
        /// Index of the entry.
        index: u64,
        /// Term of the entry.
        term: u64,
        /// Position of the first command within the batch.
        position: u32,
    },
    /// Not proposed: the receiver is not the leader.
    NotLeader,
    /// Not proposed: the leader's queue is full.
    Busy,
}

/// A message of the consensus protocol, opaque outside this crate.
#[derive(Clone, Debug, PartialEq)]
pub struct RaftMessage(pub(crate) Box<eraftpb::Message>);
