//! What a watcher wants.
//!
//! Keys and prefixes are sorted, and no prefix begins with another one: so at most one of them can be that of a
//! key, the last that is not above it. A watcher of thousands of prefixes asks for each change.

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
    pub fn and(self, other: Self) -> Self {
        [self, other].into_iter().collect()
    }

    /// Whether `key` is wanted.
    pub fn contains(&self, key: &[u8]) -> bool {
        let after = self.prefixes.partition_point(|prefix| **prefix <= *key);
        self.prefixes[..after].last().is_some_and(|prefix| key.starts_with(prefix))
            || self.keys.binary_search_by(|wanted| (**wanted).cmp(key)).is_ok()
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

/// What any of them wants.
impl FromIterator<Interest> for Interest {
    fn from_iter<I: IntoIterator<Item = Self>>(interests: I) -> Self {
        let mut all = Self::default();
        for Self { keys, prefixes, ranges } in interests {
            all.keys.extend(keys);
            all.prefixes.extend(prefixes);
            all.ranges.extend(ranges);
        }
        all.keys.sort_unstable();
        all.keys.dedup();
        // What begins with a prefix comes right after it.
        all.prefixes.sort_unstable();
        all.prefixes.dedup_by(|later, kept| later.starts_with(kept));
        all
    }
}

/// Whether `key` is in `from..to`, where an empty `to` is the end of all keys.
pub(super) fn in_range(key: &[u8], from: &[u8], to: &[u8]) -> bool {
    from <= key && (to.is_empty() || key < to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn short() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(0..3_u8, 0..4)
    }

    proptest! {
        #[test]
        fn a_key_is_wanted_if_any_of_the_parts_wants_it(
            keys in proptest::collection::vec(short(), 0..6),
            prefixes in proptest::collection::vec(short(), 0..6),
            ranges in proptest::collection::vec((short(), short()), 0..2),
            asked in short(),
        ) {
            let parts = keys.iter().map(|key| Interest::key(key.clone().into()))
                .chain(prefixes.iter().map(|prefix| Interest::prefix(prefix.clone().into())))
                .chain(ranges.iter().map(|(from, to)| Interest::range(from.clone().into(), to.clone().into())));
            let parts: Vec<Interest> = parts.collect();
            let wanted = keys.contains(&asked)
                || prefixes.iter().any(|prefix| asked.starts_with(prefix))
                || ranges.iter().any(|(from, to)| in_range(&asked, from, to));
            let one_by_one = parts.iter().cloned().fold(Interest::default(), Interest::and);
            let all: Interest = parts.into_iter().collect();
            prop_assert_eq!(&one_by_one, &all);
            prop_assert_eq!(all.contains(&asked), wanted);
            let unsorted = all.prefixes.windows(2).any(|pair| pair[1].starts_with(&pair[0]));
            prop_assert!(!unsorted);
        }
    }
}
