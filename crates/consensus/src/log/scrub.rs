//! Reading again what was written long ago, while the log is in use: a disk forgets without telling.
//!
//! Only segments that take no more appends are read, block by block; the segment that is being written was read
//! by a start, or written since. What it deliberately does not do: mend anything.

use super::block::{BLOCK_HEADER, BlockHeader, Found, Place, decode_block};
use super::disk::DiskFile;
use super::error::{LogError, corrupt};
use super::format::{HEADER, SegmentHeader, VERSION};
use super::index::{Group, Index};
use super::recovery::segment_name;
use super::segmented::Log;
use bytes::{Bytes, BytesMut};
use std::io;
use std::sync::Arc;

/// Told of the bytes of each step, it says whether to go on.
pub type Pace<'a> = &'a mut dyn FnMut(u64) -> bool;

/// A segment that was read again.
pub struct Scrubbed {
    /// Its number: the next one is asked for with this.
    pub number: u64,
    /// What is wrong with it. An error if it cannot be read, too.
    pub outcome: Result<(), LogError>,
}

impl Log {
    /// Reads the oldest segment above number `after` that takes no more appends; `None` if there is none. What
    /// `pace` stops counts as whole.
    pub fn scrub(&self, after: u64, pace: Pace<'_>) -> Option<Scrubbed> {
        let (number, file, size, end) = {
            let index = self.index.read();
            let active = *index.segments.keys().next_back()?;
            let (number, segment) = index.segments.range(after + 1..active).next()?;
            (*number, Arc::clone(&segment.file), segment.size, index.end_of(*number))
        };
        let place = Place { disk: self.options.disk, number, offset: 0 };
        let window = Window { file: &*file, size, start: 0, bytes: Bytes::new(), pace };
        let mut segment = Segment { window, place, name: segment_name(number), end };
        Some(Scrubbed { number, outcome: segment.check() })
    }
}

impl Index {
    /// Offset of the last entry in segment `number` that is not purged and not replaced; 0 if there is none.
    fn end_of(&self, number: u64) -> u64 {
        let last = |group: &Group| {
            let behind = group.entries.partition_point(|slot| slot.segment <= number);
            let slot = group.entries.get(behind.checked_sub(1)?)?;
            (slot.segment == number).then_some(slot.offset)
        };
        self.groups.values().filter_map(last).max().unwrap_or(0)
    }
}

struct Segment<'a> {
    window: Window<'a>,
    /// Its place, but for the offset.
    place: Place,
    name: String,
    /// Entries reach at least to here.
    end: u64,
}

impl Segment<'_> {
    fn check(&mut self) -> Result<(), LogError> {
        let Some(header) = self.read(0, HEADER)? else { return Ok(()) };
        let header = header.first_chunk::<HEADER>().expect("as many bytes were read");
        let header = SegmentHeader::decode(header, &self.name)?;
        if header.version != VERSION {
            // A log of the version before: it is purged in time, and was read by the start.
            return Ok(());
        }
        let mut at = HEADER as u64;
        while at + BLOCK_HEADER as u64 <= self.window.size {
            let place = Place { offset: at, ..self.place };
            let Some(first) = self.read(at, BLOCK_HEADER)? else { return Ok(()) };
            let records = BlockHeader::decode(&first, place).map_or(0, BlockHeader::length) as usize;
            if at + (BLOCK_HEADER + records) as u64 > self.window.size {
                return Err(self.corrupt(at, "a block is longer than its file"));
            }
            let Some(block) = self.read(at, BLOCK_HEADER + records)? else { return Ok(()) };
            match decode_block(&block, place).map_err(|problem| self.corrupt(at, problem))? {
                Found::Block(_, length) => at += length as u64,
                Found::Seal | Found::End if at <= self.end => {
                    return Err(self.corrupt(at, "nothing, but entries were written here"));
                }
                Found::Seal | Found::End => return Ok(()),
            }
        }
        Ok(())
    }

    fn corrupt(&self, at: u64, problem: impl Into<String>) -> LogError {
        corrupt(self.name.clone(), at, problem)
    }

    fn read(&mut self, offset: u64, bytes: usize) -> Result<Option<Bytes>, LogError> {
        let read = self.window.read(offset, bytes);
        read.map_err(|source| LogError::Io { operation: "reading", file: self.name.clone(), source })
    }
}

