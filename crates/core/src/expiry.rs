//! The expiry index of a face: store keys in the order of their deadlines, each with a subject to look at
//! then.
//!
//! Key: the index's two-byte keyspace, the deadline (u64 big-endian, milliseconds since the Unix epoch), then
//! the subject in the face's own encoding. The value is empty.
//!
//! An entry only says "look then": the subject may have been extended or deleted meanwhile, so whoever takes
//! an entry judges by the subject's own record. Taken entries leave deletions behind, and very many may share
//! one deadline, so every look begins at the first entry that may be left and not at the beginning of the
//! index.
//!
//! What is deliberately absent: what expiry does. The faces decide that.

use crate::codec::{Malformed, Reader};
use crate::store::{Order, StoreError, View, prefix_end};
use crate::tx::Tx;
use crate::types::Stamp;
use bytes::Bytes;

/// Where an index begins in the store, and where the next look at it begins.
#[derive(Debug)]
pub(crate) struct ExpiryIndex {
    keyspace: [u8; 2],
    /// No entry is before this store key; `None` if there are no entries.
    first: Option<Bytes>,
}

/// An entry whose deadline has come, or one to be added or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expiry {
    pub(crate) deadline: Stamp,
    /// What to look at, as the face encodes it.
    pub(crate) subject: Bytes,
}

impl ExpiryIndex {
    /// The index in `keyspace` of a store that may hold entries already.
    pub(crate) fn open(view: View<'_>, keyspace: [u8; 2]) -> Result<Self, StoreError> {
        let first = view.scan_prefix(&keyspace, Order::Ascending).next().transpose()?;
        Ok(Self { keyspace, first: first.map(|(key, _)| key) })
    }

    /// The first entry's deadline, or an earlier one; `None` if there are no entries.
    pub(crate) fn next_deadline(&self) -> Option<Stamp> {
        let first = self.first.as_ref()?;
        Some(decode_key(first).expect("this key was encoded or decoded here").deadline)
    }

    /// Adds an entry. Adding one twice is as adding it once.
    pub(crate) fn add(&mut self, tx: &mut Tx<'_>, deadline: Stamp, subject: &[u8]) {
        let key = Bytes::from(self.key(deadline, subject));
        tx.put(&key, Bytes::new());
        if self.first.as_ref().is_none_or(|first| key < first) {
            self.first = Some(key);
        }
    }

    /// Removes an entry.
    pub(crate) fn remove(&self, tx: &mut Tx<'_>, deadline: Stamp, subject: &[u8]) {
        tx.delete(&self.key(deadline, subject));
    }

    /// The first entries, at most `max`, with deadlines at or before `stamp`, in order. The caller must
    /// remove each of them before the next call, which begins behind them.
    ///
    /// # Errors
    /// The store failed, or an entry is malformed.
    pub(crate) fn take_due(
        &mut self,
        view: View<'_>,
        stamp: Stamp,
        max: usize,
    ) -> Result<Vec<Expiry>, StoreError> {
        let mut due = Vec::new();
        let Some(first) = self.first.as_ref().filter(|_| self.next_deadline() <= Some(stamp)) else {
            return Ok(due);
        };
        let mut left = None;
        for pair in view.scan(first, &prefix_end(&self.keyspace), Order::Ascending) {
            let (key, _) = pair?;
            let expiry = decode_key(&key)?;
            if expiry.deadline > stamp || due.len() == max {
                left = Some(key);
                break;
            }
            due.push(expiry);
        }
        self.first = left;
        Ok(due)
    }

    /// Leaves what [`Self::take_due`] returned to the next call, from `first` on. It must not be removed.
    pub(crate) fn put_off(&mut self, first: &Expiry) {
        let key = Bytes::from(self.key(first.deadline, &first.subject));
        if self.first.as_ref().is_none_or(|known| key < *known) {
            self.first = Some(key);
        }
    }

    fn key(&self, deadline: Stamp, subject: &[u8]) -> Vec<u8> {
        encode_key(self.keyspace, deadline, subject)
    }
}

pub(crate) fn encode_key(keyspace: [u8; 2], deadline: Stamp, subject: &[u8]) -> Vec<u8> {
    [&keyspace[..], &deadline.0.to_be_bytes(), subject].concat()
}

