//! A connection's subscriptions to `__keyspace@0__:` channels, fed by the watch hub.
//!
//! As in Redis, nothing is kept for a client that is away, and a subscriber that falls behind the history
//! that is kept goes on from the newest state. An expired key is reported as `del`: history does not say why
//! a key was deleted.

use super::glob;
use super::reply::Reply;
use crate::changes::interest;
use bytes::Bytes;
use quoin_core::kv::change_to_key_value;
use quoin_core::store::prefix_end;
use quoin_engine::Engine;
use quoin_engine::watch::{Interest, WatchEnd, Watcher};
use std::collections::BTreeSet;

/// Every channel begins with this.
pub(super) const CHANNELS: &[u8] = b"__keyspace@0__:";
/// Maximum channels and patterns of a connection.
pub(super) const SUBSCRIPTIONS_MAX: usize = 10_000;
/// Maximum bytes of their names.
pub(super) const SUBSCRIPTION_BYTES_MAX: usize = 16 << 20;

/// A connection's subscriptions.
#[derive(Default)]
pub(super) struct Notices {
    pub(super) channels: BTreeSet<Bytes>,
    pub(super) patterns: BTreeSet<Bytes>,
    watcher: Option<Watcher>,
}

impl Notices {
    pub(super) fn count(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    /// Bytes of the names of all subscriptions.
    pub(super) fn bytes(&self) -> usize {
        self.channels.iter().chain(&self.patterns).map(Bytes::len).sum()
    }

    /// To be called after the subscriptions have changed. Messages that are not sent yet are not lost.
    pub(super) fn changed(&mut self, engine: &Engine) {
        let from = self.watcher.as_ref().map_or_else(|| engine.hub().newest(), Watcher::position).next();
        self.watcher = (self.count() > 0).then(|| engine.hub().watch(self.interest(), from));
    }

    fn interest(&self) -> Interest {
        let channels = self.channels.iter().filter_map(|channel| channel.strip_prefix(CHANNELS));
        let keys = channels.filter(|key| !key.is_empty()).map(|key| interest(key, b""));
        let patterns = self.patterns.iter().map(|pattern| {
            // A pattern with a wildcard within `__keyspace@0__:` is about all keys.
            let prefix = glob::literal_prefix(pattern).strip_prefix(CHANNELS).unwrap_or_default();
            match prefix {
                [] => interest(b"\0", b"\0"),
                prefix => {
                    let end = prefix_end(prefix);
                    interest(prefix, if end.is_empty() { b"\0" } else { &end })
                }
            }
        });
        keys.chain(patterns).fold(Interest::default(), Interest::and)
    }

    /// The next messages; never returns without a subscription.
    ///
    /// # Errors
    /// The node is stopping, or its store failed.
    pub(super) async fn next(&mut self, engine: &Engine) -> Result<Vec<Reply>, WatchEnd> {
        loop {
            let Some(watcher) = &mut self.watcher else { std::future::pending().await };
            match watcher.next().await {
                Ok(events) => {
                    let mut messages = Vec::new();
                    for event in events {
                        for change in &event.changes {
                            if let Some(kv) = change_to_key_value(change, event.revision)? {
                                self.tell(&kv.key, change.value.is_some(), &mut messages);
                            }
                        }
                    }
                    return Ok(messages);
                }
                Err(WatchEnd::Compacted { .. }) => {
                    self.watcher = Some(engine.hub().watch(self.interest(), engine.hub().newest().next()));
                }
                Err(end) => return Err(end),
            }
        }
    }

    fn tell(&self, key: &Bytes, written: bool, messages: &mut Vec<Reply>) {
        let channel = Bytes::from([CHANNELS, key].concat());
        let what = || Reply::text(if written { "set" } else { "del" });
        if self.channels.contains(&channel) {
            messages.push(Reply::Push(vec![Reply::text("message"), Reply::Bulk(channel.clone()), what()]));
        }
        for pattern in self.patterns.iter().filter(|pattern| glob::matches(pattern, &channel)) {
            let (pattern, channel) = (Reply::Bulk(pattern.clone()), Reply::Bulk(channel.clone()));
            messages.push(Reply::Push(vec![Reply::text("pmessage"), pattern, channel, what()]));
        }
    }
}
