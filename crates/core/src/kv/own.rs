//! What a transaction reads of its own writes. Its ranges are charged for them before it writes anything, as
//! they are for what is stored: a few thousand writes read by as many ranges are millions of records.

use super::check::REPLY_BYTES_MAX;
use super::command::{Delete, Put, Range, Txn, WriteFields, txn_operation::Step};
use super::range::ANSWER_RECORD_BYTES;
use super::reply::Refusal;
use super::work::Work;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Bytes of the text about a hash, at most.
const HASH_TEXT_BYTES_MAX: usize = 64;

/// What the steps checked so far write, and what those after them read of it.
pub(super) struct Own<'t> {
    /// Bytes of each key's value; `None` in a transaction that reads no ranges, which are most.
    written: Option<BTreeMap<&'t [u8], usize>>,
    /// Bytes of the answer.
    pub(super) answered: usize,
}

impl<'t> Own<'t> {
    /// Of no step yet.
    pub(super) fn of(txn: &Txn) -> Self {
        Self { written: reads_ranges(txn).then(BTreeMap::new), answered: 0 }
    }

    pub(super) fn put(&mut self, put: &'t Put) {
        if let Some(written) = &mut self.written {
            written.insert(&put.key, put.value.len());
        }
    }

    /// As [`Self::put`]: a hash's key shows a short text.
    pub(super) fn write_fields(&mut self, write: &'t WriteFields) {
        if let Some(written) = &mut self.written {
            written.insert(&write.key, HASH_TEXT_BYTES_MAX);
            if !write.from.is_empty() {
                // Deleted, and passed over by ranges.
                written.insert(&write.from, 0);
            }
        }
    }

    /// Charges a range for what it finds of the writes before it, and counts what it answers.
    pub(super) fn range(&mut self, range: &Range, work: &mut Work) -> Result<(), Refusal> {
        let (mut count, mut bytes, mut largest) = (0_usize, 0_usize, 0);
        self.each(&range.key, &range.range_end, |size| {
            (count, bytes, largest) = (count + 1, bytes + size, largest.max(size));
            work.examine(size)
        })?;
        if range.count_only {
            return Ok(());
        }
        // Whichever of them are within the limit.
        let limit = usize::try_from(range.limit).ok().filter(|limit| *limit > 0).unwrap_or(count);
        self.answered += bytes.min(largest.saturating_mul(limit));
        if self.answered > REPLY_BYTES_MAX { Err(Refusal::ResponseTooLarge) } else { Ok(()) }
    }

    /// As [`Self::range`], for a deletion: what it deletes is passed over by the ranges after it all the same.
    pub(super) fn delete(&self, delete: &Delete, work: &mut Work) -> Result<(), Refusal> {
        self.each(&delete.key, &delete.range_end, |size| work.examine(size))
    }

    /// Calls `see` with the size of each record written so far that a key or a range means.
    fn each(
        &self,
        key: &[u8],
        range_end: &[u8],
        mut see: impl FnMut(usize) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let Some(written) = &self.written else { return Ok(()) };
        let to = match range_end {
            [] => Bound::Included(key),
            [0] => Bound::Unbounded,
            end if end <= key => return Ok(()),
            end => Bound::Excluded(end),
        };
        let within = written.range::<[u8], _>((Bound::Included(key), to));
        within.map(|(key, value)| key.len() + value + ANSWER_RECORD_BYTES).try_for_each(&mut see)
    }
}

/// Whether a step of the transaction, on any path, is about a range.
fn reads_ranges(txn: &Txn) -> bool {
    txn.success.iter().chain(&txn.failure).any(|step| match &step.step {
        Some(Step::Range(range)) => !range.range_end.is_empty(),
        Some(Step::Delete(delete)) => !delete.range_end.is_empty(),
        Some(Step::Txn(inner)) => reads_ranges(inner),
        Some(Step::Put(_) | Step::WriteFields(_) | Step::Publish(_)) | None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::super::command::TxnOperation;
    use super::*;

    /// A few thousand writes of a byte, read by as many ranges, were hundreds of megabytes that nothing counted.
    #[test]
    fn records_that_a_transaction_reads_of_its_own_are_charged_more_than_their_keys_and_values() {
        const RECORDS: usize = 100;
        let range = Range { key: "a".into(), range_end: "b".into(), ..Range::default() };
        let step = TxnOperation { step: Some(Step::Range(range.clone())) };
        let mut own = Own::of(&Txn { success: vec![step], ..Txn::default() });
        let puts: Vec<Put> = (0..RECORDS)
            .map(|number| Put { key: vec![b'a', number as u8].into(), value: "v".into(), ..Put::default() })
            .collect();
        puts.iter().for_each(|put| own.put(put));
        own.range(&range, &mut Work::unbounded()).expect("it is small");
        assert_eq!(own.answered, RECORDS * (2 + 1 + 32));
    }
}
