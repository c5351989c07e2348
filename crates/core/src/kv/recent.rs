//! What the machine remembers of recently written keys, so that writing a hot key again skips reading its
//! record.
//!
//! **Invariant: Derived (memory).** Invisible from outside: forgetting any of it costs only time. Bounded by
//! two generations of [`GENERATION_KEYS_MAX`] keys; when the young one is full, it replaces the old one.

use super::deadline::Deadline;
use super::record::{Collection, Record};
use std::collections::HashMap;

/// Keys in one generation.
const GENERATION_KEYS_MAX: usize = 128 * 1024;
/// Longer keys are not remembered.
const KEY_BYTES_MAX: usize = 256;

/// What a put needs of the record that it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Previous {
    pub(super) create_revision: u64,
    pub(super) version: u64,
    pub(super) lease: i64,
    pub(super) expires: Option<Deadline>,
    pub(super) collection: Option<Collection>,
}

impl Previous {
    pub(super) fn of(record: &Record) -> Self {
        let Record { create_revision, version, lease, expires, collection, .. } = *record;
        Self { create_revision, version, lease, expires, collection }
    }
}

/// Recently written keys; `None` marks a deleted one.
#[derive(Debug, Default)]
pub(super) struct Recent {
    young: HashMap<Box<[u8]>, Option<Previous>>,
    old: HashMap<Box<[u8]>, Option<Previous>>,
}

impl Recent {
    /// What is remembered of `key`; `None` if nothing is.
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<Previous>> {
        self.young.get(key).or_else(|| self.old.get(key)).copied()
    }

    /// As [`Self::note`] of a deleted key, if the key is remembered: one of very many is not worth the place of
    /// another.
    pub(super) fn note_deleted(&mut self, key: &[u8]) {
        if self.get(key).is_some() {
            self.note(key, None);
        }
    }

    /// Notes what was written (`Some`) or that the key was deleted.
    pub(super) fn note(&mut self, key: &[u8], written: Option<Previous>) {
        if let Some(known) = self.young.get_mut(key) {
            *known = written;
            return;
        }
        if key.len() > KEY_BYTES_MAX {
            return;
        }
        if self.young.len() >= GENERATION_KEYS_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key.into(), written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_note_counts_through_both_generations() {
        let mut recent = Recent::default();
        let previous = |version| {
            Some(Previous { create_revision: 1, version, lease: 0, expires: None, collection: None })
        };
        recent.note(b"k", previous(1));
        for number in 0..GENERATION_KEYS_MAX as u64 {
            recent.note(&number.to_be_bytes(), None);
        }
        assert_eq!(recent.get(b"k"), Some(previous(1)));
        recent.note(b"k", previous(2));
        assert_eq!(recent.get(b"k"), Some(previous(2)));
        recent.note(b"k", None);
        assert_eq!((recent.get(b"k"), recent.get(b"other")), (Some(None), None));
        recent.note(&[7; KEY_BYTES_MAX + 1], previous(1));
        assert_eq!(recent.get(&[7; KEY_BYTES_MAX + 1]), None);
    }
}
