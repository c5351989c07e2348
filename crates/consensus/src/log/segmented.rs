//! The log over its segments: appends, reads, purges.

use super::block::{BLOCK_HEADER, BlockHeader, Place};
use super::cache::Cache;
use super::disk::{Disk, DiskFile};
use super::error::{LogError, corrupt};
use super::format::{self, Block, HEADER, RECORD_HEADER, SegmentHeader, Stored, VERSION};
use super::index::{Group, Index, Segment, Slot};
use super::newest::Newest;
use super::options::Options;
use super::record::{Base, Entry, HardState, Record};
use super::recovery::{Recovered, recover, segment_name};
use crate::group::GroupId;
use crate::mutants;
use bytes::{Buf, BytesMut};
use parking_lot::{Mutex, RwLock};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The log of a node. One thread appends; others read.
pub struct Log {
    disk: Arc<dyn Disk>,
    pub(super) options: Options,
    writer: Mutex<Writer>,
    pub(super) index: RwLock<Index>,
}

struct Writer {
    number: u64,
    file: Arc<dyn DiskFile>,
    offset: u64,
    size: u64,
    newest: Newest,
    failed: bool,
}

impl Log {
    /// Opens the log in `disk`, or creates it there.
    ///
    /// # Errors
    /// The log belongs to another node, is damaged, or cannot be read.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<Self, LogError> {
        let recovered = recover(&*disk, &options)?;
        Self::of(disk, options, recovered)
    }

    /// The log that was found in `disk`.
    pub(super) fn of(disk: Arc<dyn Disk>, options: Options, recovered: Recovered) -> Result<Self, LogError> {
        let index = Index { groups: recovered.groups, segments: recovered.segments, cache: Cache::default() };
        let (number, file, offset, size) = match recovered.tail {
            Some((number, offset)) => {
                let segment = &index.segments[&number];
                (number, Arc::clone(&segment.file), offset, segment.size)
            }
            None => {
                // A file without room: the first append creates the first segment.
                let number = index.segments.keys().next_back().copied().unwrap_or(0);
                (number, Arc::new(NoFile) as _, 0, 0)
            }
        };
        let writer = Writer { number, file, offset, size, newest: recovered.newest, failed: false };
        let log = Self { disk, options, writer: Mutex::new(writer), index: RwLock::new(index) };
        log.seal()?;
        Ok(log)
    }

    /// Makes `records` durable with one sync, then visible to readers.
    ///
    /// # Errors
    /// After [`LogError::NoSpace`] nothing has changed, and the append can be retried. After any other error
    /// the log takes no more appends.
    pub fn append(&self, records: &[Record]) -> Result<(), LogError> {
        let stored: Vec<Stored> = records.iter().cloned().map(Stored::Record).collect();
        self.append_stored(&mut self.writer.lock(), &stored)
    }

    /// Writes down that the last append was synced, so that damage to it is told from a torn write at the
    /// next start. The next append is written over it. For a log that nothing is appended to for a while:
    /// an append says the same of the one before it.
    ///
    /// It is not synced itself: the operating system writes it when it finds time.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn seal(&self) -> Result<(), LogError> {
        let mut writer = self.writer.lock();
        if writer.failed || writer.offset + BLOCK_HEADER as u64 > writer.size {
            return Ok(());
        }
        let seal = BlockHeader::SEAL.encode(self.place(writer.number, writer.offset));
        let written = writer.file.write_at(writer.offset, &mut [io::IoSlice::new(&seal)]);
        written.map_err(|source| {
            writer.failed = true;
            LogError::Io { operation: "sealing", file: segment_name(writer.number), source }
        })
    }

    fn place(&self, number: u64, offset: u64) -> Place {
        Place { disk: self.options.disk, number, offset }
    }

    fn append_stored(&self, writer: &mut Writer, stored: &[Stored]) -> Result<(), LogError> {
        if writer.failed {
            return Err(LogError::Failed);
        }
        let mut block = Block::encode(stored, self.place(writer.number, writer.offset));
        if writer.offset + block.bytes as u64 > writer.size {
            self.next_segment(writer, block.bytes as u64)?;
            block = Block::encode(stored, self.place(writer.number, writer.offset));
        }
        self.write_block(writer, &block)?;
        let start = writer.offset;
        writer.offset += block.bytes as u64;
        self.index.write().take(stored, &block.records, writer.number, start, self.options.cache_bytes);
        Ok(())
    }

    fn write_block(&self, writer: &mut Writer, block: &Block) -> Result<(), LogError> {
        // Invariant: Blocks. The writer's lock is held until the sync returns.
        let written =
            writer.file.write_at(writer.offset, &mut block.parts()).map_err(|error| ("writing", error));
        let sync = || if mutants::is("append-unsynced") { Ok(()) } else { writer.file.sync() };
        written.and_then(|()| sync().map_err(|error| ("syncing", error))).map_err(|(operation, source)| {
            writer.failed = true;
            LogError::Io { operation, file: segment_name(writer.number), source }
        })
    }

    /// Begins the next segment. It repeats the hard states and bases of older ones, so that those can be
    /// removed.
    fn next_segment(&self, writer: &mut Writer, bytes: u64) -> Result<(), LogError> {
        // The seal: only in the last segment may a block's header be torn.
        writer.file.sync().map_err(|source| {
            writer.failed = true;
            LogError::Io { operation: "syncing", file: segment_name(writer.number), source }
        })?;
        writer.newest.prepare(&*self.disk, writer.number)?;
        let number = writer.number + 1;
        let name = segment_name(number);
        let heads = self.index.read().heads();
        let head = Block::encode(&heads, self.place(number, HEADER as u64));
        let size = self.options.segment_bytes.max(HEADER as u64 + head.bytes as u64 + bytes);
        let file = self.disk.create(&name, size).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                LogError::NoSpace { file: name.clone() }
            }
            _ => LogError::Io { operation: "creating", file: name.clone(), source },
        })?;
        let Options { cluster, node, disk, .. } = self.options;
        let header = SegmentHeader { version: VERSION, cluster, node, number, disk }.encode();
        let mut parts = vec![io::IoSlice::new(&header)];
        parts.extend(head.parts());
        file.write_at(0, &mut parts).and_then(|()| file.sync()).map_err(|source| {
            writer.failed = true;
            LogError::Io { operation: "beginning", file: name, source }
        })?;
        writer.newest.set(number).inspect_err(|_| writer.failed = true)?;
        (writer.number, writer.file, writer.size) = (number, Arc::clone(&file), size);
        writer.offset = (HEADER + head.bytes) as u64;
        self.index.write().segments.insert(number, Segment { file, size });
        Ok(())
    }

    /// The newest hard state; `None` if none was appended.
    pub fn hard_state(&self, group: GroupId) -> Option<HardState> {
        self.index.read().groups.get(&group)?.hard_state
    }

    /// The entry before the first one.
    pub fn base(&self, group: GroupId) -> Base {
        self.index.read().groups.get(&group).map_or(Base::default(), |group| group.base)
    }

    /// Index of the first entry; one above the last if there is none.
    pub fn first_index(&self, group: GroupId) -> u64 {
        self.base(group).index + 1
    }

    /// Index of the last entry; the base's if there is none.
    pub fn last_index(&self, group: GroupId) -> u64 {
        self.index.read().groups.get(&group).map_or(0, Group::last)
    }

    /// Term of the entry at `index`, or of the base; `None` if the log does not have it.
    pub fn term(&self, group: GroupId, index: u64) -> Option<u64> {
        let log = self.index.read();
        let group = log.groups.get(&group)?;
        if index == group.base.index {
            Some(group.base.term)
        } else {
            group.slot(index).map(|slot| slot.term)
        }
    }

    /// The entries of `range` that the log has, up to `bytes_max` bytes of payload, but at least one.
    ///
    /// # Errors
    /// An entry cannot be read, or is damaged.
    pub fn entries(&self, group: GroupId, range: Range<u64>, bytes_max: u64) -> Result<Vec<Entry>, LogError> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        for index in range {
            let Some(entry) = self.entry(group, index)? else { break };
            bytes += (entry.data.len() + entry.context.len()) as u64;
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    fn entry(&self, group: GroupId, index: u64) -> Result<Option<Entry>, LogError> {
        let (slot, file) = {
            let log = self.index.read();
            let Some(slot) = log.groups.get(&group).and_then(|group| group.slot(index)).copied() else {
                return Ok(None);
            };
            if let Some(entry) = log.cache.get(group, index, slot.term) {
                return Ok(Some(entry));
            }
            (slot, Arc::clone(&log.segments[&slot.segment].file))
        };
        read_entry(&slot, &*file).map(Some)
    }

    /// Forgets entries up to `up_to`, and removes segments without other entries.
    ///
    /// # Errors
    /// As [`Self::append`]. If a segment cannot be removed, the purge still counts.
    pub fn purge(&self, group: GroupId, up_to: u64) -> Result<(), LogError> {
        let mut writer = self.writer.lock();
        let up_to = up_to.min(self.last_index(group));
        if up_to <= self.base(group).index {
            return Ok(());
        }
        let term = self.term(group, up_to).expect("between base and last there are no gaps");
        self.append_stored(&mut writer, &[Stored::Purged(group, Base { index: up_to, term })])?;
        self.remove_needless(writer.number)
    }

    /// The last entry of `group` that must be purged for the log to have at most `bytes_max` bytes on disk (but
    /// for the segment that is being written) and at most `entries_max` entries of the group; 0 if none must.
    pub fn beyond(&self, group: GroupId, bytes_max: u64, entries_max: u64) -> u64 {
        self.index.read().beyond(group, bytes_max, entries_max)
    }

    fn remove_needless(&self, active: u64) -> Result<(), LogError> {
        loop {
            let mut log = self.index.write();
            let first_needed = log.first_needed().unwrap_or(active).min(active);
            let goes = |first: &u64| {
                *first < first_needed
                    || mutants::is("needed-removed") && *first == first_needed && *first < active
            };
            let Some(number) = log.segments.keys().next().copied().filter(goes) else {
                return Ok(());
            };
            log.segments.remove(&number);
            drop(log);
            let file = segment_name(number);
            let removed = self.disk.remove(&file);
            removed.map_err(|source| LogError::Io { operation: "removing", file, source })?;
        }
    }

    /// Where the next block goes in its segment.
    #[cfg(test)]
    pub(super) fn end(&self) -> usize {
        self.writer.lock().offset as usize
    }

    /// Bytes of all segments on disk.
    pub fn size_on_disk(&self) -> u64 {
        self.index.read().segments.values().map(|segment| segment.size).sum()
    }

    /// Bytes that the disk has left.
    ///
    /// # Errors
    /// The operating system cannot tell.
    pub fn free_space(&self) -> io::Result<u64> {
        self.disk.free_space()
    }
}

fn read_entry(slot: &Slot, file: &dyn DiskFile) -> Result<Entry, LogError> {
    let name = || segment_name(slot.segment);
    let mut bytes = BytesMut::zeroed(RECORD_HEADER + slot.length as usize);
    file.read_at(slot.offset, &mut bytes).map_err(|source| LogError::Io {
        operation: "reading",
        file: name(),
        source,
    })?;
    let mut header = bytes.split_to(RECORD_HEADER);
    let crc = header.split_off(4).get_u32_le();
    match format::decode_record(bytes.freeze(), crc, slot.segment) {
        Ok(Stored::Record(Record::Entry(_, entry))) => Ok(entry),
        Ok(_) => Err(corrupt(name(), slot.offset, "not the entry that was written here")),
        Err(problem) => Err(corrupt(name(), slot.offset, problem)),
    }
}

/// Stands before the first segment. It has no room, so the first append creates one.
struct NoFile;

impl DiskFile for NoFile {
    fn size(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn write_at(&self, _: u64, _: &mut [io::IoSlice<'_>]) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
