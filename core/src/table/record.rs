//! The face's records.
//!
//! Keys: `0x04 't'` + name for tables, `0x04 'v'` + name + `0x00` + version (big-endian) for versions, `0x04 'u'` + name + `0x00` + key
//! (big-endian) for changes that lie over the files. Names have no zero byte. A change's value is its revision as a varint, then
//! `0x00` for a delete, or `0x01` and the bytes.

use super::command::Shape;
use crate::codec::{self, Malformed, Reader};
use crate::types::Revision;
use bytes::Bytes;
use prost::Message;

/// All tables.
pub(super) const TABLES: &[u8] = b"\x04t";
/// All versions.
pub(super) const VERSIONS: &[u8] = b"\x04v";
/// All changes.
pub(super) const CHANGES: &[u8] = b"\x04u";

/// A table.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Table {
    /// The version that answers; 0: none yet.
    #[prost(uint64, tag = "1")]
    pub active: u64,
    /// The number of the newest version.
    #[prost(uint64, tag = "2")]
    pub newest: u64,
    /// Versions that were active before, the latest last.
    #[prost(uint64, repeated, tag = "3")]
    pub previous: Vec<u64>,
    /// Versions kept besides the active one.
    #[prost(uint32, tag = "4")]
    pub keep: u32,
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
    /// A patch: the version below; 0 for a base.
    #[prost(uint64, tag = "3")]
    pub below: u64,
    /// Where the files are.
    #[prost(string, tag = "4")]
    pub location: String,
    /// The manifest.
    #[prost(bytes = "bytes", tag = "5")]
    pub manifest: Bytes,
    /// What its values are.
    #[prost(message, optional, tag = "6")]
    pub shape: Option<Shape>,
    /// Changes up to this revision are in the files.
    #[prost(uint64, tag = "7")]
    pub folds: u64,
    /// Replicas that have the files, in the order of their ids.
    #[prost(fixed64, repeated, tag = "8")]
    pub ready: Vec<u64>,
    /// Replicas that could not get them.
    #[prost(message, repeated, tag = "9")]
    pub failed: Vec<Failure>,
}

/// Why a replica is not ready.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Failure {
    /// The replica.
    #[prost(fixed64, tag = "1")]
    pub member: u64,
    /// What it said.
    #[prost(string, tag = "2")]
    pub reason: String,
    /// It expects that trying again helps.
    #[prost(bool, tag = "3")]
    pub transient: bool,
}

pub(super) fn table(name: &str) -> Vec<u8> {
    [TABLES, name.as_bytes()].concat()
}

pub(super) fn versions(name: &str) -> Vec<u8> {
    [VERSIONS, name.as_bytes(), b"\0"].concat()
}

pub(super) fn version(name: &str, number: u64) -> Vec<u8> {
    [&versions(name)[..], &number.to_be_bytes()].concat()
}

pub(super) fn changes(name: &str) -> Vec<u8> {
    [CHANGES, name.as_bytes(), b"\0"].concat()
}

pub(super) fn change(name: &str, key: u64) -> Vec<u8> {
    [&changes(name)[..], &key.to_be_bytes()].concat()
}

/// The name and the number that end the key of a version or a change.
pub(super) fn name_and_number(store_key: &[u8]) -> Result<(&str, u64), Malformed> {
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
