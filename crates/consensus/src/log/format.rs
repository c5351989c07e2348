//! The bytes of segments and records, which `docs/log-format.md` describes. Nothing here reads or writes
//! files.

use super::block::{BLOCK_HEADER, BlockHeader, Place};
use super::error::{LogError, corrupt};
use super::record::{Base, Entry, EntryKind, HardState, Record};
use crate::group::GroupId;
use bytes::{Buf, Bytes};

/// Bytes of a segment's header.
pub(super) const HEADER: usize = 48;
/// Bytes before a record's body.
pub(super) const RECORD_HEADER: usize = 8;
const MAGIC: &[u8; 8] = b"QUOINLG1";
/// The version that is written. Version 1 is read.
pub(super) const VERSION: u32 = 2;
/// Payloads of at least this many bytes are written from where they are. Copying smaller ones is cheaper.
const BY_REFERENCE: usize = 2048;

const ENTRY: u8 = 1;
const HARD_STATE: u8 = 2;
const BASE: u8 = 3;
const PURGED: u8 = 4;

/// What a segment begins with: whose log it is, and the segment's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) version: u32,
    pub(super) cluster: u64,
    pub(super) node: u64,
    pub(super) number: u64,
    /// 0 in version 1.
    pub(super) disk: u64,
}

impl SegmentHeader {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&self.version.to_le_bytes());
        out[16..24].copy_from_slice(&self.cluster.to_le_bytes());
        out[24..32].copy_from_slice(&self.node.to_le_bytes());
        out[32..40].copy_from_slice(&self.number.to_le_bytes());
        out[40..48].copy_from_slice(&self.disk.to_le_bytes());
        let crc = crc32c::crc32c(&out[16..]);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the header of `file`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn decode(bytes: &[u8; HEADER], file: &str) -> Result<Self, LogError> {
        if &bytes[..8] != MAGIC {
            return Err(corrupt(file.into(), 0, "not a log segment: wrong magic"));
        }
        let mut rest = &bytes[8..];
        let (version, crc) = (rest.get_u32_le(), rest.get_u32_le());
        // Of a version above it nothing is known, not even where its checksum is.
        if version > VERSION {
            return Err(LogError::Version { file: file.into(), found: version, known: VERSION });
        }
        if version == 0 || crc32c::crc32c(rest) != crc {
            return Err(corrupt(file.into(), 0, "the header's checksum does not match"));
        }
        let mut number = || rest.get_u64_le();
        Ok(Self { version, cluster: number(), node: number(), number: number(), disk: number() })
    }
}

/// A record on disk: what callers append, or the mark of a purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    Record(Record),
    /// Entries up to this one are purged. Later ones stay.
    Purged(GroupId, Base),
}

/// The bytes of one append: own ones and, between them, payloads by reference.
pub(super) struct Block {
    own: Vec<u8>,
    /// Each with its offset in `own`, before which it goes.
    payloads: Vec<(usize, Bytes)>,
    /// Each record's offset in the block, and the bytes of its body.
    pub(super) records: Vec<(usize, usize)>,
    pub(super) bytes: usize,
}

