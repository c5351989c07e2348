//! The store in memory: golden scripts, property tests and the simulator run on it.

use super::{Order, Scan, Store, StoreError, Version, Versions};
use crate::types::Sequence;
use bytes::Bytes;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{PoisonError, RwLock};

type Map = BTreeMap<(Bytes, Reverse<Sequence>), Option<Bytes>>;

/// A multi-version map in memory, for tests: scans copy what they return.
#[derive(Default)]
pub struct MemoryStore {
    versions: RwLock<Map>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Every version of every key, versions of a key newest first.
    pub fn dump(&self) -> Vec<Version> {
        self.read().iter().map(|((key, at), value)| (key.clone(), at.0, value.clone())).collect()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Map> {
        self.versions.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Map> {
        self.versions.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &[u8], at: Sequence) -> Result<Option<Bytes>, StoreError> {
        let key = Bytes::copy_from_slice(key);
        let newest_first = (key.clone(), Reverse(at))..=(key, Reverse(Sequence(0)));
        Ok(self.read().range(newest_first).next().and_then(|(_, value)| value.clone()))
    }

    fn scan<'a>(&'a self, from: &[u8], to: &[u8], at: Sequence, order: Order) -> Scan<'a> {
        let lower = Bound::Included((Bytes::copy_from_slice(from), Reverse(Sequence(u64::MAX))));
        let upper = match to {
            [] => Bound::Unbounded,
            to if to <= from => return Box::new(std::iter::empty()),
            to => Bound::Excluded((Bytes::copy_from_slice(to), Reverse(Sequence(u64::MAX)))),
        };
        let mut found: Vec<(Bytes, Option<Bytes>)> = Vec::new();
        for ((key, written), value) in self.read().range((lower, upper)) {
            let newest_seen = found.last().is_some_and(|(last, _)| last == key);
            if written.0 <= at && !newest_seen {
                found.push((key.clone(), value.clone()));
            }
        }
        let live = found.into_iter().filter_map(|(key, value)| value.map(|value| Ok((key, value))));
        match order {
            Order::Ascending => Box::new(live),
            Order::Descending => Box::new(live.rev()),
        }
    }

    fn versions<'a>(&'a self, at: Sequence) -> Versions<'a> {
        Box::new(self.dump().into_iter().filter(move |(_, written, _)| *written <= at).map(Ok))
    }

    fn put(&self, key: &[u8], value: Bytes, at: Sequence) {
        self.write().insert((Bytes::copy_from_slice(key), Reverse(at)), Some(value));
    }

    fn delete(&self, key: &[u8], at: Sequence) {
        self.write().insert((Bytes::copy_from_slice(key), Reverse(at)), None);
    }

    fn forget(&self, before: Sequence, dead_from: &[u8], dead_to: &[u8]) {
        let mut newest_kept: Option<Bytes> = None;
        self.write().retain(|(key, at), value| {
            if dead_from <= &key[..] && &key[..] < dead_to {
                return false;
            }
            if at.0 > before {
                return true;
            }
            let shadowed = newest_kept.as_ref() == Some(key);
            newest_kept = Some(key.clone());
            !shadowed && value.is_some()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> MemoryStore {
        let store = MemoryStore::new();
        store.put(b"a", "a1".into(), Sequence(1));
        store.put(b"b", "b2".into(), Sequence(2));
        store.put(b"a", "a3".into(), Sequence(3));
        store.delete(b"b", Sequence(4));
        store
    }

    #[test]
    fn reads_see_the_newest_version_not_above_their_sequence() {
        let store = store();
        let get = |key: &[u8], at| store.get(key, Sequence(at)).unwrap();
        assert_eq!(get(b"a", 0), None);
        assert_eq!(get(b"a", 2), Some("a1".into()));
        assert_eq!(get(b"a", 9), Some("a3".into()));
        assert_eq!(get(b"b", 3), Some("b2".into()));
        assert_eq!(get(b"b", 4), None);
    }

    #[test]
    fn scans_follow_the_order_and_omit_deletions() {
        let store = store();
        let keys = |at, order| {
            store.scan(b"a", b"", Sequence(at), order).map(|pair| pair.unwrap().0).collect::<Vec<_>>()
        };
        assert_eq!(keys(3, Order::Descending), ["b", "a"]);
        assert_eq!(keys(4, Order::Ascending), ["a"]);
    }

    #[test]
    fn forgetting_keeps_what_is_visible_at_the_bound() {
        let store = store();
        store.forget(Sequence(3), b"", b"");
        assert_eq!(store.get(b"a", Sequence(3)).unwrap(), Some("a3".into()));
        assert_eq!(store.get(b"b", Sequence(3)).unwrap(), Some("b2".into()));
        assert_eq!(store.dump().len(), 3);
    }
}
