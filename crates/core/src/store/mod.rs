//! The state as machines see it: reads at a sequence, writes at a sequence, and nothing else.
//!
//! **Invariant: Versions.** Every write carries the [`Sequence`] of its command. A read at a sequence sees
//! the newest write of each key at or below it. So history needs no keyspace of its own: it is the same store
//! read at an older sequence, until [`Store::forget`] lets old versions go.
//!
//! Two implementations run: the LSM store of a node, and [`MemoryStore`] for golden scripts and simulation.

#[cfg(any(test, feature = "testing"))]
pub mod contract;
mod memory;
#[cfg(test)]
pub(crate) mod spied;

pub use memory::MemoryStore;

use crate::types::Sequence;
use bytes::Bytes;

/// One key and its value, as stored.
pub type Pair = (Bytes, Bytes);

/// One version of one key; `None` is a deletion.
pub type Version = (Bytes, Sequence, Option<Bytes>);

/// The result of [`Store::versions`], lazy.
pub type Versions<'a> = Box<dyn Iterator<Item = Result<Version, StoreError>> + Send + 'a>;

/// The result of [`Store::scan`], lazy.
pub type Scan<'a> = Box<dyn Iterator<Item = Result<Pair, StoreError>> + 'a>;

/// A multi-version ordered map from bytes to bytes.
///
/// There is one writer (the apply thread), which writes sequences in order; readers are many and never block
/// it.
pub trait Store: Send + Sync {
    /// The value of `key` as of `at` (inclusive).
    fn get(&self, key: &[u8], at: Sequence) -> Result<Option<Bytes>, StoreError>;

    /// All keys in `from..to` as of `at`, in byte order or its reverse. An empty `to` means "to the end".
    /// The scan keeps the versions that it needs for as long as it lives.
    fn scan<'a>(&'a self, from: &[u8], to: &[u8], at: Sequence, order: Order) -> Scan<'a>;

    /// All that another store needs to answer as this one does up to `at`: every version at or below it that
    /// a reader may still see, and perhaps others. Keys ascending, versions of a key newest first.
    fn versions<'a>(&'a self, at: Sequence) -> Versions<'a>;

    /// Writes `value` at sequence `at`. A second write of the same key at the same sequence replaces the
    /// first.
    fn put(&self, key: &[u8], value: Bytes, at: Sequence);

    /// Deletes `key` as of sequence `at`; older versions stay readable.
    fn delete(&self, key: &[u8], at: Sequence);

    /// From now on nobody reads at a sequence below `before`, nor any key in `dead_from..dead_to` (whose keys
    /// are written only once). The store may drop both at any time.
    fn forget(&self, before: Sequence, dead_from: &[u8], dead_to: &[u8]);
}

/// Direction of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Smallest key first.
    #[default]
    Ascending,
    /// Largest key first.
    Descending,
}

/// A local fault of the store, never an answer to a client. **Invariant: Three kinds of no.** A node that
/// meets one while applying stops; refusals are replies, and broken invariants panic.
#[derive(Debug, thiserror::Error)]
#[error("store: {context}: {source}")]
pub struct StoreError {
    /// What failed.
    pub context: &'static str,
    /// Why it failed.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl StoreError {
    /// A fault of what `context` names.
    pub fn new(context: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { context, source: source.into() }
    }
}

impl From<crate::codec::Malformed> for StoreError {
    fn from(malformed: crate::codec::Malformed) -> Self {
        Self::new("decode", malformed)
    }
}

/// The state as of one sequence.
#[derive(Clone, Copy)]
pub struct View<'a> {
    store: &'a dyn Store,
    at: Sequence,
}

impl<'a> View<'a> {
    /// The state of `store` as of `at`.
    pub fn new(store: &'a dyn Store, at: Sequence) -> Self {
        Self { store, at }
    }

    /// What it shows, with everything that is newer.
    pub(crate) fn store(&self) -> &'a dyn Store {
        self.store
    }

    /// The sequence that this view shows.
    pub fn sequence(&self) -> Sequence {
        self.at
    }

    /// The same store at another sequence.
    #[must_use]
    pub fn at(&self, at: Sequence) -> View<'a> {
        View { store: self.store, at }
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.store.get(key, self.at)
    }

    /// All keys in `from..to`; an empty `to` means "to the end".
    pub fn scan(&self, from: &[u8], to: &[u8], order: Order) -> Scan<'a> {
        self.store.scan(from, to, self.at, order)
    }

    /// All keys that begin with `prefix`.
    pub fn scan_prefix(&self, prefix: &[u8], order: Order) -> Scan<'a> {
        self.scan(prefix, &prefix_end(prefix), order)
    }
}

/// The smallest key above all keys that begin with `prefix`; empty (no bound) if there is none.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            break;
        }
    }
    end
}
