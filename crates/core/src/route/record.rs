//! The route face's records in the store, but for a rule's own bytes (`rule.rs`). All keys begin with the
//! face's byte `0x02`; integers in keys are big-endian.
//!
//! ```text
//! 0x02 'r' rule key                    -> the rule's record
//! 0x02 'g' u8 length, group, rule key  -> nothing: the name by which the rule's changes are watched
//! 0x02 'o' u8 kind, name               -> an object: u64 revision, then its message (`quoin.route.v1.Object`)
//! 0x02 's' name                        -> a node's status: u64 revision, u8 alive, varint stamp
//! 0x02 'h' name                        -> its last heartbeat: varints stamp, deadline, applied revision, and,
//!                                         if its expiry entry is early, deadline minus that of the entry; if
//!                                         it is late, 0 and that of the entry minus deadline
//! 0x02 'c' group                       -> u64 revision of the newest change of the group's rules
//! 0x02 'C'                             -> u64 revision after which every change of a group was recorded under
//!                                         'c'; absent until there is one
//! 0x02 'x' u64 deadline, name          -> nothing: look at the node at the deadline, see crate::expiry
//! ```

use super::command::ObjectKind;
use super::rule::RuleKey;
use crate::codec::{Malformed, Reader, put_varint};
use crate::limits::STORE_KEY_BYTES_MAX;
use crate::types::{Revision, Stamp};
use bytes::Bytes;

/// The first byte of the face's store keys.
pub(crate) const FACE: u8 = 2;

/// Maximum bytes of an object's name: its entry in the expiry index has 10 bytes more, and is the longest
/// store key.
pub const NAME_BYTES_MAX: usize = STORE_KEY_BYTES_MAX - 10;

pub(super) const RULES: [u8; 2] = [FACE, b'r'];
pub(super) const GROUPS: [u8; 2] = [FACE, b'g'];
const GROUP_CHANGES: [u8; 2] = [FACE, b'c'];
/// From which revision on changes of groups are recorded.
pub(super) const CHANGES_SINCE: [u8; 2] = [FACE, b'C'];
pub(super) const OBJECTS: [u8; 2] = [FACE, b'o'];
pub(super) const STATUSES: [u8; 2] = [FACE, b's'];
/// The keyspace of the expiry index.
pub(super) const EXPIRIES: [u8; 2] = [FACE, b'x'];

/// The store key of the rule with this encoded key.
pub(super) fn rule_key(rule_key: &[u8]) -> Bytes {
    [&RULES, rule_key].concat().into()
}

/// The prefix of a network's rules.
pub(super) fn vni_prefix(vni: u32) -> Vec<u8> {
    [&RULES, &vni.to_be_bytes()[1..]].concat()
}

/// The prefix of the names by which a group's changes are watched.
pub(super) fn group_prefix(group: &[u8]) -> Vec<u8> {
    let length = u8::try_from(group.len()).expect("groups' lengths are checked where they enter");
    [&GROUPS, [length].as_slice(), group].concat()
}

/// The name by which a rule's changes are watched in its group.
pub(super) fn group_key(group_name: &[u8], rule_key: &[u8]) -> Bytes {
    let length = u8::try_from(group_name.len()).expect("groups' lengths are checked where they enter");
    [&GROUPS, [length].as_slice(), group_name, rule_key].concat().into()
}

/// What a rule's write stores, and by which name its group's watchers know it.
pub(super) struct Written {
    pub(super) store_key: Bytes,
    pub(super) group_key: Bytes,
    pub(super) record: Bytes,
}

/// All that belongs to a write of a rule, in one allocation: they live and end together, in the event.
pub(super) fn written(rule_key: &[u8], group: &[u8], revision: u64, body: &[u8]) -> Written {
    let length = u8::try_from(group.len()).expect("groups' lengths are checked where they enter");
    let revision = revision.to_be_bytes();
    let parts = [&RULES, rule_key, &GROUPS, &[length], group, rule_key, &revision, body];
    let key_end = RULES.len() + rule_key.len();
    let group_end = key_end + GROUPS.len() + 1 + group.len() + rule_key.len();
    let all = Bytes::from(parts.concat());
    Written {
        store_key: all.slice(..key_end),
        group_key: all.slice(key_end..group_end),
        record: all.slice(group_end..),
    }
}

/// Where the revision of a group's newest change is.
pub(super) fn group_change_key(group: &[u8]) -> Vec<u8> {
    [&GROUP_CHANGES, group].concat()
}

pub(super) fn encode_revision(revision: Revision) -> Bytes {
    Bytes::copy_from_slice(&revision.0.to_be_bytes())
}

pub(super) fn decode_revision(record: Bytes) -> Result<Revision, Malformed> {
    Reader::new(record, "revision of a group").u64().map(Revision)
}

