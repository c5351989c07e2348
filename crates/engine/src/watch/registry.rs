//! Whom an event concerns.

use super::interest::{Interest, in_range};
use super::mark::Mark;
use bytes::Bytes;
use quoin_core::Event;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Who watches what. Keys and prefixes are looked up in maps, prefixes once per length that any of them has.
/// Other ranges are walked, each distinct one once.
#[derive(Default)]
pub(super) struct Registry {
    keys: HashMap<Bytes, Vec<Arc<Mark>>>,
    prefixes: HashMap<Bytes, Vec<Arc<Mark>>>,
    /// How many of `prefixes` have each length.
    prefix_lengths: BTreeMap<usize, usize>,
    ranges: BTreeMap<(Bytes, Bytes), Vec<Arc<Mark>>>,
    watchers: usize,
}

impl Registry {
    pub(super) fn add(&mut self, interest: &Interest, mark: &Arc<Mark>) {
        self.watchers += 1;
        for key in &interest.keys {
            self.keys.entry(key.clone()).or_default().push(Arc::clone(mark));
        }
        for prefix in &interest.prefixes {
            let marks = self.prefixes.entry(prefix.clone()).or_insert_with(|| {
                *self.prefix_lengths.entry(prefix.len()).or_default() += 1;
                Vec::new()
            });
            marks.push(Arc::clone(mark));
        }
        for range in &interest.ranges {
            self.ranges.entry(range.clone()).or_default().push(Arc::clone(mark));
        }
    }

    pub(super) fn remove(&mut self, interest: &Interest, mark: &Arc<Mark>) {
        self.watchers -= 1;
        for key in &interest.keys {
            if let Some(marks) = self.keys.get_mut(key)
                && is_last(marks, mark)
            {
                self.keys.remove(key);
            }
        }
        for prefix in &interest.prefixes {
            if let Some(marks) = self.prefixes.get_mut(prefix)
                && is_last(marks, mark)
            {
                self.prefixes.remove(prefix);
                self.forget_length(prefix.len());
            }
        }
        for range in &interest.ranges {
            if let Some(marks) = self.ranges.get_mut(range)
                && is_last(marks, mark)
            {
                self.ranges.remove(range);
            }
        }
    }

    fn forget_length(&mut self, length: usize) {
        if let Some(count) = self.prefix_lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                self.prefix_lengths.remove(&length);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.watchers
    }

    /// Adds the marks of all watchers that `event` concerns. A mark may be added twice: setting it again
    /// changes nothing.
    pub(super) fn concerned(&self, event: &Event, marks: &mut Vec<(Arc<Mark>, u64)>) {
        for change in &event.changes {
            let key = &change.key;
            let lengths = self.prefix_lengths.keys().take_while(|length| **length <= key.len());
            let by_prefix = lengths.filter_map(|length| self.prefixes.get(&key[..*length])).flatten();
            let by_key = self.keys.get(key).into_iter().flatten();
            let ranges = self.ranges.iter().take_while(|((from, _), _)| *from <= *key);
            let by_range =
                ranges.filter(|((from, to), _)| in_range(key, from, to)).flat_map(|(_, marks)| marks);
            let concerned = by_key.chain(by_prefix).chain(by_range);
            marks.extend(concerned.map(|mark| (Arc::clone(mark), event.revision.0)));
        }
    }

    /// Calls `each` with every mark, with some more than once.
    pub(super) fn for_each(&self, mut each: impl FnMut(&Mark)) {
        let lists = self.keys.values().chain(self.prefixes.values()).chain(self.ranges.values());
        lists.flatten().for_each(|mark| each(mark));
    }
}

/// Removes `mark` from `marks`; true if none is left.
fn is_last(marks: &mut Vec<Arc<Mark>>, mark: &Arc<Mark>) -> bool {
    marks.retain(|other| !Arc::ptr_eq(other, mark));
    marks.is_empty()
}
