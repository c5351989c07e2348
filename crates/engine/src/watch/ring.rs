//! The newest events, in memory.

use super::piece::event_bytes;
use quoin_core::Event;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum entries read at once, under the lock.
const ENTRIES_AT_ONCE_MAX: usize = 1024;

/// The events of a log entry, shared by all who read them.
#[derive(Clone)]
pub(super) struct Entry {
    events: Arc<[Arc<Event>]>,
    first: u64,
    bytes: usize,
}

impl Entry {
    /// `None` without events.
    pub(super) fn of(events: Vec<Event>) -> Option<Self> {
        let first = events.first()?.revision.0;
        let bytes = events.iter().map(event_bytes).sum();
        Some(Self { events: events.into_iter().map(Arc::new).collect(), first, bytes })
    }

    pub(super) fn events(&self) -> impl Iterator<Item = &Arc<Event>> {
        self.events.iter()
    }

    /// The revision of its last event.
    pub(super) fn last(&self) -> u64 {
        self.first + self.events.len() as u64 - 1
    }
}

/// The newest entries. Revisions have no gaps.
#[derive(Default)]
pub(super) struct Ring {
    entries: VecDeque<Entry>,
    events: usize,
    bytes: usize,
}

impl Ring {
    /// Adds the next entry. Returns the oldest ones, beyond the bounds, to be dropped when the ring is unlocked.
    pub(super) fn push(&mut self, entry: Entry, events_max: usize, bytes_max: usize) -> Vec<Entry> {
        self.events += entry.events.len();
        self.bytes += entry.bytes;
        self.entries.push_back(entry);
        let mut dropped = Vec::new();
        while self.events > events_max || self.bytes > bytes_max {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.events -= oldest.events.len();
            self.bytes -= oldest.bytes;
            dropped.push(oldest);
        }
        dropped
    }

    /// Whether it reaches back to `from`.
    pub(super) fn reaches(&self, from: u64) -> bool {
        self.entries.front().is_some_and(|oldest| oldest.first <= from)
    }

    /// The entry of the revision `from` and those that follow it, as many as are read at once. `None` if the
    /// ring does not reach back to `from`.
    pub(super) fn read(&self, from: u64) -> Option<Vec<Entry>> {
        if !self.reaches(from) {
            return None;
        }
        let place = self.entries.partition_point(|entry| entry.first <= from) - 1;
        Some(self.entries.range(place..).take(ENTRIES_AT_ONCE_MAX).cloned().collect())
    }
}
