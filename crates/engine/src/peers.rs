//! What other replicas, and nodes that want to join, ask of this one. Calls come from the transport's
//! threads.

use super::input::Input;
use super::shared::Shared;
use super::{join, snapshots};
use quoin_consensus::GroupId;
use quoin_consensus::message::PeerMessage;
use quoin_consensus::transport::Handler;
use std::net::TcpStream;
use std::sync::{Arc, Weak};

/// The transport's way into the replica. Once the replica is gone, calls have no effect.
pub(crate) struct PeerHandler(Weak<Shared>);

impl PeerHandler {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self(Arc::downgrade(shared))
    }

    fn push(&self, input: Input) {
        if let Some(shared) = self.0.upgrade() {
            shared.inbox.push(input);
        }
    }
}

impl Handler for PeerHandler {
    fn received(&self, from: u64, group: GroupId, message: PeerMessage) {
        self.push(Input::Message { from, group, message });
    }

    fn lost(&self, peer: u64) {
        self.push(Input::PeerLost(peer));
    }

    fn snapshot_offered(&self, from: u64, stream: TcpStream) {
        if let Some(shared) = self.0.upgrade() {
            snapshots::receive(&shared, from, stream);
        }
    }

    fn join_asked(&self, mut stream: TcpStream) {
        let Some(shared) = self.0.upgrade() else { return };
        let peers = shared.members.lock().clone();
        if let Err(error) = join::answer(&mut stream, &peers) {
            tracing::warn!(%error, "answering a node that wants to join");
        }
    }

    fn is_removed(&self, peer: u64) -> bool {
        self.0.upgrade().is_some_and(|shared| shared.removed.lock().contains(&peer))
    }

    fn cast_out(&self, reason: &str) {
        if let Some(shared) = self.0.upgrade() {
            shared.cast_out(reason);
        }
    }
}
