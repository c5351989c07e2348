//! A set of shard files as one map. A batch of keys is hashed, then their cache lines are prefetched, then
//! read.
//!
//! A lookup reads one pilot byte and one entry per key (and the heap for a value that is not inline), and the
//! processor waits for the cache lines of up to [`AT_ONCE`] keys at once.
//!
//! Deliberately absent: versions and changes. A [`Table`] never changes; [`crate::Stack`] puts one over
//! another.

use crate::cut;
use crate::error::{FileError, TableError};
use crate::format::u64_at;
use crate::hash;
use crate::manifest::{FileEntry, Manifest};
use crate::memory::prefetch;
use crate::schema::{Layout, Schema};
use crate::shard::{self, Options, Shard};
use std::path::Path;

/// Keys in flight at once: enough to keep all line-fill buffers of a core busy.
const AT_ONCE: usize = 64;
const CACHE_LINE: usize = 64;
/// The maximum number of lines to prefetch per entry; the hardware prefetcher continues from there.
const LINES_MAX: usize = 8;
const NOWHERE: usize = usize::MAX;

/// A part of any shard, with offsets from the start of its file.
#[derive(Clone, Copy)]
struct MappedPart {
    shard: u32,
    slots: u32,
    buckets: u32,
    pilots_at: usize,
    entries_at: usize,
    heap_at: usize,
    heap_length: u64,
    seed: u64,
}

/// An immutable map from `u64` to bytes, in one or more files.
pub struct Table {
    shards: Vec<Shard>,
    parts: Vec<MappedPart>,
    /// Per shard: the index of its first part in `parts`, and the number of its parts.
    ranges: Vec<(u32, u32)>,
    schema: Schema,
    stride: usize,
}

impl Table {
    /// Opens and checks `files` in `folder`: those with values, or those with a patch's deletes.
    ///
    /// # Errors
    /// A file cannot be read, is damaged, or is not the one that the manifest names.
    pub fn open(
        folder: &Path,
        manifest: &Manifest,
        files: &[FileEntry],
        options: Options,
    ) -> Result<Self, TableError> {
        let mut shards = Vec::with_capacity(files.len());
        for (number, entry) in files.iter().enumerate() {
            let file = folder.join(&entry.name);
            let shard = Shard::open(&file, options)?;
            let differs = |what: String| TableError::Other { file: file.clone(), what };
            if shard.seal() != entry.seal() {
                return Err(differs(format!(
                    "it has {}, but the manifest says {}",
                    shard.seal(),
                    entry.seal()
                )));
            }
            if shard.number() != (number as u32, manifest.shards) {
                let (found, of) = shard.number();
                return Err(differs(format!(
                    "it is shard {found} of {of}, not {number} of {}",
                    manifest.shards
                )));
            }
            shards.push(shard);
        }
        Self::new(shards).map_err(TableError::File)
    }

    /// A table of `shards`, which must be complete and in order.
    ///
    /// # Errors
    /// They are not all shards of one table in order, or their schemas differ.
    pub fn new(shards: Vec<Shard>) -> Result<Self, FileError> {
        let refuse = |shard: &Shard, what: String| FileError::Structure { file: shard.file().into(), what };
        let Some(first) = shards.first() else {
            return Err(FileError::Structure {
                file: "".into(),
                what: "a table has at least one shard".into(),
            });
        };
        let (schema, expected) = (first.schema().clone(), shards.len() as u32);
        for (number, shard) in shards.iter().enumerate() {
            if shard.number() != (number as u32, expected) {
                let (found, of) = shard.number();
                return Err(refuse(
                    shard,
                    format!("it is shard {found} of {of}, not {number} of {expected}"),
                ));
            }
            if shard.schema() != &schema {
                return Err(refuse(
                    shard,
                    format!(
                        "its values are {}, but the first shard's {}",
                        shard.schema().describe(),
                        schema.describe()
                    ),
                ));
            }
        }
        let (mut parts, mut ranges) = (Vec::new(), Vec::new());
        for (number, shard) in shards.iter().enumerate() {
            ranges.push((parts.len() as u32, shard.parts.len() as u32));
            parts.extend(shard.parts.iter().map(|part| MappedPart {
                shard: number as u32,
                slots: part.slots,
                buckets: part.buckets,
                pilots_at: shard.pilots_at() + part.pilots_at as usize,
                entries_at: part.entries_at as usize,
                heap_at: part.heap_at as usize,
                heap_length: part.heap_length,
                seed: part.seed,
            }));
        }
        let stride = schema.stride();
        Ok(Self { shards, parts, ranges, schema, stride })
    }

