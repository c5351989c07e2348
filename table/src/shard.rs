//! One shard file, opened: checked from front to back, then only read.
//!
//! **Invariant.** A [`Shard`] exists only if every byte of its file is as it was written and every part lies in the file. What
//! a hostile writer may still do with right checksums is give wrong values, not make a reader look outside the file.
//!
//! What is deliberately absent: lookups. [`crate::Table`] finds keys over all shards at once.

use crate::error::FileError;
use crate::format::{BLOCK, HEADER, Header, Layout, PartRecord, Schema, u32_at, u64_at};
use crate::hash;
use crate::memory::{Memory, Place};
use crate::writer::Seal;
use std::fs::File;
use std::path::{Path, PathBuf};

/// How files are held in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Mapped or in huge pages.
    pub place: Place,
    /// Keep them in memory (mlock). Needs `RLIMIT_MEMLOCK` or the capability `IPC_LOCK`.
    pub lock: bool,
}

/// One shard file.
pub struct Shard {
    memory: Memory,
    file: PathBuf,
    header: Header,
    schema: Schema,
    pub(crate) parts: Vec<PartRecord>,
}

impl Shard {
    /// Opens and checks `file`.
    ///
    /// # Errors
    /// It cannot be read, or is not what was written.
    pub fn open(file: &Path, options: Options) -> Result<Self, FileError> {
        let io = |source| FileError::Io { file: file.into(), source };
        let handle = File::open(file).map_err(io)?;
        let length = handle.metadata().map_err(io)?.len();
        if length < HEADER as u64 {
            let bytes = std::fs::read(file).map_err(io)?;
            Header::decode(&bytes, length, file)?;
        }
        let mut first = [0; HEADER];
        std::os::unix::fs::FileExt::read_exact_at(&handle, &mut first, 0).map_err(io)?;
        let header = Header::decode(&first, length, file)?;
        if length != header.file_length {
            return Err(cut(&handle, file, &header, length).unwrap_or_else(io));
        }
        let length = usize::try_from(length).map_err(|_| FileError::Structure {
            file: file.into(),
            what: format!("{length} bytes do not fit this machine's address space"),
        })?;
        let memory = Memory::load(&handle, length, options.place).map_err(io)?;
        memory.expect_scan(true);
        check_blocks(memory.bytes(), &header, file)?;
        memory.expect_scan(false);
        if options.lock {
            memory.lock().map_err(|source| FileError::Io { file: file.into(), source })?;
        }
        let structure = |what| FileError::Structure { file: file.into(), what };
        let parts = (0..header.parts as usize)
            .map(|number| PartRecord::decode(memory.bytes(), number, &header))
            .collect::<Result<Vec<_>, _>>()
            .map_err(structure)?;
        let counted: u64 = parts.iter().map(|part| u64::from(part.count)).sum();
        if counted != header.count {
            return Err(structure(format!(
                "the parts have {counted} keys, the header says {}",
                header.count
            )));
        }
        let mut schema = header.schema.clone();
        schema.default_row = header
            .default_row
            .map(|(at, length)| memory.bytes()[at as usize..at as usize + length as usize].to_vec());
        schema.check().map_err(structure)?;
        Ok(Self { memory, file: file.into(), header, schema, parts })
    }

    /// What its values are.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Its number, and how many shards its table has.
    pub fn number(&self) -> (u32, u32) {
        (self.header.shard, self.header.shards)
    }

    /// Keys in it.
    pub fn count(&self) -> u64 {
        self.header.count
    }

    /// How many parts it has.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Its path when it was opened.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// What identifies it.
    pub fn seal(&self) -> Seal {
        let own = u32_at(self.memory.bytes(), HEADER - 4);
        Seal {
            bytes: self.header.file_length,
            count: self.header.count,
            checksum: u64::from(own) << 32 | u64::from(self.header.checksums_crc),
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    #[inline]
    pub(crate) fn pilots_at(&self) -> usize {
        self.header.pilots_at as usize
    }

    /// All keys of part `number` with their values, in the order of their slots.
    ///
    /// # Panics
    /// If there is no such part.
    pub fn entries(&self, number: usize) -> impl Iterator<Item = (u64, &[u8])> {
        let part = self.parts[number];
        let (bytes, stride, layout) = (self.bytes(), self.schema.stride(), self.schema.layout);
        (0..part.slots).filter_map(move |slot| {
            let at = part.entries_at as usize + slot as usize * stride;
            let key = u64_at(bytes, at);
            let within = hash::within(hash::mix(key), part.seed);
            let bucket = hash::bucket(within, part.buckets) as usize;
            let pilot = bytes[self.pilots_at() + part.pilots_at as usize + bucket];
            // A free slot has the key of another.
            (hash::slot(within, pilot, part.slots) == slot)
                .then(|| Some((key, value(layout, bytes, at, part.heap_at as usize, part.heap_length)?)))?
        })
    }
}

/// The value of the entry at `at`. `None` where a hostile writer has put a length or place beyond the heap.
#[inline]
pub(crate) fn value(
    layout: Layout,
    bytes: &[u8],
    at: usize,
    heap_at: usize,
    heap_length: u64,
) -> Option<&[u8]> {
    match layout {
        Layout::Fixed { width } => bytes.get(at + 8..at + 8 + width as usize),
        Layout::Variable { inline } => {
            let length = u32_at(bytes, at + 8);
            if length <= inline {
                return bytes.get(at + 12..at + 12 + length as usize);
            }
            let offset = u64_at(bytes, at + 12);
            let end = offset.checked_add(u64::from(length)).filter(|&end| end <= heap_length)?;
            bytes.get(heap_at + offset as usize..heap_at + end as usize)
        }
    }
}

fn check_blocks(bytes: &[u8], header: &Header, file: &Path) -> Result<(), FileError> {
    let (body, checksums) = bytes.split_at(header.checksums_at as usize);
    let refuse =
        |block: u64, expected, found| FileError::Checksum { file: file.into(), block, expected, found };
    let found = crc32c::crc32c(checksums);
    if found != header.checksums_crc {
        return Err(refuse(header.checksums_at / BLOCK as u64, header.checksums_crc, found));
    }
    for (number, block) in body.chunks(BLOCK).enumerate() {
        // The header has its own checksum.
        let block = if number == 0 { &block[HEADER..] } else { block };
        let (expected, found) = (u32_at(checksums, 4 * number), crc32c::crc32c(block));
        if expected != found {
            return Err(refuse(number as u64, expected, found));
        }
    }
    Ok(())
}

/// The error for a file that is not as long as its header says.
fn cut(handle: &File, file: &Path, header: &Header, length: u64) -> std::io::Result<FileError> {
    let mut rest = vec![
        0;
        length.saturating_sub(header.checksums_at).min(header.file_length - header.checksums_at)
            as usize
    ];
    let at = length - rest.len() as u64;
    std::os::unix::fs::FileExt::read_exact_at(handle, &mut rest, at)?;
    Ok(FileError::Cut {
        file: file.into(),
        expected_length: header.file_length,
        length,
        block: length.min(header.file_length) / BLOCK as u64,
        expected: header.checksums_crc,
        found: crc32c::crc32c(&rest),
    })
}
