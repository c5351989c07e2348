//! Writing a shard file: parts are laid out in memory, each alone (so in parallel), and appended in order.
//!
//! **Invariant.** The same keys and values in the same parts give the same bytes. The file has its name only when it is whole
//! and on the disk: until then it is `NAME.partial`.
//!
//! What is deliberately absent: knowledge of where keys come from. The caller has sorted out duplicates and puts
//! each key into the part that [`crate::Plan`] says.

use crate::error::FileError;
use crate::format::{BLOCK, BODY, HEADER, Header, Layout, PartRecord, Schema, VALUE_BYTES_MAX};
use crate::hash;
use crate::pilots::Pilots;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Keys that a part should have: its entries then fit several times into the memory of one builder thread.
pub const PART_KEYS: u64 = 256 << 10;

/// How a table's keys are divided: shards, and parts of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Files of the table.
    pub shards: u32,
    /// Parts of each file.
    pub parts: u32,
}

impl Plan {
    /// A plan for about `keys` keys in `shards` files.
    pub fn new(keys: u64, shards: u32) -> Self {
        let parts = keys.div_ceil(u64::from(shards.max(1)) * PART_KEYS).clamp(1, 1 << 16);
        Self { shards: shards.max(1), parts: parts as u32 }
    }

    /// The part of `key`, counted over the parts of all shards in order.
    #[inline]
    pub fn part_of(self, key: u64) -> usize {
        let parts = u64::from(self.parts);
        let (shard, part) = hash::shard_and_part(hash::mix(key), u64::from(self.shards), |_| parts);
        shard * self.parts as usize + part
    }
}

/// One part, laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    entries: Vec<u8>,
    heap: Vec<u8>,
    pilots: Pilots,
    count: u32,
}

/// Keys cannot be laid out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A value of another width than the schema's.
    #[error("the value of key {key} has {found} bytes, the table's have {expected}")]
    Width {
        /// Whose value.
        key: u64,
        /// The schema's.
        expected: u32,
        /// The value's.
        found: usize,
    },
    /// A value above [`VALUE_BYTES_MAX`].
    #[error("the value of key {key} has {found} bytes, above {VALUE_BYTES_MAX}")]
    TooLarge {
        /// Whose value.
        key: u64,
        /// Its size.
        found: usize,
    },
    /// A key that is there twice, or keys chosen against every seed.
    #[error("{count} keys have no index: one is there twice, or they were chosen to collide")]
    NoIndex {
        /// Keys in the part.
        count: usize,
    },
}

impl Part {
    /// Lays out `keys` (distinct, and of one part) with the values that `value` gives for their positions.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub fn build<'a>(
        schema: &Schema,
        keys: &[u64],
        value: impl Fn(usize) -> &'a [u8],
    ) -> Result<Self, LayoutError> {
        if keys.is_empty() {
            let pilots = Pilots { seed: 0, slots: 0, pilots: Vec::new() };
            return Ok(Self { entries: Vec::new(), heap: Vec::new(), pilots, count: 0 });
        }
        let hashes: Vec<u64> = keys.iter().map(|&key| hash::mix(key)).collect();
        let pilots = Pilots::build(&hashes).ok_or(LayoutError::NoIndex { count: keys.len() })?;
        let stride = schema.stride();
        let mut entries = vec![0; pilots.slots as usize * stride];
        let mut heap = Vec::new();
        // A free slot has the key of another slot, so that no lookup finds anything in it.
        let first = pilots.slot(hashes[0]) as usize;
        for slot in (0..pilots.slots as usize).filter(|&slot| slot != first) {
            entries[slot * stride..slot * stride + 8].copy_from_slice(&keys[0].to_le_bytes());
        }
        for (position, (&key, &hash)) in keys.iter().zip(&hashes).enumerate() {
            let at = pilots.slot(hash) as usize * stride;
            write_entry(schema.layout, key, value(position), &mut entries[at..at + stride], &mut heap)?;
        }
        Ok(Self { entries, heap, pilots, count: keys.len() as u32 })
    }
}

fn write_entry(
    layout: Layout,
    key: u64,
    value: &[u8],
    entry: &mut [u8],
    heap: &mut Vec<u8>,
) -> Result<(), LayoutError> {
    entry[..8].copy_from_slice(&key.to_le_bytes());
    match layout {
        Layout::Fixed { width } if value.len() != width as usize => {
            Err(LayoutError::Width { key, expected: width, found: value.len() })
        }
        Layout::Fixed { .. } => {
            entry[8..].copy_from_slice(value);
            Ok(())
        }
        Layout::Variable { .. } if value.len() > VALUE_BYTES_MAX => {
            Err(LayoutError::TooLarge { key, found: value.len() })
        }
        Layout::Variable { inline } => {
            entry[8..12].copy_from_slice(&(value.len() as u32).to_le_bytes());
            if value.len() <= inline as usize {
                entry[12..12 + value.len()].copy_from_slice(value);
            } else {
                entry[12..20].copy_from_slice(&(heap.len() as u64).to_le_bytes());
                heap.extend_from_slice(value);
            }
            Ok(())
        }
    }
}

/// What identifies a shard file: everything in it is covered by these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Bytes of the file.
    pub bytes: u64,
    /// Keys in it.
    pub count: u64,
    /// Checksum of the header, in the upper half, and of the blocks' checksums.
    pub checksum: u64,
}

/// A shard file that is being written.
pub struct ShardWriter {
    blocks: Blocks,
    path: PathBuf,
    schema: Schema,
    shard: u32,
    plan: Plan,
    parts: Vec<PartRecord>,
    pilots: Vec<u8>,
}

