//! To be told that something changed, for those who then look for themselves.

use crate::api::error;
use crate::engine::Engine;
use crate::watch::{Interest, WatchEnd, Watcher};
use quoin_core::{Revision, kv};
use tonic::Status;

/// Tells of changes of a key or a range.
pub(crate) struct Changes {
    engine: Engine,
    interest: Interest,
    watcher: Watcher,
}

impl Changes {
    /// Of `key`, or of the range to `range_end` as etcd means it, from revision `from` on.
    pub(crate) fn of(engine: &Engine, key: &[u8], range_end: &[u8], from: Revision) -> Self {
        let interest = interest(key, range_end);
        let watcher = engine.hub().watch(interest.clone(), from);
        Self { engine: engine.clone(), interest, watcher }
    }

    /// Returns when there were changes since the last time. What is read afterwards shows them.
    ///
    /// # Errors
    /// The node stops, or its store failed.
    pub(crate) async fn next(&mut self) -> Result<(), Status> {
        match self.watcher.next().await {
            Ok(_) => Ok(()),
            // Changes were missed, so there were some: that is all that is asked.
            Err(WatchEnd::Compacted { .. }) => {
                let hub = self.engine.hub();
                self.watcher = hub.watch(self.interest.clone(), hub.newest().next());
                Ok(())
            }
            Err(end) => Err(error::watch_end(end)),
        }
    }
}

/// A key or a range as etcd means it, as the hub knows it.
pub(crate) fn interest(key: &[u8], range_end: &[u8]) -> Interest {
    match kv::watch_bounds(key, range_end) {
        (from, Some(to)) => Interest::range(from, to),
        (key, None) => Interest::key(key),
    }
}