/// The group and the rule key in the part of a store key after [`GROUPS`].
pub(super) fn decode_group_key(rest: &[u8]) -> Result<(&[u8], RuleKey), Malformed> {
    let malformed = Malformed { what: "rule's group key" };
    let (&length, rest) = rest.split_first().ok_or(malformed.clone())?;
    let (group, key) = rest.split_at_checked(length.into()).ok_or(malformed)?;
    Ok((group, RuleKey::decode(key)?))
}

pub(super) fn object_key(kind: ObjectKind, name: &[u8]) -> Bytes {
    [&OBJECTS, [kind as u8].as_slice(), name].concat().into()
}

pub(super) fn status_key(name: &[u8]) -> Bytes {
    [&STATUSES, name].concat().into()
}

pub(super) fn heartbeat_key(name: &[u8]) -> Vec<u8> {
    [&[FACE, b'h'], name].concat()
}

/// A node's last heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastHeartbeat {
    pub(super) at: Stamp,
    pub(super) deadline: Stamp,
    pub(super) applied_revision: u64,
    /// Where the entry in the expiry index is while the node is alive: at the deadline or before it, or after it
    /// if a new leader has given the node more time.
    pub(super) entry: Stamp,
}

impl LastHeartbeat {
    /// When the node counts as dead. A new leader's term gives every node its whole time again, since nobody
    /// could report while there was no leader.
    pub(super) fn ends(self, term_began: Stamp) -> Stamp {
        let ttl_ms = self.deadline.0.saturating_sub(self.at.0);
        self.deadline.max(Stamp(term_began.0.saturating_add(ttl_ms)))
    }

    pub(super) fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(20);
        [self.at.0, self.deadline.0, self.applied_revision]
            .iter()
            .for_each(|number| put_varint(&mut out, *number));
        if self.entry != self.deadline {
            put_varint(&mut out, self.deadline.0.saturating_sub(self.entry.0));
        }
        if self.entry > self.deadline {
            put_varint(&mut out, self.entry.0 - self.deadline.0);
        }
        out.into()
    }

    pub(super) fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes, "heartbeat record");
        let (at, deadline, applied_revision) = (reader.varint()?, reader.varint()?, reader.varint()?);
        let early = if reader.is_empty() { 0 } else { reader.varint()? };
        let late = if reader.is_empty() { 0 } else { reader.varint()? };
        let entry = deadline.checked_sub(early).ok_or_else(|| reader.malformed())?.saturating_add(late);
        Ok(Self { at: Stamp(at), deadline: Stamp(deadline), applied_revision, entry: Stamp(entry) })
    }
}

/// Whether a node is alive, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) revision: u64,
    pub(super) alive: bool,
    pub(super) since: Stamp,
}

impl Status {
    pub(super) fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(16);
        out.extend_from_slice(&self.revision.to_be_bytes());
        out.push(u8::from(self.alive));
        put_varint(&mut out, self.since.0);
        out.into()
    }

    pub(super) fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes, "node status record");
        Ok(Self { revision: reader.u64()?, alive: reader.byte()? == 1, since: Stamp(reader.varint()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::encode_record;
    use super::*;

    #[test]
    fn layouts_are_pinned() {
        assert_eq!(&rule_key(b"key")[..], b"\x02rkey");
        assert_eq!(vni_prefix(0x0102), b"\x02r\0\x01\x02");
        assert_eq!(&group_key(b"grp", b"key")[..], b"\x02g\x03grpkey");
        let Written { store_key, group_key: name, record } = written(b"key", b"grp", 7, b"body");
        assert_eq!((store_key, name), (rule_key(b"key"), group_key(b"grp", b"key")));
        assert_eq!(record, encode_record(7, b"body"));
        assert_eq!(group_change_key(b"grp"), b"\x02cgrp");
        assert_eq!(&encode_revision(Revision(258))[..], b"\0\0\0\0\0\0\x01\x02");
        assert_eq!(decode_revision(encode_revision(Revision(258))), Ok(Revision(258)));
        assert_eq!(&object_key(ObjectKind::Vpc, b"name")[..], b"\x02o\x01name");
        let expiry_key = crate::expiry::encode_key(EXPIRIES, Stamp(1), b"n");
        assert_eq!(expiry_key, b"\x02x\0\0\0\0\0\0\0\x01n");
        let beat = |entry| LastHeartbeat {
            at: Stamp(1),
            deadline: Stamp(300),
            applied_revision: 9,
            entry: Stamp(entry),
        };
        for (beat, golden) in [
            (beat(300), &b"\x01\xac\x02\x09"[..]),
            (beat(299), b"\x01\xac\x02\x09\x01"),
            (beat(302), b"\x01\xac\x02\x09\0\x02"),
        ] {
            assert_eq!(&beat.encode()[..], golden);
            assert_eq!(LastHeartbeat::decode(beat.encode()), Ok(beat));
        }
        let status = Status { revision: 2, alive: true, since: Stamp(3) };
        assert_eq!(&status.encode()[..], b"\0\0\0\0\0\0\0\x02\x01\x03");
        assert_eq!(Status::decode(status.encode()), Ok(status));
    }
}
