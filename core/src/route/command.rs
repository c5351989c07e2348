//! What may be asked of the route face, and what is answered.
//!
//! Commands are Protocol Buffers messages: fields are only ever added. Rules stand in them packed, in the bytes in which
//! they are stored, so that a replica copies them instead of taking them apart.

use super::rule::{Rule, RuleKey};
use crate::codec::{Malformed, Reader, put_bytes};
use crate::types::Revision;
use bytes::Bytes;
use prost::Message;

/// One command of the route face, as it stands in the log.
#[derive(Clone, PartialEq, Message)]
pub struct Command {
    /// Which operation.
    #[prost(oneof = "Operation", tags = "1, 2, 3, 4, 5, 6")]
    pub operation: Option<Operation>,
}

/// The operations of the route face.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Operation {
    /// Write rules, packed by [`pack_rule`], no key twice; all at one revision.
    #[prost(bytes = "bytes", tag = "1")]
    Put(Bytes),
    /// Delete the rules with these keys, packed by [`pack_keys`].
    #[prost(bytes = "bytes", tag = "2")]
    Delete(Bytes),
    /// Delete rules of a group or a network, a bounded number at a time.
    #[prost(message, tag = "3")]
    DeleteMany(DeleteMany),
    /// Write an object.
    #[prost(message, tag = "4")]
    PutObject(PutObject),
    /// Delete an object.
    #[prost(message, tag = "5")]
    DeleteObject(DeleteObject),
    /// A node is alive.
    #[prost(message, tag = "6")]
    Heartbeat(Heartbeat),
}

impl Operation {
    /// The command, encoded for a batch.
    pub fn into_command(self) -> crate::Command {
        let bytes = Command { operation: Some(self) }.encode_to_vec().into();
        crate::Command { face: crate::Face::Route, bytes }
    }
}

/// Deletes up to `limit` rules, in the order of their keys.
#[derive(Clone, PartialEq, Message)]
pub struct DeleteMany {
    /// Of this group, if given.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub group: Option<Bytes>,
    /// Of this network, where no group is given.
    #[prost(uint32, tag = "2")]
    pub vni: u32,
    /// At most this many.
    #[prost(uint32, tag = "3")]
    pub limit: u32,
    /// Only those written at or before this revision.
    #[prost(uint64, tag = "4")]
    pub not_after: u64,
}

/// Writes an object.
#[derive(Clone, PartialEq, Message)]
pub struct PutObject {
    /// Its kind, see [`super::ObjectKind`].
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    /// Its name within the kind.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    /// Its message, opaque here.
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
}

/// Deletes an object.
#[derive(Clone, PartialEq, Message)]
pub struct DeleteObject {
    /// Its kind.
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    /// Its name.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
}

/// A node says that it is alive, and for how long that is to be believed.
#[derive(Clone, PartialEq, Message)]
pub struct Heartbeat {
    /// The node; it must exist as an object.
    #[prost(bytes = "bytes", tag = "1")]
    pub node: Bytes,
    /// Milliseconds after the batch's stamp.
    #[prost(uint64, tag = "2")]
    pub ttl_ms: u64,
    /// The newest revision that the node has put into effect.
    #[prost(uint64, tag = "3")]
    pub applied_revision: u64,
}

/// What a route command is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The newest revision after the command.
    pub revision: Revision,
    /// What came of it.
    pub result: Result<Response, Refusal>,
}

/// The answer to a command that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// So many rules were written.
    Written(u64),
    /// Rules or objects were deleted.
    Deleted {
        /// So many.
        count: u64,
        /// The limit was reached: there may be more to delete.
        more: bool,
    },
    /// Done.
    Done,
}

/// Why a route command was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A heartbeat of a node that nobody has put.
    #[error("no such node: put it before its first heartbeat")]
    UnknownNode,
    /// The bytes are no command of this version.
    #[error("malformed command")]
    Malformed,
}

/// Appends a rule, packed: one byte length of the key, the key, varint length of the body, the body.
pub fn pack_rule(out: &mut Vec<u8>, rule: &Rule, scratch: &mut Vec<u8>) {
    pack_key(out, &rule.key, scratch);
    scratch.clear();
    rule.encode_body(scratch);
    put_bytes(out, scratch);
}

/// Rules' keys, packed: each with one byte of length before it.
pub fn pack_keys<'a>(keys: impl IntoIterator<Item = &'a RuleKey>) -> Bytes {
    let (mut out, mut scratch) = (Vec::new(), Vec::new());
    for key in keys {
        pack_key(&mut out, key, &mut scratch);
    }
    out.into()
}

fn pack_key(out: &mut Vec<u8>, key: &RuleKey, scratch: &mut Vec<u8>) {
    scratch.clear();
    key.encode(scratch);
    out.push(u8::try_from(scratch.len()).expect("a key has at most 20 bytes"));
    out.extend_from_slice(scratch);
}

/// A rule's key bytes and body, still packed.
pub(super) type Packed = (Bytes, Bytes);

/// Takes packed rules apart, checking that each could be read back.
pub(super) fn unpack_rules(packed: Bytes) -> Result<Vec<(RuleKey, Packed)>, Malformed> {
    let mut reader = Reader::new(packed, "packed rules");
    let mut rules = Vec::new();
    while !reader.is_empty() {
        let (key, key_bytes) = unpack_key(&mut reader)?;
        let body = reader.bytes()?;
        if !super::rule::is_sound_body(&body) {
            return Err(reader.malformed());
        }
        rules.push((key, (key_bytes, body)));
    }
    Ok(rules)
}

/// Takes packed keys apart.
pub(super) fn unpack_keys(packed: Bytes) -> Result<Vec<(RuleKey, Bytes)>, Malformed> {
    let mut reader = Reader::new(packed, "packed rule keys");
    let mut keys = Vec::new();
    while !reader.is_empty() {
        keys.push(unpack_key(&mut reader)?);
    }
    Ok(keys)
}

fn unpack_key(reader: &mut Reader) -> Result<(RuleKey, Bytes), Malformed> {
    let length = reader.byte()?;
    let bytes = reader.take(length.into())?;
    Ok((RuleKey::decode(&bytes)?, bytes))
}
