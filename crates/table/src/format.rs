//! The fixed parts of a shard file: header and part records. docs/table-format.md describes the same bytes in
//! words.
//!
//! All integers are little-endian. A header is accepted only if its checksum, magic, version and section
//! offsets are valid, so later reads never leave the file.
//!
//! Deliberately absent: anything that depends on the machine. A file built here is the same everywhere.

use crate::codec::Codec;
use crate::error::FileError;
use crate::schema::{Layout, SHARDS_MAX, Schema};
use std::fmt;
use std::path::Path;

pub(crate) const MAGIC: &[u8; 8] = b"QUOINTBL";
pub(crate) const VERSION: u32 = 1;
/// Bytes per checksum.
pub(crate) const BLOCK: usize = 64 << 10;
/// Bytes of the header; its last four are its checksum.
pub(crate) const HEADER: usize = 256;
/// The offset of the first part.
pub(crate) const BODY: u64 = 4096;
pub(crate) const PART_RECORD: usize = 48;

/// What identifies a shard file: the checksum covers every byte of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The file's length in bytes.
    pub bytes: u64,
    /// The number of keys.
    pub count: u64,
    /// The header's checksum in the upper half, the checksum of the block checksums in the lower.
    pub checksum: u64,
}

impl fmt::Display for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, count, checksum } = self;
        write!(f, "{bytes} bytes with {count} keys and the checksum {checksum:016x}")
    }
}

impl Seal {
    /// The seal of a file whose header has the checksum `header_crc`.
    pub(crate) fn new(header: &Header, header_crc: u32) -> Self {
        let checksum = u64::from(header_crc) << 32 | u64::from(header.checksums_crc);
        Self { bytes: header.file_length, count: header.count, checksum }
    }
}

/// A decoded header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) file_length: u64,
    pub(crate) count: u64,
    pub(crate) shard: u32,
    pub(crate) shards: u32,
    /// Without the default row, which is stored elsewhere in the file.
    pub(crate) schema: Schema,
    /// Offset and length.
    pub(crate) default_row: Option<(u64, u32)>,
    pub(crate) parts: u32,
    pub(crate) parts_at: u64,
    pub(crate) pilots_at: u64,
    pub(crate) pilots_length: u64,
    pub(crate) checksums_at: u64,
    pub(crate) checksums_crc: u32,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        let (layout, width) = match self.schema.layout {
            Layout::Fixed { width } => (0u32, width),
            Layout::Variable { inline } => (1, inline),
        };
        let codec: u32 = match self.schema.codec {
            Codec::Raw => 0,
            Codec::F32 { .. } => 1,
            Codec::F16 { .. } => 2,
            Codec::Q8 { .. } => 3,
        };
        let (default_at, default_length) = self.default_row.unwrap_or((0, 0));
        put(0, MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &(BLOCK as u32).to_le_bytes());
        put(16, &self.file_length.to_le_bytes());
        put(24, &self.count.to_le_bytes());
        put(32, &self.shard.to_le_bytes());
        put(36, &self.shards.to_le_bytes());
        put(40, &layout.to_le_bytes());
        put(44, &width.to_le_bytes());
        put(48, &codec.to_le_bytes());
        put(52, &self.schema.codec.dimension().unwrap_or(0).to_le_bytes());
        put(56, &u32::from(self.default_row.is_some()).to_le_bytes());
        put(60, &default_length.to_le_bytes());
        put(64, &default_at.to_le_bytes());
        put(72, &self.parts_at.to_le_bytes());
        put(80, &self.pilots_at.to_le_bytes());
        put(88, &self.pilots_length.to_le_bytes());
        put(96, &self.checksums_at.to_le_bytes());
        put(104, &self.parts.to_le_bytes());
        put(108, &self.checksums_crc.to_le_bytes());
        let crc = crc32c::crc32c(&out[..HEADER - 4]);
        out[HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes the header of a file of `length` bytes, of which `bytes` is the beginning.
    pub(crate) fn decode(bytes: &[u8], length: u64, file: &Path) -> Result<Self, FileError> {
        let structure = |what: String| FileError::Structure { file: file.into(), what };
        if bytes.len() < HEADER {
            return Err(FileError::Cut {
                file: file.into(),
                expected_length: HEADER as u64,
                length,
                block: 0,
                expected: 0,
                found: crc32c::crc32c(bytes),
            });
        }
        let (expected, found) = (u32_at(bytes, HEADER - 4), crc32c::crc32c(&bytes[..HEADER - 4]));
        if expected != found {
            return Err(FileError::Checksum { file: file.into(), block: 0, expected, found });
        }
        if &bytes[..8] != MAGIC {
            return Err(structure("the file does not begin with QUOINTBL: it is not a table file".into()));
        }
        let (version, block) = (u32_at(bytes, 8), u32_at(bytes, 12));
        if (version, block as usize) != (VERSION, BLOCK) {
            return Err(structure(format!(
                "format version {version} with blocks of {block} bytes, but this program reads version \
                 {VERSION} with {BLOCK}: use the version of quoin that built it, or a newer one"
            )));
        }
        let header = Self::fields(bytes).ok_or_else(|| structure("unknown layout or codec".into()))?;
        header.check().map_err(structure)?;
        Ok(header)
    }

    fn fields(bytes: &[u8]) -> Option<Self> {
        let width = u32_at(bytes, 44);
        let layout = match u32_at(bytes, 40) {
            0 => Layout::Fixed { width },
            1 => Layout::Variable { inline: width },
            _ => return None,
        };
        let dimension = u32_at(bytes, 52);
        let codec = match u32_at(bytes, 48) {
            0 => Codec::Raw,
            1 => Codec::F32 { dimension },
            2 => Codec::F16 { dimension },
            3 => Codec::Q8 { dimension },
            _ => return None,
        };
        Some(Self {
            file_length: u64_at(bytes, 16),
            count: u64_at(bytes, 24),
            shard: u32_at(bytes, 32),
            shards: u32_at(bytes, 36),
            schema: Schema { layout, codec, default_row: None },
            default_row: (u32_at(bytes, 56) != 0).then(|| (u64_at(bytes, 64), u32_at(bytes, 60))),
            parts: u32_at(bytes, 104),
            parts_at: u64_at(bytes, 72),
            pilots_at: u64_at(bytes, 80),
            pilots_length: u64_at(bytes, 88),
            checksums_at: u64_at(bytes, 96),
            checksums_crc: u32_at(bytes, 108),
        })
    }

    fn check(&self) -> Result<(), String> {
        self.schema.check()?;
        let within =
            |at: u64, length: u64, end: u64| at >= BODY && at.checked_add(length).is_some_and(|to| to <= end);
        let blocks = self.checksums_at.div_ceil(BLOCK as u64);
        let parts_bytes = u64::from(self.parts) * PART_RECORD as u64;
        if self.checksums_at.checked_add(blocks.saturating_mul(4)) != Some(self.file_length) {
            return Err(format!(
                "checksums at offset {} do not match a file of {} bytes",
                self.checksums_at, self.file_length
            ));
        }
        if !within(self.pilots_at, self.pilots_length, self.parts_at)
            || !within(self.parts_at, parts_bytes, self.checksums_at)
            || !self.default_row.is_none_or(|(at, length)| within(at, length.into(), self.checksums_at))
        {
            return Err("a section is outside the file or overlaps another".into());
        }
        if self.parts == 0 || self.shard >= self.shards || self.shards > SHARDS_MAX {
            return Err(format!("{} parts, shard {} of {}", self.parts, self.shard, self.shards));
        }
        Ok(())
    }
}

