//! The route face's commands.
//!
//! They are Protocol Buffers messages: fields are only ever added. Rules stand in them packed, as the bytes
//! that are stored, so a replica copies them instead of decoding them.

use super::rule::{Rule, RuleKey};
use crate::charge::Costs;
use crate::codec::{CommandMessage, Malformed, Reader, put_bytes, put_varint};
use bytes::Bytes;
use prost::Message;

/// One command, as it stands in the log.
#[derive(Clone, PartialEq, Message)]
pub struct Command {
    /// Which operation.
    #[prost(oneof = "Operation", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub operation: Option<Operation>,
}

/// The operations of [`Command`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Operation {
    /// Write rules, packed by [`pack_rule`], all at one revision. Callers must not write a key twice.
    #[prost(bytes = "bytes", tag = "1")]
    Put(Bytes),
    /// Delete the rules with these keys, packed by [`pack_keys`].
    #[prost(bytes = "bytes", tag = "2")]
    Delete(Bytes),
    /// Delete rules of a group or a network, up to a limit.
    #[prost(message, tag = "3")]
    DeleteMany(DeleteMany),
    /// Write an object.
    #[prost(message, tag = "4")]
    PutObject(PutObject),
    /// Delete an object.
    #[prost(message, tag = "5")]
    DeleteObject(DeleteObject),
    /// Report that a node is alive.
    #[prost(message, tag = "6")]
    Heartbeat(Heartbeat),
    /// Write and delete rules, all at one revision, if conditions hold.
    #[prost(message, tag = "7")]
    Write(Write),
}

impl CommandMessage for Command {
    // Rules and keys are packed: nothing is repeated.
    const COSTS: &'static Costs = &Costs(&[]);
}

impl Operation {
    pub(crate) fn into_bytes(self) -> Bytes {
        Command { operation: Some(self) }.encode_to_vec().into()
    }
}

/// Writes and deletes rules at one revision if all conditions hold, and does nothing otherwise. Callers must not
/// write or delete a key twice.
#[derive(Clone, PartialEq, Message)]
pub struct Write {
    /// The rules to write, packed by [`pack_rule`].
    #[prost(bytes = "bytes", tag = "1")]
    pub puts: Bytes,
    /// The keys to delete, packed by [`pack_keys`].
    #[prost(bytes = "bytes", tag = "2")]
    pub deletes: Bytes,
    /// What must hold before, packed by [`pack_condition`].
    #[prost(bytes = "bytes", tag = "3")]
    pub conditions: Bytes,
}

/// The revision at which a rule must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The rule.
    pub key: RuleKey,
    /// The revision of its last write; 0 if it must not exist.
    pub revision: u64,
}

/// Deletes up to `limit` rules, in key order.
#[derive(Clone, PartialEq, Message)]
pub struct DeleteMany {
    /// The group, if given.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub group: Option<Bytes>,
    /// The network, if no group is given.
    #[prost(uint32, tag = "2")]
    pub vni: u32,
    /// Maximum rules to delete.
    #[prost(uint32, tag = "3")]
    pub limit: u32,
    /// Only rules written at or before this revision.
    #[prost(uint64, tag = "4")]
    pub not_after: u64,
}

/// Writes an object.
#[derive(Clone, PartialEq, Message)]
pub struct PutObject {
    /// Its [`ObjectKind`].
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    /// Its name within the kind.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    /// Its message. Of a VPC's the machine reads the network, and nothing of others.
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
    /// Refuse a VPC whose network another one has. Commands of earlier versions do not ask for it.
    #[prost(bool, tag = "4")]
    pub alone: bool,
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

/// Reports that a node is alive, and for how long to believe it.
#[derive(Clone, PartialEq, Message)]
pub struct Heartbeat {
    /// The node; it must exist as an object.
    #[prost(bytes = "bytes", tag = "1")]
    pub node: Bytes,
    /// Milliseconds after the batch's stamp.
    #[prost(uint64, tag = "2")]
    pub ttl_ms: u64,
    /// The newest revision that the node has applied.
    #[prost(uint64, tag = "3")]
    pub applied_revision: u64,
}

/// The kind of an object. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ObjectKind {
    /// A virtual private cloud.
    Vpc = 1,
    /// Gateways that share a load.
    GatewayCluster = 2,
    /// A host with an agent.
    Node = 3,
}

impl TryFrom<u32> for ObjectKind {
    type Error = Malformed;

    fn try_from(number: u32) -> Result<Self, Malformed> {
        match number {
            1 => Ok(Self::Vpc),
            2 => Ok(Self::GatewayCluster),
            3 => Ok(Self::Node),
            _ => Err(Malformed { what: "kind of object" }),
        }
    }
}

