//! Reading the segments at a start.
//!
//! Blocks are read in order. Zeros or a seal end a segment. A damaged block is a *torn tail* if it is in
//! the last segment and no header of a block or seal follows it: the crash came before its append was
//! answered, and it is cut (overwritten with zeros). Anywhere else it is damage, and the log refuses to
//! open.
//!
//! Damage to the very last block cannot be told from a torn tail if the process or the machine ended
//! before its seal was written. It is cut too; a majority of the cluster has that block.

use super::block::{Found, Place, decode_block, decode_block_1, header_after, whole_block_after_1};
use super::disk::{Disk, DiskFile};
use super::error::{LogError, corrupt};
use super::format::{HEADER, SegmentHeader, Stored, VERSION};
use super::index::{Group, Segment, Slot, take_record};
use super::newest::Newest;
use super::options::Options;
use super::record::{Base, Record};
use crate::group::GroupId;
use crate::mutants;
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

const SUFFIX: &str = ".log";

/// A segment's file name: its number in hexadecimal, so that names sort as numbers do.
pub(super) fn segment_name(number: u64) -> String {
    format!("{number:016x}{SUFFIX}")
}

pub(super) struct Recovered {
    pub(super) groups: BTreeMap<GroupId, Group>,
    pub(super) segments: BTreeMap<u64, Segment>,
    /// Number of the last segment, and the offset of the next block in it.
    pub(super) tail: Option<(u64, u64)>,
    pub(super) newest: Newest,
    /// What was found behind the last block.
    pub(super) torn: Option<Torn>,
}

/// An append that a crash cut short. Nobody was told that it was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The segment.
    pub file: String,
    /// Offset of the block; 0 if the segment itself was not finished.
    pub offset: u64,
    /// What is wrong there.
    pub problem: String,
}

/// Reads the segments, and makes the end of the log durable.
pub(super) fn recover(disk: &dyn Disk, options: &Options) -> Result<Recovered, LogError> {
    let mut recovered = Recovered::new(options);
    recovered.read(disk, options)?;
    if let Some(Torn { file, offset, problem }) = &recovered.torn {
        tracing::warn!(segment = file, offset, problem, "cut a torn tail");
    }
    Ok(recovered)
}

impl Recovered {
    pub(super) fn new(options: &Options) -> Self {
        let (groups, segments) = (BTreeMap::new(), BTreeMap::new());
        Self { groups, segments, tail: None, newest: Newest::absent(options.disk), torn: None }
    }

    /// Reads the segments in `disk`. What was read before an error stays.
    pub(super) fn read(&mut self, disk: &dyn Disk, options: &Options) -> Result<(), LogError> {
        read_segments(disk, options, self)
    }
}

fn read_segments(disk: &dyn Disk, options: &Options, recovered: &mut Recovered) -> Result<(), LogError> {
    let names =
        disk.list().map_err(|source| LogError::Io { operation: "listing", file: ".".into(), source })?;
    recovered.newest = Newest::open(disk, options.disk, &names)?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| segment_number(name)).collect();
    numbers.sort_unstable();
    if let Some(pair) = numbers.windows(2).find(|pair| pair[0] + 1 != pair[1]) {
        let missing = segment_name(pair[0] + 1);
        return Err(corrupt(missing, 0, "the segment is missing, but older and newer ones exist"));
    }
    let last = numbers.last().copied();
    if last.unwrap_or(0) < recovered.newest.number() {
        let newest = segment_name(recovered.newest.number());
        return Err(corrupt(newest, 0, "the segment is missing, and it was the newest"));
    }
    for number in numbers {
        if !read_segment(disk, options, number, last == Some(number), recovered)? {
            // A segment that was being created when the node died holds nothing that was answered.
            let name = segment_name(number);
            disk.remove(&name).map_err(io_error("removing", &name))?;
            recovered.torn = Some(Torn { file: name, offset: 0, problem: "it was never finished".into() });
        }
    }
    if recovered.groups.values().any(|group| group.base.index > 0 && group.base.term == 0) {
        let first = recovered.segments.keys().next().copied().unwrap_or(0);
        return Err(corrupt(segment_name(first), 0, "older segments are missing, and were not purged"));
    }
    Ok(())
}

