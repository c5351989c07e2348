//! A store in memory that a test watches, or answers for in part.

use super::{MemoryStore, Order, Scan, Store, StoreError, Versions};
use crate::types::Sequence;
use bytes::Bytes;

/// What a test wants to know of the reads of a store.
pub(crate) trait Spy: Send + Sync {
    /// `key` is about to be looked up.
    fn before_get(&self, _key: &[u8]) {}

    /// A scan of `from..to` begins. Returns what it finds instead of the store's own pairs, if anything.
    fn instead_of_scan<'a>(&'a self, _from: &[u8], _to: &[u8]) -> Option<Scan<'a>> {
        None
    }

    /// A scan has come to `key`.
    fn scanned(&self, _key: &[u8]) {}
}

/// A [`MemoryStore`] whose reads pass by a [`Spy`].
#[derive(Default)]
pub(crate) struct Spied<S> {
    pub(crate) store: MemoryStore,
    pub(crate) spy: S,
}

impl<S: Spy> Store for Spied<S> {
    fn get(&self, key: &[u8], at: Sequence) -> Result<Option<Bytes>, StoreError> {
        self.spy.before_get(key);
        self.store.get(key, at)
    }
    fn scan<'a>(&'a self, from: &[u8], to: &[u8], at: Sequence, order: Order) -> Scan<'a> {
        let instead = self.spy.instead_of_scan(from, to);
        let pairs = instead.unwrap_or_else(|| self.store.scan(from, to, at, order));
        Box::new(pairs.inspect(|pair| {
            if let Ok((key, _)) = pair {
                self.spy.scanned(key);
            }
        }))
    }
    fn versions<'a>(&'a self, at: Sequence) -> Versions<'a> {
        self.store.versions(at)
    }
    fn put(&self, key: &[u8], value: Bytes, at: Sequence) {
        self.store.put(key, value, at);
    }
    fn delete(&self, key: &[u8], at: Sequence) {
        self.store.delete(key, at);
    }
    fn forget(&self, before: Sequence, dead_from: &[u8], dead_to: &[u8]) {
        self.store.forget(before, dead_from, dead_to);
    }
}
