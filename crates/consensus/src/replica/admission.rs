//! What a peer's message must be before the consensus library sees it.
//!
//! **Invariant: Checked messages.** The library trusts its caller: a message that no replica would send makes it
//! panic, or damages its log. So a message is stepped only if its shape, its sender, its addressee, its term and
//! its indexes are such as this replica could be sent now; no bytes of a peer can make the library panic.
//!
//! What this does not do: catch a member that lies plausibly. Raft trusts its members.

use super::changes;
use crate::configuration::Configuration;
use crate::storage::Storage;
use quoin_core::Batch;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use raft::{Raft, StateRole};

/// Terms by which a message may be ahead of this replica: more elections than a replica can have missed, and
/// few enough that no message brings the terms near their end.
const TERMS_AHEAD_MAX: u64 = 1 << 32;
/// Terms and indexes stay below this, so the library can add to them.
const NUMBER_MAX: u64 = 1 << 62;
/// Maximum bytes of what tells read rounds apart.
const CONTEXT_BYTES_MAX: usize = 64;
/// Maximum rounds of other replicas that a leader holds. More are dropped; their replicas ask again.
const ROUNDS_MAX: usize = 1024;

/// Why a message is not stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It comes too late, or this replica cannot serve it now. That happens.
    Untimely,
    /// No replica of this version sends it, for this reason.
    Malformed(&'static str),
}

use Refusal::{Malformed, Untimely};

/// Whether `message`, which came on a connection of the member `sender`, may be stepped.
pub(super) fn check(raft: &Raft<Storage>, sender: u64, message: &Message) -> Result<(), Refusal> {
    check_ends(raft.id, sender, message)?;
    check_shape(message)?;
    check_term(raft.term, message)?;
    // The library answers or drops messages of earlier terms, and looks at nothing else in them.
    if message.term != 0 && message.term < raft.term {
        return Ok(());
    }
    let current = message.term == raft.term;
    let leads = raft.state == StateRole::Leader;
    match message.get_msg_type() {
        MessageType::MsgAppend => {
            check_is_leader(raft, message)?;
            check_entries(message)
        }
        MessageType::MsgHeartbeat => {
            check_is_leader(raft, message)?;
            let past_the_end = message.commit > raft.raft_log.last_index();
            ensure(!past_the_end, "a heartbeat that commits what this replica has not got")
        }
        MessageType::MsgReadIndexResp => check_is_leader(raft, message),
        MessageType::MsgAppendResponse if leads && current => {
            let last = raft.raft_log.last_index();
            ensure(message.index <= last, "an answer to an append beyond this leader's log")?;
            ensure(message.reject_hint <= last, "a hint beyond this leader's log")
        }
        // It is answered when all of the log is on disk.
        MessageType::MsgTimeoutNow => timely(current && raft.leader_id == sender),
        MessageType::MsgTransferLeader => timely(current && leads),
        MessageType::MsgReadIndex => timely(raft.read_only.pending_read_count() < ROUNDS_MAX),
        _ => Ok(()),
    }
}

/// Whether the state of a snapshot is one that a leader could have sent: its configuration is restored without
/// another check.
///
/// # Errors
/// What is wrong with it.
pub(super) fn check_snapshot(
    raft: &Raft<Storage>,
    index: u64,
    term: u64,
    configuration: &Configuration,
) -> Result<(), &'static str> {
    let newest = newest_term(raft.term);
    let numbers = index != 0 && index < NUMBER_MAX && term != 0 && term <= newest;
    match configuration.is_valid() {
        _ if !numbers => Err("a snapshot of an impossible entry"),
        false => Err("a snapshot with an impossible configuration"),
        true => Ok(()),
    }
}

/// The sender speaks for itself, to this replica. Two kinds may be passed on by a replica that does not lead
/// (any more): they name who asked, or who is to lead.
fn check_ends(id: u64, sender: u64, message: &Message) -> Result<(), Refusal> {
    ensure(message.to == id, "a message for another member")?;
    ensure(sender != 0 && sender != id, "a message from nobody, or from this replica")?;
    match message.get_msg_type() {
        MessageType::MsgReadIndex => timely(message.from != 0 && message.from != id),
        MessageType::MsgTransferLeader => ensure(message.from != 0, "a transfer to nobody"),
        _ => ensure(message.from == sender, "a message in another member's name"),
    }
}

