//! Messages, records and effects in few words.

use crate::configuration::{Change, Configuration};
use crate::entries::from_library;
use crate::log::{Entry, EntryKind, Record};
use crate::message::{ForwardOutcome, PeerMessage, RaftMessage};
use crate::replica::{Content, Lost, changes};
use quoin_core::{Batch, Command};
use raft::eraftpb::{self, MessageType};
use std::collections::BTreeSet;

pub(super) fn message(message: &PeerMessage) -> String {
    match message {
        PeerMessage::Raft(RaftMessage(message)) => raft_message(message),
        PeerMessage::Forward { request, commands, paced } => {
            let kind = if *paced { "paced forward" } else { "forward" };
            format!("{kind} #{request} {}", names(commands))
        }
        PeerMessage::ForwardReply { request, outcome } => format!("forward #{request} {}", fate(*outcome)),
    }
}

fn fate(outcome: ForwardOutcome) -> String {
    match outcome {
        ForwardOutcome::Proposed { index, term, position } => {
            format!("proposed at {index}@{term} from position {position}")
        }
        ForwardOutcome::NotLeader => "refused: not the leader".into(),
        ForwardOutcome::Busy => "refused: busy".into(),
    }
}

fn raft_message(message: &eraftpb::Message) -> String {
    let eraftpb::Message { term, index, log_term, commit, reject, reject_hint, .. } = message;
    let yes_no = if *reject { "no" } else { "yes" };
    let round = if message.context.is_empty() {
        String::new()
    } else {
        format!(", round {}", read_round(&message.context))
    };
    let asked = || message.entries.iter().map(|entry| read_round(&entry.data)).collect::<String>();
    match message.get_msg_type() {
        MessageType::MsgAppend => {
            let entries = message.entries.iter().map(raft_entry).collect::<Vec<_>>().join(", ");
            let entries = if entries.is_empty() { "nothing".into() } else { entries };
            format!("append {entries} after {index}@{log_term}, term {term} commit {commit}")
        }
        MessageType::MsgAppendResponse if *reject => {
            format!("append after {index} refused, try {reject_hint}@{log_term}, term {term}")
        }
        MessageType::MsgAppendResponse => format!("appended up to {index}, term {term}"),
        MessageType::MsgRequestPreVote => format!("pre-vote for term {term}? log ends {index}@{log_term}"),
        MessageType::MsgRequestPreVoteResponse => format!("pre-vote {yes_no}, term {term}"),
        MessageType::MsgRequestVote => {
            let forced = if message.context.is_empty() { "" } else { ", transfer" };
            format!("vote for term {term}? log ends {index}@{log_term}{forced}")
        }
        MessageType::MsgRequestVoteResponse => format!("vote {yes_no}, term {term}"),
        MessageType::MsgHeartbeat => format!("heartbeat, term {term} commit {commit}{round}"),
        MessageType::MsgHeartbeatResponse => format!("heartbeat answer, term {term}{round}"),
        MessageType::MsgReadIndex => format!("read index? round {}", asked()),
        MessageType::MsgReadIndexResp => format!("read index {index}, term {term}, round {}", asked()),
        MessageType::MsgTimeoutNow => format!("campaign now, term {term}"),
        MessageType::MsgTransferLeader => format!("hand over to {}", message.from),
        other => format!("{other:?}"),
    }
}

/// Who began a read round, and its number.
fn read_round(context: &[u8]) -> String {
    let numbers = context.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
    numbers.map(|number| number.to_string()).collect::<Vec<_>>().join("/")
}

fn raft_entry(raft: &eraftpb::Entry) -> String {
    entry(&from_library(raft.clone()))
}

/// `3@2 [a b]`.
pub(super) fn entry(entry: &Entry) -> String {
    let content = match entry.kind {
        EntryKind::Normal => batch(&entry.data),
        EntryKind::ConfChange | EntryKind::ConfChangeV2 => {
            show_changes(&changes::decode(&entry.context).unwrap().0)
        }
    };
    format!("{}@{} {content}", entry.index, entry.term)
}

fn show_changes(changes: &[Change]) -> String {
    if changes.is_empty() {
        return "[leave joint]".into();
    }
    let changes = changes.iter().map(|change| match change {
        Change::AddVoter(id) => format!("add-voter {id}"),
        Change::Remove(id) => format!("remove {id}"),
        Change::AddLearner(id) => format!("add-learner {id}"),
    });
    format!("[{}]", changes.collect::<Vec<_>>().join(" "))
}

/// The names of a batch's commands.
pub(super) fn commands_of(payload: &bytes::Bytes) -> Vec<String> {
    if payload.is_empty() {
        return Vec::new();
    }
    Batch::decode(payload.clone()).unwrap().commands.iter().map(name).collect()
}

fn batch(payload: &bytes::Bytes) -> String {
    format!("[{}]", commands_of(payload).join(" "))
}

fn names(commands: &[Command]) -> String {
    format!("[{}]", commands.iter().map(name).collect::<Vec<_>>().join(" "))
}

/// A script's commands are their names.
pub(super) fn name(command: &Command) -> String {
    String::from_utf8(command.bytes.to_vec()).unwrap()
}

pub(super) fn content(content: &Content) -> String {
    match content {
        Content::Batch(payload) => batch(payload),
        Content::Configuration { configuration: now, command } => {
            let command = command.as_ref().map(|command| format!("[{}] ", name(command)));
            format!("{}{}", command.unwrap_or_default(), configuration(&Configuration::decode(now).unwrap()))
        }
    }
}

pub(super) fn configuration(configuration: &Configuration) -> String {
    let list = |what: &str, ids: &[u64]| {
        let ids: BTreeSet<u64> = ids.iter().copied().collect();
        let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
        if ids.is_empty() { String::new() } else { format!("{what} {}", ids.join(" ")) }
    };
    let mut parts = vec![
        list("voters", &configuration.voters),
        list("before", &configuration.voters_outgoing),
        list("learners", &configuration.learners),
        list("learners next", &configuration.learners_next),
    ];
    parts.retain(|part| !part.is_empty());
    format!("({})", parts.join(", "))
}

pub(super) fn records(records: &[Record]) -> String {
    let records = records.iter().map(|record| match record {
        Record::Entry(_, found) => entry(found),
        Record::HardState(_, state) => {
            format!("term {} vote {} commit {}", state.term, state.vote, state.commit)
        }
        Record::Base(_, base) => format!("restart after {}@{}", base.index, base.term),
    });
    let records = records.collect::<Vec<_>>().join(", ");
    if records.is_empty() { "nothing".into() } else { records }
}

pub(super) fn lost(lost: Lost) -> &'static str {
    match lost {
        Lost::NoLeader => "not done: no leader",
        Lost::Busy => "not done: busy",
        Lost::Overwritten => "not done: overwritten",
        Lost::Unknown => "unknown",
        Lost::Refused => "not done: refused",
    }
}