impl Block {
    /// Encodes `records` to be written at `place`.
    pub(super) fn encode<'a>(records: impl IntoIterator<Item = &'a Stored>, place: Place) -> Self {
        let mut block = Self {
            own: vec![0; BLOCK_HEADER],
            payloads: Vec::new(),
            records: Vec::new(),
            bytes: BLOCK_HEADER,
        };
        let mut crcs = 0;
        for record in records {
            let crc = block.push(record, place.number);
            crcs = crc32c::crc32c_append(crcs, &crc.to_le_bytes());
        }
        let length = u32::try_from(block.bytes - BLOCK_HEADER).expect("an append is bounded far below 4 GiB");
        let header = BlockHeader::of(length, block.records.len() as u32, crcs);
        block.own[..BLOCK_HEADER].copy_from_slice(&header.encode(place));
        block
    }

    fn push(&mut self, record: &Stored, number: u64) -> u32 {
        let start = self.own.len();
        self.own.extend_from_slice(&[0; RECORD_HEADER]);
        let payload = encode_body(&mut self.own, record);
        let mut crc = crc32c::crc32c(&number.to_le_bytes());
        crc = crc32c::crc32c_append(crc, &self.own[start + RECORD_HEADER..]);
        let mut length = self.own.len() - start - RECORD_HEADER;
        if let Some(payload) = payload {
            crc = crc32c::crc32c_append(crc, &payload);
            length += payload.len();
            if payload.len() < BY_REFERENCE {
                self.own.extend_from_slice(&payload);
            } else {
                self.payloads.push((self.own.len(), payload));
            }
        }
        let length_field = u32::try_from(length).expect("a record is bounded far below 4 GiB");
        self.own[start..start + 4].copy_from_slice(&length_field.to_le_bytes());
        self.own[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
        self.records.push((self.bytes, length));
        self.bytes += RECORD_HEADER + length;
        crc
    }

    /// The block as slices to be written in order.
    pub(super) fn parts(&self) -> Vec<std::io::IoSlice<'_>> {
        let mut parts = Vec::with_capacity(self.payloads.len() * 2 + 1);
        let mut from = 0;
        for (at, payload) in &self.payloads {
            parts.push(std::io::IoSlice::new(&self.own[from..*at]));
            parts.push(std::io::IoSlice::new(payload));
            from = *at;
        }
        parts.push(std::io::IoSlice::new(&self.own[from..]));
        parts
    }
}

/// Writes the body of a record, except an entry's data, which it returns.
fn encode_body(out: &mut Vec<u8>, record: &Stored) -> Option<Bytes> {
    let (kind, group) = match record {
        Stored::Record(Record::Entry(group, _)) => (ENTRY, group),
        Stored::Record(Record::HardState(group, _)) => (HARD_STATE, group),
        Stored::Record(Record::Base(group, _)) => (BASE, group),
        Stored::Purged(group, _) => (PURGED, group),
    };
    out.push(kind);
    out.extend_from_slice(&group.0.to_le_bytes());
    let mut numbers =
        |numbers: &[u64]| numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    match record {
        Stored::Record(Record::HardState(_, state)) => numbers(&[state.term, state.vote, state.commit]),
        Stored::Record(Record::Base(_, base)) | Stored::Purged(_, base) => numbers(&[base.index, base.term]),
        Stored::Record(Record::Entry(_, entry)) => {
            numbers(&[entry.index, entry.term]);
            out.push(entry.kind as u8);
            out.extend_from_slice(&(entry.context.len() as u32).to_le_bytes());
            out.extend_from_slice(&entry.context);
            return Some(entry.data.clone());
        }
    }
    None
}

/// Reads one record.
///
/// # Errors
/// What is wrong with it.
pub(super) fn decode_record(body: Bytes, crc: u32, number: u64) -> Result<Stored, &'static str> {
    let actual = crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), &body);
    if actual != crc {
        return Err("a record's checksum does not match");
    }
    decode_body(body).ok_or("a record has unknown contents")
}

fn decode_body(mut body: Bytes) -> Option<Stored> {
    let kind = body.try_get_u8().ok()?;
    let group = GroupId(body.try_get_u32_le().ok()?);
    let mut number = || body.try_get_u64_le().ok();
    let stored = match kind {
        HARD_STATE => {
            let state = HardState { term: number()?, vote: number()?, commit: number()? };
            Stored::Record(Record::HardState(group, state))
        }
        BASE => Stored::Record(Record::Base(group, Base { index: number()?, term: number()? })),
        PURGED => Stored::Purged(group, Base { index: number()?, term: number()? }),
        ENTRY => {
            let (index, term) = (number()?, number()?);
            let kind = EntryKind::from_number(body.try_get_u8().ok()?)?;
            let context_length = body.try_get_u32_le().ok()? as usize;
            if context_length > body.len() {
                return None;
            }
            let context = body.split_to(context_length);
            return Some(Stored::Record(Record::Entry(
                group,
                Entry { index, term, kind, context, data: body },
            )));
        }
        _ => return None,
    };
    body.is_empty().then_some(stored)
}
