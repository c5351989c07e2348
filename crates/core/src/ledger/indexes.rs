//! Indexes of transfers that are kept if they are switched on: by reference, code, and user data.
//!
//! Which ones are on is a record in the store, changed by a command in the log, so every replica keeps the same. An index
//! holds every transfer from the revision on that switched it on; earlier ones are found by reading the journal
//! (`plan.rs`), so what is found never depends on it.
//!
//! A row is of one value in one revision, and holds the positions of its transfers, as an account's history does. So a
//! command of thousands of transfers with one code costs one row. Rows are written once and kept, also when the index is
//! switched off.
//!
//! ```text
//! s                        u8 version, then varints: for each index the revision that switched it on, 0 if it is off;
//!                          the revision from which on references are unique, 0 if they need not be
//! q index value revision   varint count, then the positions, each as its distance from the previous one
//! ```
//!
//! The index is its number, one byte; numbers are big-endian, references after their length of 2 bytes.

use super::command::SetIndexes;
use super::record::{FACE, HISTORY, decode_history, key_revision};
use super::search::Filter;
use super::transfer::Transfer;
use crate::codec::{self, Malformed, Reader};
use crate::store::{Order, StoreError, View, prefix_end};
use crate::tx::Tx;
use crate::types::Revision;
use bytes::Bytes;
use std::collections::BTreeMap;

const VERSION: u8 = 1;
const SETTINGS_KEY: &[u8] = &[FACE, b's'];
/// See [`index_rows`].
const POSITIONS_MAX: usize = 100_000;
/// The keyspace of the indexes.
pub(super) const ROWS: u8 = b'q';

/// An index of transfers. The numbers are on disk and on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Index {
    /// By [`Transfer::reference`].
    Reference = 1,
    /// By [`super::Extra::user_data_128`].
    UserData128 = 2,
    /// By [`super::Extra::user_data_64`].
    UserData64 = 3,
    /// By [`super::Extra::user_data_32`].
    UserData32 = 4,
    /// By [`Transfer::code`].
    Code = 5,
}

impl Index {
    /// All of them, those first whose values are likely to be had by fewest transfers.
    pub const ALL: [Self; 5] =
        [Self::Reference, Self::UserData128, Self::UserData64, Self::UserData32, Self::Code];

    /// The index with this number.
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|index| *index as u8 == number)
    }

    /// The value by which a transfer is found, as in keys; `None` if it has none.
    fn value(self, transfer: &Transfer<'_>) -> Option<Vec<u8>> {
        let extra = &transfer.extra;
        match self {
            Self::Reference => text(transfer.reference),
            Self::UserData128 => number(extra.user_data_128 > 0, &extra.user_data_128.to_be_bytes()),
            Self::UserData64 => number(extra.user_data_64 > 0, &extra.user_data_64.to_be_bytes()),
            Self::UserData32 => number(extra.user_data_32 > 0, &extra.user_data_32.to_be_bytes()),
            Self::Code => number(transfer.code > 0, &transfer.code.to_be_bytes()),
        }
    }

    /// The value that a filter wants; `None` if it wants none, or what is in no index.
    fn wanted(self, filter: &Filter) -> Option<Vec<u8>> {
        let of =
            |value: Option<&[u8]>| value.and_then(|value| number(value.iter().any(|byte| *byte > 0), value));
        match self {
            Self::Reference => filter.reference.as_deref().and_then(text),
            Self::UserData128 => {
                of(filter.user_data_128.map(u128::to_be_bytes).as_ref().map(|bytes| &bytes[..]))
            }
            Self::UserData64 => {
                of(filter.user_data_64.map(u64::to_be_bytes).as_ref().map(|bytes| &bytes[..]))
            }
            Self::UserData32 => {
                of(filter.user_data_32.map(u32::to_be_bytes).as_ref().map(|bytes| &bytes[..]))
            }
            Self::Code => of(filter.code.map(u32::to_be_bytes).as_ref().map(|bytes| &bytes[..])),
        }
    }
}

fn number(present: bool, bytes: &[u8]) -> Option<Vec<u8>> {
    present.then(|| bytes.to_vec())
}

fn text(text: &str) -> Option<Vec<u8>> {
    let length = u16::try_from(text.len()).ok().filter(|length| *length > 0)?;
    Some([&length.to_be_bytes(), text.as_bytes()].concat())
}

