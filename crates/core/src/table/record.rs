//! The table face's records in the store. All keys begin with the face's byte `0x04`; integers in keys are
//! big-endian.
//!
//! ```text
//! 0x04 't' name                  -> a table
//! 0x04 'v' name, 0, u64 version  -> a version, without its manifest
//! 0x04 'm' name, 0, u64 version  -> its manifest
//! 0x04 'n' name                  -> varint, the newest number of a table that was dropped
//! 0x04 'u' name, 0, u64 key      -> a change: varint revision, then 0 if deleted, or 1 and the value
//! ```
//!
//! Names have no zero byte. Tables and versions are Protocol Buffers messages. Earlier versions of this program kept a
//! manifest in its version's record; it stays there until the record is written again.

use super::command::Shape;
use crate::codec::{self, Malformed, Reader};
use crate::limits::STORE_KEY_BYTES_MAX;
use crate::types::Revision;
use bytes::Bytes;
use prost::Message;

/// The first byte of the face's store keys.
pub(crate) const FACE: u8 = 4;
/// Maximum bytes of a table's name: the keys of its versions and changes have 11 bytes more.
pub const NAME_BYTES_MAX: usize = STORE_KEY_BYTES_MAX - 11;
/// The prefix of all tables.
pub(super) const TABLES: &[u8] = &[FACE, b't'];
/// The prefix of all versions.
pub(super) const VERSIONS: &[u8] = &[FACE, b'v'];
/// The prefix of all manifests.
pub(super) const MANIFESTS: &[u8] = &[FACE, b'm'];
/// The prefix of all changes.
pub(super) const CHANGES: &[u8] = &[FACE, b'u'];

/// The prefix of the numbers of dropped tables.
const NUMBERS: &[u8] = &[FACE, b'n'];

/// A table.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Table {
    /// The version that serves lookups; 0 for none yet.
    #[prost(uint64, tag = "1")]
    pub active: u64,
    /// The number of the newest version.
    #[prost(uint64, tag = "2")]
    pub newest: u64,
    /// Versions that were active before, the last one last.
    #[prost(uint64, repeated, tag = "3")]
    pub previous: Vec<u64>,
    /// Versions kept besides the active one.
    #[prost(uint32, tag = "4")]
    pub keep: u32,
    /// Which shape active versions had, in order of revisions. Empty before the first activation, and in tables
    /// of earlier versions of this program.
    #[prost(message, repeated, tag = "5")]
    pub eras: Vec<Era>,
}

/// A time during which all active versions of a table had one shape.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Era {
    /// Changes from this revision on, up to the next era, have this shape.
    #[prost(uint64, tag = "1")]
    pub from: u64,
    /// The shape.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<Shape>,
    /// Its changes up to this revision are deleted, or about to be: no version showed them any more.
    #[prost(uint64, tag = "3")]
    pub forgotten: u64,
}

impl Table {
    /// The era of a revision.
    pub(super) fn era(&self, revision: Revision) -> Option<&Era> {
        let after = self.eras.partition_point(|era| era.from <= revision.0);
        self.eras.get(after.checked_sub(1)?)
    }

    /// Whether `version` shows a change over its files: it is not in them, and was made over values of the same
    /// shape.
    pub(super) fn shows(&self, version: &Version, revision: Revision, value: Option<&[u8]>) -> bool {
        let width = version.shape.as_ref().and_then(|shape| (shape.width_plus_1 as usize).checked_sub(1));
        revision.0 > version.folds
            && value.is_none_or(|value| width.is_none_or(|width| value.len() == width))
            && self.era(revision).is_none_or(|era| era.shape == version.shape)
    }

    /// The newest change of this shape that has been deleted: a version that does not have it in its files lacks it.
    pub(super) fn forgotten(&self, shape: Option<&Shape>) -> u64 {
        let eras = self.eras.iter().filter(|era| era.shape.as_ref() == shape);
        eras.map(|era| era.forgotten).max().unwrap_or(0)
    }

    /// Whether a change of this revision is about to be deleted.
    pub(super) fn forgets(&self, revision: Revision) -> bool {
        self.era(revision).is_some_and(|era| revision.0 <= era.forgotten)
    }
}

