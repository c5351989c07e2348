//! What watchers want, and whom an event concerns.

use super::Mark;
use bytes::Bytes;
use quoin_core::{Change, Event};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What a watcher wants, in store keys: single keys and half-open ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    keys: Vec<Bytes>,
    ranges: Vec<(Bytes, Bytes)>,
}

impl Interest {
    /// One key.
    pub fn key(key: Bytes) -> Self {
        Self { keys: vec![key], ranges: Vec::new() }
    }

    /// The keys in `from..to`; an empty `to` means "to the end".
    pub fn range(from: Bytes, to: Bytes) -> Self {
        Self { keys: Vec::new(), ranges: vec![(from, to)] }
    }

    /// This and the other.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.keys.extend(other.keys);
        self.ranges.extend(other.ranges);
        self
    }

    /// Whether `key` is wanted.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.keys.iter().any(|wanted| wanted == key)
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

/// Who watches what. Single keys are looked up; ranges are walked, each distinct one once.
#[derive(Default)]
pub(super) struct Registry {
    keys: HashMap<Bytes, Vec<Arc<Mark>>>,
    ranges: BTreeMap<(Bytes, Bytes), Vec<Arc<Mark>>>,
    watchers: usize,
}

impl Registry {
    pub(super) fn add(&mut self, interest: &Interest, mark: &Arc<Mark>) {
        self.watchers += 1;
        for key in &interest.keys {
            self.keys.entry(key.clone()).or_default().push(Arc::clone(mark));
        }
        for range in &interest.ranges {
            self.ranges.entry(range.clone()).or_default().push(Arc::clone(mark));
        }
    }

    pub(super) fn remove(&mut self, interest: &Interest, mark: &Arc<Mark>) {
        self.watchers -= 1;
        for key in &interest.keys {
            if let Some(marks) = self.keys.get_mut(key) {
                marks.retain(|other| !Arc::ptr_eq(other, mark));
                if marks.is_empty() {
                    self.keys.remove(key);
                }
            }
        }
        for range in &interest.ranges {
            if let Some(marks) = self.ranges.get_mut(range) {
                marks.retain(|other| !Arc::ptr_eq(other, mark));
                if marks.is_empty() {
                    self.ranges.remove(range);
                }
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.watchers
    }

    /// Adds the marks of all whom `event` concerns. One may be added twice: to mark it again changes nothing.
    pub(super) fn concerned(&self, event: &Event, marks: &mut Vec<(Arc<Mark>, u64)>) {
        for change in &event.changes {
            let by_key = self.keys.get(&change.key).into_iter().flatten();
            let ranges = self.ranges.iter().take_while(|((from, _), _)| *from <= change.key);
            let by_range =
                ranges.filter(|((from, to), _)| in_range(&change.key, from, to)).flat_map(|(_, marks)| marks);
            marks.extend(by_key.chain(by_range).map(|mark| (Arc::clone(mark), event.revision.0)));
        }
    }

    pub(super) fn all(&self, mut each: impl FnMut(&Mark)) {
        self.keys.values().chain(self.ranges.values()).flatten().for_each(|mark| each(mark));
    }
}
