//! Configuration entries. Each carries its own description in the entry's context; the library's encoding, in
//! the entry's data, is only read back by the replica that has just written it.

use crate::configuration::Change;
use bytes::Bytes;
use prost::Message as _;
use quoin_core::{Command, Face};

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
