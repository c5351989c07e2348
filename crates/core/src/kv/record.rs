//! The kv face's records in the store. All keys begin with the face's byte `0x01`; integers in keys are
//! big-endian, so that byte order is numeric order.
//!
//! ```text
//! 0x01 'k' key                          -> a key's record
//! 0x01 'l' u64 lease                    -> a lease, see below
//! 0x01 'a' u64 lease, key               -> nothing: the key is attached to the lease
//! 0x01 'x' u64 deadline, 'l', u64 lease -> nothing: look at the lease at the deadline, see crate::expiry
//! 0x01 'x' u64 deadline, 'k', key       -> nothing: look at the key at the deadline
//! 0x01 'f' collection, field            -> a field of a hash
//! 0x01 'c' collection                   -> the key of a collection with fields that expire
//! 0x01 'x' u64 deadline, 'f', collection, field -> nothing: look at the field at the deadline
//! 0x01 'y' u64 deadline, 'g', collection        -> nothing: no key holds the collection, its records are deleted, after
//!                                                  all that is due
//! ```
//!
//! A key that is no string has a *collection*: records of its own, named by the position of the command that made it
//! (u64 sequence) and by how many changes that command had made (u32). So a key is deleted, replaced or expires with
//! one record, however many fields it has; theirs are deleted later, in steps.
//!
//! A key's record: a byte of flags (1 lease, 2 time to live, 4 metadata, 8 with a time to live whose expiry
//! entry is early, 16 collection); varints create revision, mod revision minus create revision, version, stamp of the last
//! write; if flagged: varint lease; varints deadline and time to live in milliseconds; varint deadline minus
//! that of the entry; varint count and that many zigzag varints of metadata; a byte
//! for the collection's kind (`h` hash), varints sequence, number and how many elements it has; then the value to the
//! end, which of a collection is a text about it, for clients that know only values.
//!
//! A field: a byte of flags (2 time to live), if flagged varint deadline, then the value to the end.
//!
//! A lease: varint seconds granted, varint deadline; if its expiry entry is early or the lease has ended, varint
//! deadline minus that of the entry; a byte 1 if it has ended and its keys are being deleted. Versions before
//! this one had no early entries, or did not say so.
//!
//! Deadlines and stamps are milliseconds since the Unix epoch.

use super::deadline::Deadline;
use super::reply::KeyValue;
use crate::codec::{Malformed, Reader, put_signed, put_varint};
use crate::limits::STORE_KEY_BYTES_MAX;
use crate::types::Stamp;
use bytes::Bytes;

/// The first byte of the face's store keys.
pub(crate) const FACE: u8 = 1;
/// Maximum bytes of a key: its entry in the expiry index has 11 bytes more, and is the longest store key.
pub const KEY_BYTES_MAX: usize = STORE_KEY_BYTES_MAX - 11;
/// Maximum bytes of a field's name: its entry in the expiry index has 23 bytes more.
pub const FIELD_BYTES_MAX: usize = STORE_KEY_BYTES_MAX - 23;
const LEASED: u8 = 1;
const EXPIRING: u8 = 2;
const DESCRIBED: u8 = 4;
const EARLY: u8 = 8;
const COLLECTED: u8 = 16;

/// The prefix of all keys' records.
pub(super) const KEYS: [u8; 2] = [FACE, b'k'];
/// Where the keys' records end.
pub(super) const KEYS_END: [u8; 2] = [FACE, b'k' + 1];
pub(super) const LEASES: [u8; 2] = [FACE, b'l'];
pub(super) const LEASES_END: [u8; 2] = [FACE, b'l' + 1];
/// The keyspace of hashes' fields.
pub(super) const FIELDS: [u8; 2] = [FACE, b'f'];
/// The keyspace of the collections' keys.
const OWNERS: [u8; 2] = [FACE, b'c'];
/// The keyspace of the expiry index.
pub(super) const EXPIRIES: [u8; 2] = [FACE, b'x'];
/// The keyspace of the expiry index of collections that no key holds any more.
pub(super) const GARBAGE: [u8; 2] = [FACE, b'y'];

