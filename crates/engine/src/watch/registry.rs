//! Whom a publication concerns.
//!
//! Watchers of the same key, prefix or range are one group, and a publication marks a group at most once, with
//! the first of its revisions that concerns it. So the work is a lookup per change, a look at each range, and a
//! mark per watcher concerned: it grows with the sum of changes and watchers, not with their product.

use super::interest::{Interest, in_range};
use super::mark::Mark;
use bytes::Bytes;
use quoin_core::{Change, Event};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Who watches what. Keys and prefixes are looked up in maps, prefixes once per length that any of them has;
/// other ranges are looked at one by one, each distinct one once.
#[derive(Default)]
pub(super) struct Registry {
    keys: HashMap<Bytes, Group>,
    prefixes: HashMap<Bytes, Group>,
    /// How many of `prefixes` have each length.
    prefix_lengths: BTreeMap<usize, usize>,
    ranges: BTreeMap<(Bytes, Bytes), Group>,
    watchers: usize,
    next_id: u64,
    /// The number of the present publication.
    publication: u64,
}

/// A watcher's place in the registry.
#[derive(Clone, Copy, Debug, Eq)]
// The tests have an `eq` that counts.
#[cfg_attr(not(test), derive(PartialEq, Hash))]
pub(super) struct WatcherId(u64);

/// The watchers of one key, prefix or range.
#[derive(Default)]
pub(super) struct Group {
    marks: HashMap<WatcherId, Arc<Mark>>,
    /// The last publication that concerned it.
    publication: Cell<u64>,
}

impl Registry {
    pub(super) fn add(&mut self, interest: &Interest, mark: &Arc<Mark>) -> WatcherId {
        let id = WatcherId(self.next_id);
        self.next_id += 1;
        self.watchers += 1;
        for key in &interest.keys {
            self.keys.entry(key.clone()).or_default().add(id, mark);
        }
        for prefix in &interest.prefixes {
            let group = self.prefixes.entry(prefix.clone()).or_insert_with(|| {
                *self.prefix_lengths.entry(prefix.len()).or_default() += 1;
                Group::default()
            });
            group.add(id, mark);
        }
        for range in &interest.ranges {
            self.ranges.entry(range.clone()).or_default().add(id, mark);
        }
        id
    }

