//! One shard file, opened: checked from front to back, then only read.
//!
//! **Invariant: Checked before served.** A [`Shard`] exists only if every byte of its file matches its
//! checksum and every part is inside the file. A hostile writer who computes valid checksums can produce
//! wrong values, but cannot make a reader leave the file.
//!
//! Deliberately absent: lookups. [`crate::Table`] finds keys over all shards at once.

use crate::blocks;
use crate::digest::Digest;
use crate::error::FileError;
use crate::format::{BLOCK, HEADER, Header, PartRecord, Seal, u32_at, u64_at};
use crate::hash;
use crate::memory::{Memory, Place};
use crate::schema::{Layout, Schema};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// How files are held in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Mapped, or in huge pages.
    pub place: Place,
    /// Lock them in memory (mlock), which needs a sufficient `RLIMIT_MEMLOCK` or the capability `IPC_LOCK`.
    pub lock: bool,
}

/// One shard file, checked and in memory.
pub struct Shard {
    memory: Memory,
    file: PathBuf,
    header: Header,
    schema: Schema,
    pub(crate) parts: Vec<PartRecord>,
}

impl Shard {
    /// Opens and checks `file`, which reads all of it.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or is invalid.
    pub fn open(file: &Path, options: Options) -> Result<Self, FileError> {
        let io = |source| FileError::Io { file: file.into(), source };
        let structure = |what| FileError::Structure { file: file.into(), what };
        let handle = File::open(file).map_err(io)?;
        let length = handle.metadata().map_err(io)?.len();
        if length < HEADER as u64 {
            let bytes = std::fs::read(file).map_err(io)?;
            Header::decode(&bytes, length, file)?;
        }
        let mut first = [0; HEADER];
        handle.read_exact_at(&mut first, 0).map_err(io)?;
        let header = Header::decode(&first, length, file)?;
        if length != header.file_length {
            return Err(cut(&handle, file, &header, length).unwrap_or_else(io));
        }
        let length = usize::try_from(length)
            .map_err(|_| structure(format!("{length} bytes do not fit this machine's address space")))?;
        let memory = Memory::load(&handle, file, length, options.place).map_err(io)?;
        memory.expect_scan(true);
        let checked = blocks::check(memory.bytes(), &header, file);
        if memory.is_broken() {
            return Err(unreadable(file));
        }
        checked?;
        memory.expect_scan(false);
        if options.lock {
            memory.lock().map_err(io)?;
        }
        let parts = (0..header.parts as usize)
            .map(|number| PartRecord::decode(memory.bytes(), number, &header))
            .collect::<Result<Vec<_>, _>>()
            .map_err(structure)?;
        let counted: u64 = parts.iter().map(|part| u64::from(part.count)).sum();
        if counted != header.count {
            return Err(structure(format!(
                "the parts have {counted} keys, but the header says {}",
                header.count
            )));
        }
        let mut schema = header.schema.clone();
        schema.default_row = header
            .default_row
            .map(|(at, length)| memory.bytes()[at as usize..at as usize + length as usize].to_vec());
        schema.check().map_err(structure)?;
        if memory.is_broken() {
            return Err(unreadable(file));
        }
        Ok(Self { memory, file: file.into(), header, schema, parts })
    }

    /// What the values are.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The shard's number, and the number of shards in its table.
    pub fn number(&self) -> (u32, u32) {
        (self.header.shard, self.header.shards)
    }

    /// The number of keys.
    pub fn count(&self) -> u64 {
        self.header.count
    }

    /// The number of parts.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The path from which the file was opened.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// What identifies the file.
    pub fn seal(&self) -> Seal {
        Seal::new(&self.header, u32_at(self.memory.bytes(), HEADER - 4))
    }

    /// The digest of the file, which reads all of it.
    pub fn digest(&self) -> Digest {
        Digest::of_file(self.bytes())
    }

    /// Whether all that was read of the file so far was what it holds.
    ///
    /// # Errors
    /// It was cut, or its disk failed, while it was mapped: what was read may have been zeros.
    pub fn check_read(&self) -> Result<(), FileError> {
        if self.memory.is_broken() { Err(unreadable(&self.file)) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    #[inline]
    pub(crate) fn pilots_at(&self) -> usize {
        self.header.pilots_at as usize
    }

    /// All keys of part `number` with their values, in slot order.
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
            // A free slot holds a key that belongs in another slot.
            (hash::slot(within, pilot, part.slots) == slot)
                .then(|| Some((key, value(layout, bytes, at, part.heap_at as usize, part.heap_length)?)))?
        })
    }
}

/// The value of the entry at `at`. `None` if its length or offset points outside the heap, which only a
/// hostile writer causes.
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

fn unreadable(file: &Path) -> FileError {
    FileError::Io { file: file.into(), source: rustix::io::Errno::IO.into() }
}

/// The error for a file whose length differs from what its header says.
fn cut(handle: &File, file: &Path, header: &Header, length: u64) -> std::io::Result<FileError> {
    let checksums = header.file_length - header.checksums_at;
    let mut rest = vec![0; length.saturating_sub(header.checksums_at).min(checksums) as usize];
    let at = length - rest.len() as u64;
    handle.read_exact_at(&mut rest, at)?;
    Ok(FileError::Cut {
        file: file.into(),
        expected_length: header.file_length,
        length,
        block: length.min(header.file_length) / BLOCK as u64,
        expected: header.checksums_crc,
        found: crc32c::crc32c(&rest),
    })
}
