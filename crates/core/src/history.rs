//! The history of changes: small records of events, one record for all events of a log entry, or several.
//!
//! An event names the keys that changed; their values are the store's own versions, read at the event's
//! sequence. So a value is written once, and to read an old revision is to find its sequence
//! ([`sequence_at`]).
//!
//! **Invariant: Events.** Every revision in `compacted+1 ..= newest` is in exactly one record, and the
//! revisions in a record are consecutive. So the record of a revision is the first one at or after the
//! revision's key.
//!
//! Key: `0x00 'e'` and the record's last revision, big-endian. Value, all numbers varints: the stamp; how
//! many events; the sequence before the first; per event, oldest first, the distance of its sequence from the
//! previous one and its number of changes; then all changes, each a byte (0 deleted, 1 written, 2 written and
//! stored elsewhere), the length-prefixed key, and after a 2 the length-prefixed store key that holds the
//! value.
//!
//! A record is split by bytes, between two changes, so that a command may change any number of keys: once a
//! part of it holds [`PART_BYTES`] the changes go on in the next. Further parts follow the first in key order;
//! their keys are the record's, followed by the part's number (u32, big-endian, from 1). An event that does
//! not fit into the first part is the record's last.

use crate::codec::{self, Reader};
use crate::effects::Effects;
use crate::mutants;
use crate::store::{Order, Pair, Scan, Store, StoreError, View};
use crate::types::{Progress, Revision, Sequence, Stamp};
use bytes::Bytes;

/// Maximum events in one record: finding one reads them all.
const RECORD_EVENTS_MAX: usize = 256;
/// Bytes of changes after which a part of a record ends; the change that reaches this is the part's last.
const PART_BYTES: usize = 256 << 10;
/// Above all keys of records.
const RECORDS_END: &[u8] = &[0, b'e' + 1];

/// All changes of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The revision of all its changes.
    pub revision: Revision,
    /// The sequence at which the changes are visible; the one before it shows the state before them.
    pub sequence: Sequence,
    /// When it was applied, by the cluster's time.
    pub stamp: Stamp,
    /// The changes in the order in which they were made; no key twice.
    pub changes: Vec<Change>,
}

/// A record that was written or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The store key, or another name of the change: face byte, keyspace byte, then the face's own key.
    pub key: Bytes,
    /// The record as stored; `None` if it was deleted.
    pub value: Option<Bytes>,
}

/// An unavailable revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// It was compacted.
    #[error("required revision has been compacted (compacted up to {compacted})")]
    Compacted {
        /// The oldest revision that can be read.
        compacted: Revision,
    },
    /// It is newer than this replica's state.
    #[error("required revision is a future revision (newest is {newest})")]
    Future {
        /// The newest revision that this replica has applied.
        newest: Revision,
    },
}

/// The store key of the record whose last revision is `revision`.
pub fn event_key(revision: Revision) -> [u8; 10] {
    let mut key = [0, b'e', 0, 0, 0, 0, 0, 0, 0, 0];
    key[2..].copy_from_slice(&revision.0.to_be_bytes());
    key
}

/// The store key of a further part of the record whose last revision is `revision`.
fn part_key(revision: Revision, part: u32) -> [u8; 14] {
    let mut key = [0; 14];
    key[..10].copy_from_slice(&event_key(revision));
    key[10..].copy_from_slice(&part.to_be_bytes());
    key
}

const DELETED: u8 = 0;
const WRITTEN: u8 = 1;
const WRITTEN_ELSEWHERE: u8 = 2;

/// Collects the events of the entry being applied, to write them as one record. Bounded: what exceeds the
/// first part is written as it comes.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    stamp: Stamp,
    last: Revision,
    /// The sequence and the number of changes of each event.
    events: Vec<(Sequence, usize)>,
    /// Of the first part.
    changes: Vec<u8>,
    /// Of the last part, if that is another one.
    further: Vec<u8>,
    /// How many parts are written.
    parts: u32,
    /// What the entry has written and deleted so far.
    pub(crate) effects: Effects,
}

