//! The log on disk: what makes an acknowledged write durable. Segments of append-only blocks, one block and one
//! sync per append, shared by all groups of a node.
//!
//! Reading order: this file (what the log answers), `format.rs` (the bytes), `recovery.rs` (what a start makes of
//! them), `disk.rs` (files, real and simulated).
//!
//! **Invariant (blocks).** An append begins only after the one before it was synced. So after a crash only the last
//! block can be torn; a block that does not check out and has a whole one behind it was damaged later, and the
//! log refuses to open.
//!
//! What it deliberately does not do: know what is in an entry, or decide when to purge.

mod disk;
mod format;
mod recovery;
#[cfg(test)]
mod tests;

pub use disk::{Disk, DiskFile, RealDisk, SimDisk};

use super::GroupId;
use bytes::{Bytes, BytesMut};
use format::{Block, HEADER, RECORD_HEADER, SegmentHeader, Stored};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// One entry of a group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its position, from 1.
    pub index: u64,
    /// The leader's term.
    pub term: u64,
    /// What it is.
    pub kind: EntryKind,
    /// What the consensus layer keeps with it.
    pub context: Bytes,
    /// The payload.
    pub data: Bytes,
}

/// What an entry is. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// A batch of commands.
    Normal = 0,
    /// A configuration change of one member.
    ConfChange = 1,
    /// A configuration change of several.
    ConfChangeV2 = 2,
}

impl EntryKind {
    fn from_number(number: u8) -> Option<Self> {
        [Self::Normal, Self::ConfChange, Self::ConfChangeV2].into_iter().find(|kind| *kind as u8 == number)
    }
}

/// What Raft must not forget besides entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardState {
    /// The newest term seen.
    pub term: u64,
    /// Whom this replica voted for in it, 0 for nobody.
    pub vote: u64,
    /// An entry known to be committed.
    pub commit: u64,
}

/// The entry before the first that the log has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Its index, 0 where nothing was purged.
    pub index: u64,
    /// Its term.
    pub term: u64,
}

/// What is appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An entry. It replaces what the log has from its index on.
    Entry(GroupId, Entry),
    /// A hard state. It replaces the last.
    HardState(GroupId, HardState),
    /// A snapshot was installed: the log restarts behind this entry, all others are gone.
    Base(GroupId, Base),
}

/// Whose log it is, and its sizes.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster.
    pub cluster: u64,
    /// The node.
    pub node: u64,
    /// Bytes of a segment; an append that is larger gets one of its own size.
    pub segment_bytes: u64,
    /// Bytes of newest entries that are kept in memory.
    pub cache_bytes: usize,
}

/// Why the log could not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A file operation failed.
    #[error("{operation} {file}: {source}")]
    Io {
        /// What was being done.
        operation: &'static str,
        /// To which file.
        file: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The disk is full. Nothing was appended; the same append can be tried again.
    #[error("no space left for segment {file}")]
    NoSpace {
        /// The segment that could not be made.
        file: String,
    },
    /// Bytes that were once synced are not what was written.
    #[error(
        "{file} is damaged at byte {offset}: {problem}. The log cannot be trusted: restore this node from a backup, \
         or remove its data folder and add it to the cluster anew"
    )]
    Corrupt {
        /// The segment.
        file: String,
        /// Where the damaged block begins.
        offset: u64,
        /// What does not check out.
        problem: String,
    },
    /// The segment belongs to another node.
    #[error(
        "{file} belongs to node {found_node:x} of cluster {found_cluster:x}, not to {node:x} of {cluster:x}"
    )]
    Foreign {
        /// The segment.
        file: String,
        /// In the segment.
        found_node: u64,
        /// In the segment.
        found_cluster: u64,
        /// Expected.
        node: u64,
        /// Expected.
        cluster: u64,
    },
    /// An earlier write or sync failed: what the disk has cannot be known until the node starts again.
    #[error("the log takes no more appends since a write failed")]
    Failed,
}

/// The log of a node. Appended to by one thread, read by others.
pub struct Log {
    disk: Arc<dyn Disk>,
    options: Options,
    writer: Mutex<Writer>,
    index: RwLock<Index>,
}

