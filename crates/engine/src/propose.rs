//! Commands on their way into the log: admitted, proposed, answered.
//!
//! **Invariant: Once (encoding).** The command's bytes pass through here as the adapter encoded them. Only
//! apply decodes them.

use super::admission::is_outdated;
use super::engine::Engine;
use super::input::Input;
use super::shared::Shared;
use quoin_consensus::replica::{Lost, Proposal};
use quoin_core::limits::ENCODING_BYTES_MAX;
use quoin_core::{Command, Reply};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Why a command has no reply.
///
/// **Invariant: Outcomes.** Every variant says whether the command was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Not done: too many commands are under way on this node, or on the leader.
    #[error("too many requests")]
    Busy,
    /// Not done: the cluster has no leader, or the leader is handing over.
    #[error("no leader")]
    NoLeader,
    /// Not done: the disk or the quota is full.
    #[error("database space exceeded")]
    NoSpace,
    /// Not done: larger than a command may be.
    #[error("request is too large: {bytes} bytes, at most {max}")]
    TooLarge {
        /// Bytes of the command.
        bytes: usize,
        /// Maximum bytes.
        max: usize,
    },
    /// Not done: a new leader's entry took its place.
    #[error("leader changed")]
    LeaderChanged,
    /// Perhaps done: the leader or the connection to it was lost before it answered.
    #[error("outcome unknown: the leader was lost before it answered")]
    Unknown,
    /// Not done: another configuration change is under way.
    #[error("configuration change refused: another one is under way")]
    Refused,
    /// Not done: users or roles have changed since the command was admitted.
    #[error("users or roles have changed while the request was under way; nothing was done, try again")]
    OldRevision,
    /// Perhaps done: this node is stopping.
    #[error("node is stopping")]
    Stopped,
}

/// A command's share of the bounds, given back when the command is answered, whether or not anybody waits for that:
/// until then it takes memory. A client that gives up and asks again while there is no leader would otherwise fill it.
struct Admission<'a> {
    shared: &'a Arc<Shared>,
    bytes: usize,
    /// The reply, until it has come.
    reply: Option<Answer>,
}

type Answer = oneshot::Receiver<Result<Reply, Lost>>;

impl Admission<'_> {
    /// Proposes `command`; returns what becomes of it.
    async fn ask(mut self, command: Command, input: fn(Proposal) -> Input) -> Result<Reply, ProposeError> {
        let (waiter, reply) = oneshot::channel();
        self.reply = Some(reply);
        self.shared.inbox.push(input(Proposal { command, waiter }));
        self.answer().await
    }

    /// What becomes of the command.
    async fn answer(mut self) -> Result<Reply, ProposeError> {
        let Some(reply) = &mut self.reply else { return Err(ProposeError::Stopped) };
        let outcome = reply.await;
        self.reply = None;
        answer(outcome)
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        let given_up = self.reply.take().zip(Handle::try_current().ok());
        let Some((reply, runtime)) = given_up else { return give_back(self.shared, self.bytes) };
        let (shared, bytes) = (Arc::clone(self.shared), self.bytes);
        runtime.spawn(async move {
            let _ = reply.await;
            give_back(&shared, bytes);
        });
    }
}

fn give_back(shared: &Shared, bytes: usize) {
    shared.in_flight.fetch_sub(1, Ordering::Relaxed);
    shared.in_flight_bytes.fetch_sub(bytes, Ordering::Relaxed);
}

impl Engine {
    /// Proposes `command` and waits until this replica has applied it; returns its reply.
    ///
    /// # Errors
    /// See [`ProposeError`]: each variant says whether the command was done.
    pub async fn propose(&self, command: Command) -> Result<Reply, ProposeError> {
        let command = self.shared.marked(command);
        let outcome = match self.admit(&command) {
            Ok(admission) => admission.ask(command, Input::Propose).await,
            Err(refused) => Err(refused),
        };
        self.count(&outcome);
        outcome
    }

    /// As [`Self::propose`], for a command that may take long to apply. One of this node goes at a time, and one of
    /// all nodes; in between the cluster is free for as long as the last one took. So other commands wait
    /// behind one of them at most.
    ///
    /// # Errors
    /// As [`Self::propose`].
    pub async fn propose_paced(&self, command: Command) -> Result<Reply, ProposeError> {
        let command = self.shared.marked(command);
        let outcome = match self.admit(&command) {
            Ok(admission) => {
                self.shared.metrics.commands_paced.inc();
                let _turn = self.shared.paced.lock().await;
                admission.ask(command, Input::ProposePaced).await
            }
            Err(refused) => Err(refused),
        };
        self.count(&outcome);
        outcome
    }

