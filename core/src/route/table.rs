//! The newest rules in memory, so that a lookup costs a hash and not a descent through the store.
//!
//! Derived from the store when a replica opens, kept by the machine, read by everybody.
//!
//! **Invariant (whole commands).** A reader holds the table for as long as it looks: it sees each command's rules all or
//! not at all. What it sees is at least as new as any state that it was told is applied.
//!
//! Bound: about 110 bytes and the record's own for each rule.

use super::record;
use super::rule::{Rule, RuleKey};
use crate::store::{Order, StoreError, View};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::HashMap;

/// Rules by their keys; each as its record.
type Rules = HashMap<RuleKey, Box<[u8]>, foldhash::fast::RandomState>;

/// The newest rules.
#[derive(Default)]
pub struct Table {
    rules: RwLock<Rules>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table of {} rules", self.len())
    }
}

/// A hold on the table: while it lives, nothing changes.
pub struct Lookup<'a>(RwLockReadGuard<'a, Rules>);

impl Table {
    pub(super) fn open(view: View<'_>) -> Result<Self, StoreError> {
        let mut rules = Rules::default();
        for pair in view.scan_prefix(&record::RULES, Order::Ascending) {
            let (store_key, value) = pair?;
            rules.insert(RuleKey::decode(&store_key[record::RULES.len()..])?, value[..].into());
        }
        Ok(Self { rules: RwLock::new(rules) })
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.rules.read().len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// To look rules up. Hold it only while looking: the apply thread waits for it.
    pub fn look(&self) -> Lookup<'_> {
        Lookup(self.rules.read())
    }

    pub(super) fn change(&self) -> RwLockWriteGuard<'_, Rules> {
        self.rules.write()
    }
}

impl Lookup<'_> {
    /// The rule at `key`.
    ///
    /// # Errors
    /// Its record is not of this version.
    pub fn get(&self, key: &RuleKey) -> Result<Option<Rule>, StoreError> {
        let Some(record) = self.0.get(key) else { return Ok(None) };
        Ok(Some(Rule::decode(*key, bytes::Bytes::copy_from_slice(record))?))
    }
}