/// The store key of a client's key.
pub(super) fn store_key(key: &[u8]) -> Vec<u8> {
    [&KEYS, key].concat()
}

/// The client's key in a store key; `None` in other keyspaces.
pub(super) fn client_key(store_key: &Bytes) -> Option<Bytes> {
    store_key.starts_with(&KEYS).then(|| store_key.slice(KEYS.len()..))
}

/// The client's key in the store key of its record.
pub(super) fn key_of(store_key: &[u8]) -> &[u8] {
    store_key.strip_prefix(&KEYS).expect("this is the store key of a client's key")
}

pub(super) fn lease_key(id: i64) -> Vec<u8> {
    [LEASES.as_slice(), &id.to_be_bytes()].concat()
}

/// The prefix of a lease's attachments.
pub(super) fn attachments_prefix(lease: i64) -> Vec<u8> {
    [&[FACE, b'a'], lease.to_be_bytes().as_slice()].concat()
}

pub(super) fn attachment_key(lease: i64, key: &[u8]) -> Vec<u8> {
    [&[FACE, b'a'], lease.to_be_bytes().as_slice(), key].concat()
}

/// The client's key in an attachment's store key.
pub(super) fn attached_key(store_key: &Bytes) -> Bytes {
    store_key.slice(10..)
}

/// What kind of value a key holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A value.
    #[default]
    String,
    /// Fields with values.
    Hash,
}

/// The name of a collection's records, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CollectionId {
    /// The sequence of the command that made it.
    pub(super) sequence: u64,
    /// How many changes that command had made.
    pub(super) number: u32,
}

impl CollectionId {
    pub(super) fn encode(self) -> [u8; 12] {
        let mut out = [0; 12];
        out[..8].copy_from_slice(&self.sequence.to_be_bytes());
        out[8..].copy_from_slice(&self.number.to_be_bytes());
        out
    }

    fn decode(reader: &mut Reader) -> Result<Self, Malformed> {
        Ok(Self { sequence: reader.u64()?, number: reader.array().map(u32::from_be_bytes)? })
    }

    /// The prefix of its fields.
    pub(super) fn fields(self) -> Vec<u8> {
        [&FIELDS[..], &self.encode()].concat()
    }

    pub(super) fn field_key(self, field: &[u8]) -> Vec<u8> {
        [&FIELDS[..], &self.encode(), field].concat()
    }

    /// Where its key is noted.
    pub(super) fn owner_key(self) -> Vec<u8> {
        [&OWNERS[..], &self.encode()].concat()
    }
}

/// The field's name in the store key of its record.
pub(super) fn field_name(store_key: &Bytes) -> Bytes {
    store_key.slice(FIELDS.len() + 12..)
}

/// What a key holds that is no string: so far only hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection {
    pub(super) id: CollectionId,
    /// How many fields it has; those that are over count until they are deleted.
    pub count: u64,
}

impl Collection {
    /// What clients see who know only values.
    pub(super) fn text(self) -> Bytes {
        format!("{{\"type\":\"hash\",\"fields\":{}}}", self.count).into()
    }

    fn encode(self, out: &mut Vec<u8>) {
        out.push(b'h');
        put_varint(out, self.id.sequence);
        put_varint(out, self.id.number.into());
        put_varint(out, self.count);
    }

    fn decode(reader: &mut Reader) -> Result<Self, Malformed> {
        if reader.byte()? != b'h' {
            return Err(reader.malformed());
        }
        let sequence = reader.varint()?;
        let number = u32::try_from(reader.varint()?).map_err(|_| reader.malformed())?;
        Ok(Self { id: CollectionId { sequence, number }, count: reader.varint()? })
    }
}

/// A field's record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Field {
    /// The value.
    pub value: Bytes,
    /// Its own deadline, if it has a time to live.
    pub expires: Option<Stamp>,
}