impl Recorder {
    /// Adds the event of the next revision. `aliases` are the changes whose values are stored at another key
    /// than their own, ascending: their index, and that key.
    pub(crate) fn add(&mut self, store: &dyn Store, event: &Event, aliases: &[(usize, Bytes)]) {
        if self.events.len() == RECORD_EVENTS_MAX || self.changes.len() >= PART_BYTES {
            self.write(store);
        }
        (self.stamp, self.last) = (event.stamp, event.revision);
        self.events.push((event.sequence, event.changes.len()));
        let mut aliases = aliases.iter().peekable();
        for (place, change) in event.changes.iter().enumerate() {
            let alias = aliases.next_if(|(other, _)| *other == place);
            let (what, elsewhere) = match (&change.value, alias) {
                (None, _) => (DELETED, None),
                (Some(_), None) => (WRITTEN, None),
                (Some(_), Some((_, key))) => (WRITTEN_ELSEWHERE, Some(key)),
            };
            let first = self.changes.len() < PART_BYTES;
            let out = if first { &mut self.changes } else { &mut self.further };
            out.push(what);
            codec::put_bytes(out, &change.key);
            if let Some(key) = elsewhere {
                codec::put_bytes(out, key);
            }
            if self.further.len() >= PART_BYTES && !mutants::is("record-unsplit") {
                self.write_part(store, event.sequence);
            }
        }
    }

    fn write_part(&mut self, store: &dyn Store, at: Sequence) {
        self.parts += 1;
        store.put(&part_key(self.last, self.parts), std::mem::take(&mut self.further).into(), at);
    }

    /// Writes the events added, if any, and starts over.
    pub(crate) fn write(&mut self, store: &dyn Store) {
        let (Some((first, _)), Some((last, _))) = (self.events.first(), self.events.last()) else { return };
        let (at, mut before) = (*last, first.0 - 1);
        if !self.further.is_empty() {
            self.write_part(store, at);
        }
        self.parts = 0;
        let mut out = Vec::with_capacity(24 + 4 * self.events.len() + self.changes.len());
        codec::put_varint(&mut out, self.stamp.0);
        codec::put_varint(&mut out, self.events.len() as u64);
        codec::put_varint(&mut out, before);
        for (sequence, changes) in self.events.drain(..) {
            codec::put_varint(&mut out, sequence.0 - before);
            codec::put_varint(&mut out, changes as u64);
            before = sequence.0;
        }
        out.append(&mut self.changes);
        store.put(&event_key(self.last), out.into(), at);
    }

    /// The sequence of an event that is not written yet; `None` for all others.
    pub(crate) fn sequence_of(&self, revision: Revision) -> Option<Sequence> {
        let back = self.last.0.checked_sub(revision.0)? as usize;
        let place = self.events.len().checked_sub(back + 1)?;
        Some(self.events[place].0)
    }
}

/// The sequence that shows the state as of `revision`.
///
/// # Errors
/// The store failed.
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

/// Sequence and stamp of the event at `revision`; `None` if there is no such event.
///
/// # Errors
/// The store failed.
pub fn header(view: View<'_>, revision: Revision) -> Result<Option<(Sequence, Stamp)>, StoreError> {
    let Some(pair) = records(view, revision).next() else { return Ok(None) };
    let record = Record::decode(pair?)?;
    let place = revision.0.checked_sub(record.next.0);
    let found = place.and_then(|place| record.events.as_slice().get(place as usize));
    Ok(found.map(|(sequence, _)| (*sequence, record.stamp)))
}

/// The records from that of `revision` on.
fn records<'a>(view: View<'a>, revision: Revision) -> Scan<'a> {
    view.scan(&event_key(revision), RECORDS_END, Order::Ascending)
}

/// The events of `from..=to`, oldest first, read lazily. Only changes whose key is `wanted` are kept and have
/// their values read, so an event may come without any.
pub fn events<'a>(
    view: View<'a>,
    from: Revision,
    to: Revision,
    wanted: impl Fn(&[u8]) -> bool + 'a,
) -> impl Iterator<Item = Result<Event, StoreError>> + 'a {
    let mut events = Events { view, records: records(view, from), record: None, from, to, wanted };
    std::iter::from_fn(move || events.next().transpose())
}

struct Events<'a, F> {
    view: View<'a>,
    records: Scan<'a>,
    record: Option<Record>,
    from: Revision,
    to: Revision,
    wanted: F,
}

impl<F: Fn(&[u8]) -> bool> Events<'_, F> {
    fn next(&mut self) -> Result<Option<Event>, StoreError> {
        loop {
            let Some(record) = &mut self.record else {
                let Some(pair) = self.records.next() else { return Ok(None) };
                self.record = Some(Record::decode(pair?)?);
                continue;
            };
            if record.next > self.to {
                return Ok(None);
            }
            let early = record.next < self.from;
            match record.take(self.view, &mut self.records, |key| !early && (self.wanted)(key))? {
                Some(event) if !early => return Ok(Some(event)),
                Some(_) => {}
                None => self.record = None,
            }
        }
    }
}

/// A record that is decoded event by event.
struct Record {
    stamp: Stamp,
    /// The revision of the next event.
    next: Revision,
    events: std::vec::IntoIter<(Sequence, u64)>,
    /// What is left of the changes in the present part.
    changes: Reader,
    /// The last revision, which is in the record's key.
    last: Revision,
    /// The number of the present part.
    part: u32,
}

