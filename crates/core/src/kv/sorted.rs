//! A range sorted by something else than its keys: of all its records, the first `limit` in that order.
//!
//! **Invariant: Bounded.** No more than `limit` records are held, and what they take at most is charged: not the
//! records that were read and left out.

use super::command::{Range, SortOrder, SortTarget};
use super::range::{answer_bytes, limit_of, shown_key_value};
use super::record::Record;
use super::reply::KeyValue;
use bytes::Bytes;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// The records of an answer while a range is read.
pub(super) struct Sorted {
    limit: usize,
    /// The last one in the answer's order is on top.
    kept: BinaryHeap<Candidate>,
    /// Records that were offered.
    offered: usize,
    /// Bytes of those kept, now and at most.
    bytes: usize,
    bytes_charged: usize,
}

impl Sorted {
    pub(super) fn new(request: &Range) -> Self {
        let kept = BinaryHeap::new();
        Self { limit: limit_of(request), kept, offered: 0, bytes: 0, bytes_charged: 0 }
    }

    /// Considers the next record in key order. Returns by how many bytes the answer has grown beyond what it took
    /// before.
    pub(super) fn take(&mut self, key: Bytes, record: Record, request: &Range) -> usize {
        let rank = Rank::of(&record, request);
        let kv = shown_key_value(record, key, request);
        let candidate = Candidate { rank, place: self.offered, kv };
        self.offered += 1;
        self.bytes += candidate.bytes();
        self.kept.push(candidate);
        if self.kept.len() > self.limit {
            let last = self.kept.pop().expect("one was pushed");
            self.bytes -= last.bytes();
        }
        let grown = self.bytes.saturating_sub(self.bytes_charged);
        self.bytes_charged += grown;
        grown
    }

    /// The answer, and whether the limit has cut it.
    pub(super) fn finish(self) -> (Vec<KeyValue>, bool) {
        let more = self.offered > self.limit;
        let kvs = self.kept.into_sorted_vec().into_iter().map(|candidate| candidate.kv).collect();
        (kvs, more)
    }
}

/// What records are sorted by, in the direction that was asked for.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Up(By),
    Down(Reverse<By>),
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum By {
    Number(u64),
    Value(Bytes),
}

impl Rank {
    fn of(record: &Record, request: &Range) -> Self {
        let by = match request.sort_target() {
            // Callers read in key order instead.
            SortTarget::Key => By::Number(0),
            SortTarget::Version => By::Number(record.version),
            SortTarget::Create => By::Number(record.create_revision),
            SortTarget::Mod => By::Number(record.mod_revision),
            // As in etcd, an answer without values can still be sorted by them.
            SortTarget::Value => By::Value(record.value.clone()),
        };
        match request.sort_order() {
            SortOrder::Descend => Self::Down(Reverse(by)),
            _ => Self::Up(by),
        }
    }
}

struct Candidate {
    rank: Rank,
    /// Equal ones stay in key order.
    place: usize,
    kv: KeyValue,
}

impl Candidate {
    fn bytes(&self) -> usize {
        let value_not_shown = match &self.rank {
            Rank::Up(By::Value(value)) | Rank::Down(Reverse(By::Value(value))) => {
                value.len() - self.kv.value.len()
            }
            _ => 0,
        };
        answer_bytes(&self.kv) + value_not_shown
    }

    fn order(&self) -> (&Rank, usize) {
        (&self.rank, self.place)
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64, value_bytes: usize) -> (Bytes, Record) {
        let value = vec![b'a' + number as u8; value_bytes].into();
        let record = Record { version: number, mod_revision: number, value, ..Record::default() };
        (format!("k{number:03}").into(), record)
    }

    fn taken(request: &Range, numbers: impl IntoIterator<Item = u64>) -> (Vec<u64>, bool, usize) {
        let mut sorted = Sorted::new(request);
        let mut bytes = 0;
        for number in numbers {
            let (key, record) = record(number, 100);
            bytes += sorted.take(key, record, request);
        }
        let (kvs, more) = sorted.finish();
        (kvs.iter().map(|kv| kv.version as u64).collect(), more, bytes)
    }

    /// "The newest ten" of a large prefix was refused: every record was charged, and held until the end.
    #[test]
    fn only_what_the_limit_leaves_is_held_and_charged() {
        let newest = Range { limit: 2, sort_order: 2, sort_target: 3, ..Range::default() };
        let each = 4 + 100 + 32;
        assert_eq!(taken(&newest, 0..20), (vec![19, 18], true, 2 * each));
        assert_eq!(taken(&newest, (0..20).rev()), (vec![19, 18], true, 2 * each));
        assert_eq!(taken(&newest, 0..2), (vec![1, 0], false, 2 * each));
        let by_value = Range { limit: 3, keys_only: true, sort_target: 4, ..Range::default() };
        assert_eq!(taken(&by_value, (0..20).rev()), (vec![0, 1, 2], true, 3 * each));
        let all = Range { sort_order: 1, sort_target: 1, ..Range::default() };
        assert_eq!(taken(&all, [3, 1, 2]), (vec![1, 2, 3], false, 3 * each));
    }

    #[test]
    fn equal_ones_stay_in_key_order() {
        for sort_order in [1, 2] {
            let request = Range { limit: 3, sort_order, sort_target: 2, ..Range::default() };
            assert_eq!(taken(&request, 0..9).0, [0, 1, 2]);
        }
    }
}