fn decode_key(key: &Bytes) -> Result<Expiry, Malformed> {
    let mut reader = Reader::new(key.clone(), "expiry key");
    let _keyspace: [u8; 2] = reader.array()?;
    Ok(Expiry { deadline: Stamp(reader.u64()?), subject: reader.rest() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Recorder;
    use crate::store::MemoryStore;
    use crate::types::Progress;

    const KEYSPACE: [u8; 2] = [9, b'x'];

    /// Runs `change` as a command of its own.
    fn change(store: &MemoryStore, progress: &mut Progress, change: impl FnOnce(&mut Tx<'_>)) {
        let mut recorder = Recorder::default();
        let mut tx = Tx::begin(store, progress, &mut recorder);
        change(&mut tx);
        assert_eq!(tx.finish(progress), None, "the index has no history");
    }

    fn take(
        index: &mut ExpiryIndex,
        store: &MemoryStore,
        progress: &mut Progress,
        stamp: u64,
        max: usize,
    ) -> Vec<(u64, Bytes)> {
        let due = index.take_due(View::new(store, progress.sequence), Stamp(stamp), max).unwrap();
        change(store, progress, |tx| {
            due.iter().for_each(|expiry| index.remove(tx, expiry.deadline, &expiry.subject));
        });
        due.into_iter().map(|Expiry { deadline, subject }| (deadline.0, subject)).collect()
    }

    #[test]
    fn the_layout_is_pinned_and_a_short_key_is_refused() {
        let key = Bytes::from(encode_key(KEYSPACE, Stamp(0x0102), b"it"));
        assert_eq!(&key[..], b"\x09x\0\0\0\0\0\0\x01\x02it");
        assert_eq!(decode_key(&key), Ok(Expiry { deadline: Stamp(0x0102), subject: "it".into() }));
        assert!(decode_key(&key.slice(..9)).is_err());
    }

    #[test]
    fn entries_come_in_order_when_they_are_due_and_no_earlier() {
        let (store, mut progress) = (MemoryStore::new(), Progress::default());
        let mut index = ExpiryIndex::open(View::new(&store, progress.sequence), KEYSPACE).unwrap();
        assert_eq!(index.next_deadline(), None);
        change(&store, &mut progress, |tx| {
            // Neighbours in the store are not part of the index.
            tx.put(&[9, b'w', 0], Bytes::new());
            tx.put(&[9, b'y', 0], Bytes::new());
            for (deadline, subject) in [(20, "c"), (10, "b"), (10, "a"), (30, "d")] {
                index.add(tx, Stamp(deadline), subject.as_bytes());
            }
        });
        assert_eq!(index.next_deadline(), Some(Stamp(10)));
        assert_eq!(take(&mut index, &store, &mut progress, 9, 9), []);
        assert_eq!(take(&mut index, &store, &mut progress, 10, 0), []);
        assert_eq!(take(&mut index, &store, &mut progress, 25, 1), [(10, "a".into())]);
        assert_eq!(index.next_deadline(), Some(Stamp(10)));
        assert_eq!(take(&mut index, &store, &mut progress, 25, 9), [(10, "b".into()), (20, "c".into())]);
        assert_eq!(index.next_deadline(), Some(Stamp(30)));
        let reopened = ExpiryIndex::open(View::new(&store, progress.sequence), KEYSPACE).unwrap();
        assert_eq!(reopened.next_deadline(), Some(Stamp(30)));
        assert_eq!(take(&mut index, &store, &mut progress, u64::MAX, 9), [(30, "d".into())]);
        assert_eq!(index.next_deadline(), None);
    }

    #[test]
    fn an_entry_before_those_taken_is_found_and_a_removed_one_is_not() {
        let (store, mut progress) = (MemoryStore::new(), Progress::default());
        let mut index = ExpiryIndex::open(View::new(&store, progress.sequence), KEYSPACE).unwrap();
        change(&store, &mut progress, |tx| {
            for deadline in [50, 60] {
                index.add(tx, Stamp(deadline), b"late");
            }
        });
        assert_eq!(take(&mut index, &store, &mut progress, 50, 9), [(50, "late".into())]);
        change(&store, &mut progress, |tx| {
            index.add(tx, Stamp(5), b"early");
            index.add(tx, Stamp(40), b"gone");
        });
        change(&store, &mut progress, |tx| index.remove(tx, Stamp(40), b"gone"));
        assert_eq!(
            take(&mut index, &store, &mut progress, 60, 9),
            [(5, "early".into()), (60, "late".into())]
        );
    }
}