fn segment_number(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_suffix(SUFFIX)?, 16).ok()
}

fn io_error<'a>(operation: &'static str, file: &'a str) -> impl FnOnce(io::Error) -> LogError + use<'a> {
    move |source| LogError::Io { operation, file: file.into(), source }
}

/// Reads one segment. False if it is the last and was never finished.
fn read_segment(
    disk: &dyn Disk,
    options: &Options,
    number: u64,
    is_last: bool,
    recovered: &mut Recovered,
) -> Result<bool, LogError> {
    let name = segment_name(number);
    let file = disk.open(&name).map_err(io_error("opening", &name))?;
    let size = file.size().map_err(io_error("reading the size of", &name))?;
    let mut bytes = BytesMut::zeroed(size as usize);
    file.read_at(0, &mut bytes).map_err(io_error("reading", &name))?;
    let bytes = bytes.freeze();
    // Once the next step has written down that it is begun, its header and first block are synced.
    let may_be_unfinished = is_last && number > recovered.newest.number();
    let place = Place { disk: options.disk, number, offset: 0 };
    let segment = match check_header(&bytes, options, number, &name) {
        Ok(header) => SegmentBytes { version: header.version, bytes, place, name: &name, is_last },
        Err(LogError::Corrupt { .. }) if may_be_unfinished && !begun(&bytes, place) => return Ok(false),
        Err(error) => return Err(error),
    };
    let Blocks { last, end } = segment.read_blocks(recovered)?;
    if is_last {
        if end == HEADER {
            return if may_be_unfinished {
                Ok(false)
            } else {
                Err(corrupt(name.clone(), HEADER as u64, "the first block is damaged"))
            };
        }
        if segment.version == VERSION {
            recovered.newest.check(number)?;
        }
        settle_tail(&*file, &segment.bytes, last..end, &name)?;
        if segment.version == VERSION {
            // Invariant: Synced since the start. Again, whatever it said: its last sync may have failed.
            recovered.newest.set(number)?;
        }
        // Appends go on in a segment of the version that is written.
        let next = if segment.version == VERSION { end as u64 } else { size };
        recovered.tail = Some((number, next));
    }
    recovered.segments.insert(number, Segment { file, size });
    Ok(true)
}

/// Whether a segment with a damaged header holds blocks.
fn begun(bytes: &Bytes, place: Place) -> bool {
    header_after(bytes, HEADER, place) || whole_block_after_1(bytes, HEADER, place.number)
}

fn check_header(
    bytes: &Bytes,
    options: &Options,
    number: u64,
    name: &str,
) -> Result<SegmentHeader, LogError> {
    let header = bytes
        .first_chunk::<HEADER>()
        .ok_or_else(|| corrupt(name.into(), 0, "the segment is shorter than its header"))?;
    let place = Place { disk: options.disk, number, offset: 0 };
    let header = SegmentHeader::decode(header, name).map_err(|error| match error {
        // The blocks of a later version are no blocks to this one.
        LogError::Version { found, known, .. } if begun(bytes, place) => {
            corrupt(name.into(), 8, format!("it says format {found}, and its blocks are of format {known}"))
        }
        error => error,
    })?;
    if (header.cluster, header.node) != (options.cluster, options.node) {
        return Err(LogError::Foreign {
            file: name.into(),
            found_node: header.node,
            found_cluster: header.cluster,
            node: options.node,
            cluster: options.cluster,
        });
    }
    if header.number != number {
        return Err(corrupt(name.into(), 0, format!("its header says it is segment {:016x}", header.number)));
    }
    if header.version == VERSION && header.disk != options.disk {
        return Err(LogError::OtherDisk { file: name.into(), found: header.disk, disk: options.disk });
    }
    Ok(header)
}

/// Where the blocks of a segment lie.
struct Blocks {
    /// Where the last one begins; the end if there is none.
    last: usize,
    end: usize,
}

/// A segment that is being read.
struct SegmentBytes<'a> {
    version: u32,
    bytes: Bytes,
    /// Its place, but for the offset.
    place: Place,
    name: &'a str,
    is_last: bool,
}

