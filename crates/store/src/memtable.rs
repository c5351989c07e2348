//! A memtable: entries in order, and a filter of their keys, so that asking for an absent key costs one look
//! into memory instead of a search through a skip list.
//!
//! The writer notes a key in the filter before it adds the entry. So whoever may see the entry finds its key in the
//! filter: it never says that a key is absent which is there.

use lsm_tree::table::filter::standard_bloom::Builder as Bloom;
use lsm_tree::{InternalValue, Slice, ValueType};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The filter takes this share of the memtable: 2 MiB of 64, about 12 bits per entry even where entries are small.
const FILTER_SHARE: u64 = 32;

/// Entries that are not yet in a table file.
pub(crate) struct Memtable {
    entries: lsm_tree::Memtable,
    filter: Filter,
}

impl Memtable {
    /// An empty memtable that is to grow to about `bytes`.
    pub(crate) fn new(id: u64, bytes: u64) -> Self {
        Self { entries: lsm_tree::Memtable::new(id), filter: Filter::new(bytes / FILTER_SHARE) }
    }

    /// Adds an entry.
    pub(crate) fn insert(&self, entry: InternalValue) {
        self.filter.note(hash(&entry.key.user_key));
        self.entries.insert(entry);
    }

    /// The newest stored value of `key` below `limit`, header included. `hashed` is the key's [`hash`].
    pub(crate) fn get(&self, key: &Slice, hashed: u64, limit: u64) -> Option<Slice> {
        if !self.filter.may_hold(hashed) {
            return None;
        }
        // A key's versions are ordered newest first, so the first one from here on is the newest below the limit.
        let newest =
            InternalValue::from_components(key.clone(), Slice::empty(), limit - 1, ValueType::Value).key;
        let entry = self.entries.items.range(newest..).next()?;
        (entry.key().user_key == *key).then(|| entry.value().clone())
    }

    /// All entries, in the engine's order.
    pub(crate) fn entries(&self) -> &lsm_tree::Memtable {
        &self.entries
    }

    /// About how many bytes its entries take.
    pub(crate) fn size(&self) -> u64 {
        self.entries.size()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// A key's hash, as the filters of memtables and of tables want it.
pub(crate) fn hash(key: &[u8]) -> u64 {
    Bloom::get_hash(key)
}

/// A Bloom filter whose blocks are single words: a key is four bits of one word.
struct Filter {
    /// As many as a power of two.
    words: Box<[AtomicU64]>,
}

impl Filter {
    fn new(bytes: u64) -> Self {
        let words = usize::try_from(bytes / 8).unwrap_or(usize::MAX).clamp(1, 1 << 24).next_power_of_two();
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    fn note(&self, hashed: u64) {
        let (word, bits) = self.place(hashed);
        word.fetch_or(bits, Relaxed);
    }

    fn may_hold(&self, hashed: u64) -> bool {
        let (word, bits) = self.place(hashed);
        word.load(Relaxed) & bits == bits
    }

    /// The upper half of the hash chooses the word, the lower half the bits.
    fn place(&self, hashed: u64) -> (&AtomicU64, u64) {
        let word = (hashed >> 32) as usize & (self.words.len() - 1);
        let bit = |shift: u32| 1u64 << (hashed >> shift & 63);
        (&self.words[word], bit(0) | bit(6) | bit(12) | bit(18))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record;
    use quoin_core::Sequence;

    fn key(number: u32) -> Slice {
        record::tree_key(1, &number.to_be_bytes())
    }

    #[test]
    fn what_was_added_is_found_and_what_was_not_is_seldom_looked_for() {
        let memtable = Memtable::new(0, 1 << 20);
        for number in 0..10_000 {
            memtable.insert(record::entry(key(number), Some(b"value"), Sequence(u64::from(number) + 1)));
        }
        let found = |number| memtable.get(&key(number), hash(&key(number)), u64::MAX);
        assert!((0..10_000).all(|number| found(number).is_some()));
        assert!((10_000..20_000).all(|number| found(number).is_none()));
        let taken = (10_000..20_000).filter(|number| memtable.filter.may_hold(hash(&key(*number)))).count();
        assert!(taken < 1000, "{taken} of 10,000 absent keys were taken for present");
    }

    #[test]
    fn a_filter_of_no_bytes_rules_nothing_in() {
        let filter = Filter::new(0);
        assert!(!filter.may_hold(7));
        filter.note(7);
        assert!(filter.may_hold(7));
    }
}
