//! What remains of the past: one small event record per revision.
//!
//! An event names its changes; the values are the store's own versions, read at the event's sequence. So a
//! value is written once, and an old revision is read by turning it into a sequence ([`sequence_at`]).
//!
//! **Invariant (events).** For every revision in `compacted+1 ..= newest` there is exactly one event record.
//!
//! Key: `0x00 'e'` and the revision, big-endian. Value: varint sequence, varint stamp, varint count, then per
//! change a byte (0 deleted, 1 written, 2 written and stored elsewhere), the length-prefixed key, and after a 2 the
//! length-prefixed store key at which the value stands.

use crate::codec::{self, Reader};
use crate::store::{Store, StoreError, View};
use crate::types::{Progress, Revision, Sequence, Stamp};
use bytes::Bytes;

/// All that one command changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The revision of every change in it.
    pub revision: Revision,
    /// The sequence at which the change is visible; the state before it is the sequence before.
    pub sequence: Sequence,
    /// When, by the leader's clock.
    pub stamp: Stamp,
    /// In the order in which they were made; no key twice.
    pub changes: Vec<Change>,
}

/// One record that was written or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The store key, or another name that the change is known by: face byte, keyspace byte, then the face's own key.
    pub key: Bytes,
    /// The record as stored, `None` where it was deleted.
    pub value: Option<Bytes>,
}

/// The revision asked for is not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// It was compacted.
    #[error("required revision has been compacted (compacted up to {compacted})")]
    Compacted {
        /// The oldest revision that can be read.
        compacted: Revision,
    },
    /// It has not happened yet, here.
    #[error("required revision is a future revision (newest is {newest})")]
    Future {
        /// The newest revision that this replica has applied.
        newest: Revision,
    },
}

/// Where the event of `revision` is stored.
pub fn event_key(revision: Revision) -> [u8; 10] {
    let mut key = [0, b'e', 0, 0, 0, 0, 0, 0, 0, 0];
    key[2..].copy_from_slice(&revision.0.to_be_bytes());
    key
}

const DELETED: u8 = 0;
const WRITTEN: u8 = 1;
const WRITTEN_ELSEWHERE: u8 = 2;

/// Writes the event's record. `aliases` are the changes whose values stand at other keys than their own, by place.
pub(crate) fn record(store: &dyn Store, event: &Event, aliases: &[(usize, Bytes)]) {
    let keys: usize = event.changes.iter().map(|change| change.key.len() + 4).sum();
    let elsewhere: usize = aliases.iter().map(|(_, key)| key.len() + 4).sum();
    let mut out = Vec::with_capacity(24 + keys + elsewhere);
    codec::put_varint(&mut out, event.sequence.0);
    codec::put_varint(&mut out, event.stamp.0);
    codec::put_varint(&mut out, event.changes.len() as u64);
    let mut aliases = aliases.iter().peekable();
    for (place, change) in event.changes.iter().enumerate() {
        let alias = aliases.next_if(|(other, _)| *other == place);
        let (what, elsewhere) = match (&change.value, alias) {
            (None, _) => (DELETED, None),
            (Some(_), None) => (WRITTEN, None),
            (Some(_), Some((_, key))) => (WRITTEN_ELSEWHERE, Some(key)),
        };
        out.push(what);
        codec::put_bytes(&mut out, &change.key);
        if let Some(key) = elsewhere {
            codec::put_bytes(&mut out, key);
        }
    }
    store.put(&event_key(event.revision), out.into(), event.sequence);
}

/// The sequence that shows the state as of `revision`.
pub fn sequence_at(
    view: View<'_>,
    progress: &Progress,
    revision: Revision,
) -> Result<Result<Sequence, Unavailable>, StoreError> {
    if revision > progress.revision {
        return Ok(Err(Unavailable::Future { newest: progress.revision }));
    }
    if revision < progress.compacted {
        return Ok(Err(Unavailable::Compacted { compacted: progress.compacted }));
    }
    if revision == progress.revision {
        return Ok(Ok(progress.sequence));
    }
    match header(view, revision)? {
        Some((sequence, _)) => Ok(Ok(sequence)),
        // Revision 1 is the empty state and has no event.
        None if revision.0 <= 1 => Ok(Ok(Sequence(0))),
        None => Ok(Err(Unavailable::Compacted { compacted: progress.compacted.max(revision.next()) })),
    }
}

/// Sequence and stamp of the event at `revision`, without its changes.
pub fn header(view: View<'_>, revision: Revision) -> Result<Option<(Sequence, Stamp)>, StoreError> {
    let Some(record) = view.get(&event_key(revision))? else { return Ok(None) };
    let mut reader = Reader::new(record, "event record");
    Ok(Some((Sequence(reader.varint()?), Stamp(reader.varint()?))))
}

/// The event at `revision` with its values, `None` where it is compacted or has not happened.
///
/// # Errors
/// The store failed.
pub fn event(view: View<'_>, revision: Revision) -> Result<Option<Event>, StoreError> {
    view.get(&event_key(revision))?.map(|record| decode(view, revision, record, &|_| true)).transpose()
}

/// The events of `from..=to`, oldest first, read lazily, with only those changes whose store key `wanted` takes
/// (an event may be left without any). Values of others are not read.
pub fn events<'a>(
    view: View<'a>,
    from: Revision,
    to: Revision,
    wanted: impl Fn(&[u8]) -> bool + 'a,
) -> impl Iterator<Item = Result<Event, StoreError>> + 'a {
    view.scan(&event_key(from), &event_key(to.next()), crate::store::Order::Ascending).map(move |pair| {
        let (key, record) = pair?;
        let revision = key[2..].try_into().map(u64::from_be_bytes).expect("event keys are 10 bytes long");
        decode(view, Revision(revision), record, &wanted)
    })
}

fn decode(
    view: View<'_>,
    revision: Revision,
    record: Bytes,
    wanted: &dyn Fn(&[u8]) -> bool,
) -> Result<Event, StoreError> {
    let mut reader = Reader::new(record, "event record");
    let sequence = Sequence(reader.varint()?);
    let stamp = Stamp(reader.varint()?);
    let count = reader.varint()?;
    let mut changes = Vec::new();
    for _ in 0..count {
        let what = reader.byte()?;
        let key = reader.bytes()?;
        let stored_at = match what {
            DELETED => None,
            WRITTEN => Some(key.clone()),
            WRITTEN_ELSEWHERE => Some(reader.bytes()?),
            _ => return Err(reader.malformed().into()),
        };
        if wanted(&key) {
            let value = match stored_at {
                Some(at) => view.at(sequence).get(&at)?,
                None => None,
            };
            changes.push(Change { key, value });
        }
    }
    Ok(Event { revision, sequence, stamp, changes })
}

/// The newest revision whose stamp is not after `stamp`; for keeping history by age.
pub fn revision_before(view: View<'_>, progress: &Progress, stamp: Stamp) -> Result<Revision, StoreError> {
    let (mut low, mut high) = (progress.compacted, progress.revision);
    while low < high {
        let middle = Revision(high.0 - (high.0 - low.0) / 2);
        match header(view, middle)? {
            Some((_, at)) if at > stamp => high = Revision(middle.0 - 1),
            _ => low = middle,
        }
    }
    Ok(low)
}
