//! A rule in memory: its key and its record in one allocation, behind one word.

use super::rule::RuleKey;
use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use triomphe::ThinArc;

/// A shared rule, which a set finds by its key: two are equal if their keys are.
///
/// Its allocation has 40 bytes besides the record.
#[derive(Clone)]
pub(super) struct Row(ThinArc<RuleKey, u8>);

impl Row {
    pub(super) fn new(key: RuleKey, record: &[u8]) -> Self {
        Self(ThinArc::from_header_and_slice(key, record))
    }

    pub(super) fn key(&self) -> &RuleKey {
        &self.0.header.header
    }

    pub(super) fn record(&self) -> &[u8] {
        &self.0.slice
    }
}

impl Borrow<RuleKey> for Row {
    fn borrow(&self) -> &RuleKey {
        self.key()
    }
}

impl Hash for Row {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Row {}
