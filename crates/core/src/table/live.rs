//! The tables as lookups see them, in memory: the active version of each, and the changes over it.
//!
//! **Invariant: Derived (memory).** Made from the store when a replica opens, then changed by the machine
//! only. A reader locks the tables while it looks, so it sees one active version, and all of a command's
//! changes or none of them; what it sees is at least as new as any state it was told is applied.
//!
//! Bound: about 60 bytes per changed key, besides its value; folding changes into a version's files frees
//! them.

use super::record::{self, Table, Version};
use crate::store::{Order, StoreError, View};
use crate::types::Revision;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use prost::Message;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One changed key.
#[derive(Clone, Debug)]
struct Change {
    revision: Revision,
    /// Shared with the lookups that answer it.
    value: Option<Arc<[u8]>>,
}

type Changes = HashMap<u64, Change, foldhash::fast::RandomState>;

/// One table.
#[derive(Clone, Debug, Default)]
pub struct TableState {
    /// Its record.
    pub table: Table,
    /// Its versions by number.
    pub versions: BTreeMap<u64, Arc<Version>>,
    changes: Changes,
}

impl TableState {
    /// Changes up to this revision are in the active version's files.
    pub fn folded(&self) -> Revision {
        Revision(self.versions.get(&self.table.active).map_or(0, |version| version.folds))
    }

    /// How many keys have changes over the files.
    pub fn changed(&self) -> usize {
        self.changes.len()
    }

    /// The change of `key` over the active version's files: a value, a deletion (`Some(None)`), or none.
    /// Hides a value of another width, written while a version of another shape was active.
    pub fn change(&self, key: u64) -> Option<Option<&[u8]>> {
        Some(self.shared_change(key)?.map(|value| &**value))
    }

    /// As [`Self::change`], to be held beyond the lock: however often a lookup asks for a key, its value is there once.
    pub fn shared_change(&self, key: u64) -> Option<Option<&Arc<[u8]>>> {
        let change = self.changes.get(&key)?;
        let value = change.value.as_ref();
        let fits = value.is_none_or(|value| self.width().is_none_or(|width| value.len() == width));
        (fits && change.revision > self.folded()).then_some(value)
    }

    /// Bytes of each of the active version's values; `None` if widths vary.
    fn width(&self) -> Option<usize> {
        let shape = self.versions.get(&self.table.active)?.shape.as_ref()?;
        (shape.width_plus_1 as usize).checked_sub(1)
    }

    /// The keys with changes over the files, in order, with their revisions.
    pub fn changed_keys(&self) -> Vec<(u64, Revision)> {
        let mut keys: Vec<_> = self.changes.iter().map(|(key, change)| (*key, change.revision)).collect();
        keys.sort_unstable();
        keys
    }

    pub(super) fn set(&mut self, key: u64, revision: Revision, value: Option<&[u8]>) {
        self.changes.insert(key, Change { revision, value: value.map(Into::into) });
    }

    pub(super) fn forget(&mut self, keys: &[u64]) {
        for key in keys {
            self.changes.remove(key);
        }
    }
}

/// All tables by name.
#[derive(Debug, Default)]
pub struct Live {
    tables: RwLock<BTreeMap<String, TableState>>,
    generation: AtomicU64,
}

/// A read lock on the tables.
pub struct Look<'a>(RwLockReadGuard<'a, BTreeMap<String, TableState>>);

impl Live {
    pub(super) fn open(view: View<'_>) -> Result<Self, StoreError> {
        let mut tables: BTreeMap<String, TableState> = BTreeMap::new();
        let malformed = |error| StoreError::new("decode a table's record", error);
        for pair in view.scan_prefix(record::TABLES, Order::Ascending) {
            let (key, value) = pair?;
            let name = String::from_utf8_lossy(&key[record::TABLES.len()..]).into_owned();
            tables.entry(name).or_default().table = Table::decode(value).map_err(malformed)?;
        }
        for pair in view.scan_prefix(record::VERSIONS, Order::Ascending) {
            let (key, value) = pair?;
            let (name, number) = record::decode_numbered_key(&key)?;
            let version = Version::decode(value).map_err(malformed)?;
            if let Some(state) = tables.get_mut(name) {
                state.versions.insert(number, Arc::new(version));
            }
        }
        for pair in view.scan_prefix(record::CHANGES, Order::Ascending) {
            let (key, value) = pair?;
            let (name, number) = record::decode_numbered_key(&key)?;
            let (revision, value) = record::decode_change(value)?;
            if let Some(state) = tables.get_mut(name) {
                state.set(number, revision, value.as_deref());
            }
        }
        Ok(Self { tables: RwLock::new(tables), generation: AtomicU64::new(1) })
    }

    /// Locks the tables for lookups. Hold the lock only while looking: the apply thread waits for it.
    pub fn look(&self) -> Look<'_> {
        Look(self.tables.read())
    }

    /// A number that differs after every change of tables and versions (not of keys).
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn change(&self) -> RwLockWriteGuard<'_, BTreeMap<String, TableState>> {
        self.tables.write()
    }

    pub(super) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }
}

impl Look<'_> {
    /// The table of this name.
    pub fn table(&self, name: &str) -> Option<&TableState> {
        self.0.get(name)
    }

    /// All tables, by name.
    pub fn tables(&self) -> impl Iterator<Item = (&str, &TableState)> {
        self.0.iter().map(|(name, state)| (name.as_str(), state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request of 64 KB that named one key of 256 KB many times took 2 GB: its value was copied for each.
    #[test]
    fn a_changed_value_is_there_once_however_often_it_is_asked_for() {
        let mut state = TableState::default();
        state.set(7, Revision(2), Some(&[1; 1000]));
        let asked: Vec<_> = (0..8000).map(|_| state.shared_change(7).unwrap().map(Arc::clone)).collect();
        let first = asked[0].as_ref().unwrap();
        assert!(asked.iter().all(|value| Arc::ptr_eq(value.as_ref().unwrap(), first)));
        assert_eq!(state.change(7), Some(Some(&[1; 1000][..])));
    }
}
