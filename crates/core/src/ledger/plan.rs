//! Where a search looks: the index that says most about what is wanted, for those revisions that it covers; for the
//! others the next best one, and in the end the journal itself.
//!
//! All of them lead to places in the order of the journal, so a search can change from one to the next on its way.

use super::indexes::{self, Index, Indexes};
use super::journal::{self, JOURNAL, PART_TRANSFERS};
use super::record::{self, decode_history};
use super::search::{Filter, Place, is_beyond};
use crate::store::{Order, Scan, StoreError, View};
use crate::types::Revision;
use bytes::Bytes;

/// Where candidates are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The history of an account, which names its transfers. There is always one.
    Account(u128),
    /// The rows of an index whose keys begin like this, of one value.
    Index(Vec<u8>),
    /// The journal: every transfer is a candidate.
    Journal,
}

/// A stretch of revisions, both ends included, and where its candidates are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leg {
    source: Source,
    low: Revision,
    high: Revision,
}

/// A part of the journal that has candidates.
pub(super) struct Piece {
    pub(super) revision: Revision,
    pub(super) part: u16,
    /// The part, if it was read on the way.
    pub(super) value: Option<Bytes>,
    /// The positions of the candidates, ascending; all if `None`.
    pub(super) picked: Option<Vec<u32>>,
}

/// The legs of a search through `low..=high`, oldest first.
///
/// # Errors
/// The store failed.
pub(super) fn legs(
    view: View<'_>,
    filter: &Filter,
    low: Revision,
    high: Revision,
) -> Result<Vec<Leg>, StoreError> {
    let indexed = Indexes::read(view)?.sources(filter);
    let own = |index: &Index| matches!(index, Index::Reference | Index::UserData128 | Index::UserData64);
    let (telling, vague): (Vec<_>, Vec<_>) = indexed.into_iter().partition(|(index, ..)| own(index));
    // Best first, each with the first revision that it covers. References and large numbers are of few transfers; an
    // account has more, and a code or a small number most.
    let source = |(_, prefix, since)| (Source::Index(prefix), since);
    let mut sources: Vec<_> = telling.into_iter().map(source).collect();
    sources.extend(filter.account.map(|account| (Source::Account(account), Revision(0))));
    sources.extend(vague.into_iter().map(source));
    let mut legs = Vec::new();
    lay(&sources, low, high, &mut legs);
    Ok(legs)
}

fn lay(sources: &[(Source, Revision)], low: Revision, high: Revision, legs: &mut Vec<Leg>) {
    if low > high {
        return;
    }
    let Some(((source, since), others)) = sources.split_first() else {
        return legs.push(Leg { source: Source::Journal, low, high });
    };
    if *since > low {
        lay(others, low, high.min(Revision(since.0 - 1)), legs);
    }
    if *since <= high {
        legs.push(Leg { source: source.clone(), low: low.max(*since), high });
    }
}

/// The parts of the journal with candidates beyond `after`, in order, lazily.
pub(super) fn pieces<'a>(
    view: View<'a>,
    mut legs: Vec<Leg>,
    order: Order,
    after: Option<Place>,
) -> impl Iterator<Item = Result<Piece, StoreError>> + 'a {
    if order == Order::Descending {
        legs.reverse();
    }
    legs.into_iter().flat_map(move |leg| -> Box<dyn Iterator<Item = _> + 'a> {
        match leg.source {
            Source::Journal => Box::new(journal_pieces(view, leg.low, leg.high, order, after)),
            Source::Account(account) => {
                let key = |revision| record::history_key(account, revision);
                let rows = view.scan(&key(leg.low), &key(leg.high.next()), order);
                Box::new(index_pieces(rows, |row| Ok(decode_history(row)?.positions), order, after))
            }
            Source::Index(prefix) => {
                let key = |revision| indexes::row_key(&prefix, revision);
                let rows = view.scan(&key(leg.low), &key(leg.high.next()), order);
                Box::new(index_pieces(rows, |row| Ok(indexes::decode_row(row)?), order, after))
            }
        }
    })
}

fn journal_pieces<'a>(
    view: View<'a>,
    low: Revision,
    high: Revision,
    order: Order,
    after: Option<Place>,
) -> impl Iterator<Item = Result<Piece, StoreError>> + 'a {
    let (mut from, mut to) = (journal::journal_key(low, 0), journal::journal_key(high.next(), 0));
    debug_assert_eq!(from[1], JOURNAL);
    if let Some((revision, position)) = after
        && let Ok(part) = u16::try_from(position / PART_TRANSFERS)
    {
        match order {
            Order::Ascending if revision == low => from = journal::journal_key(revision, part),
            Order::Descending if revision == high => {
                to = journal::journal_key(revision, part.saturating_add(1))
            }
            _ => {}
        }
    }
    view.scan(&from, &to, order).map(|pair| {
        let (key, value) = pair?;
        let (revision, part) = journal::decode_journal_key(&key)?;
        Ok(Piece { revision, part, value: Some(value), picked: None })
    })
}

/// The parts that the rows of an index name; each row is of the revision with which its key ends.
fn index_pieces<'a>(
    rows: Scan<'a>,
    positions: impl Fn(&[u8]) -> Result<Vec<u32>, StoreError> + 'a,
    order: Order,
    after: Option<Place>,
) -> impl Iterator<Item = Result<Piece, StoreError>> + 'a {
    rows.flat_map(move |pair| {
        let row = pair.and_then(|(key, row)| Ok((record::key_revision(&key), positions(&row)?)));
        let (revision, positions) = match row {
            Ok(row) => row,
            Err(error) => return vec![Err(error)],
        };
        let beyond = |position: &u32| is_beyond(order, after, (revision, *position));
        let left: Vec<u32> = positions.into_iter().filter(beyond).collect();
        let by_part = left.chunk_by(|one, other| one / PART_TRANSFERS == other / PART_TRANSFERS);
        let piece = |picked: &[u32]| {
            let part = u16::try_from(picked[0] / PART_TRANSFERS);
            let part = part.map_err(|_| StoreError::new("read an index", "a position beyond all parts"))?;
            Ok(Piece { revision, part, value: None, picked: Some(picked.to_vec()) })
        };
        let mut pieces: Vec<_> = by_part.map(piece).collect();
        if order == Order::Descending {
            pieces.reverse();
        }
        pieces
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_revision_is_looked_for_in_the_best_source_that_covers_it() {
        let sources = [(Source::Account(1), Revision(50)), (Source::Account(2), Revision(10))];
        let laid = |low, high| {
            let mut legs = Vec::new();
            lay(&sources, Revision(low), Revision(high), &mut legs);
            legs.into_iter().map(|leg| (leg.source, leg.low.0, leg.high.0)).collect::<Vec<_>>()
        };
        let (best, next, last) = (Source::Account(1), Source::Account(2), Source::Journal);
        assert_eq!(laid(1, 99), [(last.clone(), 1, 9), (next.clone(), 10, 49), (best.clone(), 50, 99)]);
        assert_eq!(laid(60, 70), [(best.clone(), 60, 70)]);
        assert_eq!(laid(49, 50), [(next.clone(), 49, 49), (best, 50, 50)]);
        assert_eq!(laid(3, 9), [(last, 3, 9)]);
        assert_eq!(laid(10, 20), [(next, 10, 20)]);
    }
}
