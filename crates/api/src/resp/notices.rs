//! A connection's subscriptions to `__keyspace@0__:` channels, fed by the watch hub.
//!
//! As in Redis, nothing is kept for a client that is away, and a subscriber that falls behind the history
//! that is kept goes on from the newest state. An expired key is reported as `del`: history does not say why
//! a key was deleted.

use super::glob;
use super::reply::Reply;
use crate::changes::interest;
use bytes::Bytes;
use quoin_core::Revision;
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
    /// The subscriptions have changed, and are to be watched from here on.
    changed_from: Option<Revision>,
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
        let position = || self.watcher.as_ref().map_or_else(|| engine.hub().newest(), Watcher::position);
        self.changed_from = Some(self.changed_from.unwrap_or_else(|| position().next()));
    }

    /// Watches what is subscribed to since the last call: all changes of a round together, for each costs as much
    /// as there are subscriptions.
    pub(super) fn settle(&mut self, engine: &Engine) {
        if let Some(from) = self.changed_from.take() {
            self.watcher = (self.count() > 0).then(|| engine.hub().watch(self.interest(), from));
        }
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
        keys.chain(patterns).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::alone;

    /// 10,000 subscriptions, one by one, were registered 10,000 times over, which held up whoever told watchers.
    #[test]
    fn subscriptions_of_a_round_are_watched_together_and_from_the_first_on() {
        alone(|engine| async move {
            let mut notices = Notices::default();
            let others = engine.hub().watchers();
            let put = async |key: &'static str| {
                let put = quoin_core::kv::Put { key: key.into(), ..Default::default() };
                engine.propose(quoin_core::kv::Operation::Put(put).into_command()).await.unwrap();
            };
            for key in ["a", "b", "c"] {
                notices.channels.insert([CHANNELS, key.as_bytes()].concat().into());
                notices.changed(&engine);
                put(key).await;
                assert_eq!(engine.hub().watchers(), others);
            }
            notices.settle(&engine);
            assert_eq!(engine.hub().watchers(), others + 1);
            let mut told = 0;
            while told < 3 {
                told += notices.next(&engine).await.unwrap().len();
            }
            notices.channels.clear();
            notices.changed(&engine);
            notices.settle(&engine);
            assert_eq!((engine.hub().watchers(), told), (others, 3));
        });
    }
}
