//! The progress record: how far a replica is, stored with the effects of each entry.
//!
//! Key: `0x00 'p'`. Value: eight varints, in the order of the fields of [`Progress`]: index, term, sequence,
//! revision, stamp, compacted revision, stamp at which the term began, term of the last batch.

use crate::codec::{self, Reader};
use crate::store::{Store, StoreError};
use crate::types::{Index, Progress, Revision, Sequence, Stamp, Term};
use bytes::Bytes;

const KEY: &[u8] = b"\0p";

/// The progress recorded in a store; in an empty one the default, at revision 1.
///
/// # Errors
/// The store cannot be read.
pub fn read_progress(store: &dyn Store) -> Result<Progress, StoreError> {
    match store.get(KEY, Sequence(u64::MAX - 1))? {
        Some(record) => decode_progress(record),
        None => Ok(Progress { revision: Revision(1), ..Progress::default() }),
    }
}

/// Writes the record at the progress's own sequence.
pub(crate) fn write_progress(store: &dyn Store, progress: &Progress) {
    store.put(KEY, encode_progress(progress), progress.sequence);
}

/// Encodes a progress record.
pub fn encode_progress(progress: &Progress) -> Bytes {
    let Progress { index, term, sequence, revision, stamp, compacted, term_began, stamped_term } = *progress;
    let mut out = Vec::with_capacity(48);
    let numbers =
        [index.0, term.0, sequence.0, revision.0, stamp.0, compacted.0, term_began.0, stamped_term.0];
    for number in numbers {
        codec::put_varint(&mut out, number);
    }
    out.into()
}

/// Decodes a progress record.
///
/// # Errors
/// It has fewer than eight varints.
pub fn decode_progress(record: Bytes) -> Result<Progress, StoreError> {
    let mut reader = Reader::new(record, "progress record");
    Ok(Progress {
        index: Index(reader.varint()?),
        term: Term(reader.varint()?),
        sequence: Sequence(reader.varint()?),
        revision: Revision(reader.varint()?),
        stamp: Stamp(reader.varint()?),
        compacted: Revision(reader.varint()?),
        term_began: Stamp(reader.varint()?),
        stamped_term: Term(reader.varint()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_is_eight_varints_and_a_shorter_one_is_refused() {
        let progress = Progress {
            index: Index(1),
            term: Term(2),
            sequence: Sequence(300),
            revision: Revision(4),
            stamp: Stamp(5),
            compacted: Revision(6),
            term_began: Stamp(7),
            stamped_term: Term(8),
        };
        let record = encode_progress(&progress);
        assert_eq!(&record[..], b"\x01\x02\xac\x02\x04\x05\x06\x07\x08");
        assert_eq!(decode_progress(record.clone()).unwrap(), progress);
        for length in 0..record.len() {
            assert!(decode_progress(record.slice(..length)).is_err(), "cut at {length}");
        }
    }
}
