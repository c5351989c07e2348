//! Values that were read lately, by key: a hash instead of a search through the layers.
//!
//! **Invariant (newest).** What is kept for a key is the newest version that the layers hold of it. The writer first adds a
//! version to the memtable, then tells ([`Rows::wrote`]): that replaces what is kept, and counts. A reader notes the
//! count before it searches ([`Ticket`]), and what it found is kept only if nothing was written since. So a version that
//! was added while a reader searched is never hidden by the older one that it found.
//!
//! **Bounds.** Two generations of a fixed number of bytes each; when the young one is full the old one is forgotten.

use foldhash::fast::RandomState;
use lsm_tree::Slice;
use parking_lot::Mutex;
use quoin_core::Sequence;
use std::collections::HashMap;
use std::hash::BuildHasher;

/// Shards, each with a lock of its own.
const SHARDS: usize = 64;
/// Larger values are not kept.
const ROW_BYTES_MAX: usize = 64 << 10;
/// What a row takes besides its key and value, about.
const ROW_OVERHEAD: usize = 128;

/// The newest versions of keys that were read lately.
pub(super) struct Rows {
    hasher: RandomState,
    shards: Vec<Mutex<Shard>>,
    /// Of one generation of one shard.
    bytes_max: usize,
}

#[derive(Default)]
struct Shard {
    /// How many versions were written to this shard's keys.
    writes: u64,
    young: HashMap<Slice, Row, RandomState>,
    young_bytes: usize,
    old: HashMap<Slice, Row, RandomState>,
}

#[derive(Clone)]
struct Row {
    at: Sequence,
    /// As in the layers, header included.
    stored: Slice,
}

/// The right to keep what is found, as long as nothing is written.
pub(super) struct Ticket {
    shard: usize,
    writes: u64,
}

/// What is known of a key without searching.
pub(super) enum Known {
    /// Its newest version.
    Row(Sequence, Slice),
    /// Nothing.
    Nothing(Ticket),
}

impl Rows {
    /// At most about `bytes_max` bytes.
    pub(super) fn new(bytes_max: u64) -> Self {
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

    /// What is known of `key`. To be asked before the layers are looked at.
    pub(super) fn get(&self, key: &Slice) -> Known {
        let place = self.shard_of(key);
        let shard = self.shards[place].lock();
        match shard.young.get(key).or_else(|| shard.old.get(key)) {
            Some(Row { at, stored }) => Known::Row(*at, stored.clone()),
            None => Known::Nothing(Ticket { shard: place, writes: shard.writes }),
        }
    }

    /// Keeps the newest version of `key`, which is of `at`, if none was written since the ticket was given.
    pub(super) fn keep(&self, ticket: &Ticket, key: Slice, at: Sequence, stored: &Slice) {
        let bytes = row_bytes(&key, stored);
        if bytes > self.row_bytes_max() {
            return;
        }
        // A copy: what was found may be part of a whole block.
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

    /// A version of `key` is in the memtable. By the writer, before anybody is told that it can be read.
    pub(super) fn wrote(&self, key: &Slice, at: Sequence, stored: &Slice) {
        let mut shard = self.shards[self.shard_of(key)].lock();
        shard.writes += 1;
        let Shard { young, young_bytes, old, .. } = &mut *shard;
        let Some(row) = young.get_mut(key) else {
            old.remove(key);
            return;
        };
        if at < row.at {
            // An older version, as a snapshot brings them.
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
    use super::super::record;
    use super::*;

    fn entry(at: u64, value: &str) -> (Slice, Slice) {
        let entry = record::entry(record::tree_key(1, b"k"), Some(value.as_bytes()), Sequence(at));
        (entry.key.user_key, entry.value)
    }

    fn ticket(rows: &Rows, key: &Slice) -> Ticket {
        match rows.get(key) {
            Known::Nothing(ticket) => ticket,
            Known::Row(at, _) => panic!("a row of {at:?}"),
        }
    }

    fn kept(rows: &Rows, key: &Slice) -> Option<u64> {
        match rows.get(key) {
            Known::Row(at, _) => Some(at.0),
            Known::Nothing(_) => None,
        }
    }

    #[test]
    fn what_was_found_is_not_kept_when_something_was_written_meanwhile() {
        let rows = Rows::new(1 << 20);
        let (key, first) = entry(1, "one");
        let (_, second) = entry(2, "two");
        let searching = ticket(&rows, &key);
        rows.wrote(&key, Sequence(2), &second);
        rows.keep(&searching, key.clone(), Sequence(1), &first);
        assert_eq!(kept(&rows, &key), None);
        rows.keep(&ticket(&rows, &key), key.clone(), Sequence(2), &second);
        assert_eq!(kept(&rows, &key), Some(2));
        rows.wrote(&key, Sequence(3), &entry(3, "three").1);
        assert_eq!(kept(&rows, &key), Some(3));
        rows.wrote(&key, Sequence(1), &first);
        assert_eq!(kept(&rows, &key), Some(3), "older versions come later in a snapshot");
    }

    #[test]
    fn it_stays_within_its_bound() {
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
