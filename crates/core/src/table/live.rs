//! The tables as lookups see them, in memory: the active version of each, and the changes over it.
//!
//! **Invariant: Derived (memory).** Made from the store when a replica opens, then changed by the machine
//! only. A reader locks the tables while it looks, so it sees one active version, and all of a command's
//! changes or none of them; what it sees is at least as new as any state it was told is applied.
//!
//! Bound: [`CHANGE_BYTES`] per changed key, besides its value. Adapters refuse writes beyond a setting; folding changes
//! into a version's files frees them.

use super::command::Write;
use super::record::{self, Table, Version};
use crate::store::{Order, StoreError, View};
use crate::types::Revision;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use prost::Message;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// About the bytes that a changed key takes besides its value.
pub const CHANGE_BYTES: usize = 64;

/// One changed key.
#[derive(Clone, Debug)]
struct Change {
    revision: Revision,
    /// Shared with the lookups that answer it.
    value: Option<Arc<[u8]>>,
}

impl Change {
    fn bytes(&self) -> usize {
        CHANGE_BYTES + self.value.as_ref().map_or(0, |value| value.len())
    }
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
    changes_bytes: usize,
    /// Keys with changes that no version shows any more and that are still to be deleted, the first one last.
    doomed: Vec<u64>,
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

    /// About the bytes of memory that the changes take.
    pub fn changes_bytes(&self) -> usize {
        self.changes_bytes
    }

    /// About the bytes of memory that the changes take more once `write` is applied.
    pub fn growth(&self, write: &Write) -> usize {
        // As it is applied: a key counts once, and deletes come first.
        let deletes = write.deletes.iter().map(|key| (*key, 0));
        let upserts = write.upserts.iter().map(|upsert| (upsert.key, upsert.value.len()));
        let after: BTreeMap<u64, usize> = deletes.chain(upserts).collect();
        let before = after.keys().filter_map(|key| self.changes.get(key)).map(Change::bytes).sum();
        after.values().map(|bytes| CHANGE_BYTES + bytes).sum::<usize>().saturating_sub(before)
    }

    /// How many changes are still to be deleted, at most: nobody sees them any more.
    pub fn doomed(&self) -> usize {
        self.doomed.len()
    }

    /// The change of `key` over the active version's files: a value, a deletion (`Some(None)`), or none.
    /// Hides what was written while a version of another shape was active.
    pub fn change(&self, key: u64) -> Option<Option<&[u8]>> {
        Some(self.shared_change(key)?.map(|value| &**value))
    }

    /// As [`Self::change`], to be held beyond the lock: however often a lookup asks for a key, its value is there once.
    pub fn shared_change(&self, key: u64) -> Option<Option<&Arc<[u8]>>> {
        let change = self.changes.get(&key)?;
        let version = self.versions.get(&self.table.active)?;
        let value = change.value.as_ref();
        self.table.shows(version, change.revision, value.map(|value| &**value)).then_some(value)
    }

    /// The keys with changes over the files, in order, with their revisions.
    pub fn changed_keys(&self) -> Vec<(u64, Revision)> {
        let mut keys: Vec<_> = self.changes.iter().map(|(key, change)| (*key, change.revision)).collect();
        keys.sort_unstable();
        keys
    }

    /// The revisions of all changes, in no order.
    pub(super) fn revisions(&self) -> impl Iterator<Item = Revision> {
        self.changes.values().map(|change| change.revision)
    }

    pub(super) fn set(&mut self, key: u64, revision: Revision, value: Option<&[u8]>) {
        let change = Change { revision, value: value.map(Into::into) };
        self.changes_bytes += change.bytes();
        self.changes_bytes -= self.changes.insert(key, change).map_or(0, |before| before.bytes());
    }

    /// Finds the changes that are to be deleted.
    pub(super) fn doom(&mut self) {
        let doomed = self.changes.iter().filter(|(_, change)| self.table.forgets(change.revision));
        self.doomed = doomed.map(|(key, _)| *key).collect();
        self.doomed.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Takes out at most `max` of the changes that are to be deleted, in the order of their keys.
    pub(super) fn forget(&mut self, max: usize) -> Vec<u64> {
        let mut forgotten = Vec::new();
        while forgotten.len() < max
            && let Some(key) = self.doomed.pop()
        {
            // It may have been changed again meanwhile.
            if self.changes.get(&key).is_some_and(|change| self.table.forgets(change.revision)) {
                self.changes_bytes -= self.changes.remove(&key).map_or(0, |change| change.bytes());
                forgotten.push(key);
            }
        }
        forgotten
    }
}

/// All tables by name.
#[derive(Debug, Default)]
pub struct Live {
    tables: RwLock<BTreeMap<String, TableState>>,
    generation: AtomicU64,
    changes_bytes: AtomicUsize,
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
        for pair in view.scan_prefix(record::MANIFESTS, Order::Ascending) {
            let (key, manifest) = pair?;
            let (name, number) = record::decode_numbered_key(&key)?;
            let version = tables.get_mut(name).and_then(|state| state.versions.get_mut(&number));
            version.map(Arc::make_mut).into_iter().for_each(|version| version.manifest = manifest.clone());
        }
        for pair in view.scan_prefix(record::CHANGES, Order::Ascending) {
            let (key, value) = pair?;
            let (name, number) = record::decode_numbered_key(&key)?;
            let (revision, value) = record::decode_change(value)?;
            if let Some(state) = tables.get_mut(name) {
                state.set(number, revision, value.as_deref());
            }
        }
        tables.values_mut().for_each(TableState::doom);
        let changes_bytes = AtomicUsize::new(tables.values().map(TableState::changes_bytes).sum());
        Ok(Self { tables: RwLock::new(tables), generation: AtomicU64::new(1), changes_bytes })
    }

    /// Locks the tables for lookups. Hold the lock only while looking: the apply thread waits for it.
    pub fn look(&self) -> Look<'_> {
        Look(self.tables.read())
    }

    /// A number that differs after every change of tables and versions (not of keys).
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// About the bytes of memory that the changes of all tables take.
    pub fn changes_bytes(&self) -> usize {
        self.changes_bytes.load(Ordering::Relaxed)
    }

    /// The changes of a table that took `before` bytes take `after`.
    pub(super) fn count_bytes(&self, before: usize, after: usize) {
        // One thread applies.
        let others = self.changes_bytes.load(Ordering::Relaxed) - before;
        self.changes_bytes.store(others + after, Ordering::Relaxed);
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
        state.table.active = 1;
        state.versions.insert(1, Arc::new(Version::default()));
        state.set(7, Revision(2), Some(&[1; 1000]));
        let asked: Vec<_> = (0..8000).map(|_| state.shared_change(7).unwrap().map(Arc::clone)).collect();
        let first = asked[0].as_ref().unwrap();
        assert!(asked.iter().all(|value| Arc::ptr_eq(value.as_ref().unwrap(), first)));
        assert_eq!(state.change(7), Some(Some(&[1; 1000][..])));
    }
}