impl Field {
    pub(super) fn is_over(&self, stamp: Stamp) -> bool {
        self.expires.is_some_and(|at| at <= stamp)
    }

    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(11 + self.value.len());
        match self.expires {
            None => out.push(0),
            Some(at) => {
                out.push(EXPIRING);
                put_varint(&mut out, at.0);
            }
        }
        out.extend_from_slice(&self.value);
        out.into()
    }

    pub(super) fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes, "field record");
        let expires = match reader.byte()? {
            0 => None,
            EXPIRING => Some(Stamp(reader.varint()?)),
            _ => return Err(reader.malformed()),
        };
        Ok(Self { expires, value: reader.rest() })
    }
}

/// The subject of an expiry: what may have expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expiring {
    Lease(i64),
    Key(Bytes),
    Field(CollectionId, Bytes),
    /// A collection that no key holds any more.
    Garbage(CollectionId),
}

impl Expiring {
    /// Whether an encoded subject is a collection that no key holds any more.
    pub(super) fn is_garbage(subject: &[u8]) -> bool {
        subject.first() == Some(&b'g')
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Lease(id) => [b"l", &id.to_be_bytes()[..]].concat(),
            Self::Key(key) => Self::encode_key(key),
            Self::Field(id, field) => [b"f", &id.encode()[..], field].concat(),
            Self::Garbage(id) => [b"g", &id.encode()[..]].concat(),
        }
    }

    /// The encoding of a key as a subject.
    pub(super) fn encode_key(key: &[u8]) -> Vec<u8> {
        [b"k", key].concat()
    }

    pub(super) fn decode(subject: Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(subject, "expiry subject");
        match reader.byte()? {
            b'l' => {
                let malformed = reader.malformed();
                let id = reader.rest()[..].try_into().map_err(|_| malformed)?;
                Ok(Self::Lease(i64::from_be_bytes(id)))
            }
            b'k' => Ok(Self::Key(reader.rest())),
            b'f' => Ok(Self::Field(CollectionId::decode(&mut reader)?, reader.rest())),
            b'g' => CollectionId::decode(&mut reader).map(Self::Garbage),
            _ => Err(reader.malformed()),
        }
    }
}

/// A key's record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) create_revision: u64,
    pub(super) mod_revision: u64,
    pub(super) version: u64,
    pub(super) updated: Stamp,
    /// 0 for none.
    pub(super) lease: i64,
    pub(super) expires: Option<Deadline>,
    pub(super) metadata: Vec<i64>,
    /// What the key holds if it is no string; `value` is a text about it then.
    pub(super) collection: Option<Collection>,
    pub(super) value: Bytes,
}

