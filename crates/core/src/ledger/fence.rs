//! Fences: the batches of a stream are recorded in the order of the stream, though any of them may be lost on its way
//! into the log.
//!
//! A batch has a number on its stream, and names the one before it as long as that has not been answered. It is
//! refused unless that one is the newest batch recorded on the stream. **Invariant: Whole prefixes.** So what is
//! recorded of the batches that a stream has under way is all of them up to one, and none after it.
//!
//! **Invariant: Bounded.** The newest number is kept for [`STREAMS_MAX`] streams, in the store and here; then the
//! stream that recorded nothing for longest is forgotten. That is always safe: what names a batch of a stream that
//! is not known is refused. Streams do not end otherwise, for none of them has to be told.
//!
//! **Invariant: Derived (memory).** All of it is in the store.

use super::record;
use crate::codec::{self, Malformed, Reader};
use crate::store::{Order, StoreError, View};
use crate::tx::Tx;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};

/// Streams whose newest batch is known.
const STREAMS_MAX: usize = if cfg!(any(test, feature = "testing")) { 3 } else { 16_384 };

/// The place of a batch on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The stream, by a number that was drawn for it.
    pub stream: u128,
    /// The batch's number on it, above 0.
    pub number: u64,
    /// The number of the batch that must be the newest recorded on the stream; 0 if it is known that all before
    /// this one are.
    pub after: u64,
}

/// The newest batch of each stream.
#[derive(Debug)]
pub(super) struct Fences {
    streams: HashMap<u128, Newest>,
    /// The streams by the sequences of their newest batches.
    by_use: BTreeMap<u64, u128>,
}

#[derive(Clone, Copy, Debug)]
struct Newest {
    number: u64,
    /// The sequence of its command.
    sequence: u64,
}

impl Fences {
    pub(super) fn open(view: View<'_>) -> Result<Self, StoreError> {
        let mut fences = Self { streams: HashMap::new(), by_use: BTreeMap::new() };
        for pair in view.scan_prefix(&record::keyspace(record::FENCES).0, Order::Ascending) {
            let (key, value) = pair?;
            fences.note(record::decode_id(&key[2..])?, decode(&value)?);
        }
        Ok(fences)
    }

    /// Whether the batch may be recorded.
    pub(super) fn pass(&self, fence: &Fence) -> bool {
        let newest = || self.streams.get(&fence.stream).map(|newest| newest.number);
        fence.after == 0 || newest() == Some(fence.after)
    }

    /// Notes that the batch is recorded by this command.
    pub(super) fn advance(&mut self, tx: &mut Tx<'_>, fence: &Fence) {
        let newest = Newest { number: fence.number, sequence: tx.sequence().0 };
        tx.put(&record::id_key(record::FENCES, fence.stream), encode(newest));
        self.note(fence.stream, newest);
        if self.streams.len() > STREAMS_MAX
            && let Some((_, stream)) = self.by_use.pop_first()
        {
            self.streams.remove(&stream);
            tx.delete(&record::id_key(record::FENCES, stream));
        }
    }

    fn note(&mut self, stream: u128, newest: Newest) {
        if let Some(before) = self.streams.insert(stream, newest) {
            self.by_use.remove(&before.sequence);
        }
        self.by_use.insert(newest.sequence, stream);
    }
}

fn encode(newest: Newest) -> Bytes {
    let mut out = Vec::with_capacity(12);
    codec::put_varint(&mut out, newest.number);
    codec::put_varint(&mut out, newest.sequence);
    out.into()
}

fn decode(record: &[u8]) -> Result<Newest, Malformed> {
    let mut reader = Reader::new(record, "fence");
    Ok(Newest { number: reader.varint()?, sequence: reader.varint()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_pinned() {
        let record = encode(Newest { number: 300, sequence: 7 });
        assert_eq!(&record[..], b"\xac\x02\x07");
        assert_eq!(decode(&record).map(|newest| (newest.number, newest.sequence)), Ok((300, 7)));
        assert!(decode(b"\xac\x02").is_err());
    }
}
