//! Recently read values by key: a hash lookup instead of a search through the layers.
//!
//! **Invariant: Newest.** The version cached for a key is the newest one in the layers. The writer adds a
//! version to the memtable first and then calls [`Rows::written`], which replaces the cached version and
//! counts a write. A reader notes that count before it searches ([`Ticket`]); what it finds is cached only if
//! the count is still the same. So the older version that a reader found never hides one that was written
//! while it searched.
//!
//! **Invariant: Bounded.** There are two generations of a fixed number of bytes each. When the young one is
//! full, it takes the place of the old one, whose rows are dropped.

use foldhash::fast::RandomState;
use lsm_tree::Slice;
use parking_lot::Mutex;
use quoin_core::Sequence;
use std::collections::HashMap;
use std::hash::BuildHasher;

/// Number of shards, each with a lock of its own.
const SHARDS: usize = 64;
/// A larger row is not cached.
const ROW_BYTES_MAX: usize = 64 << 10;
/// Rough size of a row besides its key and value.
const ROW_OVERHEAD: usize = 128;

/// The newest versions of recently read keys.
pub(crate) struct Rows {
    hasher: RandomState,
    shards: Vec<Mutex<Shard>>,
    /// Limit for one generation of one shard.
    bytes_max: usize,
}

#[derive(Default)]
struct Shard {
    /// Number of versions written to this shard's keys.
    writes: u64,
    young: HashMap<Slice, Row, RandomState>,
    young_bytes: usize,
    old: HashMap<Slice, Row, RandomState>,
}

#[derive(Clone)]
struct Row {
    at: Sequence,
    /// The stored value, header included.
    stored: Slice,
}

/// The right to cache what a search finds, unless something is written meanwhile.
pub(crate) struct Ticket {
    shard: usize,
    writes: u64,
}

/// What the cache has for a key.
pub(crate) enum Lookup {
    /// The key's newest version.
    Hit(Sequence, Slice),
    /// Nothing: search the layers.
    Miss(Ticket),
}

impl Rows {
    /// A cache of about `bytes_max` bytes at most.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX) / (2 * SHARDS);
        Self { hasher: RandomState::default(), shards, bytes_max }
    }

    fn row_bytes_max(&self) -> usize {
        self.bytes_max.min(ROW_BYTES_MAX)
    }

    fn shard_of(&self, key: &Slice) -> usize {
        (self.hasher.hash_one(&key[..]) >> 32) as usize % SHARDS
    }

    /// Looks `key` up. Call this before searching the layers.
    pub(crate) fn get(&self, key: &Slice) -> Lookup {
        let place = self.shard_of(key);
        let shard = self.shards[place].lock();
        match shard.young.get(key).or_else(|| shard.old.get(key)) {
            Some(Row { at, stored }) => Lookup::Hit(*at, stored.clone()),
            None => Lookup::Miss(Ticket { shard: place, writes: shard.writes }),
        }
    }

    /// Caches the newest version of `key`, written at `at`, unless something was written since the ticket was
    /// issued.
    pub(crate) fn keep(&self, ticket: &Ticket, key: Slice, at: Sequence, stored: &Slice) {
        let bytes = row_bytes(&key, stored);
        if bytes > self.row_bytes_max() {
            return;
        }
        // A copy, because what was found may be a slice of a whole block.
        let row = Row { at, stored: Slice::from(&stored[..]) };
        let mut shard = self.shards[ticket.shard].lock();
        if shard.writes != ticket.writes {
            return;
        }
        if shard.young_bytes + bytes > self.bytes_max {
            shard.old = std::mem::take(&mut shard.young);
            shard.young_bytes = 0;
        }
        if shard.young.insert(key, row).is_none() {
            shard.young_bytes += bytes;
        }
    }

    /// Replaces the cached version of `key`. The writer calls this once the version is in the memtable, and
    /// before anybody is told that it can be read.
    pub(crate) fn written(&self, key: &Slice, at: Sequence, stored: &Slice) {
        let mut shard = self.shards[self.shard_of(key)].lock();
        shard.writes += 1;
        let Shard { young, young_bytes, old, .. } = &mut *shard;
        let Some(row) = young.get_mut(key) else {
            old.remove(key);
            return;
        };
        if at < row.at {
            // An import writes a key's older versions after its newest one.
        } else if row_bytes(key, stored) > self.row_bytes_max() {
            *young_bytes = young_bytes.saturating_sub(row_bytes(key, &row.stored));
            young.remove(key);
        } else {
            *young_bytes = (*young_bytes + stored.len()).saturating_sub(row.stored.len());
            *row = Row { at, stored: stored.clone() };
        }
    }
}

fn row_bytes(key: &Slice, stored: &Slice) -> usize {
    key.len() + stored.len() + ROW_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record;

    fn entry(at: u64, value: &str) -> (Slice, Slice) {
        let entry = record::entry(record::tree_key(1, b"k"), Some(value.as_bytes()), Sequence(at));
        (entry.key.user_key, entry.value)
    }

    fn ticket(rows: &Rows, key: &Slice) -> Ticket {
        match rows.get(key) {
            Lookup::Miss(ticket) => ticket,
            Lookup::Hit(at, _) => panic!("a row of {at:?}"),
        }
    }

    fn kept(rows: &Rows, key: &Slice) -> Option<u64> {
        match rows.get(key) {
            Lookup::Hit(at, _) => Some(at.0),
            Lookup::Miss(_) => None,
        }
    }

    #[test]
    fn a_found_version_is_not_cached_when_another_was_written_meanwhile() {
        let rows = Rows::new(1 << 20);
        let (key, first) = entry(1, "one");
        let (_, second) = entry(2, "two");
        let searching = ticket(&rows, &key);
        rows.written(&key, Sequence(2), &second);
        rows.keep(&searching, key.clone(), Sequence(1), &first);
        assert_eq!(kept(&rows, &key), None);
        rows.keep(&ticket(&rows, &key), key.clone(), Sequence(2), &second);
        assert_eq!(kept(&rows, &key), Some(2));
        rows.written(&key, Sequence(3), &entry(3, "three").1);
        assert_eq!(kept(&rows, &key), Some(3));
        rows.written(&key, Sequence(1), &first);
        assert_eq!(kept(&rows, &key), Some(3), "an older version, written later, does not replace it");
    }

    #[test]
    fn the_cache_stays_within_its_bound() {
        let rows = Rows::new(1 << 20);
        for number in 0..10_000u32 {
            let key = record::tree_key(1, &number.to_be_bytes());
            let stored = record::entry(key.clone(), Some(&[7; 1000]), Sequence(1)).value;
            rows.keep(&ticket(&rows, &key), key, Sequence(1), &stored);
        }
        let bytes = |row: &Row| row.stored.len();
        let held: usize = rows
            .shards
            .iter()
            .map(|shard| {
                let shard = shard.lock();
                shard.young.values().chain(shard.old.values()).map(bytes).sum::<usize>()
            })
            .sum();
        assert!((200_000..=1 << 20).contains(&held), "{held} bytes");
        let large = record::entry(record::tree_key(1, b"large"), Some(&[7; 100_000]), Sequence(1));
        let (key, stored) = (large.key.user_key, large.value);
        rows.keep(&ticket(&rows, &key), key.clone(), Sequence(1), &stored);
        assert_eq!(kept(&rows, &key), None);
    }
}