impl Record {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(48 + self.metadata.len() * 10 + self.value.len());
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let described = !self.metadata.is_empty();
        let early = self.expires.map_or(0, |expires| expires.at.0 - expires.entry.0);
        out.push(
            flag(self.lease != 0, LEASED)
                | flag(self.expires.is_some(), EXPIRING)
                | flag(early > 0, EARLY)
                | flag(described, DESCRIBED)
                | flag(self.collection.is_some(), COLLECTED),
        );
        put_varint(&mut out, self.create_revision);
        put_varint(&mut out, self.mod_revision - self.create_revision);
        put_varint(&mut out, self.version);
        put_varint(&mut out, self.updated.0);
        if self.lease != 0 {
            put_varint(&mut out, self.lease as u64);
        }
        if let Some(Deadline { at, ttl_ms, .. }) = self.expires {
            put_varint(&mut out, at.0);
            put_varint(&mut out, ttl_ms);
        }
        if early > 0 {
            put_varint(&mut out, early);
        }
        if described {
            put_varint(&mut out, self.metadata.len() as u64);
            self.metadata.iter().for_each(|number| put_signed(&mut out, *number));
        }
        if let Some(collection) = self.collection {
            collection.encode(&mut out);
        }
        out.extend_from_slice(&self.value);
        out.into()
    }

    pub(super) fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes, "key record");
        let flags = reader.byte()?;
        let create_revision = reader.varint()?;
        let mod_revision = create_revision.checked_add(reader.varint()?).ok_or_else(|| reader.malformed())?;
        let (version, updated) = (reader.varint()?, Stamp(reader.varint()?));
        let lease = if flags & LEASED != 0 { reader.varint()? as i64 } else { 0 };
        let expires = if flags & EXPIRING != 0 {
            let (at, ttl_ms) = (reader.varint()?, reader.varint()?);
            let early = if flags & EARLY != 0 { reader.varint()? } else { 0 };
            let entry = at.checked_sub(early).ok_or_else(|| reader.malformed())?;
            Some(Deadline { at: Stamp(at), ttl_ms, entry: Stamp(entry) })
        } else {
            None
        };
        let mut metadata = Vec::new();
        if flags & DESCRIBED != 0 {
            for _ in 0..reader.varint()? {
                metadata.push(reader.signed()?);
            }
        }
        let collection = if flags & COLLECTED != 0 { Some(Collection::decode(&mut reader)?) } else { None };
        let value = reader.rest();
        Ok(Self {
            create_revision,
            mod_revision,
            version,
            updated,
            lease,
            expires,
            metadata,
            collection,
            value,
        })
    }

    /// As clients see it.
    pub(super) fn into_key_value(self, key: Bytes) -> KeyValue {
        KeyValue {
            key,
            value: self.value,
            create_revision: self.create_revision as i64,
            mod_revision: self.mod_revision as i64,
            version: self.version as i64,
            lease: self.lease,
            expires: self.expires.map(|expires| expires.at),
            updated: self.updated,
            metadata: self.metadata,
            kind: if self.collection.is_some() { Kind::Hash } else { Kind::String },
        }
    }
}

/// A lease's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) ttl_s: u64,
    pub(super) deadline: Stamp,
    /// Where its entry in the expiry index is: at the deadline or before it.
    pub(super) entry: Stamp,
    /// It has ended: only its keys are left, to be deleted.
    pub(super) ending: bool,
}