/// Which indexes are kept, and since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Indexes {
    /// In the order of [`Index::ALL`]: the first revision that is in the index; 0 if it is off.
    since: [u64; Index::ALL.len()],
    /// From this revision on no two transfers that move or reserve something have the same reference; 0 if they may.
    unique_references: u64,
}

impl Indexes {
    /// Those of a store.
    ///
    /// # Errors
    /// The store failed.
    pub fn read(view: View<'_>) -> Result<Self, StoreError> {
        Ok(view.get(SETTINGS_KEY)?.map(|record| decode(&record)).transpose()?.unwrap_or_default())
    }

    /// The first revision that is in an index; `None` if it is off.
    pub fn since(&self, index: Index) -> Option<Revision> {
        let place = Index::ALL.iter().position(|other| *other == index).expect("all are in it");
        Some(Revision(self.since[place])).filter(|since| since.0 > 0)
    }

    /// The revision from which on references are unique; `None` if they need not be.
    pub fn unique_references(&self) -> Option<Revision> {
        Some(Revision(self.unique_references)).filter(|since| since.0 > 0)
    }

    /// Whether transfers must be noted in any index.
    pub(super) fn any(&self) -> bool {
        self.since.iter().any(|since| *since > 0)
    }

    /// Switches those on that are named, from the next revision on, and all others off. `None` if one is unknown.
    pub(super) fn set(&self, tx: &mut Tx<'_>, wanted: &SetIndexes) -> Option<Self> {
        let numbers = wanted.on.iter().map(|number| u8::try_from(*number).ok().and_then(Index::of_number));
        let on: Vec<Index> = numbers.collect::<Option<_>>()?;
        let next = tx.next_revision().0;
        let since = |on: bool, since: u64| match (on, since) {
            (false, _) => 0,
            (true, 0) => next,
            (true, since) => since,
        };
        let mut set = *self;
        for (index, place) in Index::ALL.iter().zip(&mut set.since) {
            *place = since(on.contains(index), *place);
        }
        set.unique_references = since(wanted.unique_references, self.unique_references);
        if set != *self {
            tx.put(SETTINGS_KEY, encode(&set));
        }
        Some(set)
    }

    /// The indexes that know what a filter wants, the most telling first: the beginning of their rows' keys, and the
    /// first revision that they cover.
    pub(super) fn sources(&self, filter: &Filter) -> Vec<(Index, Vec<u8>, Revision)> {
        let source =
            |index: Index| Some((index, row_prefix(index, &index.wanted(filter)?), self.since(index)?));
        Index::ALL.into_iter().filter_map(source).collect()
    }
}

fn encode(indexes: &Indexes) -> Bytes {
    let mut out = vec![VERSION];
    indexes.since.iter().for_each(|since| codec::put_varint(&mut out, *since));
    codec::put_varint(&mut out, indexes.unique_references);
    out.into()
}

fn decode(record: &[u8]) -> Result<Indexes, Malformed> {
    let mut reader = Reader::new(record, "ledger indexes");
    if reader.byte()? != VERSION {
        return Err(reader.malformed());
    }
    let mut indexes = Indexes::default();
    for since in &mut indexes.since {
        *since = reader.varint()?;
    }
    indexes.unique_references = reader.varint()?;
    Ok(indexes)
}

fn row_prefix(index: Index, value: &[u8]) -> Vec<u8> {
    [&[FACE, ROWS, index as u8], value].concat()
}

/// The key of a row.
pub(super) fn row_key(prefix: &[u8], revision: Revision) -> Vec<u8> {
    [prefix, &revision.0.to_be_bytes()].concat()
}

/// The positions in a row.
pub(super) fn decode_row(row: &[u8]) -> Result<Vec<u32>, Malformed> {
    let mut reader = Reader::new(row, "index");
    let (count, mut position, mut positions) = (reader.varint()?, 0_u32, Vec::new());
    for _ in 0..count {
        let distance = u32::try_from(reader.varint()?).map_err(|_| reader.malformed())?;
        position = position.checked_add(distance).ok_or_else(|| reader.malformed())?;
        positions.push(position);
    }
    Ok(positions)
}

