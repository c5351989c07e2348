//! Sorts records by their keys, more than memory holds: runs that fit are sorted, written to a file without a name, and
//! merged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of records in memory until they are written as a run.
pub const SORT_BYTES: usize = 32 << 20;
/// Bytes that are read ahead of a run, fewer if there are many.
const AHEAD_BYTES: std::ops::RangeInclusive<usize> = (4 << 10)..=(64 << 10);

/// Records to be sorted.
pub(crate) struct Sorter {
    folder: PathBuf,
    records: Vec<(Vec<u8>, Vec<u8>)>,
    bytes: usize,
    bytes_max: usize,
    file: Option<BufWriter<File>>,
    /// Where each run begins; it ends where the next one does.
    runs: Vec<u64>,
    end: u64,
}

impl Sorter {
    /// Runs are written into `folder`.
    pub(crate) fn new(folder: &Path, bytes_max: usize) -> Self {
        let folder = folder.to_path_buf();
        Self { folder, records: Vec::new(), bytes: 0, bytes_max, file: None, runs: Vec::new(), end: 0 }
    }

    pub(crate) fn push(&mut self, key: Vec<u8>, value: Vec<u8>) -> io::Result<()> {
        self.bytes += key.len() + value.len() + size_of::<(Vec<u8>, Vec<u8>)>();
        self.records.push((key, value));
        if self.bytes < self.bytes_max { Ok(()) } else { self.write_run() }
    }

    /// Bytes in the file.
    pub(crate) fn spooled(&self) -> u64 {
        self.end
    }

    fn write_run(&mut self) -> io::Result<()> {
        self.records.sort_unstable();
        self.bytes = 0;
        let mut file = match self.file.take() {
            Some(file) => file,
            None => BufWriter::with_capacity(*AHEAD_BYTES.end(), tempfile::tempfile_in(&self.folder)?),
        };
        self.runs.push(self.end);
        for (key, value) in self.records.drain(..) {
            for part in [&key, &value] {
                let length = u32::try_from(part.len()).map_err(io::Error::other)?;
                file.write_all(&length.to_le_bytes())?;
                file.write_all(part)?;
                self.end += 4 + part.len() as u64;
            }
        }
        self.file = Some(file);
        Ok(())
    }

    /// The records in the order of their keys.
    pub(crate) fn sorted(mut self) -> io::Result<Sorted> {
        if self.file.is_none() {
            self.records.sort_unstable();
            return Ok(Sorted {
                memory: self.records.into_iter(),
                runs: Vec::new(),
                heads: BinaryHeap::new(),
            });
        }
        self.write_run()?;
        let file = self.file.expect("a run was written").into_inner();
        let file = Arc::new(file.map_err(io::IntoInnerError::into_error)?);
        let ends = self.runs.iter().skip(1).copied().chain([self.end]);
        let ahead = (self.bytes_max / self.runs.len()).clamp(*AHEAD_BYTES.start(), *AHEAD_BYTES.end());
        let piece = |(at, end)| BufReader::with_capacity(ahead, Piece { file: file.clone(), at, end });
        let runs: Vec<_> = self.runs.iter().copied().zip(ends).map(piece).collect();
        let mut sorted = Sorted { memory: Vec::new().into_iter(), runs, heads: BinaryHeap::new() };
        (0..sorted.runs.len()).try_for_each(|run| sorted.refill(run))?;
        Ok(sorted)
    }
}

/// A part of a file that others read too.
struct Piece {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for Piece {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read_at(&mut buffer[..left], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// A record's key, and the run in which its value is next: of many runs, values would take too much memory.
type Head = Reverse<(Vec<u8>, usize)>;

/// Sorted records.
pub(crate) struct Sorted {
    memory: std::vec::IntoIter<(Vec<u8>, Vec<u8>)>,
    runs: Vec<BufReader<Piece>>,
    /// The next record of each run.
    heads: BinaryHeap<Head>,
}

impl Sorted {
    pub(crate) fn next(&mut self) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
        if let Some(record) = self.memory.next() {
            return Ok(Some(record));
        }
        let Some(Reverse((key, run))) = self.heads.pop() else { return Ok(None) };
        let value = take(&mut self.runs[run])?;
        self.refill(run)?;
        Ok(Some((key, value)))
    }

    fn refill(&mut self, run: usize) -> io::Result<()> {
        let from = &mut self.runs[run];
        if from.buffer().is_empty() && from.get_ref().at == from.get_ref().end {
            return Ok(());
        }
        let key = take(from)?;
        self.heads.push(Reverse((key, run)));
        Ok(())
    }
}

fn take(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut part = vec![0; u32::from_le_bytes(length) as usize];
    from.read_exact(&mut part)?;
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_sorted_whether_they_fit_in_memory_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let record = |number: u32| {
            let key = number.wrapping_mul(2_654_435_761).to_be_bytes().to_vec();
            (key, vec![b'v'; number as usize % 300])
        };
        let mut expected: Vec<_> = (0..5000).map(record).collect();
        expected.sort();
        for bytes_max in [3000, 20_000, SORT_BYTES] {
            let mut sorter = Sorter::new(folder.path(), bytes_max);
            (0..5000).map(record).for_each(|(key, value)| sorter.push(key, value).unwrap());
            assert_eq!(sorter.spooled() > 0, bytes_max < SORT_BYTES);
            let mut sorted = sorter.sorted().unwrap();
            let mut found = Vec::new();
            while let Some(record) = sorted.next().unwrap() {
                found.push(record);
            }
            assert!(found == expected, "{bytes_max}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
    }

    /// A value of each run was held: of 100 GB in values of 1 MB, 3 GB.
    #[test]
    fn values_stay_in_the_file_until_it_is_their_turn() {
        let folder = tempfile::tempdir().unwrap();
        let mut sorter = Sorter::new(folder.path(), 300_000);
        for number in 0..20_u8 {
            sorter.push(vec![number], vec![number; 200_000]).unwrap();
        }
        let mut sorted = sorter.sorted().unwrap();
        assert!(sorted.runs.len() >= 10);
        let mut begin = 0;
        for run in &sorted.runs {
            let piece = run.get_ref();
            assert!(piece.at - begin <= *AHEAD_BYTES.end() as u64, "{} bytes were read", piece.at - begin);
            begin = piece.end;
        }
        for number in 0..20 {
            assert_eq!(sorted.next().unwrap(), Some((vec![number], vec![number; 200_000])));
        }
        assert_eq!(sorted.next().unwrap(), None);
    }
}
