//! Sending to peers, for the raft and the log thread.

use crate::input::Input;
use crate::shared::Shared;
use quoin_consensus::GROUP;
use quoin_consensus::message::{ForwardOutcome, PeerMessage};

/// Sends a message to a peer. If a forward is dropped, the replica is told at once that the peer did not take
/// its commands.
pub(super) fn send(shared: &Shared, to: u64, message: PeerMessage) {
    let request = match &message {
        PeerMessage::Forward { request, .. } => Some(*request),
        _ => None,
    };
    if !shared.send(to, message)
        && let Some(request) = request
    {
        let message = PeerMessage::ForwardReply { request, outcome: ForwardOutcome::NotLeader };
        shared.inbox.push(Input::Message { from: to, group: GROUP, message });
    }
}
