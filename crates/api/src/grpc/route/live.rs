//! The live events that all watchers of the same scopes share: taken from the hub and encoded once, and
//! forwarded by each watcher.
//!
//! **Invariant: No gap, no duplicate.** Batches cover the revisions in order and without gap, and
//! each names its last. A watcher that missed one (`Lagged`) goes back to history.
//!
//! Pace: the more watchers a feed has, the further apart its batches are, so that it sends about
//! [`MESSAGES_PER_SECOND`]. A single watcher gets events at once, a thousand every 25 milliseconds under
//! load.
//!
//! **Invariant: Bounded.** [`BATCHES_KEPT`] batches are kept for watchers that are a little behind. A feed
//! ends with its last watcher.

use super::encode::Encoder;
use bytes::Bytes;
use parking_lot::Mutex;
use quoin_core::route::Scope;
use quoin_core::{Event, StoreError};
use quoin_engine::watch::{Hub, Interest, WatchEnd, Watcher};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

/// Batches that a watcher may be behind before it goes back to history.
const BATCHES_KEPT: usize = 32;
/// Messages per second to all watchers of one feed together.
const MESSAGES_PER_SECOND: u32 = 40_000;
/// The largest distance between batches.
const SPACING_MAX: Duration = Duration::from_millis(100);
/// How often watchers learn the position while nothing happens.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// Encoded events. Those of each revision are a slice of `bytes`.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Encoded `Event`s, as fields of a `WatchResponse`.
    pub(super) bytes: Bytes,
    /// Revision and range of each event's bytes, in order.
    pub(super) events: Vec<(u64, Range<usize>)>,
    /// Everything of interest up to this revision is in this batch or an earlier one.
    pub(super) to: u64,
}

impl Batch {
    /// Encodes `events`.
    ///
    /// # Errors
    /// A record cannot be decoded.
    pub(super) fn of(events: &[Arc<Event>], to: u64) -> Result<Self, StoreError> {
        let mut encoder = Encoder::default();
        let mut places = Vec::with_capacity(events.len());
        for event in events {
            let from = encoder.out.len();
            encoder.event(event)?;
            places.push((event.revision.0, from..encoder.out.len()));
        }
        Ok(Self { bytes: encoder.take(), events: places, to })
    }

    /// The bytes of all events after `position`.
    pub(super) fn after(&self, position: u64) -> &[u8] {
        let first = self.events.partition_point(|(revision, _)| *revision <= position);
        let from = self.events.get(first).map_or(self.bytes.len(), |(_, place)| place.start);
        &self.bytes[from..]
    }
}

/// Receives a feed's batches. It is closed if the feed has failed; watchers learn the reason from history.
pub(super) type Feed = broadcast::Receiver<Arc<Batch>>;

type Sender = broadcast::Sender<Arc<Batch>>;

/// All feeds of a node, by scopes.
#[derive(Clone, Default)]
pub(super) struct Live {
    feeds: Arc<Mutex<HashMap<Vec<Scope>, Sender>>>,
}

impl Live {
    /// Joins the feed of `scopes`, or starts it. It has every event after the hub's newest revision at the
    /// time of the call.
    pub(super) fn join(&self, hub: &Arc<Hub>, scopes: &[Scope]) -> Feed {
        let mut feeds = self.feeds.lock();
        if let Some(feed) = feeds.get(scopes) {
            return feed.subscribe();
        }
        let (sender, receiver) = broadcast::channel(BATCHES_KEPT);
        feeds.insert(scopes.to_vec(), sender.clone());
        let watcher = hub.watch(interest(scopes), hub.newest().next());
        let (live, scopes) = (self.clone(), scopes.to_vec());
        tokio::spawn(async move {
            if let Err(end) = live.run(watcher, &sender, &scopes).await {
                tracing::debug!(%end, "a feed of rules has ended; its watchers go back to history");
            }
            live.feeds.lock().retain(|_, other| !other.same_channel(&sender));
        });
        receiver
    }

    async fn run(&self, mut watcher: Watcher, sender: &Sender, scopes: &[Scope]) -> Result<(), WatchEnd> {
        let mut quiet = interval(PROGRESS_PERIOD);
        quiet.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = 0;
        loop {
            tokio::select! {
                events = watcher.next() => {
                    let events = events?;
                    let begun = Instant::now();
                    told = events.last().map_or(told, |event| event.revision.0);
                    // This fails if no watcher is left, which the next tick notices.
                    let _ = sender.send(Arc::new(Batch::of(&events, told)?));
                    sleep_until(begun + spacing(sender.receiver_count())).await;
                }
                _ = quiet.tick() => {
                    if self.leave(sender, scopes) {
                        return Ok(());
                    }
                    let to = watcher.position().0;
                    if to > told {
                        told = to;
                        // As above.
                        let _ = sender.send(Arc::new(Batch { to, ..Batch::default() }));
                    }
                }
            }
        }
    }

    /// Removes the feed if it has no watcher left.
    fn leave(&self, sender: &Sender, scopes: &[Scope]) -> bool {
        let mut feeds = self.feeds.lock();
        // Nobody joins while the lock is held.
        let unheard = sender.receiver_count() == 0;
        if unheard {
            feeds.remove(scopes);
        }
        unheard
    }
}

fn spacing(watchers: usize) -> Duration {
    let watchers = u32::try_from(watchers).unwrap_or(u32::MAX);
    // A few watchers need no pace: the hub gathers events while it sends to them.
    if watchers < 32 {
        Duration::ZERO
    } else {
        (Duration::from_secs(1) * watchers / MESSAGES_PER_SECOND).min(SPACING_MAX)
    }
}

/// The hub's interest for `scopes`.
pub(super) fn interest(scopes: &[Scope]) -> Interest {
    scopes.iter().map(|scope| Interest::prefix(scope.prefix().into())).collect()
}
