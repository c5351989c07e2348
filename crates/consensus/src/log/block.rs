//! What blocks begin with, and how they are found again, as `docs/log-format.md` describes.
//!
//! The checksum of a block's header covers where it lies: disk, segment, offset. So a header that is
//! found is one that this log wrote in this place, whatever clients' bytes look like; and because a block
//! is written only after the one before it was synced, it proves that that one was.

use super::format::{RECORD_HEADER, Stored, decode_record};
use bytes::{Buf, Bytes};

/// Bytes before a block's records.
pub(super) const BLOCK_HEADER: usize = 16;
/// The same in a segment of version 1.
const BLOCK_HEADER_1: usize = 12;
/// Stands for the number of records in a seal.
const SEAL: u32 = u32::MAX;

/// Where a block lies. Its checksum covers this, so that bytes elsewhere are never taken for it.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) disk: u64,
    pub(super) number: u64,
    pub(super) offset: u64,
}

impl Place {
    /// The place at `offset` in the same segment.
    pub(super) fn at(self, offset: usize) -> Self {
        Self { offset: offset as u64, ..self }
    }
}

/// What a block begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockHeader {
    /// Bytes of the records.
    length: u32,
    count: u32,
    /// Checksum of the records' checksums.
    crcs: u32,
}

impl BlockHeader {
    pub(super) fn of(length: u32, count: u32, crcs: u32) -> Self {
        Self { length, count, crcs }
    }

    /// Bytes of the records; 0 for a seal.
    pub(super) fn length(self) -> u32 {
        self.length
    }

    /// Says at its place that the block before it was synced. The next block is written over it.
    pub(super) const SEAL: Self = Self { length: 0, count: SEAL, crcs: 0 };

    pub(super) fn encode(self, place: Place) -> [u8; BLOCK_HEADER] {
        let numbers = [self.length, self.count, self.crcs, self.crc(place)];
        let mut out = [0; BLOCK_HEADER];
        for (bytes, number) in out.chunks_exact_mut(4).zip(numbers) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    fn crc(self, place: Place) -> u32 {
        let place = [place.disk, place.number, place.offset];
        let crc = place.iter().fold(0, |crc, number| crc32c::crc32c_append(crc, &number.to_le_bytes()));
        let numbers = [self.length, self.count, self.crcs];
        numbers.iter().fold(crc, |crc, number| crc32c::crc32c_append(crc, &number.to_le_bytes()))
    }

    /// Reads the header at the start of `bytes`, which lie at `place`. `None` if nothing was written here
    /// as a block's header.
    pub(super) fn decode(bytes: &[u8], place: Place) -> Option<Self> {
        let mut bytes = bytes.get(..BLOCK_HEADER)?;
        let header = Self { length: bytes.get_u32_le(), count: bytes.get_u32_le(), crcs: bytes.get_u32_le() };
        (bytes.get_u32_le() == header.crc(place)).then_some(header)
    }
}

/// Records, each with its offset in its block.
pub(super) type Records = Vec<(usize, Stored)>;

/// What lies where a block may begin.
pub(super) enum Found {
    /// A block of this length.
    Block(Records, usize),
    /// The end, and a proof that the block before it was synced.
    Seal,
    /// Zeros, or too few bytes for a block.
    End,
}

/// Reads what lies at the start of `bytes`, which are at `place`.
///
/// # Errors
/// What is wrong with it.
pub(super) fn decode_block(bytes: &Bytes, place: Place) -> Result<Found, &'static str> {
    let Some(first) = bytes.get(..BLOCK_HEADER) else { return Ok(Found::End) };
    if first == [0; BLOCK_HEADER] {
        return Ok(Found::End);
    }
    let header =
        BlockHeader::decode(first, place).ok_or("the checksum of a block's header does not match")?;
    if header == BlockHeader::SEAL {
        return Ok(Found::Seal);
    }
    let length = header.length as usize;
    if length > bytes.len() - BLOCK_HEADER {
        return Err("a block is longer than its file");
    }
    let end = BLOCK_HEADER + length;
    let (records, crcs) = decode_records(&bytes.slice(..end), BLOCK_HEADER, header.count, 0, place.number)?;
    if crcs != header.crcs {
        return Err("the block's checksum does not match");
    }
    Ok(Found::Block(records, end))
}

