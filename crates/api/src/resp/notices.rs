//! A connection's subscriptions: to what is said on channels (`channels.rs`), and to `__keyspace@0__:` channels, which the
//! watch hub feeds.
//!
//! As in Redis, nothing is kept for a client that is away, and a subscriber that falls behind the history
//! that is kept goes on from the newest state. An expired key is reported as `del`: history does not say why
//! a key was deleted.

use super::channels::{Channels, Kind, Listener, Overrun};
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
use std::sync::Arc;

/// Every channel that tells what happens to keys begins with this.
const CHANNELS: &[u8] = b"__keyspace@0__:";
/// Maximum channels and patterns of a connection.
pub(super) const SUBSCRIPTIONS_MAX: usize = 10_000;
/// Maximum bytes of their names.
pub(super) const SUBSCRIPTION_BYTES_MAX: usize = 16 << 20;

/// A connection's subscriptions.
#[derive(Default)]
pub(super) struct Notices {
    names: Names,
    /// Once there was a subscription.
    listener: Option<Listener>,
    watcher: Option<Watcher>,
    /// The subscriptions have changed, and are to be watched from here on.
    changed_from: Option<Revision>,
}

/// What a connection listens to.
#[derive(Default)]
struct Names {
    channels: BTreeSet<Bytes>,
    patterns: BTreeSet<Bytes>,
}

/// Why there are no more messages.
#[derive(Debug)]
pub(super) enum Ended {
    /// The node is stopping, or its store failed.
    Watch,
    /// The client did not keep up.
    Overrun,
}

impl From<WatchEnd> for Ended {
    fn from(_: WatchEnd) -> Self {
        Self::Watch
    }
}

impl From<Overrun> for Ended {
    fn from(_: Overrun) -> Self {
        Self::Overrun
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        let Some(listener) = &self.listener else { return };
        for kind in [Kind::Channel, Kind::Pattern] {
            self.names.of(kind).iter().for_each(|name| listener.unsubscribe(kind, name));
        }
    }
}

impl Notices {
    pub(super) fn count(&self) -> usize {
        self.names.channels.len() + self.names.patterns.len()
    }

    /// Bytes of the names of all subscriptions.
    pub(super) fn bytes(&self) -> usize {
        self.names.channels.iter().chain(&self.names.patterns).map(Bytes::len).sum()
    }

    /// What the connection listens to, in order.
    pub(super) fn names(&mut self, kind: Kind) -> Vec<Bytes> {
        self.names.of(kind).iter().cloned().collect()
    }

    /// Adds a subscription of the connection `id`.
    pub(super) fn subscribe(&mut self, channels: &Arc<Channels>, id: u64, kind: Kind, name: &Bytes) {
        // A copy: the name may be a slice of a large request.
        let name = Bytes::copy_from_slice(name);
        self.listener.get_or_insert_with(|| Listener::new(channels, id)).subscribe(kind, &name);
        self.names.of(kind).insert(name);
    }

    pub(super) fn unsubscribe(&mut self, kind: Kind, name: &Bytes) {
        if let Some(listener) = &self.listener {
            listener.unsubscribe(kind, name);
        }
        self.names.of(kind).remove(name);
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
            let interest = self.names.interest();
            self.watcher = (interest != Interest::default()).then(|| engine.hub().watch(interest, from));
        }
    }

    /// The next messages; never returns without a subscription.
    ///
    /// # Errors
    /// See [`Ended`].
    pub(super) async fn next(&mut self, engine: &Engine) -> Result<Vec<Reply>, Ended> {
        let Self { names, listener, watcher, .. } = self;
        let said = async {
            match listener {
                Some(listener) => listener.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            said = said => Ok(said?),
            told = names.told(watcher, engine) => Ok(told?),
        }
    }
}

impl Names {
    fn of(&mut self, kind: Kind) -> &mut BTreeSet<Bytes> {
        match kind {
            Kind::Channel => &mut self.channels,
            Kind::Pattern => &mut self.patterns,
        }
    }

    /// What of the keys they are about.
    fn interest(&self) -> Interest {
        let channels = self.channels.iter().filter_map(|channel| channel.strip_prefix(CHANNELS));
        let keys = channels.filter(|key| !key.is_empty()).map(|key| interest(key, b""));
        let patterns = self.patterns.iter().filter_map(|pattern| {
            let prefix = glob::literal_prefix(pattern);
            match prefix.strip_prefix(CHANNELS) {
                None if !CHANNELS.starts_with(prefix) => None,
                // A pattern with a wildcard within `__keyspace@0__:` is about all keys.
                None | Some([]) => Some(interest(b"\0", b"\0")),
                Some(prefix) => {
                    let end = prefix_end(prefix);
                    Some(interest(prefix, if end.is_empty() { b"\0" } else { &end }))
                }
            }
        });
        keys.chain(patterns).collect()
    }

    /// What happens to keys next; never returns without a watcher.
    async fn told(&self, watcher: &mut Option<Watcher>, engine: &Engine) -> Result<Vec<Reply>, WatchEnd> {
        let Some(watcher) = watcher else { std::future::pending().await };
        loop {
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
                    *watcher = engine.hub().watch(self.interest(), engine.hub().newest().next());
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
            let (mut notices, channels) = (Notices::default(), Channels::new(engine.messages()));
            let others = engine.hub().watchers();
            let put = async |key: &'static str| {
                let put = quoin_core::kv::Put { key: key.into(), ..Default::default() };
                engine.propose(quoin_core::kv::Operation::Put(put).into_command()).await.unwrap();
            };
            for key in ["a", "b", "c"] {
                let channel = [CHANNELS, key.as_bytes()].concat().into();
                notices.subscribe(&channels, 1, Kind::Channel, &channel);
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
            for channel in notices.names(Kind::Channel) {
                notices.unsubscribe(Kind::Channel, &channel);
            }
            notices.changed(&engine);
            notices.settle(&engine);
            assert_eq!((engine.hub().watchers(), told), (others, 3));
        });
    }
}
