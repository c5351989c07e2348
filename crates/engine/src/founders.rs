//! How founders agree that a cluster begins, once.
//!
//! **Invariant: One disk per member.** A replica votes and acknowledges only from a disk that the others
//! know for its member. A founder with an empty disk cannot know whether it is new or has lost what it
//! had. So it takes no part before every other founder has answered it, over a connection greeted with
//! [`Purpose::Found`], that it has not taken part itself, or that it knows this very disk from its own
//! questions. Whoever once had a vote or an acknowledgment of the member from another disk has taken
//! part, and does not know this one: then the member is told to end. A member that is added later claims
//! its disk through the log before it starts: see `join.rs`.
//!
//! The question is the greeting, which names member and disk. The answer is an [`Answer`] in JSON.
//!
//! What it does not do: keep a majority from going on. Once a founder has had all answers it never asks
//! again.

use super::join::{read_sized, write_sized};
use super::owner::Settle;
use super::shared::Shared;
use quoin_consensus::greeting::{DialError, Purpose};
use quoin_consensus::{PeerStream, mutants};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// The pause between two rounds of questions: founders start when they like.
const PAUSE: Duration = Duration::from_millis(200);
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What a founder says to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The disk of the one who answers.
    disk: u64,
    standing: Standing,
}

/// How far the one who answers is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Standing {
    /// It has not taken part yet.
    Fresh,
    /// It has, and knows the disk of the one who asks.
    Known,
    /// It has, and does not.
    Past,
}

/// The questions of a founder that starts for the first time.
pub(crate) struct Founders {
    /// The other founders.
    others: BTreeSet<u64>,
    settle: Option<Settle>,
    /// The disks of those who have answered.
    disks: BTreeMap<u64, u64>,
}

impl Founders {
    /// The other founders, and what is called once all of them have answered.
    pub(crate) fn new(others: BTreeSet<u64>, settle: Settle) -> Self {
        Self { others, settle: Some(settle), disks: BTreeMap::new() }
    }

    /// Asks until all others have answered, or until `stopped`.
    pub(crate) fn ask(mut self, shared: &Arc<Shared>, stopped: &Receiver<()>) {
        let mut told = String::new();
        while let Some(text) = self.round(shared, |id| ask(shared, id)) {
            if text != told {
                tracing::info!(
                    missing = text,
                    "waiting for the other founders: the cluster begins once all have answered"
                );
                told = text;
            }
            if stopped.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Asks those who have not answered. `None` if there is nobody left to ask: the replica takes part, or was
    /// told that it must not. Else who is missing, and why.
    pub(crate) fn round(
        &mut self,
        shared: &Shared,
        ask: impl Fn(u64) -> Result<Answer, DialError>,
    ) -> Option<String> {
        let mut missing = Vec::new();
        let unasked: Vec<u64> =
            self.others.iter().filter(|id| !self.disks.contains_key(id)).copied().collect();
        for id in unasked.into_iter().filter(|_| !mutants::is("founder-unasked")) {
            match ask(id) {
                Ok(Answer { standing: Standing::Past, .. }) => {
                    shared.cast_out(&past(shared));
                    return None;
                }
                Ok(Answer { disk, .. }) => {
                    self.disks.insert(id, disk);
                }
                Err(DialError::Refused { text, forever: true }) => {
                    shared.cast_out(&text);
                    return None;
                }
                Err(error) => missing.push(format!("{id:016x}: {error}")),
            }
        }
        if !missing.is_empty() {
            return Some(missing.join("; "));
        }
        if let Some(settle) = self.settle.take() {
            shared.settle(std::mem::take(&mut self.disks), settle);
        }
        None
    }
}

/// Asks `founder`.
fn ask(shared: &Shared, founder: u64) -> Result<Answer, DialError> {
    let mut stream = shared.transport().dial(founder, Purpose::Found)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(serde_json::from_slice(&read_sized(&mut stream)?).map_err(io::Error::from)?)
}

/// Answers a founder that asks from `disk`.
///
/// # Errors
/// The connection broke.
pub(crate) fn answer(shared: &Shared, from: u64, disk: u64, stream: &mut PeerStream) -> io::Result<()> {
    write_sized(stream, &serde_json::to_vec(&answer_to(shared, from, disk))?)
}

/// The answer to a founder that asks from `disk`.
pub(crate) fn answer_to(shared: &Shared, from: u64, disk: u64) -> Answer {
    // Whoever has taken part once always has: a standing that changes meanwhile was true when it was read.
    let standing = if !shared.is_settled() {
        Standing::Fresh
    } else if shared.disks.lock().get(&from) == Some(&disk) {
        Standing::Known
    } else {
        Standing::Past
    };
    Answer { disk: shared.disk, standing }
}

fn past(shared: &Shared) -> String {
    format!(
        "the cluster is already bootstrapped, and its founder {:016x} starts with an empty data folder: what \
        it voted and acknowledged is not here. Put the old data folder back, or delete this one, remove \
        the member and add it anew (quoin cluster add), and then start it with --join",
        shared.id
    )
}