/// One part: where its entries and heap are, and how its keys map to slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartRecord {
    pub(crate) entries_at: u64,
    pub(crate) heap_at: u64,
    pub(crate) heap_length: u64,
    /// Relative to the start of the pilots section.
    pub(crate) pilots_at: u32,
    pub(crate) buckets: u32,
    pub(crate) slots: u32,
    pub(crate) count: u32,
    pub(crate) seed: u64,
}

impl PartRecord {
    pub(crate) fn encode(&self) -> [u8; PART_RECORD] {
        let mut out = [0; PART_RECORD];
        out[0..8].copy_from_slice(&self.entries_at.to_le_bytes());
        out[8..16].copy_from_slice(&self.heap_at.to_le_bytes());
        out[16..24].copy_from_slice(&self.heap_length.to_le_bytes());
        out[24..28].copy_from_slice(&self.pilots_at.to_le_bytes());
        out[28..32].copy_from_slice(&self.buckets.to_le_bytes());
        out[32..36].copy_from_slice(&self.slots.to_le_bytes());
        out[36..40].copy_from_slice(&self.count.to_le_bytes());
        out[40..48].copy_from_slice(&self.seed.to_le_bytes());
        out
    }

    /// Decodes record `number` and checks that everything it refers to is inside the file.
    pub(crate) fn decode(bytes: &[u8], number: usize, header: &Header) -> Result<Self, String> {
        let at = header.parts_at as usize + number * PART_RECORD;
        let part = Self {
            entries_at: u64_at(bytes, at),
            heap_at: u64_at(bytes, at + 8),
            heap_length: u64_at(bytes, at + 16),
            pilots_at: u32_at(bytes, at + 24),
            buckets: u32_at(bytes, at + 28),
            slots: u32_at(bytes, at + 32),
            count: u32_at(bytes, at + 36),
            seed: u64_at(bytes, at + 40),
        };
        let stride = header.schema.stride() as u64;
        let ends = |at: u64, length: u64| {
            at >= BODY && at.checked_add(length).is_some_and(|to| to <= header.pilots_at)
        };
        let empty = part.count == 0;
        if (part.buckets == 0) != empty
            || (part.slots == 0) != empty
            || part.count > part.slots
            || u64::from(part.pilots_at) + u64::from(part.buckets) > header.pilots_length
            || !ends(part.entries_at, u64::from(part.slots) * stride)
            || !ends(part.heap_at, part.heap_length)
        {
            return Err(format!(
                "part {number}, which says that it begins at {}, is outside the file",
                part.entries_at
            ));
        }
        Ok(part)
    }
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a slice of four bytes"))
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a slice of eight bytes"))
}
