//! What a replica asks of its driver, and who waits for what.

use crate::log::Record;
use crate::message::PeerMessage;
use bytes::Bytes;
use quoin_core::Command;
use tokio::sync::oneshot;

/// Why a command or a read got no reply.
///
/// **Invariant: Outcomes.** Every variant says whether the command was done. A caller may retry unless it is
/// [`Lost::Unknown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Not done: no leader took it.
    NoLeader,
    /// Not done: the leader's queue is full.
    Busy,
    /// Not done: it was proposed, and another entry took its place in the log.
    Overwritten,
    /// Unknown: it was sent, and may have been done or may still be.
    Unknown,
    /// Not done: the configuration cannot change now.
    Refused,
}

/// Waits for the reply to one command.
pub type Waiter = oneshot::Sender<Result<quoin_core::Reply, Lost>>;
/// Waits until the state is fresh enough to read. [`Lost::Unknown`]: a leader said how fresh that is, and this
/// replica does not come to it.
pub type ReadWaiter = oneshot::Sender<Result<(), Lost>>;

/// A command and who waits for its reply.
pub struct Proposal {
    /// The command, encoded.
    pub command: Command,
    /// Receives the reply.
    pub waiter: Waiter,
}

/// Waiters for commands of one entry. The applier answers them when it applies the entry at `index`.
pub struct Expectation {
    /// Index of the entry.
    pub index: u64,
    /// If the entry at `index` has another term, the commands were not done.
    pub term: u64,
    /// Position within the batch of the first waiter's command. The other waiters' commands follow it.
    pub position: u32,
    /// One waiter per command.
    pub waiters: Vec<Waiter>,
    /// The tick at which they began to wait.
    pub since_tick: u64,
}

/// Reads that may proceed once `index` is applied.
pub struct Barrier {
    /// The state must include this entry.
    pub index: u64,
    /// Told when it does.
    pub waiters: Vec<ReadWaiter>,
}

/// A committed entry, ready to be applied.
pub struct Committed {
    /// Index of the entry.
    pub index: u64,
    /// Term of the entry.
    pub term: u64,
    /// What to apply.
    pub content: Content,
}

/// What a committed entry holds.
pub enum Content {
    /// A [`quoin_core::Batch`], or no bytes: a leader opens its term with an empty entry.
    Batch(Bytes),
    /// A configuration change.
    Configuration {
        /// The configuration after the change, as [`Configuration::encode`](crate::Configuration::encode)
        /// writes it.
        configuration: Bytes,
        /// The change of the member list that goes with it.
        command: Option<Command>,
    },
}

/// Records to write with one sync, and messages to send after it. Then the driver calls
/// [`Replica::written`](super::Replica::written).
///
/// **Invariant: Durable before answered.** A vote, an acknowledgment or any other message that promises what
/// the records hold is in `messages`, and leaves only when the records are on disk.
pub struct Append {
    /// To be handed to [`Replica::written`](super::Replica::written).
    pub number: u64,
    /// What to write, in order.
    pub records: Vec<Record>,
    /// Messages with their recipients, to be sent once the records are on disk.
    pub messages: Vec<(u64, PeerMessage)>,
}

/// What the driver must do: take up `expectations` before it applies `committed`, and `barriers` after;
/// `install` a snapshot before it writes `append`. Appends are written in the order of their numbers.
/// `messages` may leave at any time.
#[derive(Default)]
pub struct Effects {
    /// Messages with their recipients, to be sent now.
    pub messages: Vec<(u64, PeerMessage)>,
    /// What to write.
    pub append: Option<Append>,
    /// For the applier, before any `committed` of this or later effects.
    pub expectations: Vec<Expectation>,
    /// Entries to apply, in order.
    pub committed: Vec<Committed>,
    /// For the applier, after `committed`.
    pub barriers: Vec<Barrier>,
    /// Followers that need a snapshot streamed to them.
    pub snapshots_wanted: Vec<u64>,
    /// Index and term of an offered snapshot that was accepted: its state must replace the store before
    /// `append` is written.
    pub install: Option<(u64, u64)>,
}

impl Effects {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.append.is_none()
            && self.expectations.is_empty()
            && self.committed.is_empty()
            && self.barriers.is_empty()
            && self.snapshots_wanted.is_empty()
            && self.install.is_none()
    }
}