impl Record {
    fn decode((key, value): Pair) -> Result<Self, StoreError> {
        let mut reader = Reader::new(value, "event record");
        let last = key.get(2..).and_then(|revision| revision.try_into().ok()).map(u64::from_be_bytes);
        let last = last.ok_or_else(|| reader.malformed())?;
        let stamp = Stamp(reader.varint()?);
        let count = reader.varint()?;
        let mut sequence = reader.varint()?;
        let mut events = Vec::new();
        for _ in 0..count {
            sequence = sequence.saturating_add(reader.varint()?);
            events.push((Sequence(sequence), reader.varint()?));
        }
        let before = last.checked_sub(count).ok_or_else(|| reader.malformed())?;
        let next = Revision(before).next();
        let (last, events) = (Revision(last), events.into_iter());
        Ok(Self { stamp, next, events, changes: reader, last, part: 0 })
    }

    /// Goes on with the next part, which comes next in `records`.
    fn turn(&mut self, records: &mut Scan<'_>) -> Result<(), StoreError> {
        self.part += 1;
        match records.next().transpose()? {
            Some((key, value)) if key[..] == part_key(self.last, self.part) => {
                self.changes = Reader::new(value, "part of an event record");
                Ok(())
            }
            _ => Err(self.changes.malformed().into()),
        }
    }

    /// The next event; `records` is right behind the present part.
    fn take(
        &mut self,
        view: View<'_>,
        records: &mut Scan<'_>,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<Event>, StoreError> {
        let Some((sequence, count)) = self.events.next() else { return Ok(None) };
        let (revision, stamp) = (self.next, self.stamp);
        self.next = revision.next();
        let mut changes = Vec::new();
        for _ in 0..count {
            if self.changes.is_empty() {
                self.turn(records)?;
            }
            let what = self.changes.byte()?;
            let key = self.changes.bytes()?;
            let stored_at = match what {
                DELETED => None,
                WRITTEN => Some(key.clone()),
                WRITTEN_ELSEWHERE => Some(self.changes.bytes()?),
                _ => return Err(self.changes.malformed().into()),
            };
            if wanted(&key) {
                let value = match stored_at {
                    Some(at) => view.at(sequence).get(&at)?,
                    None => None,
                };
                changes.push(Change { key, value });
            }
        }
        Ok(Some(Event { revision, sequence, stamp, changes }))
    }
}

