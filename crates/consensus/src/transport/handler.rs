//! What connections hand to their node, and what they count.

use crate::group::GroupId;
use crate::message::PeerMessage;
use crate::stream::PeerStream;
use std::sync::atomic::AtomicU64;

/// What the transport asks and tells its node. Calls come from the transport's threads.
pub trait Handler: Send + Sync + 'static {
    /// A message has arrived.
    fn received(&self, from: u64, group: GroupId, message: PeerMessage);
    /// The connection to `peer` broke. What was sent on it may be lost.
    fn lost(&self, peer: u64);
    /// A peer wants to send a snapshot on this connection. Runs on the connection's thread.
    fn snapshot_offered(&self, from: u64, stream: PeerStream);
    /// A peer asks for a file. Runs on the connection's thread.
    fn file_asked(&self, stream: PeerStream);
    /// A new node asks who it is. Runs on the connection's thread.
    fn join_asked(&self, stream: PeerStream);
    /// A founder on `disk` asks how far the cluster is. Runs on the connection's thread.
    fn founding_asked(&self, from: u64, disk: u64, stream: PeerStream);
    /// The name of a member; empty if it is not known.
    fn name_of(&self, peer: u64) -> String;
    /// Whether `peer` has been removed from the cluster.
    fn is_removed(&self, peer: u64) -> bool;
    /// Whether `peer` is known to run on another disk than `disk`.
    fn is_other_disk(&self, peer: u64, disk: u64) -> bool;
    /// Whether members that this node knows say that `peer`, which it does not know, is one too. If so, it has
    /// [met](super::Transport::meet) it. `address` is where `peer` says that it is reached. Runs on the connection's
    /// thread.
    fn is_vouched_for(&self, peer: u64, address: &str) -> bool;
    /// A peer has said that this node must not run, for `reason`.
    fn cast_out(&self, reason: &str);
    /// A thread of the transport has panicked, for `reason`: the node must end.
    fn failed(&self, reason: &str);
}

/// Counters for the metrics page.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes written to peers.
    pub sent_bytes: AtomicU64,
    /// Bytes read from peers.
    pub received_bytes: AtomicU64,
    /// Messages dropped because an outbox was full or the peer not connected.
    pub dropped: AtomicU64,
    /// Connections closed because of bytes that no peer sends.
    pub garbage: AtomicU64,
}