    /// What the values are.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The shards, in order.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The number of keys.
    pub fn count(&self) -> u64 {
        self.shards.iter().map(Shard::count).sum()
    }

    /// Whether all that was read of the files so far was what they hold. To be asked before what was found is passed on;
    /// costs nothing worth mentioning while all is well.
    ///
    /// # Errors
    /// A file was cut, or its disk failed, while it was mapped.
    #[inline]
    pub fn check_read(&self) -> Result<(), FileError> {
        if cut::any_fault() { self.shards.iter().try_for_each(Shard::check_read) } else { Ok(()) }
    }

    /// The stored value of `key`, if the table has it.
    pub fn get(&self, key: u64) -> Option<&[u8]> {
        let mut value = None;
        self.locate(&[key], |_, found| value = Some(found));
        value
    }

    /// Calls `found` with the position and the stored value of each key that the table has, in the order of
    /// `keys`.
    #[inline]
    pub fn locate<'a>(&'a self, keys: &[u64], mut found: impl FnMut(usize, &'a [u8])) {
        let mut within = [0u64; AT_ONCE];
        let mut part_of = [0u32; AT_ONCE];
        let mut places = [NOWHERE; AT_ONCE];
        for (chunk, keys) in keys.chunks(AT_ONCE).enumerate() {
            for (position, &key) in keys.iter().enumerate() {
                (part_of[position], within[position], places[position]) = self.pilot_place(key);
            }
            for position in 0..keys.len() {
                let part = &self.parts[part_of[position] as usize];
                places[position] = self.entry_place(part, within[position], places[position]);
            }
            for (position, &key) in keys.iter().enumerate() {
                let part = &self.parts[part_of[position] as usize];
                if let Some(value) = self.read(part, places[position], key) {
                    found(chunk * AT_ONCE + position, value);
                }
            }
        }
    }

    /// Locates and prefetches the pilot of `key`. Returns the part, the hash within it, and the pilot's
    /// offset.
    #[inline]
    fn pilot_place(&self, key: u64) -> (u32, u64, usize) {
        let hash = hash::mix(key);
        let (shard, part) =
            hash::shard_and_part(hash, self.ranges.len() as u64, |shard| self.ranges[shard].1.into());
        let number = self.ranges[shard].0 + part as u32;
        let part = &self.parts[number as usize];
        if part.slots == 0 {
            return (number, 0, NOWHERE);
        }
        let within = hash::within(hash, part.seed);
        let place = part.pilots_at + hash::bucket(within, part.buckets) as usize;
        prefetch(self.shards[shard].bytes(), place);
        (number, within, place)
    }

    /// Locates and prefetches the entry that a pilot selects.
    #[inline]
    fn entry_place(&self, part: &MappedPart, within: u64, pilot: usize) -> usize {
        if pilot == NOWHERE {
            return NOWHERE;
        }
        let bytes = self.shards[part.shard as usize].bytes();
        let slot = hash::slot(within, bytes[pilot], part.slots) as usize;
        let place = part.entries_at + slot * self.stride;
        let last = self.stride.min(LINES_MAX * CACHE_LINE) - 1;
        for line in (0..last).step_by(CACHE_LINE) {
            prefetch(bytes, place + line);
        }
        prefetch(bytes, place + last);
        place
    }

    #[inline]
    fn read(&self, part: &MappedPart, place: usize, key: u64) -> Option<&[u8]> {
        if place == NOWHERE {
            return None;
        }
        let shard = &self.shards[part.shard as usize];
        let bytes = shard.bytes();
        if u64_at(bytes, place) != key {
            return None;
        }
        match self.schema.layout {
            Layout::Fixed { .. } => bytes.get(place + 8..place + self.stride),
            Layout::Variable { .. } => {
                shard::value(self.schema.layout, bytes, place, part.heap_at, part.heap_length)
            }
        }
    }
}
