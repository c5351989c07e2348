//! The contract of every [`Store`], checked with random operations against a plain model.
//!
//! Each implementation runs this in its own tests (feature `testing`). The caller makes the store reorganize
//! itself between operations: flush, compact, reopen.

use super::{Order, Store};
use crate::limits::STORE_KEY_BYTES_MAX;
use crate::types::Sequence;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Keys below this prefix are written once, ascending, and die with [`Store::forget`].
const LOG_PREFIX: &[u8] = b"\0e";

/// Deterministic random numbers (SplitMix64), so that a seed identifies a run.
pub struct Random(u64);

impl Random {
    /// The numbers of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// True once in `times`, on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// The plain model: every version of every key.
#[derive(Default)]
pub struct Model {
    versions: BTreeMap<Vec<u8>, BTreeMap<u64, Option<Bytes>>>,
}

impl Model {
    /// Notes a write; `None` deletes.
    pub fn write(&mut self, key: &[u8], value: Option<Bytes>, at: Sequence) {
        self.versions.entry(key.to_vec()).or_default().insert(at.0, value);
    }

    /// What a read of `key` at `at` must return.
    pub fn get(&self, key: &[u8], at: Sequence) -> Option<Bytes> {
        self.versions.get(key)?.range(..=at.0).next_back()?.1.clone()
    }

    /// What an ascending scan must return.
    pub fn scan(&self, from: &[u8], to: &[u8], at: Sequence) -> Vec<(Bytes, Bytes)> {
        let inside = |key: &[u8]| from <= key && (to.is_empty() || key < to);
        let keys = self.versions.keys().filter(|key| inside(key));
        keys.filter_map(|key| Some((Bytes::copy_from_slice(key), self.get(key, at)?))).collect()
    }

    /// Every key ever written.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.versions.keys().map(Vec::as_slice)
    }
}

/// Runs `operations` random writes on an empty store and checks its answers.
///
/// Calls `settle` now and then with a random number: it may flush, compact, or do nothing.
///
/// # Panics
/// The store breaks its contract.
pub fn check(store: &dyn Store, seed: u64, operations: u64, settle: &mut dyn FnMut(u64)) {
    let mut run = Run::new(seed);
    run.write(store, operations, settle);
    settle(0);
    run.compare(store);
}

/// A random series of writes, and what a store must answer after them.
pub struct Run {
    random: Random,
    model: Model,
    /// The sequence of the last write.
    newest: u64,
    forgotten: u64,
    /// Log keys of sequences below this one are dead.
    dead_below: u64,
}

