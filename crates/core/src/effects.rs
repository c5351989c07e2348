//! A hash over what an entry writes and deletes: replicas of one version that have applied the same entry to the same state
//! have the same one. The order of the writes of one command does not count: no reader sees it.
//!
//! One pass over bytes that were just written, and no read. What is derived from them (records of events, progress) and what
//! no command decides (garbage collection) is not in it. It is compared while replicas run, and stored nowhere.

use crate::types::Sequence;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The hash so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects(u64);

impl Effects {
    /// A key is written, or deleted (`None`).
    pub(crate) fn note(&mut self, key: &[u8], value: Option<&[u8]>, at: Sequence) {
        let of_key = xxh3_64_with_seed(key, at.0);
        let of_both = value.map_or(of_key, |value| xxh3_64_with_seed(value, of_key.rotate_left(1)));
        self.0 = self.0.wrapping_add(of_both);
    }

    pub(crate) fn hash(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(effects: &[(&str, Option<&str>)]) -> u64 {
        let mut hash = Effects::default();
        for (at, (key, value)) in (7..).zip(effects) {
            hash.note(key.as_bytes(), value.map(str::as_bytes), Sequence(at));
        }
        hash.hash()
    }

    /// Replicas on different machines compare them.
    #[test]
    fn the_hash_is_pinned() {
        assert_eq!(hash(&[("k", Some("v")), ("l", None)]), 9_758_642_193_506_414_175);
    }

    #[test]
    fn keys_values_deletions_and_sequences_count() {
        let all = [
            hash(&[]),
            hash(&[("k", Some("v"))]),
            hash(&[("k", Some(""))]),
            hash(&[("k", None)]),
            hash(&[("kv", None)]),
            hash(&[("k", Some("v")), ("l", None)]),
            hash(&[("l", None), ("k", Some("v"))]),
        ];
        let different: std::collections::BTreeSet<_> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
    }
}
