//! Configuration entries. Each carries its own description in the entry's context; the library's encoding, in
//! the entry's data, is only read back by the replica that has just written it.

use super::Replica;
use super::effects::{Content, Lost, Waiter};
use crate::configuration::{Change, changes_to_library};
use bytes::Bytes;
use prost::Message as _;
use quoin_core::{Command, Face};
use raft::Changer;

/// The context of a configuration entry. An empty one leaves a joint configuration.
#[derive(Clone, PartialEq, prost::Message)]
struct Context {
    #[prost(message, repeated, tag = "1")]
    changes: Vec<ChangeRecord>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    command: Option<Bytes>,
    #[prost(uint32, tag = "3")]
    command_face: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct ChangeRecord {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(fixed64, tag = "2")]
    id: u64,
}

impl Replica {
    /// Proposes a change of the configuration. `command` (the change of the member list) is applied with it.
    /// Several changes at once pass through a joint configuration.
    pub fn change_configuration(&mut self, changes: &[Change], command: Option<Command>, waiter: Waiter) {
        if !self.is_leader() {
            let _ = waiter.send(Err(Lost::NoLeader));
            return;
        }
        // While another change is under way, the library would turn the entry into an empty one.
        if self.raw.raft.has_pending_conf() || !self.is_possible(changes) {
            let _ = waiter.send(Err(Lost::Refused));
            return;
        }
        let context = encode(changes, command);
        match self.raw.propose_conf_change(context, changes_to_library(changes)) {
            Ok(()) => self.expect_last(vec![waiter]),
            Err(_) => drop(waiter.send(Err(Lost::Refused))),
        }
    }

    /// Whether `changes` can be made to the configuration in force. It is the one that they will be applied to,
    /// since no other change is under way.
    fn is_possible(&self, changes: &[Change]) -> bool {
        let changes = changes_to_library(changes);
        let mut changer = Changer::new(self.raw.raft.prs());
        let changed = match changes.enter_joint() {
            Some(auto_leave) => changer.enter_joint(auto_leave, &changes.changes),
            None => changer.simple(&changes.changes),
        };
        changed.is_ok()
    }

    /// A configuration entry is committed: its changes are in force from now on.
    pub(super) fn configure(&mut self, context: &[u8]) -> Content {
        let (changes, command) = decode(context).expect("entries are checked before they enter the log");
        let command = match self.raw.apply_conf_change(&changes_to_library(&changes)) {
            Ok(configuration) => {
                self.raw.mut_store().set_configuration(configuration);
                command
            }
            // All replicas refuse it alike. The configuration and the member list stay as they are.
            Err(error) => {
                tracing::warn!(%error, "configuration change refused");
                None
            }
        };
        Content::Configuration { configuration: self.configuration().encode(), command }
    }
}

/// The context of an entry that makes `changes` and applies `command` with them.
pub(super) fn encode(changes: &[Change], command: Option<Command>) -> Vec<u8> {
    let changes = changes.iter().map(|change| change.parts()).map(|(kind, id)| ChangeRecord { kind, id });
    let context = Context {
        changes: changes.collect(),
        command_face: command.as_ref().map_or(0, |command| command.face as u32),
        command: command.map(|command| command.bytes),
    };
    context.encode_to_vec()
}

/// What a context says; `None` if no leader of this version has encoded it.
pub(crate) fn decode(context: &[u8]) -> Option<(Vec<Change>, Option<Command>)> {
    let context = Context::decode(context).ok()?;
    let change = |record: &ChangeRecord| Change::of_parts(record.kind, record.id);
    let changes = context.changes.iter().map(change).collect::<Option<_>>()?;
    let face = Face::try_from(u8::try_from(context.command_face).ok()?).ok()?;
    Some((changes, context.command.map(|bytes| Command { face, bytes })))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test code")]
mod tests {
    use super::*;
    use crate::log::{Entry, EntryKind, HardState, Log, Options as LogOptions, Record, SimDisk, join};
    use crate::replica::Options;
    use crate::{Configuration, GROUP};
    use std::sync::Arc;

    /// Leaders of older versions logged changes that cannot be made, and their change of the member list was
    /// applied.
    #[test]
    fn a_logged_change_that_cannot_be_made_changes_nothing() {
        let options =
            LogOptions { cluster: 1, node: 1, disk: 1, segment_bytes: 1 << 12, cache_bytes: 1 << 10 };
        let log = Arc::new(Log::open(Arc::new(SimDisk::new()), options).unwrap());
        join(&log, GROUP, 1, 1).unwrap();
        let command = Command { face: Face::System, bytes: Bytes::from_static(b"members") };
        let context = encode(&[Change::Remove(1)], Some(command)).into();
        let entry = Entry { index: 2, term: 1, kind: EntryKind::ConfChange, context, data: Bytes::new() };
        let hard = HardState { term: 1, vote: 1, commit: 2 };
        log.append(&[Record::HardState(GROUP, hard), Record::Entry(GROUP, entry)]).unwrap();
        let voters = Configuration::of_voters([1]);
        let mut replica = Replica::new(1, GROUP, log, &voters, 1, Options::default()).unwrap();
        let mut committed = replica.effects(1).committed;
        let Content::Configuration { configuration, command } = committed.remove(0).content else {
            panic!("it is a configuration entry")
        };
        assert_eq!(configuration, voters.encode());
        assert_eq!(command, None);
    }
}