/// Reads the `count` records that fill `block` from `at` on. Returns the checksum of their checksums, which
/// continues `crcs`.
fn decode_records(
    block: &Bytes,
    mut at: usize,
    count: u32,
    mut crcs: u32,
    number: u64,
) -> Result<(Records, u32), &'static str> {
    if count as usize > (block.len() - at) / RECORD_HEADER {
        return Err("a block has more records than bytes");
    }
    let mut records = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let Some(mut header) = block.get(at..at + RECORD_HEADER) else {
            return Err("a record's header extends beyond its block");
        };
        let (length, crc) = (header.get_u32_le() as usize, header.get_u32_le());
        at += RECORD_HEADER;
        if length > block.len() - at {
            return Err("a record is longer than its block");
        }
        let body = block.slice(at..at + length);
        records.push((at - RECORD_HEADER, decode_record(body, crc, number)?));
        crcs = crc32c::crc32c_append(crcs, &crc.to_le_bytes());
        at += length;
    }
    if at == block.len() { Ok((records, crcs)) } else { Err("a block is longer than its records") }
}

/// [`decode_block`] for a segment of version 1.
///
/// # Errors
/// What is wrong with the block.
pub(super) fn decode_block_1(bytes: &Bytes, number: u64) -> Result<Found, &'static str> {
    let Some(mut header) = bytes.get(..BLOCK_HEADER_1) else { return Ok(Found::End) };
    let (length, count, crc) = (header.get_u32_le(), header.get_u32_le(), header.get_u32_le());
    if (length, count, crc) == (0, 0, 0) {
        return Ok(Found::End);
    }
    let end = BLOCK_HEADER_1 + length as usize;
    if end > bytes.len() {
        return Err("a block is longer than its file");
    }
    let crcs = crc32c::crc32c(&number.to_le_bytes());
    let (records, crcs) = decode_records(&bytes.slice(..end), BLOCK_HEADER_1, count, crcs, number)?;
    let crcs = crc32c::crc32c_append(crcs, &length.to_le_bytes());
    let crcs = crc32c::crc32c_append(crcs, &count.to_le_bytes());
    if crcs == crc { Ok(Found::Block(records, end)) } else { Err("the block's checksum does not match") }
}

/// Whether the header of a block, or a seal, begins at `from` or later in the segment `bytes`.
pub(super) fn header_after(bytes: &[u8], from: usize, segment: Place) -> bool {
    any_after(bytes, from, BLOCK_HEADER - 1, |start| {
        BlockHeader::decode(&bytes[start..], segment.at(start)).is_some()
    })
}

/// Whether a whole, non-empty block begins at `from` or later in the segment `bytes` of version 1.
pub(super) fn whole_block_after_1(bytes: &Bytes, from: usize, number: u64) -> bool {
    // A block begins with its length, little-endian, of which up to three bytes may be zero.
    any_after(bytes, from, 3, |start| {
        let found = decode_block_1(&bytes.slice(start..), number);
        matches!(found, Ok(Found::Block(records, _)) if !records.is_empty())
    })
}

/// Whether `begins` holds at some offset from `from` on, where at most `zeros` bytes are followed by one
/// that is not zero.
fn any_after(bytes: &[u8], from: usize, zeros: usize, begins: impl Fn(usize) -> bool) -> bool {
    let mut at = from;
    while let Some(step) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte != 0)) {
        let first = at + step;
        if (first.saturating_sub(zeros).max(at)..=first).any(&begins) {
            return true;
        }
        at = first + 1;
    }
    false
}