struct Writer {
    number: u64,
    file: Arc<dyn DiskFile>,
    offset: u64,
    size: u64,
    failed: bool,
}

/// What the segments hold, in memory.
#[derive(Default)]
struct Index {
    groups: BTreeMap<GroupId, Group>,
    segments: BTreeMap<u64, Segment>,
    cache: Cache,
}

struct Segment {
    file: Arc<dyn DiskFile>,
    size: u64,
}

#[derive(Default)]
struct Group {
    base: Base,
    hard_state: Option<HardState>,
    /// From `base.index + 1` on, without a gap.
    entries: VecDeque<Slot>,
}

/// Where an entry is.
#[derive(Clone, Copy)]
struct Slot {
    term: u64,
    segment: u64,
    /// Of the record, in the segment.
    offset: u64,
    /// Of the record's body.
    length: u32,
}

impl Group {
    fn last(&self) -> u64 {
        self.base.index + self.entries.len() as u64
    }

    fn slot(&self, index: u64) -> Option<&Slot> {
        self.entries.get(index.checked_sub(self.base.index + 1)? as usize)
    }

    fn truncate_from(&mut self, index: u64) {
        self.entries.truncate(index.saturating_sub(self.base.index + 1) as usize);
    }

    fn purge(&mut self, base: Base) {
        // A segment's head repeats the base of its time, which may be older than what recovery has found.
        if base.index < self.base.index {
            return;
        }
        let gone = (base.index - self.base.index).min(self.entries.len() as u64);
        self.entries.drain(..gone as usize);
        self.base = base;
    }
}

