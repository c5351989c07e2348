//! What other replicas, and nodes that want to join, ask of this one. Calls come from the transport's
//! threads.

use super::input::Input;
use super::shared::Shared;
use super::{files, founders, join, newcomers, snapshots};
use quoin_consensus::message::PeerMessage;
use quoin_consensus::transport::Handler;
use quoin_consensus::{GroupId, PeerStream};
use std::sync::{Arc, Weak};
use tokio::runtime::Handle;

/// The transport's way into the replica. Once the replica is gone, calls have no effect.
pub(crate) struct PeerHandler {
    shared: Weak<Shared>,
    /// Runs what takes a while. None in a simulation, whose connections ask for nothing that does.
    runtime: Option<Handle>,
}

impl PeerHandler {
    pub(crate) fn new(shared: &Arc<Shared>, runtime: Option<Handle>) -> Self {
        Self { shared: Arc::downgrade(shared), runtime }
    }

    /// The replica, if it takes part in its cluster.
    fn settled(&self) -> Option<Arc<Shared>> {
        self.shared.upgrade().filter(|shared| shared.is_settled())
    }

    fn push(&self, input: Input) {
        if let Some(shared) = self.shared.upgrade() {
            shared.inbox.push(input);
        }
    }
}

impl Handler for PeerHandler {
    fn received(&self, from: u64, group: GroupId, message: PeerMessage) {
        // Invariant: One disk per member. Before it is settled it has heard nothing.
        if let Some(shared) = self.settled() {
            shared.inbox.push(Input::Message { from, group, message });
        }
    }

    fn lost(&self, peer: u64) {
        self.push(Input::PeerLost(peer));
    }

    fn snapshot_offered(&self, from: u64, stream: PeerStream) {
        if let Some(shared) = self.settled() {
            snapshots::receive(&shared, from, stream);
        }
    }

    fn file_asked(&self, mut stream: PeerStream) {
        let Some(shared) = self.settled() else { return };
        if let Err(error) = files::lend(&shared, &mut stream) {
            tracing::debug!(%error, "lending a file to another replica");
        }
    }

    fn join_asked(&self, mut stream: PeerStream) {
        let (Some(shared), Some(runtime)) = (self.settled(), &self.runtime) else { return };
        if let Err(error) = join::answer(&shared, runtime, &mut stream) {
            tracing::warn!(%error, "answering a node that wants to join");
        }
    }

    fn founding_asked(&self, from: u64, disk: u64, mut stream: PeerStream) {
        let Some(shared) = self.shared.upgrade() else { return };
        if let Err(error) = founders::answer(&shared, from, disk, &mut stream) {
            tracing::warn!(%error, "answering a founder");
        }
    }

    fn name_of(&self, peer: u64) -> String {
        self.shared.upgrade().map_or_else(String::new, |shared| shared.name_of(peer))
    }

    fn is_other_disk(&self, peer: u64, disk: u64) -> bool {
        let known = self.shared.upgrade().and_then(|shared| shared.disks.lock().get(&peer).copied());
        known.is_some_and(|known| known != disk)
    }

    fn is_removed(&self, peer: u64) -> bool {
        self.shared.upgrade().is_some_and(|shared| shared.removed.lock().contains(&peer))
    }

    fn is_vouched_for(&self, peer: u64, address: &str) -> bool {
        self.settled().is_some_and(|shared| newcomers::ask_about(&shared, peer, address))
    }

    fn cast_out(&self, reason: &str) {
        if let Some(shared) = self.shared.upgrade() {
            shared.cast_out(reason);
        }
    }

    fn failed(&self, reason: &str) {
        if let Some(shared) = self.shared.upgrade() {
            shared.fail(&reason);
        }
    }
}
