//! What all watchers of the same groups share: their events are taken from the hub and encoded once, and each watcher
//! forwards the same bytes.
//!
//! **Invariant (order).** Batches cover the revisions without gap, in order; each says up to where it goes. Who missed
//! one (`Lagged`) goes back to history.
//!
//! **Pace.** The more watchers a feed has, the further apart its batches are, so that the messages sent by a node stay
//! about [`MESSAGES_PER_SECOND`]: a lone watcher is told at once, a thousand every ten milliseconds under load.
//!
//! **Bounds.** Batches kept for those who are a little behind; a feed ends with its last watcher.

use super::encode::Encoder;
use crate::watch::{Hub, Interest, WatchEnd, Watcher};
use bytes::Bytes;
use parking_lot::Mutex;
use quoin_core::route::Scope;
use quoin_core::{Event, StoreError};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

/// Batches that a watcher may be behind before it goes back to history.
const BATCHES_KEPT: usize = 32;
/// Messages per second that the watchers of one feed are sent together, about.
const MESSAGES_PER_SECOND: u32 = 100_000;
/// Batches are never further apart than this.
const SPACING_MAX: Duration = Duration::from_millis(100);
/// How often watchers learn up to where nothing happened.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// Events, encoded: each revision's are a slice of `bytes`.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Encoded `Event`s, as they stand in a `WatchResponse`.
    pub(super) bytes: Bytes,
    /// Revision and place of each event's bytes, in order.
    pub(super) events: Vec<(u64, Range<usize>)>,
    /// Everything of interest up to here is in this batch or in one before.
    pub(super) to: u64,
}

impl Batch {
    /// Encodes `events`.
    ///
    /// # Errors
    /// A record is not of this version.
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

/// What a feed sends; `None` when it can no longer go on: its watchers find out why by themselves.
pub(super) type Feed = broadcast::Receiver<Arc<Batch>>;

type Sender = broadcast::Sender<Arc<Batch>>;

/// All feeds of a node, by what they watch.
#[derive(Clone, Default)]
pub(super) struct Live {
    feeds: Arc<Mutex<HashMap<Vec<Scope>, Sender>>>,
}

impl Live {
    /// Joins the feed of `scopes`, which is started if there is none. It holds every event after the hub's newest revision at
    /// the time of the call, or earlier.
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
                tracing::debug!(%end, "a feed of rules ended; its watchers go on by themselves");
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
                    // Nobody left is found out by the next tick.
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

    /// Takes the feed from the list where nobody listens any more.
    fn leave(&self, sender: &Sender, scopes: &[Scope]) -> bool {
        let mut feeds = self.feeds.lock();
        // Under the lock nobody joins.
        let unheard = sender.receiver_count() == 0;
        if unheard {
            feeds.remove(scopes);
        }
        unheard
    }
}

fn spacing(watchers: usize) -> Duration {
    let watchers = u32::try_from(watchers).unwrap_or(u32::MAX);
    // A few watchers need no pace: the hub gathers what happens while they are told.
    if watchers < 32 {
        Duration::ZERO
    } else {
        (Duration::from_secs(1) * watchers / MESSAGES_PER_SECOND).min(SPACING_MAX)
    }
}

/// What the hub is asked for.
pub(super) fn interest(scopes: &[Scope]) -> Interest {
    scopes
        .iter()
        .fold(Interest::default(), |interest, scope| interest.and(Interest::prefix(scope.prefix().into())))
}