impl Log {
    /// Opens the log in `disk`, or founds it there.
    ///
    /// # Errors
    /// It belongs to another node, is damaged, or cannot be read.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<Self, LogError> {
        let recovered = recovery::recover(&*disk, &options)?;
        let index = Index { groups: recovered.groups, segments: recovered.segments, cache: Cache::default() };
        let writer = match recovered.tail {
            Some((number, offset)) => {
                let segment = &index.segments[&number];
                Writer { number, file: Arc::clone(&segment.file), offset, size: segment.size, failed: false }
            }
            None => {
                // An empty file of no room: the first append makes the first segment.
                let number = index.segments.keys().next_back().copied().unwrap_or(0);
                Writer { number, file: Arc::new(NoFile), offset: 0, size: 0, failed: false }
            }
        };
        Ok(Self { disk, options, writer: Mutex::new(writer), index: RwLock::new(index) })
    }

    /// Makes `records` durable, with one sync, and then visible to readers.
    ///
    /// # Errors
    /// After [`LogError::NoSpace`] nothing has happened and the append may be tried again. After any other error
    /// the log takes no more appends.
    pub fn append(&self, records: &[Record]) -> Result<(), LogError> {
        let stored: Vec<Stored> = records.iter().cloned().map(Stored::Record).collect();
        self.append_stored(&mut self.writer.lock(), &stored)
    }

    fn append_stored(&self, writer: &mut Writer, stored: &[Stored]) -> Result<(), LogError> {
        if writer.failed {
            return Err(LogError::Failed);
        }
        let mut block = Block::encode(stored, writer.number);
        if writer.offset + block.bytes as u64 > writer.size {
            self.next_segment(writer, block.bytes as u64)?;
            block = Block::encode(stored, writer.number);
        }
        self.write_block(writer, &block)?;
        let start = writer.offset;
        writer.offset += block.bytes as u64;
        self.index.write().take(stored, &block.records, writer.number, start, self.options.cache_bytes);
        Ok(())
    }

    fn write_block(&self, writer: &mut Writer, block: &Block) -> Result<(), LogError> {
        let written =
            writer.file.write_at(writer.offset, &mut block.parts()).map_err(|error| ("writing", error));
        written.and_then(|()| writer.file.sync().map_err(|error| ("syncing", error))).map_err(
            |(operation, source)| {
                writer.failed = true;
                LogError::Io { operation, file: recovery::segment_name(writer.number), source }
            },
        )
    }

    /// Begins the next segment, which repeats what older ones say of hard states and bases: so those can go.
    fn next_segment(&self, writer: &mut Writer, bytes: u64) -> Result<(), LogError> {
        let number = writer.number + 1;
        let name = recovery::segment_name(number);
        let heads = self.index.read().heads();
        let head = Block::encode(&heads, number);
        let size = self.options.segment_bytes.max(HEADER as u64 + head.bytes as u64 + bytes);
        let file = self.disk.create(&name, size).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                LogError::NoSpace { file: name.clone() }
            }
            _ => LogError::Io { operation: "creating", file: name.clone(), source },
        })?;
        let header =
            SegmentHeader { cluster: self.options.cluster, node: self.options.node, number }.encode();
        let mut parts = vec![io::IoSlice::new(&header)];
        parts.extend(head.parts());
        file.write_at(0, &mut parts).and_then(|()| file.sync()).map_err(|source| {
            writer.failed = true;
            LogError::Io { operation: "beginning", file: name, source }
        })?;
        *writer = Writer {
            number,
            file: Arc::clone(&file),
            offset: (HEADER + head.bytes) as u64,
            size,
            failed: false,
        };
        self.index.write().segments.insert(number, Segment { file, size });
        Ok(())
    }

    /// The newest hard state.
    pub fn hard_state(&self, group: GroupId) -> Option<HardState> {
        self.index.read().groups.get(&group)?.hard_state
    }

    /// The entry before the first.
    pub fn base(&self, group: GroupId) -> Base {
        self.index.read().groups.get(&group).map_or(Base::default(), |group| group.base)
    }

    /// The first entry's index; one above the last where there is none.
    pub fn first_index(&self, group: GroupId) -> u64 {
        self.base(group).index + 1
    }

    /// The last entry's index; the base's where there is none.
    pub fn last_index(&self, group: GroupId) -> u64 {
        self.index.read().groups.get(&group).map_or(0, Group::last)
    }

    /// The term of the entry at `index`, the base included.
    pub fn term(&self, group: GroupId, index: u64) -> Option<u64> {
        let log = self.index.read();
        let group = log.groups.get(&group)?;
        if index == group.base.index {
            Some(group.base.term)
        } else {
            group.slot(index).map(|slot| slot.term)
        }
    }

    /// The entries of `range`, as far as they are there: up to `bytes_max` of payload, but at least one.
    ///
    /// # Errors
    /// An entry cannot be read back as it was written.
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

    /// Forgets entries up to `up_to`, and removes the segments that nobody needs any more.
    ///
    /// # Errors
    /// As [`Self::append`]; or a file cannot be removed, which only costs its room.
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

    fn remove_needless(&self, active: u64) -> Result<(), LogError> {
        loop {
            let mut log = self.index.write();
            let first_needed = log.first_needed().unwrap_or(active).min(active);
            let Some(number) = log.segments.keys().next().copied().filter(|first| *first < first_needed)
            else {
                return Ok(());
            };
            log.segments.remove(&number);
            drop(log);
            let file = recovery::segment_name(number);
            let removed = self.disk.remove(&file);
            removed.map_err(|source| LogError::Io { operation: "removing", file, source })?;
        }
    }

    /// Bytes that the segments take on disk.
    pub fn size_on_disk(&self) -> u64 {
        self.index.read().segments.values().map(|segment| segment.size).sum()
    }

    /// Bytes that the disk has left.
    ///
    /// # Errors
    /// The system does not say.
    pub fn free_space(&self) -> io::Result<u64> {
        self.disk.free_space()
    }
}

fn read_entry(slot: &Slot, file: &dyn DiskFile) -> Result<Entry, LogError> {
    let name = || recovery::segment_name(slot.segment);
    let mut bytes = BytesMut::zeroed(RECORD_HEADER + slot.length as usize);
    file.read_at(slot.offset, &mut bytes).map_err(|source| LogError::Io {
        operation: "reading",
        file: name(),
        source,
    })?;
    let mut header = bytes.split_to(RECORD_HEADER);
    let crc = bytes::Buf::get_u32_le(&mut header.split_off(4));
    match format::decode_record(bytes.freeze(), crc, slot.segment) {
        Ok(Stored::Record(Record::Entry(_, entry))) => Ok(entry),
        Ok(_) => Err(corrupt(name(), slot.offset, "not the entry that was written here")),
        Err(problem) => Err(corrupt(name(), slot.offset, problem)),
    }
}