impl ShardWriter {
    /// Begins `path` as shard number `shard` of `plan`. An old file of that name is replaced at the end.
    ///
    /// # Errors
    /// The file cannot be created, or the schema is wrong.
    pub fn create(path: &Path, schema: &Schema, plan: Plan, shard: u32) -> Result<Self, FileError> {
        schema.check().map_err(|what| FileError::Structure { file: path.into(), what })?;
        let blocks = Blocks::create(&partial(path))?;
        Ok(Self {
            blocks,
            path: path.into(),
            schema: schema.clone(),
            shard,
            plan,
            parts: Vec::new(),
            pilots: Vec::new(),
        })
    }

    /// Appends the next part.
    ///
    /// # Errors
    /// The file cannot be written.
    ///
    /// # Panics
    /// If the plan has no more parts.
    pub fn append(&mut self, part: &Part) -> Result<(), FileError> {
        assert!(self.parts.len() < self.plan.parts as usize, "the plan has {} parts", self.plan.parts);
        let entries_at = self.blocks.position();
        self.blocks.write(&part.entries)?;
        let heap_at = self.blocks.position();
        self.blocks.write(&part.heap)?;
        self.parts.push(PartRecord {
            entries_at,
            heap_at,
            heap_length: part.heap.len() as u64,
            pilots_at: u32::try_from(self.pilots.len()).expect("2^16 parts of a third of a byte per key"),
            buckets: part.pilots.pilots.len() as u32,
            slots: part.pilots.slots,
            count: part.count,
            seed: part.pilots.seed,
        });
        self.pilots.extend_from_slice(&part.pilots.pilots);
        Ok(())
    }

    /// Ends the file, brings it to the disk and gives it its name.
    ///
    /// # Errors
    /// The file cannot be written.
    ///
    /// # Panics
    /// If parts are missing.
    pub fn finish(mut self) -> Result<Seal, FileError> {
        assert_eq!(self.parts.len(), self.plan.parts as usize, "every part of the plan");
        let pilots_at = self.blocks.position();
        self.blocks.write(&self.pilots)?;
        let parts_at = self.blocks.position();
        for part in &self.parts {
            self.blocks.write(&part.encode())?;
        }
        let default_row = self.schema.default_row.take().map(|row| (self.blocks.position(), row));
        if let Some((_, row)) = &default_row {
            self.blocks.write(row)?;
        }
        let count = self.parts.iter().map(|part| u64::from(part.count)).sum();
        let checksums_at = self.blocks.position();
        let mut header = Header {
            file_length: checksums_at + 4 * checksums_at.div_ceil(BLOCK as u64),
            count,
            shard: self.shard,
            shards: self.plan.shards,
            schema: self.schema,
            default_row: default_row.map(|(at, row)| (at, row.len() as u32)),
            parts: self.plan.parts,
            parts_at,
            pilots_at,
            pilots_length: self.pilots.len() as u64,
            checksums_at,
            checksums_crc: 0,
        };
        // The header has a checksum of its own; block 0's begins behind it, because the header holds the checksum of them all.
        let checksum = self.blocks.finish(&mut header)?;
        let bytes = header.file_length;
        std::fs::rename(partial(&self.path), &self.path)
            .map_err(|source| FileError::Io { file: self.path.clone(), source })?;
        Ok(Seal { bytes, count, checksum })
    }
}

fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// A file written from front to back in blocks, each with a checksum. Block 0 is kept until the header is known.
struct Blocks {
    file: File,
    path: PathBuf,
    first: Vec<u8>,
    current: Vec<u8>,
    checksums: Vec<u8>,
    position: u64,
}

impl Blocks {
    fn create(path: &Path) -> Result<Self, FileError> {
        let file = File::create(path).map_err(|source| FileError::Io { file: path.into(), source })?;
        Ok(Self {
            file,
            path: path.into(),
            first: Vec::new(),
            current: vec![0; BODY as usize],
            checksums: Vec::new(),
            position: BODY,
        })
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), FileError> {
        self.position += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = BLOCK - self.current.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.current.extend_from_slice(now);
            bytes = later;
            if self.current.len() == BLOCK {
                self.end_block()?;
            }
        }
        Ok(())
    }

    fn end_block(&mut self) -> Result<(), FileError> {
        self.checksums.extend(crc32c::crc32c(&self.current).to_le_bytes());
        let result = self.file.write_all(&self.current);
        if self.checksums.len() == 4 {
            self.first = std::mem::take(&mut self.current);
        }
        self.current.clear();
        result.map_err(|source| FileError::Io { file: self.path.clone(), source })
    }

    /// Writes the last block, the checksums and the header; says the header's and the blocks' checksum.
    fn finish(mut self, header: &mut Header) -> Result<u64, FileError> {
        if !self.current.is_empty() {
            self.end_block()?;
        }
        let block = crc32c::crc32c(&self.first[HEADER..]);
        self.checksums[..4].copy_from_slice(&block.to_le_bytes());
        header.checksums_crc = crc32c::crc32c(&self.checksums);
        let encoded = header.encode();
        let own = crate::format::u32_at(&encoded, HEADER - 4);
        let written = (|| {
            self.file.write_all(&self.checksums)?;
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(&encoded)?;
            self.file.sync_all()
        })();
        written.map_err(|source| FileError::Io { file: self.path.clone(), source })?;
        Ok(u64::from(own) << 32 | u64::from(header.checksums_crc))
    }
}
