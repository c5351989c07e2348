//! Channels: who listens to which at this node, and how what PUBLISH says comes to them.
//!
//! The log orders messages among themselves and with writes; each replica hands them to its own listeners once it has
//! applied them (`Messages` of the engine). A listener is told at most once: nothing is kept for one that is away, and one
//! that does not keep up is disconnected, so that it knows.
//!
//! **Invariant: Bounded.** At most [`INBOX_BYTES_MAX`] wait for a listener, and [`WAITING_BYTES_MAX`] for all.

use super::glob;
use super::reply::Reply;
use bytes::Bytes;
use parking_lot::Mutex;
use quoin_core::Message;
use quoin_engine::messages::{Messages, Waiting};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Maximum bytes of messages that wait for one listener.
const INBOX_BYTES_MAX: usize = 8 << 20;
/// Maximum bytes of messages that wait for listeners, counted for each of them.
const WAITING_BYTES_MAX: usize = 256 << 20;
/// What a message costs besides its bytes.
const OVERHEAD_BYTES: usize = 128;
/// After so many bytes a listener's other messages wait until these are written.
const TAKEN_BYTES: usize = 1 << 20;

/// The listeners of a node.
pub(super) struct Channels {
    messages: Arc<Messages>,
    listeners: Mutex<Listeners>,
    /// Subscriptions of all listeners.
    subscriptions: AtomicUsize,
    /// Bytes that wait in all inboxes.
    waiting_bytes: AtomicUsize,
}

#[derive(Default)]
struct Listeners {
    channels: HashMap<Bytes, Inboxes>,
    patterns: BTreeMap<Bytes, Inboxes>,
}

/// By the number of their connection.
type Inboxes = BTreeMap<u64, Arc<Inbox>>;

/// What a subscription names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Channel,
    Pattern,
}

/// Messages that wait for a connection.
#[derive(Default)]
struct Inbox {
    waiting: Mutex<Told>,
    arrived: Notify,
}

#[derive(Default)]
struct Told {
    /// Each with the pattern that it matched, if it came by one.
    messages: VecDeque<(Option<Bytes>, Message)>,
    bytes: usize,
    overrun: bool,
}

/// A connection that listens, or has listened.
pub(super) struct Listener {
    channels: Arc<Channels>,
    id: u64,
    inbox: Arc<Inbox>,
}

/// The listener did not keep up, and has missed something.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overrun;

impl Channels {
    pub(super) fn new(messages: &Arc<Messages>) -> Arc<Self> {
        Arc::new(Self {
            messages: Arc::clone(messages),
            listeners: Mutex::default(),
            subscriptions: AtomicUsize::new(0),
            waiting_bytes: AtomicUsize::new(0),
        })
    }

    /// Hands messages to listeners, without end.
    pub(super) async fn run(&self) {
        loop {
            self.hand_out(self.messages.next().await);
            // Others have their turn, however many messages there are.
            tokio::task::yield_now().await;
        }
    }

    fn hand_out(&self, Waiting { messages, lost, .. }: Waiting) {
        let listeners = self.listeners.lock();
        for message in messages {
            listeners.each_of(&message.channel, |pattern, inbox| {
                self.tell(inbox, pattern.cloned(), &message);
            });
        }
        if lost {
            let inboxes = listeners.channels.values().chain(listeners.patterns.values());
            inboxes.flat_map(BTreeMap::values).for_each(|inbox| self.overrun(inbox));
        }
    }

    fn tell(&self, inbox: &Inbox, pattern: Option<Bytes>, message: &Message) {
        let bytes = cost(pattern.as_ref(), message);
        let mut waiting = inbox.waiting.lock();
        if waiting.overrun {
            return;
        }
        let all = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        waiting.bytes += bytes;
        let too_many = waiting.bytes > INBOX_BYTES_MAX || all > WAITING_BYTES_MAX;
        waiting.messages.push_back((pattern, message.clone()));
        drop(waiting);
        if too_many {
            self.overrun(inbox);
        } else {
            inbox.arrived.notify_one();
        }
    }

