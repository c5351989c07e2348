//! What hub and watcher share.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use tokio::sync::Notify;

/// The first revision of interest that the watcher has not seen, 0 for none.
#[derive(Default)]
pub(super) struct Mark {
    revision: AtomicU64,
    /// The revision was set, or the watch is over.
    pub(super) changed: Notify,
}

impl Mark {
    /// Sets the revision, unless an older one stands.
    pub(super) fn set(&self, revision: u64) {
        // An error: an older one stands.
        let _ = self
            .revision
            .fetch_update(SeqCst, SeqCst, |stands| (stands == 0 || revision < stands).then_some(revision));
    }

    pub(super) fn get(&self) -> u64 {
        self.revision.load(SeqCst)
    }

    /// Clears the revision and returns it.
    pub(super) fn take(&self) -> u64 {
        self.revision.swap(0, SeqCst)
    }
}