fn corrupt(file: String, offset: u64, problem: impl Into<String>) -> LogError {
    LogError::Corrupt { file, offset, problem: problem.into() }
}

impl Index {
    /// What the next segment begins with.
    fn heads(&self) -> Vec<Stored> {
        let mut heads = Vec::new();
        for (id, group) in &self.groups {
            heads.push(Stored::Purged(*id, group.base));
            heads.extend(group.hard_state.map(|state| Stored::Record(Record::HardState(*id, state))));
        }
        heads
    }

    /// The oldest segment that has an entry which is still there.
    fn first_needed(&self) -> Option<u64> {
        self.groups.values().filter_map(|group| group.entries.front()).map(|slot| slot.segment).min()
    }

    /// Takes up what was written at `start` of a segment.
    fn take(
        &mut self,
        stored: &[Stored],
        places: &[(usize, usize)],
        segment: u64,
        start: u64,
        cache_bytes: usize,
    ) {
        for (record, (offset, length)) in stored.iter().zip(places) {
            if let Stored::Record(Record::Entry(group, entry)) = record {
                self.cache.push(*group, entry, cache_bytes);
            }
            let slot = |term| Slot { term, segment, offset: start + *offset as u64, length: *length as u32 };
            // What a running log is given follows on; recovery checks the same for what it reads.
            let gap = take_record(&mut self.groups, record, slot);
            assert!(gap.is_none(), "an entry at {gap:?} leaves a gap in the log");
        }
    }
}

/// Takes up one record; returns the index of an entry that does not follow on.
fn take_record(
    groups: &mut BTreeMap<GroupId, Group>,
    record: &Stored,
    slot: impl Fn(u64) -> Slot,
) -> Option<u64> {
    match record {
        Stored::Record(Record::Entry(group, entry)) => {
            let group = groups.entry(*group).or_default();
            if entry.index <= group.base.index || entry.index > group.last() + 1 {
                return Some(entry.index);
            }
            group.truncate_from(entry.index);
            group.entries.push_back(slot(entry.term));
        }
        Stored::Record(Record::HardState(group, state)) => {
            groups.entry(*group).or_default().hard_state = Some(*state);
        }
        Stored::Record(Record::Base(group, base)) => {
            let group = groups.entry(*group).or_default();
            group.entries.clear();
            group.base = *base;
        }
        Stored::Purged(group, base) => groups.entry(*group).or_default().purge(*base),
    }
    None
}

/// The newest entries of all groups.
#[derive(Default)]
struct Cache {
    entries: VecDeque<(GroupId, Entry)>,
    bytes: usize,
}

impl Cache {
    fn push(&mut self, group: GroupId, entry: &Entry, bytes_max: usize) {
        // An overwritten suffix: with one group it is at the end; with several it may stay until it falls off,
        // and is told apart by its term.
        while self.entries.back().is_some_and(|(last, old)| *last == group && old.index >= entry.index) {
            let last = self.entries.pop_back();
            self.dropped(last);
        }
        self.bytes += entry.data.len() + entry.context.len();
        self.entries.push_back((group, entry.clone()));
        while self.bytes > bytes_max {
            let first = self.entries.pop_front();
            self.dropped(first);
        }
    }

    fn dropped(&mut self, entry: Option<(GroupId, Entry)>) {
        if let Some((_, entry)) = entry {
            self.bytes -= entry.data.len() + entry.context.len();
        }
    }

    fn get(&self, group: GroupId, index: u64, term: u64) -> Option<Entry> {
        let matches =
            |found: &(GroupId, Entry)| found.0 == group && found.1.index == index && found.1.term == term;
        // With one group the entries are consecutive and the place is known.
        let first = self.entries.front()?.1.index;
        let guess = index.checked_sub(first).and_then(|place| self.entries.get(place as usize));
        if let Some((_, entry)) = guess.filter(|found| matches(found)) {
            return Some(entry.clone());
        }
        self.entries.iter().rev().find(|found| matches(found)).map(|(_, entry)| entry.clone())
    }
}

/// The place before the first segment: it has no room, so the first append makes one.
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
