//! Notices that keys have changed, for those who then read them.

use crate::error::Error;
use quoin_core::{Revision, kv};
use quoin_engine::Engine;
use quoin_engine::watch::{Interest, WatchEnd, Watcher};

/// A subscription to changes of a key or a range.
pub(crate) struct Changes {
    engine: Engine,
    interest: Interest,
    watcher: Watcher,
}

impl Changes {
    /// Changes of `key`, or of the range up to `range_end` in etcd's sense, from the revision `from` on.
    pub(crate) fn of(engine: &Engine, key: &[u8], range_end: &[u8], from: Revision) -> Self {
        let interest = interest(key, range_end);
        let watcher = engine.hub().watch(interest.clone(), from);
        Self { engine: engine.clone(), interest, watcher }
    }

    /// Waits for changes since the last call. Reads that follow see them.
    ///
    /// # Errors
    /// The node is stopping, or its store failed.
    pub(crate) async fn next(&mut self) -> Result<(), Error> {
        match self.watcher.next().await {
            Ok(_) => Ok(()),
            // Events were missed, so there were changes.
            Err(WatchEnd::Compacted { .. }) => {
                let hub = self.engine.hub();
                self.watcher = hub.watch(self.interest.clone(), hub.newest().next());
                Ok(())
            }
            Err(end) => Err(Error::from(end)),
        }
    }
}

/// The hub's interest for a key or a range in etcd's sense.
pub(crate) fn interest(key: &[u8], range_end: &[u8]) -> Interest {
    match kv::watch_bounds(key, range_end) {
        (from, Some(to)) => Interest::range(from, to),
        (key, None) => Interest::key(key),
    }
}