/// Bytes that are read at once, unless a block is longer. A multiple of [`PAGE`].
const WINDOW: u64 = 256 << 10;
/// What the system keeps in memory is forgotten in whole pages.
const PAGE: u64 = 4096;

/// The part of a file that was read last.
struct Window<'a> {
    file: &'a dyn DiskFile,
    size: u64,
    start: u64,
    bytes: Bytes,
    pace: Pace<'a>,
}

impl Window<'_> {
    /// The bytes from `offset` on, all of which the file has; `None` if the pace says to stop.
    fn read(&mut self, offset: u64, bytes: usize) -> io::Result<Option<Bytes>> {
        let end = offset + bytes as u64;
        if offset < self.start || end > self.start + self.bytes.len() as u64 {
            let start = offset - offset % PAGE;
            let length = WINDOW.max(end - start).min(self.size - start);
            if !(self.pace)(length) {
                return Ok(None);
            }
            self.file.forget(start, length.next_multiple_of(PAGE));
            let mut buffer = BytesMut::zeroed(length as usize);
            self.file.read_at(start, &mut buffer)?;
            (self.start, self.bytes) = (start, buffer.freeze());
        }
        let from = (offset - self.start) as usize;
        Ok(Some(self.bytes.slice(from..from + bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::GROUP;
    use crate::log::{Entry, EntryKind, Options, Record, SimDisk};

    fn all(log: &Log) -> Vec<(u64, Option<String>)> {
        let (mut found, mut after) = (Vec::new(), 0);
        while let Some(Scrubbed { number, outcome }) = log.scrub(after, &mut |_| true) {
            found.push((number, outcome.err().map(|error| error.to_string())));
            after = number;
        }
        found
    }

    #[test]
    fn every_byte_of_a_sealed_segment_is_read_again_and_damage_named() {
        let disk = Arc::new(SimDisk::new());
        let options = Options { cluster: 12, node: 10, disk: 13, segment_bytes: 4096, cache_bytes: 0 };
        let log = Log::open(Arc::clone(&disk) as _, options).unwrap();
        let entry = |index| {
            let data = Bytes::from(vec![1; 1500]);
            let entry = Entry { index, term: 1, kind: EntryKind::Normal, context: Bytes::new(), data };
            Record::Entry(GROUP, entry)
        };
        (1..=5).for_each(|index| log.append(&[entry(index)]).unwrap());
        assert_eq!(all(&log), [(1, None), (2, None)]);
        let name = segment_name(2);
        let sound = disk.bytes(&name).unwrap();
        let used = sound.iter().rposition(|byte| *byte != 0).unwrap();
        for place in (0..=used).filter(|place| sound[*place] != 0) {
            let mut damaged = sound.clone();
            damaged[place] = 0;
            disk.set_bytes(&name, damaged);
            let said = log.scrub(1, &mut |_| true).unwrap().outcome.err().map(|error| error.to_string());
            let begins = format!("{name} is damaged at byte ");
            // The header has fields that a block's checksum does not cover, and its own one does.
            assert!(said.as_ref().is_some_and(|said| said.starts_with(&begins)), "byte {place}: {said:?}");
        }
        // A block that was never written, as after a write that the disk lost.
        let mut lost = sound.clone();
        lost[HEADER + 100..].fill(0);
        disk.set_bytes(&name, lost);
        assert!(log.scrub(1, &mut |_| true).unwrap().outcome.is_err());
        disk.set_bytes(&name, sound);
        assert_eq!(all(&log), [(1, None), (2, None)]);
        assert!(log.scrub(0, &mut |_| false).unwrap().outcome.is_ok(), "what was not read is not damaged");
    }
}