    fn overrun(&self, inbox: &Inbox) {
        let mut waiting = inbox.waiting.lock();
        let lost = std::mem::take(&mut *waiting);
        waiting.overrun = true;
        drop(waiting);
        self.waiting_bytes.fetch_sub(lost.bytes, Ordering::Relaxed);
        inbox.arrived.notify_one();
    }

    /// How many subscriptions of this node a message on `channel` comes to.
    pub(super) fn count(&self, channel: &Bytes) -> usize {
        if self.subscriptions.load(Ordering::SeqCst) == 0 {
            return 0;
        }
        let mut count = 0;
        self.listeners.lock().each_of(channel, |_, _| count += 1);
        count
    }

    /// How many connections of this node listen to `channel` by its name.
    pub(super) fn subscribers(&self, channel: &Bytes) -> usize {
        self.listeners.lock().channels.get(channel).map_or(0, BTreeMap::len)
    }

    /// How many patterns connections of this node listen to.
    pub(super) fn patterns(&self) -> usize {
        self.listeners.lock().patterns.len()
    }

    /// The channels that connections of this node listen to by name and that `pattern` matches, in order; `None` if their
    /// names are more than `bytes_max` bytes.
    pub(super) fn names(&self, pattern: Option<&[u8]>, bytes_max: usize) -> Option<Vec<Bytes>> {
        let listeners = self.listeners.lock();
        let names = listeners.channels.keys();
        let names = names.filter(|name| pattern.is_none_or(|pattern| glob::matches(pattern, name)));
        let (mut found, mut bytes) = (Vec::new(), 0);
        for name in names {
            bytes += name.len();
            if bytes > bytes_max {
                return None;
            }
            found.push(name.clone());
        }
        found.sort_unstable();
        Some(found)
    }
}

impl Listeners {
    /// Calls `each` with each inbox that a message on `channel` comes to, and with the pattern that makes it come there.
    fn each_of(&self, channel: &Bytes, mut each: impl FnMut(Option<&Bytes>, &Inbox)) {
        let inboxes = self.channels.get(channel).into_iter().flat_map(BTreeMap::values);
        inboxes.for_each(|inbox| each(None, inbox));
        for (pattern, inboxes) in self.patterns.iter().filter(|(pattern, _)| glob::matches(pattern, channel))
        {
            inboxes.values().for_each(|inbox| each(Some(pattern), inbox));
        }
    }

    fn add(&mut self, kind: Kind, name: &Bytes, id: u64, inbox: &Arc<Inbox>) -> bool {
        let inboxes = match kind {
            Kind::Channel => self.channels.entry(name.clone()).or_default(),
            Kind::Pattern => self.patterns.entry(name.clone()).or_default(),
        };
        inboxes.insert(id, Arc::clone(inbox)).is_none()
    }

    fn remove(&mut self, kind: Kind, name: &Bytes, id: u64) -> bool {
        let inboxes = match kind {
            Kind::Channel => self.channels.get_mut(name),
            Kind::Pattern => self.patterns.get_mut(name),
        };
        let Some(inboxes) = inboxes else { return false };
        let was_there = inboxes.remove(&id).is_some();
        if inboxes.is_empty() {
            match kind {
                Kind::Channel => self.channels.remove(name),
                Kind::Pattern => self.patterns.remove(name),
            };
        }
        was_there
    }
}

impl Listener {
    /// Of the connection with this number.
    pub(super) fn new(channels: &Arc<Channels>, id: u64) -> Self {
        Self { channels: Arc::clone(channels), id, inbox: Arc::default() }
    }

    /// From now on messages come.
    pub(super) fn subscribe(&self, kind: Kind, name: &Bytes) {
        let mut listeners = self.channels.listeners.lock();
        if listeners.add(kind, name, self.id, &self.inbox)
            && self.channels.subscriptions.fetch_add(1, Ordering::SeqCst) == 0
        {
            self.channels.messages.want(true);
        }
    }

    /// Messages that wait already still come.
    pub(super) fn unsubscribe(&self, kind: Kind, name: &Bytes) {
        let mut listeners = self.channels.listeners.lock();
        if listeners.remove(kind, name, self.id)
            && self.channels.subscriptions.fetch_sub(1, Ordering::SeqCst) == 1
        {
            self.channels.messages.want(false);
        }
    }