/// The newest revision with a stamp at or before `stamp`, to compact history by age. What another system recorded has no
/// stamp, and is as old as the first event that has one.
///
/// # Errors
/// The store failed.
pub fn revision_before(view: View<'_>, progress: &Progress, stamp: Stamp) -> Result<Revision, StoreError> {
    let (mut low, mut high) = (progress.compacted, progress.revision);
    while low < high {
        let middle = Revision(high.0 - (high.0 - low.0) / 2);
        match header(view, middle)? {
            Some((_, at)) if at > stamp => high = Revision(middle.0 - 1),
            _ => low = middle,
        }
    }
    match header(view, low)? {
        Some((_, Stamp(0))) => Ok(progress.compacted),
        _ => Ok(low),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    fn change(key: &str, value: Option<&'static str>) -> Change {
        let value = value.map(|value| Bytes::from_static(value.as_bytes()));
        Change { key: Bytes::copy_from_slice(key.as_bytes()), value }
    }

    fn event(revision: u64, sequence: u64, changes: Vec<Change>) -> Event {
        Event { revision: Revision(revision), sequence: Sequence(sequence), stamp: Stamp(1_000), changes }
    }

    /// Writes as a machine does: the changed records, then the event.
    fn write(store: &MemoryStore, recorder: &mut Recorder, event: &Event) {
        for Change { key, value } in &event.changes {
            match value {
                Some(value) => store.put(key, value.clone(), event.sequence),
                None => store.delete(key, event.sequence),
            }
        }
        recorder.add(store, event, &[]);
    }

    #[test]
    fn the_bytes_of_a_record_are_as_documented() {
        let (store, mut recorder) = (MemoryStore::new(), Recorder::default());
        write(&store, &mut recorder, &event(2, 10, vec![change("a", Some("1"))]));
        let both = vec![change("a", None), change("other", Some("2"))];
        recorder.add(&store, &event(3, 13, both), &[(1, Bytes::from_static(b"b"))]);
        recorder.write(&store);
        let record = store.get(&event_key(Revision(3)), Sequence(13)).unwrap().unwrap();
        let expected =
            [&[0xe8, 7, 2, 9, 1, 1, 3, 2][..], b"\x01\x01a", b"\0\x01a", b"\x02\x05other\x01b"].concat();
        assert_eq!(record, expected);
    }

    /// The record of one deletion of 8,400 keys of 32 KiB was larger than anything that a snapshot can hold:
    /// no backup could be restored, and no member could join.
    #[test]
    fn a_record_is_split_by_bytes_and_read_back_whole() {
        let (store, mut recorder) = (MemoryStore::new(), Recorder::default());
        let long = |number: usize| Change { key: vec![b'a' + number as u8; 30 << 10].into(), value: None };
        let many = |count| (0..count).map(long).collect::<Vec<_>>();
        // Up to, into and far beyond the first part; then small ones again.
        let counts = [1, 7, 1, 2, 25, 1, 9, 9, 1];
        let all: Vec<Event> = counts
            .iter()
            .enumerate()
            .map(|(place, count)| event(2 + place as u64, 10 + 2 * place as u64, many(*count)))
            .collect();
        let other = Change { key: "other".into(), value: Some("v".into()) };
        for event in &all {
            recorder.add(&store, event, &[]);
        }
        let last = event(11, 40, vec![other.clone()]);
        store.put(b"b", "v".into(), last.sequence);
        recorder.add(&store, &last, &[(0, Bytes::from_static(b"b"))]);
        recorder.write(&store);
        let all: Vec<Event> = all.into_iter().chain([last]).collect();

        let view = View::new(&store, Sequence(40));
        let records: Vec<Pair> = records(view, Revision(0)).map(Result::unwrap).collect();
        assert!(records.iter().all(|(_, value)| value.len() < PART_BYTES + (31 << 10)));
        let keys: Vec<&[u8]> = records.iter().map(|(key, _)| &key[8..]).collect();
        let expected: [&[u8]; 8] = [
            b"\0\x04",
            b"\0\x06",
            b"\0\x06\0\0\0\x01",
            b"\0\x06\0\0\0\x02",
            b"\0\x08",
            b"\0\x08\0\0\0\x01",
            b"\0\x09",
            b"\0\x0b",
        ];
        assert_eq!(keys, expected);
        for from in 2..=11 {
            for to in from..=11 {
                let found: Vec<Event> =
                    events(view, Revision(from), Revision(to), |_| true).map(Result::unwrap).collect();
                assert!(found == all[from as usize - 2..to as usize - 1], "{from}..={to}");
            }
            let found = header(view, Revision(from)).unwrap().map(|(sequence, _)| sequence);
            assert_eq!(found, Some(all[from as usize - 2].sequence), "{from}");
        }
        let wanted: Vec<Event> =
            events(view, Revision(2), Revision(11), |key| key == b"other").map(Result::unwrap).collect();
        assert_eq!(wanted.iter().flat_map(|event| &event.changes).collect::<Vec<_>>(), [&other]);

        // Without one of its parts a record is damaged, and says so.
        store.delete(&records[2].0, Sequence(41));
        let damaged = View::new(&store, Sequence(41));
        let read = events(damaged, Revision(6), Revision(6), |_| true).next();
        assert!(read.unwrap().unwrap_err().to_string().contains("event record"));
    }

    #[test]
    fn any_range_of_events_is_found_in_records_of_any_length() {
        let (store, mut recorder) = (MemoryStore::new(), Recorder::default());
        let last = 3 * RECORD_EVENTS_MAX as u64;
        let all: Vec<Event> =
            (2..=last).map(|revision| event(revision, 3 * revision, vec![change("k", Some("v"))])).collect();
        for event in &all {
            write(&store, &mut recorder, event);
            if event.revision.0.is_multiple_of(7) && event.revision.0 < 100 {
                assert_eq!(recorder.sequence_of(event.revision), Some(event.sequence));
                recorder.write(&store);
                assert_eq!(recorder.sequence_of(event.revision), None);
            }
        }
        recorder.write(&store);
        let view = View::new(&store, Sequence(3 * last));
        for (from, to) in [(2, last), (2, 2), (5, 9), (7, 8), (90, 400), (last, last), (last, last + 5)] {
            let found: Vec<Event> =
                events(view, Revision(from), Revision(to), |_| true).map(Result::unwrap).collect();
            let to = to.min(last);
            assert_eq!(found, all[from as usize - 2..to as usize - 1], "{from}..={to}");
        }
        for revision in 2..=last {
            let found = header(view, Revision(revision)).unwrap();
            assert_eq!(found, Some((Sequence(3 * revision), Stamp(1_000))));
        }
        assert_eq!(header(view, Revision(1)).unwrap(), None);
        assert_eq!(header(view, Revision(last + 1)).unwrap(), None);
    }
}