impl Run {
    /// The writes of `seed`, into an empty store.
    pub fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), model: Model::default(), newest: 0, forgotten: 0, dead_below: 0 }
    }

    /// The sequence of the last write.
    pub fn newest(&self) -> Sequence {
        Sequence(self.newest)
    }

    /// Writes at the next `operations` sequences, forgetting and reading in between.
    ///
    /// # Panics
    /// A read differs from the model's.
    pub fn write(&mut self, store: &dyn Store, operations: u64, settle: &mut dyn FnMut(u64)) {
        for _ in 0..operations {
            self.newest += 1;
            self.write_next(store, Sequence(self.newest));
            if self.random.once_in(40) {
                settle(self.random.number());
            }
            if self.random.once_in(100) {
                self.forget(store);
            }
            if self.random.once_in(100) {
                self.compare_some(store);
            }
        }
    }

    /// Compares the answers of `store` with the model's, at sequences over the whole range that may be read.
    ///
    /// # Panics
    /// They differ.
    pub fn compare(&self, store: &dyn Store) {
        let step = ((self.newest - self.forgotten) / 50).max(1);
        let ats = (self.forgotten..=self.newest).step_by(step as usize).chain([self.newest]);
        for at in ats.map(Sequence) {
            self.compare_scan(store, b"", b"", at);
            for key in self.model.keys().filter(|key| !key.starts_with(LOG_PREFIX)) {
                assert_eq!(
                    store.get(key, at).expect("a sound store"),
                    self.model.get(key, at),
                    "{key:?} at {at}"
                );
            }
        }
        for sequence in self.dead_below.max(1)..=self.newest {
            let found = store.get(&log_key(sequence), Sequence(self.newest)).expect("a sound store");
            assert!(found.is_some(), "log record {sequence}");
        }
    }

    fn write_next(&mut self, store: &dyn Store, at: Sequence) {
        for _ in 0..=self.random.below(3) {
            let key = self.key();
            // The same key may be written twice at one sequence: the second write counts.
            for _ in 0..=u64::from(self.random.once_in(10)) {
                if self.random.once_in(4) {
                    store.delete(&key, at);
                    self.model.write(&key, None, at);
                } else {
                    let value = self.value(at);
                    store.put(&key, value.clone(), at);
                    self.model.write(&key, Some(value), at);
                }
            }
        }
        let record = Bytes::from(at.0.to_le_bytes().to_vec());
        store.put(&log_key(at.0), record.clone(), at);
        self.model.write(&log_key(at.0), Some(record), at);
    }

    /// Few keys, so that they get many versions; some are prefixes of others, some hold the largest byte.
    fn key(&mut self) -> Vec<u8> {
        let length = 1 + self.random.below(3);
        let mut key: Vec<u8> =
            (0..length).map(|_| [b'a', b'b', 0xff, 1][self.random.below(4) as usize]).collect();
        if self.random.once_in(300) {
            self.lengthen(&mut key, STORE_KEY_BYTES_MAX);
        }
        key
    }

    /// A key to ask for, at times one that is longer than any key can be.
    fn asked(&mut self) -> Vec<u8> {
        let mut key = self.key();
        if self.random.once_in(10) {
            let bytes = STORE_KEY_BYTES_MAX - 1 + self.random.below(4) as usize;
            self.lengthen(&mut key, bytes);
        }
        key
    }

    fn lengthen(&mut self, key: &mut Vec<u8>, bytes: usize) {
        key.resize(bytes, [0, b'a', 0xff][self.random.below(3) as usize]);
    }

    fn value(&mut self, at: Sequence) -> Bytes {
        let length = if self.random.once_in(20) { self.random.below(9000) } else { self.random.below(60) };
        let seed = at.0.to_le_bytes();
        (0..length as usize).map(|place| seed[place % 8]).collect::<Vec<_>>().into()
    }

    fn forget(&mut self, store: &dyn Store) {
        self.forgotten += self.random.below(self.newest - self.forgotten + 1);
        self.dead_below = self.forgotten;
        store.forget(Sequence(self.forgotten), &log_key(0), &log_key(self.dead_below));
    }

    fn compare_some(&mut self, store: &dyn Store) {
        let at = Sequence(self.forgotten + self.random.below(self.newest - self.forgotten + 3));
        let key = self.asked();
        assert!(
            store.get(&key, at).expect("a sound store") == self.model.get(&key, at),
            "get {} bytes, {:?}... at {at}",
            key.len(),
            &key[..1]
        );
        let (from, to) = (self.asked(), if self.random.once_in(3) { Vec::new() } else { self.asked() });
        self.compare_scan(store, &from, &to, at);
    }

    fn compare_scan(&self, store: &dyn Store, from: &[u8], to: &[u8], at: Sequence) {
        let dead = log_key(0)..log_key(self.dead_below);
        let mut expected = self.model.scan(from, to, at);
        expected.retain(|(key, _)| !dead.contains(&key.to_vec()));
        for order in [Order::Ascending, Order::Descending] {
            let found = store.scan(from, to, at, order).map(|pair| pair.expect("a sound store"));
            let found: Vec<_> = found.filter(|(key, _)| !dead.contains(&key.to_vec())).collect();
            let differs = (0..)
                .find(|at| found.get(*at) != expected.get(*at) || *at == found.len())
                .unwrap_or_default();
            let (left, right) = (found.get(differs), expected.get(differs));
            let bounds = [from, to].map(|key| (key.len(), &key[..key.len().min(4)]));
            assert!(left == right, "scan {bounds:?} at {at} {order:?}: result {differs}");
            expected.reverse();
        }
    }
}

fn log_key(number: u64) -> Vec<u8> {
    [LOG_PREFIX, &number.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn the_memory_store_keeps_the_contract() {
        for seed in 0..8 {
            check(&MemoryStore::new(), seed, 400, &mut |_| ());
        }
    }

    #[test]
    #[should_panic(expected = " at ")]
    fn a_store_that_loses_a_write_is_detected() {
        struct Forgetful(MemoryStore);
        impl Store for Forgetful {
            fn get(&self, key: &[u8], at: Sequence) -> Result<Option<Bytes>, crate::StoreError> {
                Ok(self.0.get(key, at)?.filter(|value| value.len() % 7 != 3))
            }
            fn scan<'a>(
                &'a self,
                from: &[u8],
                to: &[u8],
                at: Sequence,
                order: Order,
            ) -> crate::store::Scan<'a> {
                self.0.scan(from, to, at, order)
            }
            fn versions<'a>(&'a self, at: Sequence) -> crate::store::Versions<'a> {
                self.0.versions(at)
            }
            fn put(&self, key: &[u8], value: Bytes, at: Sequence) {
                self.0.put(key, value, at);
            }
            fn delete(&self, key: &[u8], at: Sequence) {
                self.0.delete(key, at);
            }
            fn forget(&self, before: Sequence, dead_from: &[u8], dead_to: &[u8]) {
                self.0.forget(before, dead_from, dead_to);
            }
        }
        check(&Forgetful(MemoryStore::new()), 1, 2000, &mut |_| ());
    }
}