impl SegmentBytes<'_> {
    /// Reads all blocks.
    fn read_blocks(&self, recovered: &mut Recovered) -> Result<Blocks, LogError> {
        let (mut last, mut at) = (HEADER, HEADER);
        loop {
            match self.find(at) {
                Ok(Found::Block(records, length)) => {
                    for (offset, record) in records {
                        let place = (at + offset) as u64;
                        take(recovered, &record, self.place.number, place)
                            .map_err(|problem| corrupt(self.name.into(), place, problem))?;
                    }
                    last = at;
                    at += length;
                }
                Ok(Found::Seal) => return Ok(Blocks { last, end: at }),
                Ok(Found::End) if self.is_followed(at) => {
                    return Err(corrupt(self.name.into(), at as u64, "zeros, but a block follows them"));
                }
                Ok(Found::End) => return Ok(Blocks { last, end: at }),
                Err(problem) if self.is_last && !self.is_followed(at + 1) => {
                    let (file, offset) = (self.name.to_owned(), at as u64);
                    recovered.torn = Some(Torn { file, offset, problem: problem.into() });
                    return Ok(Blocks { last, end: at });
                }
                Err(problem) => return Err(corrupt(self.name.into(), at as u64, problem)),
            }
        }
    }

    fn find(&self, at: usize) -> Result<Found, &'static str> {
        let rest = self.bytes.slice(at..);
        match self.version {
            VERSION => decode_block(&rest, self.place.at(at)),
            _ => decode_block_1(&rest, self.place.number),
        }
    }

    /// Whether something was written at `from` or later that proves that the block before it was synced.
    fn is_followed(&self, from: usize) -> bool {
        match self.version {
            VERSION => header_after(&self.bytes, from, self.place),
            _ => whole_block_after_1(&self.bytes, from, self.place.number),
        }
    }
}

fn take(recovered: &mut Recovered, record: &Stored, segment: u64, offset: u64) -> Result<(), String> {
    let length = match record {
        Stored::Record(Record::Entry(_, entry)) => 26 + entry.context.len() + entry.data.len(),
        _ => 0,
    };
    let slot = |term| Slot { term, segment, offset, length: length as u32 };
    // The oldest segment may begin after entries that were purged with older segments, and the mark of that
    // purge comes later. Until then entries are taken as they come, on a base without a term.
    if let Stored::Record(Record::Entry(group, entry)) = record {
        let group = recovered.groups.entry(*group).or_default();
        let begins_later = group.entries.is_empty() && entry.index > group.base.index + 1;
        let overwrites_base = group.base.index > 0 && group.base.term == 0 && entry.index <= group.base.index;
        if begins_later || overwrites_base {
            group.entries.clear();
            group.base = Base { index: entry.index - 1, term: 0 };
        }
    }
    match take_record(&mut recovered.groups, record, slot) {
        None => Ok(()),
        Some(index) => Err(format!("the entry at index {index} does not follow the one before it")),
    }
}

/// Makes the tail durable as it was read: `last`, the last block, and zeros behind it, which can never be
/// taken for a block.
///
/// **Invariant: Synced since the start.** The process before may have died before the sync of the last
/// block, or its sync may have failed, after which the operating system counts the bytes as written. So
/// they are written again: a sync alone would do nothing. Blocks before the last were synced before it
/// was begun.
fn settle_tail(file: &dyn DiskFile, bytes: &Bytes, last: Range<usize>, name: &str) -> Result<(), LogError> {
    if mutants::is("tail-unsynced") {
        return Ok(());
    }
    // The first block is synced together with the header.
    let start = if last.start == HEADER { 0 } else { last.start };
    // A seal goes too: it is true again only after the sync.
    let used = bytes[last.end..].iter().rposition(|byte| *byte != 0).map_or(0, |place| place + 1);
    let zeros = vec![0; used];
    let mut parts = [io::IoSlice::new(&bytes[start..last.end]), io::IoSlice::new(&zeros)];
    file.write_at(start as u64, &mut parts).map_err(io_error("writing the tail of", name))?;
    file.sync().map_err(io_error("syncing", name))
}
