//! What a watcher wants.

use bytes::Bytes;
use quoin_core::store::prefix_end;
use quoin_core::{Change, Event};
use std::sync::Arc;

/// What a watcher wants, in store keys: single keys, all keys with a prefix, and half-open ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    pub(super) keys: Vec<Bytes>,
    pub(super) prefixes: Vec<Bytes>,
    pub(super) ranges: Vec<(Bytes, Bytes)>,
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

    /// The keys in `from..to`; an empty `to` is the end of all keys.
    pub fn range(from: Bytes, to: Bytes) -> Self {
        if prefix_end(&from) == to {
            Self::prefix(from)
        } else {
            Self { ranges: vec![(from, to)], ..Self::default() }
        }
    }

    /// What either of them wants.
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

    /// `event` with only the wanted changes; `None` if there are none.
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

/// Whether `key` is in `from..to`, where an empty `to` is the end of all keys.
pub(super) fn in_range(key: &[u8], from: &[u8], to: &[u8]) -> bool {
    from <= key && (to.is_empty() || key < to)
}
