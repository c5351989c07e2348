//! Reading the segments at a start.
//!
//! Blocks are read in order. Zeros end a segment. A damaged block is a *torn tail* if it is in the last
//! segment and no whole block follows it: the crash came before its append was answered, and it is cut
//! (overwritten with zeros). Anywhere else it is damage, and the log refuses to open.
//!
//! Damage to the very last block after its sync cannot be told from a torn tail, and is cut too. A majority
//! of the cluster has that block.

use super::disk::{Disk, DiskFile};
use super::error::{LogError, corrupt};
use super::format::{BLOCK_HEADER, HEADER, SegmentHeader, Stored, decode_block};
use super::index::{Group, Segment, Slot, take_record};
use super::options::Options;
use super::record::{Base, Record};
use crate::group::GroupId;
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
}

pub(super) fn recover(disk: &dyn Disk, options: &Options) -> Result<Recovered, LogError> {
    let mut recovered = Recovered { groups: BTreeMap::new(), segments: BTreeMap::new(), tail: None };
    let names =
        disk.list().map_err(|source| LogError::Io { operation: "listing", file: ".".into(), source })?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| segment_number(name)).collect();
    numbers.sort_unstable();
    if let Some(pair) = numbers.windows(2).find(|pair| pair[0] + 1 != pair[1]) {
        let missing = segment_name(pair[0] + 1);
        return Err(corrupt(missing, 0, "the segment is missing, but older and newer ones exist"));
    }
    let last = numbers.last().copied();
    for number in numbers {
        if !read_segment(disk, options, number, last == Some(number), &mut recovered)? {
            // A segment that was being created when the node died holds nothing that was answered.
            let name = segment_name(number);
            tracing::warn!(segment = name, "removing an unfinished segment");
            disk.remove(&name).map_err(io_error("removing", &name))?;
        }
    }
    if recovered.groups.values().any(|group| group.base.index > 0 && group.base.term == 0) {
        let first = recovered.segments.keys().next().copied().unwrap_or(0);
        return Err(corrupt(segment_name(first), 0, "older segments are missing, and were not purged"));
    }
    Ok(recovered)
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
    if let Err(error) = check_header(&bytes, options, number, &name) {
        // Header and first block are synced before anything is answered from the segment.
        let begun = whole_block_after(&bytes, HEADER, number);
        return if is_last && !begun && matches!(error, LogError::Corrupt { .. }) {
            Ok(false)
        } else {
            Err(error)
        };
    }
    let Blocks { last, end } = read_blocks(&bytes, number, is_last, &name, recovered)?;
    if is_last {
        if end == HEADER {
            return Ok(false);
        }
        settle_tail(&*file, &bytes, last..end, &name)?;
        recovered.tail = Some((number, end as u64));
    }
    recovered.segments.insert(number, Segment { file, size });
    Ok(true)
}

fn check_header(bytes: &Bytes, options: &Options, number: u64, name: &str) -> Result<(), LogError> {
    let header = bytes
        .first_chunk::<HEADER>()
        .ok_or_else(|| corrupt(name.into(), 0, "the segment is shorter than its header"))?;
    let header = SegmentHeader::decode(header).map_err(|problem| corrupt(name.into(), 0, problem))?;
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
        return Err(corrupt(name.into(), 0, format!("its header says it is segment {:x}", header.number)));
    }
    Ok(())
}

/// Where the blocks of a segment lie.
struct Blocks {
    /// Where the last one begins; the end if there is none.
    last: usize,
    end: usize,
}

/// Reads all blocks.
fn read_blocks(
    bytes: &Bytes,
    number: u64,
    is_last: bool,
    name: &str,
    recovered: &mut Recovered,
) -> Result<Blocks, LogError> {
    let (mut last, mut at) = (HEADER, HEADER);
    loop {
        match decode_block(&bytes.slice(at..), number) {
            Ok(Some((records, length))) => {
                for (offset, record) in records {
                    take(recovered, &record, number, (at + offset) as u64)
                        .map_err(|problem| corrupt(name.into(), (at + offset) as u64, problem))?;
                }
                last = at;
                at += length;
            }
            Ok(None) if whole_block_after(bytes, at, number) => {
                return Err(corrupt(name.into(), at as u64, "zeros, but a whole block follows them"));
            }
            Ok(None) => return Ok(Blocks { last, end: at }),
            Err(problem) if is_last && !whole_block_after(bytes, at + 1, number) => {
                tracing::warn!(segment = name, offset = at, problem, "cutting a torn tail");
                return Ok(Blocks { last, end: at });
            }
            Err(problem) => return Err(corrupt(name.into(), at as u64, problem)),
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

/// Whether a whole, non-empty block begins at `from` or later.
fn whole_block_after(bytes: &Bytes, from: usize, number: u64) -> bool {
    let mut at = from;
    while let Some(step) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte != 0)) {
        // A block begins with its length, little-endian, of which up to three bytes may be zero.
        let first = at + step;
        for start in first.saturating_sub(3).max(at)..=first {
            if bytes.len() - start > BLOCK_HEADER
                && let Ok(Some((records, _))) = decode_block(&bytes.slice(start..), number)
                && !records.is_empty()
            {
                return true;
            }
        }
        at = first + 1;
    }
    false
}

/// Makes the tail durable as it was read: `last`, the last block, and zeros behind it, which can never be taken
/// for a block.
///
/// **Invariant: Synced since the start.** The process before may have died before the sync of the last block, or
/// its sync may have failed, after which the operating system counts the bytes as written. So they are written
/// again: a sync alone would do nothing. Blocks before the last were synced before it was begun.
fn settle_tail(file: &dyn DiskFile, bytes: &Bytes, last: Range<usize>, name: &str) -> Result<(), LogError> {
    // The first block is synced together with the header.
    let start = if last.start == HEADER { 0 } else { last.start };
    let used = bytes[last.end..].iter().rposition(|byte| *byte != 0).map_or(0, |place| place + 1);
    let zeros = vec![0; used];
    let mut parts = [io::IoSlice::new(&bytes[start..last.end]), io::IoSlice::new(&zeros)];
    file.write_at(start as u64, &mut parts).map_err(io_error("writing the tail of", name))?;
    file.sync().map_err(io_error("syncing", name))
}