impl Lease {
    pub(super) fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(12);
        put_varint(&mut out, self.ttl_s);
        put_varint(&mut out, self.deadline.0);
        if self.entry < self.deadline || self.ending {
            put_varint(&mut out, self.deadline.0 - self.entry.0);
        }
        if self.ending {
            out.push(1);
        }
        out.into()
    }

    pub(super) fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes, "lease record");
        let (ttl_s, deadline) = (reader.varint()?, reader.varint()?);
        let early = if reader.is_empty() { 0 } else { reader.varint()? };
        let entry = deadline.checked_sub(early).ok_or_else(|| reader.malformed())?;
        Ok(Self { ttl_s, deadline: Stamp(deadline), entry: Stamp(entry), ending: !reader.is_empty() })
    }

    /// When it ends. A new leader's term gives every lease its whole time again, since nobody could keep it
    /// alive while there was no leader.
    pub(super) fn ends(&self, term_began: Stamp) -> Stamp {
        self.deadline.max(Stamp(term_began.0.saturating_add(self.ttl_s * 1000)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expiry::encode_key;

    #[test]
    fn layouts_are_pinned() {
        let plain = Record {
            create_revision: 2,
            mod_revision: 300,
            version: 5,
            updated: Stamp(7),
            value: "v".into(),
            ..Record::default()
        };
        assert_eq!(&plain.encode()[..], b"\x00\x02\xaa\x02\x05\x07v");
        let deadline = |at, entry| Some(Deadline { at: Stamp(at), ttl_ms: 500, entry: Stamp(entry) });
        let full = Record { lease: 9, expires: deadline(1000, 1000), metadata: vec![-1, 2], ..plain.clone() };
        assert_eq!(&full.encode()[..], b"\x07\x02\xaa\x02\x05\x07\x09\xe8\x07\xf4\x03\x02\x01\x04v");
        let early = Record { expires: deadline(1000, 997), ..plain.clone() };
        assert_eq!(&early.encode()[..], b"\x0a\x02\xaa\x02\x05\x07\xe8\x07\xf4\x03\x03v");
        let lease = |entry, ending| Lease { ttl_s: 60, deadline: Stamp(300), entry: Stamp(entry), ending };
        for (lease, golden) in [
            (lease(300, false), &b"\x3c\xac\x02"[..]),
            (lease(290, false), b"\x3c\xac\x02\x0a"),
            (lease(300, true), b"\x3c\xac\x02\0\x01"),
            (lease(290, true), b"\x3c\xac\x02\x0a\x01"),
        ] {
            assert_eq!(&lease.encode()[..], golden);
            assert_eq!(Lease::decode(lease.encode()), Ok(lease));
        }
        let expiry_key = |what: Expiring| encode_key(EXPIRIES, Stamp(1), &what.encode());
        assert_eq!(expiry_key(Expiring::Lease(2)), b"\x01x\0\0\0\0\0\0\0\x01l\0\0\0\0\0\0\0\x02");
        assert_eq!(expiry_key(Expiring::Key("k".into())), b"\x01x\0\0\0\0\0\0\0\x01kk");
        assert_eq!(attachment_key(2, b"k"), b"\x01a\0\0\0\0\0\0\0\x02k");
        let id = CollectionId { sequence: 300, number: 2 };
        let hash = Collection { id, count: 4 };
        let hash = Record { collection: Some(hash), value: hash.text(), ..plain.clone() };
        let golden = b"\x10\x02\xaa\x02\x05\x07h\xac\x02\x02\x04{\"type\":\"hash\",\"fields\":4}";
        assert_eq!(&hash.encode()[..], golden);
        assert_eq!(id.field_key(b"f"), b"\x01f\0\0\0\0\0\0\x01\x2c\0\0\0\x02f");
        assert_eq!(id.owner_key(), b"\x01c\0\0\0\0\0\0\x01\x2c\0\0\0\x02");
        let subject = Expiring::Field(id, "f".into()).encode();
        assert_eq!(subject, b"f\0\0\0\0\0\0\x01\x2c\0\0\0\x02f");
        assert_eq!(Expiring::Garbage(id).encode(), b"g\0\0\0\0\0\0\x01\x2c\0\0\0\x02");
        for (expires, golden) in [(None, &b"\0v"[..]), (Some(Stamp(1000)), b"\x02\xe8\x07v")] {
            let field = Field { value: "v".into(), expires };
            assert_eq!(&field.encode()[..], golden);
            assert_eq!(Field::decode(field.encode()), Ok(field));
        }
        for record in [plain, full, early, hash] {
            assert_eq!(Record::decode(record.encode()), Ok(record));
        }
    }

    #[test]
    fn a_cut_record_is_refused_up_to_its_value() {
        let record = Record {
            create_revision: 1,
            mod_revision: 1,
            lease: 5,
            expires: Some(Deadline { at: Stamp(2), ttl_ms: 2, entry: Stamp(1) }),
            metadata: vec![3],
            collection: Some(Collection { id: CollectionId { sequence: 4, number: 0 }, count: 1 }),
            ..Record::default()
        };
        let bytes = record.encode();
        for length in 0..bytes.len() {
            assert!(Record::decode(bytes.slice(..length)).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn an_expirys_subject_is_read_back() {
        let id = CollectionId { sequence: 1 << 40, number: 7 };
        let of_hash =
            [Expiring::Field(id, "".into()), Expiring::Field(id, "f".into()), Expiring::Garbage(id)];
        for what in [Expiring::Lease(-3), Expiring::Key("some key".into())].into_iter().chain(of_hash) {
            assert_eq!(Expiring::decode(what.encode().into()), Ok(what));
        }
    }
}
