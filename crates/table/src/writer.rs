//! Writing a shard file: parts are appended in the plan's order.
//!
//! **Invariant: Whole when named.** A file gets its name only once it is complete and synced; until then it
//! is called `NAME.partial`.

use crate::blocks::BlockWriter;
use crate::digest::Digest;
use crate::error::FileError;
use crate::format::{BLOCK, Header, PartRecord, Seal};
use crate::part::{Part, Plan};
use crate::schema::Schema;
use std::path::{Path, PathBuf};

/// A shard file being written.
pub struct ShardWriter {
    blocks: BlockWriter,
    path: PathBuf,
    schema: Schema,
    shard: u32,
    plan: Plan,
    parts: Vec<PartRecord>,
    pilots: Vec<u8>,
}

impl ShardWriter {
    /// Starts `path` as shard number `shard` of `plan`. [`Self::finish`] replaces an existing file of that
    /// name.
    ///
    /// # Errors
    /// The file cannot be created, or the schema is invalid.
    pub fn create(path: &Path, schema: &Schema, plan: Plan, shard: u32) -> Result<Self, FileError> {
        schema.check().map_err(|what| FileError::Structure { file: path.into(), what })?;
        let blocks = BlockWriter::create(&partial(path))?;
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
            pilots_at: u32::try_from(self.pilots.len()).expect("a shard has far fewer than 2^32 buckets"),
            buckets: part.pilots.pilots.len() as u32,
            slots: part.pilots.slots,
            count: part.count,
            seed: part.pilots.seed,
        });
        self.pilots.extend_from_slice(&part.pilots.pilots);
        Ok(())
    }

    /// Completes the file, syncs it and gives it its name.
    ///
    /// # Errors
    /// The file cannot be written.
    ///
    /// # Panics
    /// If parts are missing.
    pub fn finish(mut self) -> Result<(Seal, Digest), FileError> {
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
        let checksums_at = self.blocks.position();
        let mut header = Header {
            file_length: checksums_at + 4 * checksums_at.div_ceil(BLOCK as u64),
            count: self.parts.iter().map(|part| u64::from(part.count)).sum(),
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
        let sealed = self.blocks.finish(&mut header)?;
        std::fs::rename(partial(&self.path), &self.path)
            .map_err(|source| FileError::Io { file: self.path.clone(), source })?;
        Ok(sealed)
    }
}

fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}