/// What each kind carries, and nothing else.
fn check_shape(message: &Message) -> Result<(), Refusal> {
    let numbers = [message.index, message.commit, message.reject_hint, message.log_term, message.commit_term];
    ensure(numbers.iter().all(|number| *number < NUMBER_MAX), "a number that is too large")?;
    ensure(message.context.len() <= CONTEXT_BYTES_MAX, "a context that is too long")?;
    ensure(message.request_snapshot == 0, "a request for a snapshot")?;
    ensure(!message.has_snapshot(), "a snapshot's mark in a message")?;
    match message.get_msg_type() {
        MessageType::MsgAppend => Ok(()),
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => match message.get_entries() {
            [Entry { data, context, .. }] => {
                let short = data.len() <= CONTEXT_BYTES_MAX && context.is_empty();
                ensure(short, "a read round's context that is too long")
            }
            _ => Err(Malformed("a read round without a context, or with several")),
        },
        MessageType::MsgAppendResponse
        | MessageType::MsgHeartbeat
        | MessageType::MsgHeartbeatResponse
        | MessageType::MsgRequestVote
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse
        | MessageType::MsgTransferLeader
        | MessageType::MsgTimeoutNow => ensure(message.entries.is_empty(), "entries outside an append"),
        MessageType::MsgSnapshot
        | MessageType::MsgPropose
        | MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum => Err(Malformed("a kind that no replica sends")),
    }
}

/// A term of 0 marks what is local to the library. Only a read round has none on its way to the leader.
fn check_term(own: u64, message: &Message) -> Result<(), Refusal> {
    if message.get_msg_type() == MessageType::MsgReadIndex {
        return ensure(message.term == 0, "a read round with a term");
    }
    ensure(message.term != 0, "a message without a term")?;
    ensure(message.term <= newest_term(own), "a term that is too far ahead")?;
    // Heartbeats and their answers carry times in these fields (`freshness.rs`).
    let beats =
        matches!(message.get_msg_type(), MessageType::MsgHeartbeat | MessageType::MsgHeartbeatResponse);
    let entries_term = message.log_term.max(message.commit_term);
    ensure(beats || entries_term <= message.term, "an entry of a later term than its sender's")
}

fn newest_term(own: u64) -> u64 {
    own.saturating_add(TERMS_AHEAD_MAX).min(NUMBER_MAX)
}

/// A term has one leader.
fn check_is_leader(raft: &Raft<Storage>, message: &Message) -> Result<(), Refusal> {
    let another = message.term == raft.term && raft.leader_id != 0 && raft.leader_id != message.from;
    ensure(!another, "a second leader in one term")
}

/// The entries follow one another and the entry before them, and can be applied by a replica of this version.
fn check_entries(message: &Message) -> Result<(), Refusal> {
    // The library takes an entry that it has not got for one of term 0.
    ensure(message.log_term != 0 || message.index == 0, "an append after an entry without a term")?;
    let mut term = message.log_term.max(1);
    for (entry, index) in message.entries.iter().zip(message.index + 1..) {
        ensure(entry.index == index, "an entry out of order")?;
        ensure((term..=message.term).contains(&entry.term), "an entry of a term that does not follow")?;
        term = entry.term;
        let readable = match entry.get_entry_type() {
            EntryType::EntryNormal => entry.data.is_empty() || Batch::check(&entry.data).is_ok(),
            EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                changes::decode(&entry.context).is_some()
            }
        };
        ensure(readable, "an entry that cannot be decoded")?;
    }
    Ok(())
}

/// Whether the library knows that all entries are on disk.
pub(super) fn is_persisted(raft: &Raft<Storage>) -> bool {
    raft.raft_log.persisted == raft.raft_log.last_index()
}

fn ensure(holds: bool, otherwise: &'static str) -> Result<(), Refusal> {
    if holds { Ok(()) } else { Err(Malformed(otherwise)) }
}

fn timely(holds: bool) -> Result<(), Refusal> {
    if holds { Ok(()) } else { Err(Untimely) }
}