/// A version.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Version {
    /// Its number, from 1.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Digest of the content.
    #[prost(string, tag = "2")]
    pub id: String,
    /// The version that this patch applies to; 0 for a base.
    #[prost(uint64, tag = "3")]
    pub below: u64,
    /// Where the files are.
    #[prost(string, tag = "4")]
    pub location: String,
    /// The manifest.
    #[prost(bytes = "bytes", tag = "5")]
    pub manifest: Bytes,
    /// The shape of its values.
    #[prost(message, optional, tag = "6")]
    pub shape: Option<Shape>,
    /// Streamed changes up to this revision are in the files.
    #[prost(uint64, tag = "7")]
    pub folds: u64,
    /// The members that have the files, by id.
    #[prost(fixed64, repeated, tag = "8")]
    pub ready: Vec<u64>,
    /// The members that could not get them, by id.
    #[prost(message, repeated, tag = "9")]
    pub failed: Vec<Failure>,
    /// It has been active.
    #[prost(bool, tag = "10")]
    pub activated: bool,
    /// The manifest has a record of its own.
    #[prost(bool, tag = "11")]
    pub manifest_apart: bool,
    /// Streamed changes up to this revision are hidden because the table was given this shape anew, not because they are in
    /// the files.
    #[prost(uint64, tag = "12")]
    pub renounced: u64,
}

/// Why a member is not ready.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Failure {
    /// The member's id.
    #[prost(fixed64, tag = "1")]
    pub member: u64,
    /// The reason it reported.
    #[prost(string, tag = "2")]
    pub reason: String,
    /// It expects a retry to help.
    #[prost(bool, tag = "3")]
    pub transient: bool,
}

pub(super) fn table_key(name: &str) -> Vec<u8> {
    [TABLES, name.as_bytes()].concat()
}

/// Where the newest number of a dropped table is kept: a number names one content, for ever.
pub(super) fn number_key(name: &str) -> Vec<u8> {
    [NUMBERS, name.as_bytes()].concat()
}

pub(super) fn encode_number(number: u64) -> Bytes {
    let mut out = Vec::new();
    codec::put_varint(&mut out, number);
    out.into()
}

pub(super) fn decode_number(record: Bytes) -> Result<u64, Malformed> {
    Reader::new(record, "dropped table's number").varint()
}

fn versions_prefix(name: &str) -> Vec<u8> {
    [VERSIONS, name.as_bytes(), b"\0"].concat()
}

pub(super) fn version_key(name: &str, number: u64) -> Vec<u8> {
    [&versions_prefix(name)[..], &number.to_be_bytes()].concat()
}

pub(super) fn manifest_key(name: &str, number: u64) -> Vec<u8> {
    [MANIFESTS, name.as_bytes(), b"\0", &number.to_be_bytes()].concat()
}

/// The prefix of a table's changes.
pub(super) fn changes_prefix(name: &str) -> Vec<u8> {
    [CHANGES, name.as_bytes(), b"\0"].concat()
}

pub(super) fn change_key(name: &str, key: u64) -> Vec<u8> {
    [&changes_prefix(name)[..], &key.to_be_bytes()].concat()
}

/// The name and the number in the key of a version or a change.
pub(super) fn decode_numbered_key(store_key: &[u8]) -> Result<(&str, u64), Malformed> {
    let malformed = Malformed { what: "table key" };
    let rest = store_key.get(2..).ok_or(malformed.clone())?;
    let (name, number) = rest.split_at_checked(rest.len().wrapping_sub(9)).ok_or(malformed.clone())?;
    let name = std::str::from_utf8(name).map_err(|_| malformed.clone())?;
    let number = number.get(1..).and_then(|bytes| bytes.try_into().ok()).ok_or(malformed)?;
    Ok((name, u64::from_be_bytes(number)))
}

pub(super) fn encode_change(revision: Revision, value: Option<&[u8]>) -> Bytes {
    let mut out = Vec::with_capacity(11 + value.map_or(0, <[u8]>::len));
    codec::put_varint(&mut out, revision.0);
    out.push(u8::from(value.is_some()));
    out.extend_from_slice(value.unwrap_or_default());
    out.into()
}

pub(super) fn decode_change(record: Bytes) -> Result<(Revision, Option<Bytes>), Malformed> {
    let mut reader = Reader::new(record, "table change");
    let revision = Revision(reader.varint()?);
    let live = reader.byte()?;
    Ok((revision, (live == 1).then(|| reader.rest())))
}
