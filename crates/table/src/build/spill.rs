//! Rows divided over the parts, in one temporary file.
//!
//! A record is a key (8 bytes), a length (4 bytes, all ones for a delete) and the value. The records of a
//! part are buffered and appended to the file in chunks. Memory holds the offset of each chunk and its
//! position in the order of the inputs, so a part's rows are read back in that order, however many threads
//! divided them.
//!
//! Deliberately absent: durability. The file has no name, so nothing of it remains after the build.

use super::error::BuildError;
use super::rows::{Kind, Rows};
use crate::part::Plan;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const BUFFER_MIN: usize = 4 << 10;
const BUFFER_MAX: usize = 256 << 10;
const DELETE: u32 = u32::MAX;
/// Bytes of a record before its value.
const HEAD: usize = 12;

/// A chunk's place in the file. `order` is the number of its piece, and its own number within the piece.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Chunk {
    order: (u32, u32),
    at: u64,
    length: u32,
}

/// The file while it is being written.
pub(super) struct Spill {
    file: File,
    folder: PathBuf,
    plan: Plan,
    buffer_bytes: usize,
    end: AtomicU64,
    chunks: Vec<Mutex<Vec<Chunk>>>,
}

impl Spill {
    /// Creates an unnamed file in `folder` for `plan`. Each thread has `memory_bytes` for buffers, but each
    /// of its buffers (one per part) has at least [`BUFFER_MIN`].
    pub(super) fn create(folder: &Path, plan: Plan, memory_bytes: usize) -> Result<Self, BuildError> {
        let parts = plan.shards as usize * plan.parts as usize;
        Ok(Self {
            file: tempfile::tempfile_in(folder).map_err(|source| BuildError::scratch(folder, source))?,
            folder: folder.into(),
            plan,
            buffer_bytes: (memory_bytes / parts).clamp(BUFFER_MIN, BUFFER_MAX),
            end: AtomicU64::new(0),
            chunks: (0..parts).map(|_| Mutex::default()).collect(),
        })
    }

    /// The divider of one thread.
    pub(super) fn divider(&self, kind: Kind) -> Divider<'_> {
        Divider { spill: self, kind, piece: 0, written: 0, buffers: vec![Vec::new(); self.chunks.len()] }
    }

    /// Ends writing.
    pub(super) fn into_divided(self) -> Divided {
        let sorted = |chunks: Mutex<Vec<Chunk>>| {
            let mut chunks = chunks.into_inner().expect("no thread panicked");
            chunks.sort_unstable();
            chunks
        };
        Divided {
            file: self.file,
            folder: self.folder,
            chunks: self.chunks.into_iter().map(sorted).collect(),
        }
    }
}

/// Divides the rows of one thread.
pub(super) struct Divider<'a> {
    spill: &'a Spill,
    kind: Kind,
    piece: u32,
    written: u32,
    buffers: Vec<Vec<u8>>,
}

impl Divider<'_> {
    /// Starts a piece; the rows that follow belong to it.
    pub(super) fn begin(&mut self, piece: u32) {
        (self.piece, self.written) = (piece, 0);
    }

    /// Divides a chunk of rows.
    pub(super) fn take(&mut self, rows: &Rows) -> Result<(), BuildError> {
        for (row, &key) in rows.keys.iter().enumerate() {
            let part = self.spill.plan.part_of(key);
            let buffer = &mut self.buffers[part];
            let value = rows.value(row);
            let deleted = self.kind.patch && rows.deletes.get(row) == Some(&true);
            buffer.extend_from_slice(&key.to_le_bytes());
            buffer.extend_from_slice(&if deleted { DELETE } else { value.len() as u32 }.to_le_bytes());
            buffer.extend_from_slice(value);
            if buffer.len() >= self.spill.buffer_bytes {
                self.write(part)?;
            }
        }
        Ok(())
    }

    /// Writes all buffers, at the end of a piece.
    pub(super) fn flush(&mut self) -> Result<(), BuildError> {
        (0..self.buffers.len())
            .filter(|&part| !self.buffers[part].is_empty())
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|part| self.write(part))
    }

    fn write(&mut self, part: usize) -> Result<(), BuildError> {
        let buffer = &mut self.buffers[part];
        let length = buffer.len();
        let at = self.spill.end.fetch_add(length as u64, Ordering::Relaxed);
        self.spill
            .file
            .write_all_at(buffer, at)
            .map_err(|source| BuildError::scratch(&self.spill.folder, source))?;
        buffer.clear();
        let chunk = Chunk { order: (self.piece, self.written), at, length: length as u32 };
        self.spill.chunks[part].lock().expect("no thread panicked").push(chunk);
        self.written += 1;
        Ok(())
    }
}

/// The complete file.
pub(super) struct Divided {
    file: File,
    folder: PathBuf,
    chunks: Vec<Vec<Chunk>>,
}

impl Divided {
    /// Reads the records of `part` into `records`, in the order of the inputs.
    pub(super) fn read(&self, part: usize, records: &mut Vec<u8>) -> Result<(), BuildError> {
        let chunks = &self.chunks[part];
        records.clear();
        records.resize(chunks.iter().map(|chunk| chunk.length as usize).sum(), 0);
        let mut rest = records.as_mut_slice();
        for chunk in chunks {
            let (now, later) = rest.split_at_mut(chunk.length as usize);
            self.file
                .read_exact_at(now, chunk.at)
                .map_err(|source| BuildError::scratch(&self.folder, source))?;
            rest = later;
        }
        Ok(())
    }
}

/// Collects the keys with the offsets of their records, in the order of the inputs.
pub(super) fn places(records: &[u8], out: &mut Vec<(u64, usize)>) {
    out.clear();
    let mut at = 0;
    while at < records.len() {
        out.push((crate::format::u64_at(records, at), at));
        at += HEAD + value_at(records, at).map_or(0, <[u8]>::len);
    }
}

/// The value of the record at `at`; `None` for a delete.
pub(super) fn value_at(records: &[u8], at: usize) -> Option<&[u8]> {
    let length = crate::format::u32_at(records, at + 8);
    (length != DELETE).then(|| &records[at + HEAD..at + HEAD + length as usize])
}