/// Appends a rule, packed: one byte length of the key, the key, varint length of the body, the body.
/// `scratch` saves an allocation per rule.
pub fn pack_rule(out: &mut Vec<u8>, rule: &Rule, scratch: &mut Vec<u8>) {
    pack_key(out, &rule.key, scratch);
    scratch.clear();
    rule.encode_body_into(scratch);
    put_bytes(out, scratch);
}

/// Appends a condition, packed: the key as in [`pack_keys`], varint revision.
pub fn pack_condition(out: &mut Vec<u8>, condition: &Condition, scratch: &mut Vec<u8>) {
    pack_key(out, &condition.key, scratch);
    put_varint(out, condition.revision);
}

/// Packs rule keys: each after one byte of length.
pub fn pack_keys<'a>(keys: impl IntoIterator<Item = &'a RuleKey>) -> Bytes {
    let (mut out, mut scratch) = (Vec::new(), Vec::new());
    for key in keys {
        pack_key(&mut out, key, &mut scratch);
    }
    out.into()
}

fn pack_key(out: &mut Vec<u8>, key: &RuleKey, scratch: &mut Vec<u8>) {
    scratch.clear();
    key.encode_into(scratch);
    out.push(u8::try_from(scratch.len()).expect("a key has at most 20 bytes"));
    out.extend_from_slice(scratch);
}

/// A rule's encoded key and body.
pub(super) type Packed = (Bytes, Bytes);

/// Unpacks rules and checks that each can be decoded.
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

/// Unpacks rule keys.
pub(super) fn unpack_keys(packed: Bytes) -> Result<Vec<(RuleKey, Bytes)>, Malformed> {
    let mut reader = Reader::new(packed, "packed rule keys");
    let mut keys = Vec::new();
    while !reader.is_empty() {
        keys.push(unpack_key(&mut reader)?);
    }
    Ok(keys)
}

/// Unpacks conditions.
pub(super) fn unpack_conditions(packed: Bytes) -> Result<Vec<Condition>, Malformed> {
    let mut reader = Reader::new(packed, "packed conditions");
    let mut conditions = Vec::new();
    while !reader.is_empty() {
        let (key, _) = unpack_key(&mut reader)?;
        conditions.push(Condition { key, revision: reader.varint()? });
    }
    Ok(conditions)
}

fn unpack_key(reader: &mut Reader) -> Result<(RuleKey, Bytes), Malformed> {
    let length = reader.byte()?;
    let bytes = reader.take(length.into())?;
    Ok((RuleKey::decode(&bytes)?, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_an_object_are_pinned_and_those_of_earlier_versions_mean_what_they_did() {
        let old = b"\x22\x0a\x08\x01\x12\x01v\x1a\x03abc";
        let object = PutObject { kind: 1, name: "v".into(), body: "abc".into(), alone: false };
        assert_eq!(&Operation::PutObject(object.clone()).into_bytes()[..], old);
        let decoded = Command::decode(&old[..]).unwrap().operation;
        assert_eq!(decoded, Some(Operation::PutObject(object.clone())));
        let alone = PutObject { alone: true, ..object };
        assert_eq!(
            &Operation::PutObject(alone).into_bytes()[..],
            b"\x22\x0c\x08\x01\x12\x01v\x1a\x03abc\x20\x01"
        );
    }

    #[test]
    fn the_bytes_of_a_write_are_pinned() {
        let key = |last| RuleKey { vni: 5, ip: [10, 0, 0, last].into() };
        let (mac, host_ip, host_mac, user_data) = (None, None, None, Bytes::new());
        let rule = Rule { key: key(1), mac, host_ip, host_mac, group: "g".into(), revision: 0, user_data };
        let (mut puts, mut conditions, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
        pack_rule(&mut puts, &rule, &mut scratch);
        pack_condition(&mut conditions, &Condition { key: key(3), revision: 300 }, &mut scratch);
        let write = Write { puts: puts.into(), deletes: pack_keys(&[key(2)]), conditions: conditions.into() };
        let golden = b"\x3a\x27\
            \x0a\x0d\x08\0\0\x05\x04\x0a\0\0\x01\x03\0\x01g\
            \x12\x09\x08\0\0\x05\x04\x0a\0\0\x02\
            \x1a\x0b\x08\0\0\x05\x04\x0a\0\0\x03\xac\x02";
        assert_eq!(&Operation::Write(write.clone()).into_bytes()[..], golden);
        let unpacked = unpack_conditions(write.conditions.clone());
        assert_eq!(unpacked, Ok(vec![Condition { key: key(3), revision: 300 }]));
        for length in 1..write.conditions.len() {
            assert!(unpack_conditions(write.conditions.slice(..length)).is_err(), "cut at {length}");
        }
    }
}