    /// As [`Self::propose`], whatever is under way and though this node's disk is full: for what whoever leads must
    /// know of this node.
    pub(crate) async fn propose_always(&self, command: Command) -> Result<Reply, ProposeError> {
        let (waiter, reply) = oneshot::channel();
        self.shared.inbox.push(Input::Propose(Proposal { command, waiter }));
        answer(reply.await)
    }

    /// As [`Self::propose`], for several commands. They go into the log in this order, usually in one entry.
    pub async fn propose_many(&self, commands: Vec<Command>) -> Vec<Result<Reply, ProposeError>> {
        let mut waiting = Vec::with_capacity(commands.len());
        let mut inputs = Vec::with_capacity(commands.len());
        for command in commands {
            let command = self.shared.marked(command);
            waiting.push(self.admit(&command).map(|mut admission| {
                let (waiter, reply) = oneshot::channel();
                admission.reply = Some(reply);
                inputs.push(Input::Propose(Proposal { command, waiter }));
                admission
            }));
        }
        self.shared.inbox.extend(inputs);
        let mut replies = Vec::with_capacity(waiting.len());
        for waiting in waiting {
            let outcome = match waiting {
                Ok(admission) => admission.answer().await,
                Err(refused) => Err(refused),
            };
            self.count(&outcome);
            replies.push(outcome);
        }
        replies
    }

    fn admit(&self, command: &Command) -> Result<Admission<'_>, ProposeError> {
        let shared = &self.shared;
        let limits = &shared.settings.limits;
        let (bytes, max) = (command.bytes.len(), limits.request_bytes_max + ENCODING_BYTES_MAX);
        if bytes > max {
            return Err(ProposeError::TooLarge { bytes, max });
        }
        if shared.disk_full.load(Ordering::Relaxed) {
            return Err(ProposeError::NoSpace);
        }
        let count = shared.in_flight.fetch_add(1, Ordering::Relaxed);
        let total = shared.in_flight_bytes.fetch_add(bytes, Ordering::Relaxed);
        let admission = Admission { shared, bytes, reply: None };
        // A command alone always goes: it would otherwise never.
        let full = total > 0 && total + bytes > limits.command_bytes_in_flight_max;
        if full || count >= limits.commands_in_flight_max {
            return Err(ProposeError::Busy);
        }
        Ok(admission)
    }

    fn count(&self, outcome: &Result<Reply, ProposeError>) {
        let metrics = &self.shared.metrics;
        let label = match outcome {
            Ok(_) => return metrics.commands_applied.inc(),
            Err(ProposeError::Busy) => "busy",
            Err(ProposeError::NoLeader) => "no_leader",
            Err(ProposeError::NoSpace) => "no_space",
            Err(ProposeError::TooLarge { .. }) => "too_large",
            Err(ProposeError::LeaderChanged) => "leader_changed",
            Err(ProposeError::Unknown) => "unknown",
            Err(ProposeError::Refused) => "refused",
            Err(ProposeError::OldRevision) => "old_revision",
            Err(ProposeError::Stopped) => "stopped",
        };
        metrics.commands.with_label_values(&[label]).inc();
    }
}

/// What a proposer is told, given what came of waiting for the reply.
pub(crate) fn answer(
    reply: Result<Result<Reply, Lost>, oneshot::error::RecvError>,
) -> Result<Reply, ProposeError> {
    match reply {
        Ok(Ok(reply)) if is_outdated(&reply) => Err(ProposeError::OldRevision),
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(Lost::NoLeader)) => Err(ProposeError::NoLeader),
        Ok(Err(Lost::Busy)) => Err(ProposeError::Busy),
        Ok(Err(Lost::Overwritten)) => Err(ProposeError::LeaderChanged),
        Ok(Err(Lost::Unknown)) => Err(ProposeError::Unknown),
        Ok(Err(Lost::Refused)) => Err(ProposeError::Refused),
        Err(_) => Err(ProposeError::Stopped),
    }
}