    /// The next messages, as replies.
    ///
    /// # Errors
    /// The listener has missed some.
    pub(super) async fn next(&self) -> Result<Vec<Reply>, Overrun> {
        loop {
            let taken = self.take()?;
            if !taken.is_empty() {
                return Ok(taken);
            }
            // One that arrives meanwhile leaves a permit.
            self.inbox.arrived.notified().await;
        }
    }

    fn take(&self) -> Result<Vec<Reply>, Overrun> {
        let mut waiting = self.inbox.waiting.lock();
        if waiting.overrun {
            return Err(Overrun);
        }
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while bytes < TAKEN_BYTES {
            let Some((pattern, message)) = waiting.messages.pop_front() else { break };
            bytes += cost(pattern.as_ref(), &message);
            taken.push(reply(pattern, message));
        }
        waiting.bytes -= bytes;
        self.channels.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(taken)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let waiting = self.inbox.waiting.lock().bytes;
        self.channels.waiting_bytes.fetch_sub(waiting, Ordering::Relaxed);
    }
}

fn cost(pattern: Option<&Bytes>, Message { channel, payload }: &Message) -> usize {
    pattern.map_or(0, Bytes::len) + channel.len() + payload.len() + OVERHEAD_BYTES
}

fn reply(pattern: Option<Bytes>, Message { channel, payload }: Message) -> Reply {
    let said = [Reply::Bulk(channel), Reply::Bulk(payload)];
    Reply::Push(match pattern {
        None => [Reply::text("message")].into_iter().chain(said).collect(),
        Some(pattern) => [Reply::text("pmessage"), Reply::Bulk(pattern)].into_iter().chain(said).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(channel: &'static str, bytes: usize) -> Message {
        Message { channel: channel.into(), payload: vec![0; bytes].into() }
    }

    fn tell(channels: &Channels, message: &Message) {
        let listeners = channels.listeners.lock();
        listeners.each_of(&message.channel, |pattern, inbox| channels.tell(inbox, pattern.cloned(), message));
    }

    #[tokio::test]
    async fn a_listener_that_does_not_keep_up_is_told_and_takes_no_more_memory() {
        let channels = Channels::new(&Arc::default());
        let [slow, quick] = [1, 2].map(|id| Listener::new(&channels, id));
        for listener in [&slow, &quick] {
            listener.subscribe(Kind::Channel, &"c".into());
            listener.subscribe(Kind::Pattern, &"c*".into());
        }
        let large = message("c", INBOX_BYTES_MAX / 8);
        for _ in 0..5 {
            tell(&channels, &large);
            let mut came = 0;
            while came < 2 {
                came += quick.next().await.unwrap().len();
            }
        }
        assert_eq!(slow.next().await, Err(Overrun));
        assert_eq!(channels.waiting_bytes.load(Ordering::Relaxed), 0);
        for listener in [slow, quick] {
            for (kind, name) in [(Kind::Channel, "c"), (Kind::Pattern, "c*"), (Kind::Pattern, "absent")] {
                listener.unsubscribe(kind, &name.into());
            }
        }
        assert_eq!((channels.count(&"c".into()), channels.subscriptions.load(Ordering::Relaxed)), (0, 0));
    }

    #[tokio::test]
    async fn what_waits_for_all_listeners_is_bounded_and_given_back() {
        let channels = Channels::new(&Arc::default());
        let large = message("c", INBOX_BYTES_MAX - 1000);
        let count = WAITING_BYTES_MAX / INBOX_BYTES_MAX + 2;
        let listeners: Vec<_> = (0..count as u64).map(|id| Listener::new(&channels, id)).collect();
        listeners.iter().for_each(|listener| listener.subscribe(Kind::Channel, &"c".into()));
        tell(&channels, &large);
        assert!(channels.waiting_bytes.load(Ordering::Relaxed) <= WAITING_BYTES_MAX);
        let mut overrun = 0;
        for listener in &listeners[1..] {
            overrun += usize::from(listener.next().await.is_err());
        }
        assert!((1..=2).contains(&overrun), "{overrun}");
        drop(listeners);
        assert_eq!(channels.waiting_bytes.load(Ordering::Relaxed), 0);
    }
}
