//! What the segments hold and where, in memory.

use super::cache::Cache;
use super::disk::DiskFile;
use super::format::Stored;
use super::record::{Base, HardState, Record};
use crate::group::GroupId;
use crate::mutants;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Index {
    pub(super) groups: BTreeMap<GroupId, Group>,
    pub(super) segments: BTreeMap<u64, Segment>,
    pub(super) cache: Cache,
}

pub(super) struct Segment {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) size: u64,
}

/// One group's log.
#[derive(Default)]
pub(super) struct Group {
    pub(super) base: Base,
    pub(super) hard_state: Option<HardState>,
    /// From `base.index + 1` on, without gaps.
    pub(super) entries: VecDeque<Slot>,
}

/// Where an entry is.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) term: u64,
    pub(super) segment: u64,
    /// Offset of the record in the segment.
    pub(super) offset: u64,
    /// Bytes of the record's body.
    pub(super) length: u32,
}

impl Group {
    /// Index of the last entry; the base's if there is none.
    pub(super) fn last(&self) -> u64 {
        self.base.index + self.entries.len() as u64
    }

    pub(super) fn slot(&self, index: u64) -> Option<&Slot> {
        self.entries.get(index.checked_sub(self.base.index + 1)? as usize)
    }

    fn truncate_from(&mut self, index: u64) {
        // The first one that goes.
        let first = if mutants::is("overwritten-stays") { index + 1 } else { index };
        self.entries.truncate(first.saturating_sub(self.base.index + 1) as usize);
    }

    fn purge(&mut self, base: Base) {
        // A segment begins with the base of when it was created, which may be older than what recovery has
        // found.
        if base.index < self.base.index {
            return;
        }
        let gone = (base.index - self.base.index).min(self.entries.len() as u64);
        self.entries.drain(..gone as usize);
        self.base = base;
    }
}

impl Index {
    /// What the next segment begins with.
    pub(super) fn heads(&self) -> Vec<Stored> {
        let mut heads = Vec::new();
        for (id, group) in &self.groups {
            heads.push(Stored::Purged(*id, group.base));
            heads.extend(group.hard_state.map(|state| Stored::Record(Record::HardState(*id, state))));
        }
        heads
    }

    /// The oldest segment with an entry that was not purged.
    pub(super) fn first_needed(&self) -> Option<u64> {
        self.groups.values().filter_map(|group| group.entries.front()).map(|slot| slot.segment).min()
    }

    /// The last entry of `group` that must go for the segments to have at most `bytes_max` bytes, but for the
    /// newest one, and the group at most `entries_max` entries; 0 if none must.
    pub(super) fn beyond(&self, group: GroupId, bytes_max: u64, entries_max: u64) -> u64 {
        let Some(group) = self.groups.get(&group) else { return 0 };
        let mut bytes: u64 = self.segments.values().map(|segment| segment.size).sum();
        let mut first_kept = 0;
        for ((_, segment), (next, _)) in self.segments.iter().zip(self.segments.iter().skip(1)) {
            if bytes <= bytes_max {
                break;
            }
            bytes -= segment.size;
            first_kept = *next;
        }
        let too_old = group.entries.partition_point(|slot| slot.segment < first_kept) as u64;
        let too_many = (group.entries.len() as u64).saturating_sub(entries_max);
        match too_old.max(too_many) {
            0 => 0,
            gone => group.base.index + gone,
        }
    }

    /// Adds what was written at offset `start` of a segment.
    pub(super) fn take(
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
            // A running log is given entries without gaps. Recovery checks the same for what it reads.
            let gap = take_record(&mut self.groups, record, slot);
            assert!(gap.is_none(), "an entry at {gap:?} leaves a gap in the log");
        }
    }
}

/// Adds one record. Returns the index of an entry that leaves a gap.
pub(super) fn take_record(
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
