//! The newest rules in memory, so that a lookup costs a hash and not a descent through the store.
//!
//! **Invariant: Derived (memory).** Made from the store when a replica opens, then changed by the machine
//! only. A reader locks the table while it looks, so it sees all of a command's rules or none of them, and
//! what it sees is at least as new as any state it was told is applied.
//!
//! Bound: about 120 bytes per rule, besides the record's own.

use super::record;
use super::row::Row;
use super::rule::{RuleKey, RuleRef, group_of};
use crate::store::{Order, StoreError, View};
use crate::types::Revision;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;

/// The newest rules.
#[derive(Default)]
pub struct Table {
    rules: RwLock<Rules>,
}

/// The rules, by key and by group.
#[derive(Default)]
pub(super) struct Rules {
    by_key: HashSet<Row, foldhash::fast::RandomState>,
    by_group: HashMap<Box<[u8]>, BTreeMap<RuleKey, Row>>,
    /// That of the newest command that changed rules, or the store's when the table was opened.
    revision: Revision,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table of {} rules", self.len())
    }
}

/// A read lock on the table.
pub struct Lookup<'a>(RwLockReadGuard<'a, Rules>);

/// A group's rules as they were at one moment.
pub struct Members(Vec<Row>);

impl Table {
    pub(super) fn open(view: View<'_>, revision: Revision) -> Result<Self, StoreError> {
        let mut rules = Rules { revision, ..Rules::default() };
        for pair in view.scan_prefix(&record::RULES, Order::Ascending) {
            let (store_key, value) = pair?;
            let key = RuleKey::decode(&store_key[record::RULES.len()..])?;
            let group = group_of(&value).ok_or_else(|| StoreError::new("read a rule", "it has no group"))?;
            rules.insert(key, group, &value);
        }
        Ok(Self { rules: RwLock::new(rules) })
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.rules.read().by_key.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Locks the table for lookups. Hold the lock only while looking: the apply thread waits for it.
    pub fn look(&self) -> Lookup<'_> {
        Lookup(self.rules.read())
    }

    pub(super) fn change(&self) -> RwLockWriteGuard<'_, Rules> {
        self.rules.write()
    }
}

impl Rules {
    /// Writes a rule and returns the previous one.
    pub(super) fn insert(&mut self, key: RuleKey, group: &[u8], record: &[u8]) -> Option<Row> {
        let row = Row::new(key, record);
        let old = self.by_key.replace(row.clone());
        let old_group = old.as_ref().and_then(|old| group_of(old.record()));
        if let Some(old_group) = old_group.filter(|old_group| *old_group != group) {
            self.leave(&key, old_group);
        }
        match self.by_group.get_mut(group) {
            Some(members) => {
                members.insert(key, row);
            }
            None => {
                self.by_group.insert(group.into(), BTreeMap::from([(key, row)]));
            }
        }
        old
    }

    /// Deletes a rule and returns it.
    pub(super) fn remove(&mut self, key: &RuleKey) -> Option<Row> {
        let old = self.by_key.take(key)?;
        self.leave(key, group_of(old.record()).unwrap_or_default());
        Some(old)
    }

    fn leave(&mut self, key: &RuleKey, group: &[u8]) {
        if let Some(members) = self.by_group.get_mut(group) {
            members.remove(key);
            if members.is_empty() {
                self.by_group.remove(group);
            }
        }
    }

    /// The record of the rule at `key`.
    pub(super) fn get(&self, key: &RuleKey) -> Option<&[u8]> {
        self.by_key.get(key).map(Row::record)
    }

    pub(super) fn set_revision(&mut self, revision: Revision) {
        self.revision = revision;
    }
}

impl Lookup<'_> {
    /// The rule at `key`.
    ///
    /// # Errors
    /// Its record was not written by this version.
    pub fn get(&self, key: &RuleKey) -> Result<Option<RuleRef<'_>>, StoreError> {
        let Some(record) = self.0.get(key) else { return Ok(None) };
        Ok(Some(RuleRef::decode(*key, record)?))
    }

    /// The newest revision that the table reflects.
    pub fn revision(&self) -> Revision {
        self.0.revision
    }

    /// The keys and records of a group.
    pub(super) fn members(&self, group: &[u8]) -> impl Iterator<Item = (&RuleKey, &[u8])> {
        self.0.by_group.get(group).into_iter().flatten().map(|(key, row)| (key, row.record()))
    }

    /// How many rules a group has.
    pub fn group_len(&self, group: &[u8]) -> usize {
        self.0.by_group.get(group).map_or(0, BTreeMap::len)
    }

    /// Up to `limit` rules of a group after `after` (all for `None`), by key. About 20 ns a rule: their
    /// records are shared, and decoded after the lock is released.
    pub fn group(&self, group: &[u8], after: Option<RuleKey>, limit: usize) -> Members {
        let Some(members) = self.0.by_group.get(group) else { return Members(Vec::new()) };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let members = members.range((from, Bound::Unbounded)).take(limit);
        Members(members.map(|(_, row)| row.clone()).collect())
    }
}

impl Members {
    /// The rules, by key.
    pub fn rules(&self) -> impl Iterator<Item = Result<RuleRef<'_>, StoreError>> {
        self.0.iter().map(|row| Ok(RuleRef::decode(*row.key(), row.record())?))
    }
}
