//! The newest entries of all groups, in memory.

use super::record::Entry;
use crate::group::GroupId;
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Cache {
    entries: VecDeque<(GroupId, Entry)>,
    bytes: usize,
}

impl Cache {
    /// Adds an entry, and drops the oldest ones above `bytes_max` bytes.
    pub(super) fn push(&mut self, group: GroupId, entry: &Entry, bytes_max: usize) {
        // An overwritten suffix. With one group it is at the end. With several it may stay until it is
        // dropped, and its term tells it apart.
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

    pub(super) fn get(&self, group: GroupId, index: u64, term: u64) -> Option<Entry> {
        let matches =
            |found: &(GroupId, Entry)| found.0 == group && found.1.index == index && found.1.term == term;
        // With one group the entries are consecutive, so the position is known.
        let first = self.entries.front()?.1.index;
        let guess = index.checked_sub(first).and_then(|place| self.entries.get(place as usize));
        if let Some((_, entry)) = guess.filter(|found| matches(found)) {
            return Some(entry.clone());
        }
        self.entries.iter().rev().find(|found| matches(found)).map(|(_, entry)| entry.clone())
    }
}
