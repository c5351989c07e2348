//! What watchers want, and whom an event concerns.

use super::Mark;
use bytes::Bytes;
use quoin_core::store::prefix_end;
use quoin_core::{Change, Event};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What a watcher wants, in store keys: single keys, all keys with a prefix, and half-open ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    keys: Vec<Bytes>,
    prefixes: Vec<Bytes>,
    ranges: Vec<(Bytes, Bytes)>,
}

impl Interest {
    /// One key.
    pub fn key(key: Bytes) -> Self {
        Self { keys: vec![key], ..Self::default() }
    }

    /// All keys that begin with `prefix`.
    pub fn prefix(prefix: Bytes) -> Self {
        Self { prefixes: vec![prefix], ..Self::default() }
    }

    /// The keys in `from..to`; an empty `to` means "to the end".
    pub fn range(from: Bytes, to: Bytes) -> Self {
        if prefix_end(&from) == to {
            Self::prefix(from)
        } else {
            Self { ranges: vec![(from, to)], ..Self::default() }
        }
    }

    /// This and the other.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.keys.extend(other.keys);
        self.prefixes.extend(other.prefixes);
        self.ranges.extend(other.ranges);
        self
    }

    /// Whether `key` is wanted.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.keys.iter().any(|wanted| wanted == key)
            || self.prefixes.iter().any(|prefix| key.starts_with(prefix))
            || self.ranges.iter().any(|(from, to)| in_range(key, from, to))
    }

    /// `event` with only the wanted changes; `None` where there are none.
    pub(super) fn restrict(&self, event: &Arc<Event>) -> Option<Arc<Event>> {
        let wanted = event.changes.iter().filter(|change| self.contains(&change.key)).count();
        if wanted == event.changes.len() {
            return (wanted > 0).then(|| Arc::clone(event));
        }
        if wanted == 0 {
            return None;
        }
        let changes: Vec<Change> =
            event.changes.iter().filter(|change| self.contains(&change.key)).cloned().collect();
        Some(Arc::new(Event { changes, ..**event }))
    }
}

fn in_range(key: &[u8], from: &[u8], to: &[u8]) -> bool {
    from <= key && (to.is_empty() || key < to)
}

/// Who watches what. Single keys and prefixes are looked up, a prefix by each length that any prefix has; other ranges
/// are walked, each distinct one once.
#[derive(Default)]
pub(super) struct Registry {
    keys: HashMap<Bytes, Vec<Arc<Mark>>>,
    prefixes: HashMap<Bytes, Vec<Arc<Mark>>>,
    /// How many of `prefixes` have this length.
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

    /// Adds the marks of all whom `event` concerns. One may be added twice: to mark it again changes nothing.
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

    pub(super) fn all(&self, mut each: impl FnMut(&Mark)) {
        let lists = self.keys.values().chain(self.prefixes.values()).chain(self.ranges.values());
        lists.flatten().for_each(|mark| each(mark));
    }
}

/// Takes `mark` from `marks`; true where none is left.
fn is_last(marks: &mut Vec<Arc<Mark>>, mark: &Arc<Mark>) -> bool {
    marks.retain(|other| !Arc::ptr_eq(other, mark));
    marks.is_empty()
}