fn encode_row(positions: &[u32]) -> Bytes {
    let mut out = Vec::with_capacity(4);
    codec::put_varint(&mut out, positions.len() as u64);
    let mut before = 0;
    for position in positions {
        codec::put_varint(&mut out, (position - before).into());
        before = *position;
    }
    out.into()
}

/// The rows of a command while it runs.
#[derive(Debug)]
pub(super) struct Rows {
    indexes: Indexes,
    /// By the beginning of the key, in whose order the store takes them fastest.
    rows: BTreeMap<Vec<u8>, Vec<u32>>,
}

impl Rows {
    /// `None` if no index is on, which is all that a command pays for then.
    pub(super) fn of(indexes: Indexes) -> Option<Self> {
        indexes.any().then(|| Self { indexes, rows: BTreeMap::new() })
    }

    /// Notes a transfer, positions ascending.
    pub(super) fn note(&mut self, transfer: &Transfer<'_>, position: u32) {
        for index in Index::ALL {
            if self.indexes.since(index).is_some()
                && let Some(value) = index.value(transfer)
            {
                self.rows.entry(row_prefix(index, &value)).or_default().push(position);
            }
        }
    }

    pub(super) fn write(&self, tx: &mut Tx<'_>, revision: Revision) {
        for (prefix, positions) in &self.rows {
            tx.put(&row_key(prefix, revision), encode_row(positions));
        }
    }
}

/// A row of an index, for those who prove it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexRow {
    /// The value, as it is in the key.
    pub value: Bytes,
    /// The revision of its transfers.
    pub revision: Revision,
    /// Their positions.
    pub positions: Vec<u32>,
}

/// A page of an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexRows {
    /// In the order of their keys.
    pub rows: Vec<IndexRow>,
    /// The place to go on after; `None` at the end.
    pub next: Option<Bytes>,
}

/// A page of an index, or, for `None`, of the histories of accounts by id, after a place. It ends after `limit` rows,
/// or [`POSITIONS_MAX`] positions and those of one row.
///
/// # Errors
/// The store failed.
pub fn index_rows(
    view: View<'_>,
    index: Option<Index>,
    after: Option<&[u8]>,
    limit: usize,
) -> Result<IndexRows, StoreError> {
    let prefix = match index {
        Some(index) => row_prefix(index, &[]),
        None => vec![FACE, HISTORY],
    };
    let from = after.map_or_else(|| prefix.clone(), |after| [&prefix, after, &[0]].concat());
    let (mut page, mut last, mut positions) = (IndexRows::default(), None, 0);
    for pair in view.scan(&from, &prefix_end(&prefix), Order::Ascending) {
        let (key, row) = pair?;
        if page.rows.len() == limit || positions >= POSITIONS_MAX {
            page.next = last;
            break;
        }
        let place = key.slice(prefix.len()..);
        let length = place.len().checked_sub(8).ok_or(Malformed { what: "key of an index" })?;
        let row = if index.is_some() { decode_row(&row)? } else { decode_history(&row)?.positions };
        positions += row.len();
        let (value, revision) = (place.slice(..length), key_revision(&key));
        page.rows.push(IndexRow { value, revision, positions: row });
        last = Some(place);
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_pinned() {
        let indexes = Indexes { since: [300, 0, 1, 0, 2], unique_references: 7 };
        let golden = b"\x01\xac\x02\x00\x01\x00\x02\x07";
        assert_eq!(&encode(&indexes)[..], golden);
        assert_eq!(decode(golden), Ok(indexes));
        assert!(decode(&golden[..7]).is_err());
        let filter = Filter { reference: Some("ab".into()), code: Some(258), ..Filter::default() };
        let sources = indexes.sources(&filter);
        let expected = [
            (Index::Reference, b"\x03q\x01\x00\x02ab".to_vec(), Revision(300)),
            (Index::Code, b"\x03q\x05\x00\x00\x01\x02".to_vec(), Revision(2)),
        ];
        assert_eq!(sources, expected);
        assert_eq!(row_key(b"\x03q\x01", Revision(9)), b"\x03q\x01\x00\x00\x00\x00\x00\x00\x00\x09");
        assert_eq!(&encode_row(&[3, 70])[..], b"\x02\x03\x43");
        assert_eq!(decode_row(b"\x02\x03\x43"), Ok(vec![3, 70]));
        assert!(decode_row(b"\x02\x03").is_err());
    }
}
