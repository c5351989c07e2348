//! The shard file's fixed parts: header and part records. docs/table-format.md is the same in words.
//!
//! **Invariant.** All integers are little-endian. A header is accepted only if its checksum, its magic, its version and the
//! places that it names are right, so that whoever reads further never looks outside the file.
//!
//! What is deliberately absent: anything that depends on the machine. A file built here is the same anywhere.

use crate::codec::{Codec, DIMENSION_MAX};
use crate::error::FileError;
use std::path::Path;

pub(crate) const MAGIC: &[u8; 8] = b"QUOINTBL";
pub(crate) const VERSION: u32 = 1;
/// Bytes per checksum.
pub(crate) const BLOCK: usize = 64 << 10;
/// Bytes of the header, its checksum in the last four.
pub(crate) const HEADER: usize = 256;
/// Where the first part begins.
pub(crate) const BODY: u64 = 4096;
pub(crate) const PART_RECORD: usize = 48;
/// The largest width of a fixed value and the largest inline capacity, bytes.
pub const WIDTH_MAX: u32 = 1 << 20;
/// The largest value of a table with values of any width, bytes.
pub const VALUE_BYTES_MAX: usize = 16 << 20;
/// The largest number of shards of a table.
pub const SHARDS_MAX: u32 = 1 << 16;

/// How values lie in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase", tag = "values")]
pub enum Layout {
    /// Every value has this width, bytes, and lies behind its key.
    Fixed {
        /// Bytes per value.
        width: u32,
    },
    /// Values of any width. Up to `inline` bytes lie behind key and length; longer ones in the part's heap.
    Variable {
        /// Bytes of a value that fit behind its key; at least 8.
        inline: u32,
    },
}

/// What a table's values are.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Schema {
    /// How they lie in an entry.
    #[serde(flatten)]
    pub layout: Layout,
    /// What their bytes mean.
    #[serde(flatten)]
    pub codec: Codec,
    /// What a lookup gives for an absent key, as stored; `None`: zeros, or nothing where widths vary.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "hex")]
    pub default_row: Option<Vec<u8>>,
}

impl Schema {
    /// Fixed-width values under `codec`; `width` bytes where the codec is raw.
    pub fn fixed(codec: Codec, width: u32) -> Self {
        Self { layout: Layout::Fixed { width: codec.width().unwrap_or(width) }, codec, default_row: None }
    }

    /// Plain bytes of any width, `inline` of which lie behind the key.
    pub fn variable(inline: u32) -> Self {
        Self { layout: Layout::Variable { inline: inline.max(8) }, codec: Codec::Raw, default_row: None }
    }

    /// Bytes of an entry.
    pub(crate) fn stride(&self) -> usize {
        match self.layout {
            Layout::Fixed { width } => 8 + width as usize,
            Layout::Variable { inline } => 12 + inline as usize,
        }
    }

    /// Bytes of every stored value, if all have the same.
    pub fn width(&self) -> Option<u32> {
        match self.layout {
            Layout::Fixed { width } => Some(width),
            Layout::Variable { .. } => None,
        }
    }

    /// What values are, in words.
    pub fn describe(&self) -> String {
        match (self.codec, self.layout) {
            (Codec::Raw, Layout::Fixed { width }) => format!("{width} bytes"),
            (Codec::Raw, Layout::Variable { inline }) => format!("bytes of any width, up to {inline} inline"),
            (codec, _) => format!("{} numbers as {}", codec.dimension().unwrap_or(0), codec.name()),
        }
    }

    /// True if values of `other` can be answered as values of this: the same widths and meaning. Where widths vary, what lies
    /// inline does not matter.
    pub fn answers_like(&self, other: &Self) -> bool {
        self.width() == other.width() && self.codec == other.codec
    }

    /// What is wrong with this schema, if anything.
    ///
    /// # Errors
    /// The reason, with the value.
    pub fn check(&self) -> Result<(), String> {
        if let Some(dimension) = self.codec.dimension().filter(|&dimension| dimension > DIMENSION_MAX) {
            return Err(format!("dimension {dimension} is above {DIMENSION_MAX}"));
        }
        match self.layout {
            Layout::Fixed { width } if width > WIDTH_MAX => {
                return Err(format!("width {width} is above {WIDTH_MAX} bytes: use values of any width"));
            }
            Layout::Fixed { width } if self.codec.width().is_some_and(|bytes| bytes != width) => {
                return Err(format!("width {width} does not fit the codec {:?}", self.codec));
            }
            Layout::Variable { inline } if !(8..=WIDTH_MAX).contains(&inline) => {
                return Err(format!("inline capacity {inline} is not between 8 and {WIDTH_MAX} bytes"));
            }
            Layout::Variable { .. } if self.codec != Codec::Raw => {
                return Err(format!("vectors ({}) have a fixed width", self.codec.name()));
            }
            Layout::Fixed { .. } | Layout::Variable { .. } => {}
        }
        match (self.width(), &self.default_row) {
            (Some(width), Some(row)) if row.len() != width as usize => {
                Err(format!("the default row has {} bytes, values have {width}", row.len()))
            }
            (_, Some(row)) if row.len() > WIDTH_MAX as usize => {
                Err(format!("the default row has {} bytes, above {WIDTH_MAX}", row.len()))
            }
            _ => Ok(()),
        }
    }
}

mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(row: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
        match row {
            Some(row) => serializer.serialize_str(&crate::hex::encode(row)),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| {
            crate::hex::decode(&text).ok_or_else(|| D::Error::custom("the default row is not hexadecimal"))
        })
        .transpose()
    }
}

/// A header, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) file_length: u64,
    pub(crate) count: u64,
    pub(crate) shard: u32,
    pub(crate) shards: u32,
    /// Without the default row, which lies elsewhere.
    pub(crate) schema: Schema,
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

    /// Reads the header at the front of a file of `length` bytes.
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
            return Err(structure("it does not begin with QUOINTBL: not a table file".into()));
        }
        let (version, block) = (u32_at(bytes, 8), u32_at(bytes, 12));
        if (version, block as usize) != (VERSION, BLOCK) {
            return Err(structure(format!(
                "format version {version} with blocks of {block} bytes: this program reads version {VERSION} with {BLOCK}"
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
                "checksums at {} do not end the file of {} bytes",
                self.checksums_at, self.file_length
            ));
        }
        if !within(self.pilots_at, self.pilots_length, self.parts_at)
            || !within(self.parts_at, parts_bytes, self.checksums_at)
            || !self.default_row.is_none_or(|(at, length)| within(at, length.into(), self.checksums_at))
        {
            return Err("a section lies outside the file or in another".into());
        }
        if self.parts == 0 || self.shard >= self.shards || self.shards > SHARDS_MAX {
            return Err(format!("{} parts, shard {} of {}", self.parts, self.shard, self.shards));
        }
        Ok(())
    }
}

/// One part: where its entries and heap lie, and how its keys find their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartRecord {
    pub(crate) entries_at: u64,
    pub(crate) heap_at: u64,
    pub(crate) heap_length: u64,
    /// Counted from the start of the pilots' section.
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

    /// Reads record `number`, and checks that what it names lies in the file.
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
            return Err(format!("part {number} lies outside the file: {part:?}"));
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