    pub(super) fn remove(&mut self, interest: &Interest, id: WatcherId) {
        self.watchers -= 1;
        for key in &interest.keys {
            if self.keys.get_mut(key).is_some_and(|group| group.is_empty_without(id)) {
                self.keys.remove(key);
            }
        }
        for prefix in &interest.prefixes {
            if self.prefixes.get_mut(prefix).is_some_and(|group| group.is_empty_without(id)) {
                self.prefixes.remove(prefix);
                self.forget_length(prefix.len());
            }
        }
        for range in &interest.ranges {
            if self.ranges.get_mut(range).is_some_and(|group| group.is_empty_without(id)) {
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

    /// The groups that `events`, a publication of their own, concern: each once, with the first revision that
    /// may be of interest.
    pub(super) fn concerned(&mut self, events: &[Event]) -> Vec<(&Group, u64)> {
        self.publication += 1;
        let (publication, mut concerned) = (self.publication, Vec::new());
        for event in events {
            for Change { key, .. } in &event.changes {
                let lengths = self.prefix_lengths.keys().take_while(|length| **length <= key.len());
                let by_prefix = lengths.filter_map(|length| self.prefixes.get(&key[..*length]));
                let groups = self.keys.get(key).into_iter().chain(by_prefix);
                let new = groups.filter(|group| group.publication.replace(publication) != publication);
                concerned.extend(new.map(|group| (group, event.revision.0)));
            }
        }
        self.concerned_ranges(events, &mut concerned);
        concerned
    }

    fn concerned_ranges<'a>(&'a self, events: &[Event], concerned: &mut Vec<(&'a Group, u64)>) {
        let Some(first) = events.first().filter(|_| !self.ranges.is_empty()) else { return };
        let changes = events.iter().flat_map(|event| &event.changes);
        let mut keys: Vec<&Bytes> = changes.map(|change| &change.key).collect();
        keys.sort_unstable();
        for ((from, to), group) in &self.ranges {
            // The smallest key that the range may hold.
            match keys.get(keys.partition_point(|key| *key < from)) {
                Some(key) if in_range(key, from, to) => concerned.push((group, first.revision.0)),
                Some(_) => {}
                // Neither this range nor any that begins behind it holds a key.
                None => break,
            }
        }
    }

    /// Calls `each` with every mark, with some more than once.
    pub(super) fn for_each(&self, each: impl FnMut(&Arc<Mark>)) {
        let groups = self.keys.values().chain(self.prefixes.values()).chain(self.ranges.values());
        groups.flat_map(Group::marks).for_each(each);
    }
}

impl Group {
    fn add(&mut self, id: WatcherId, mark: &Arc<Mark>) {
        self.marks.insert(id, Arc::clone(mark));
    }

    /// Removes a watcher; true if none is left.
    fn is_empty_without(&mut self, id: WatcherId) -> bool {
        self.marks.remove(&id);
        self.marks.is_empty()
    }

    pub(super) fn marks(&self) -> impl Iterator<Item = &Arc<Mark>> {
        self.marks.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quoin_core::{Revision, Sequence, Stamp};
    use std::hash::{Hash, Hasher};

    thread_local! {
        /// How often two ids were compared.
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    impl PartialEq for WatcherId {
        fn eq(&self, other: &Self) -> bool {
            COMPARED.set(COMPARED.get() + 1);
            self.0 == other.0
        }
    }

    impl Hash for WatcherId {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    fn event(revision: u64, keys: impl Iterator<Item = usize>) -> Event {
        let changes = keys.map(|key| Change { key: format!("k{key:04}").into(), value: None }).collect();
        Event { revision: Revision(revision), sequence: Sequence(revision), stamp: Stamp(1), changes }
    }

    fn range(from: &'static str, to: &'static str) -> Interest {
        Interest::range(Bytes::from(from), Bytes::from(to))
    }

    /// A deletion of 100,000 keys under 500 watches of their prefix made a list of 50,000,000 marks on the apply
    /// thread.
    #[test]
    fn a_publication_marks_each_watcher_once_however_much_it_changes() {
        let mut registry = Registry::default();
        let interests = [
            Interest::prefix("k".into()),
            Interest::prefix("k0".into()),
            Interest::key("k0500".into()),
            range("k0100", "k0999x"),
        ];
        let absent =
            [Interest::prefix("k1".into()), Interest::key("k".into()), range("k0x", "k1"), range("0", "5")];
        let watchers = interests.iter().cycle().take(200).chain(&absent);
        let added: Vec<_> =
            watchers.map(|interest| (interest, registry.add(interest, &Arc::default()))).collect();
        for publication in 0..2 {
            let events = [event(2, 0..400), event(3, 400..1000)];
            let concerned = registry.concerned(&events);
            let mut from: Vec<u64> = concerned.iter().map(|(_, revision)| *revision).collect();
            from.sort_unstable();
            assert_eq!(from, [2, 2, 2, 3], "publication {publication}");
            assert_eq!(concerned.iter().flat_map(|(group, _)| group.marks()).count(), 200);
        }
        for (interest, id) in added {
            registry.remove(interest, id);
        }
        assert_eq!(registry.len(), 0);
        assert!(registry.keys.is_empty() && registry.prefixes.is_empty() && registry.ranges.is_empty());
        assert!(registry.prefix_lengths.is_empty());
    }

    /// A watcher was searched for in the list of all watchers of its key when it left: 10,000 that left together
    /// compared 50,000,000.
    #[test]
    fn a_watcher_that_leaves_is_not_searched_for_among_the_others() {
        const WATCHERS: usize = 1000;
        for interest in [Interest::key("k".into()), Interest::prefix("k".into()), range("a", "b")] {
            let mut registry = Registry::default();
            let ids: Vec<_> = (0..WATCHERS).map(|_| registry.add(&interest, &Arc::default())).collect();
            COMPARED.set(0);
            // The last first, which a search from the front would find last.
            ids.into_iter().rev().for_each(|id| registry.remove(&interest, id));
            assert_eq!(registry.len(), 0);
            assert!(COMPARED.get() <= 4 * WATCHERS, "{} comparisons", COMPARED.get());
        }
    }
}
