//! Finding transfers by what they hold, in the order in which they were recorded or its reverse, page by page.
//!
//! What is found does not depend on how: an index says where candidates are (`plan.rs`), and each candidate is
//! compared with the whole filter. A transfer is found by an account if it changed it, so not if it was refused.
//!
//! **Invariant: Bounded.** A page ends after [`READS_MAX`] reads of the store, found or not, and says where the
//! next one goes on. A read gives up to 64 transfers.

use super::code::Code;
use super::journal::{self, Entry, PART_TRANSFERS};
use super::part::Part;
use super::plan::{Piece, legs, pieces};
use super::query::{revision_at, view_of};
use super::record::PendingState;
use super::reply::{TransferState, TransferView};
use super::transfer::Kind;
use crate::store::{Order, StoreError, View};
use crate::types::{Progress, Revision, Stamp};

/// Maximum reads of the store for a page: of parts of the journal, and of the states of pending transfers.
pub const READS_MAX: usize = 2000;
/// A page ends after about this many bytes of transfers: less than what clients of gRPC take by default.
const PAGE_BYTES: usize = 2 << 20;
/// What a transfer takes in an answer besides its own bytes, about.
const ITEM_BYTES: usize = 256;

/// A place in the order of all transfers: the revision, and the position in it.
pub type Place = (Revision, u32);

/// What to find; what is absent does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Transfers that changed this account.
    pub account: Option<u128>,
    /// Only those that debited, or that credited, the account.
    pub side: Option<Side>,
    /// See [`super::Transfer::code`].
    pub code: Option<u32>,
    /// See [`super::Transfer::reference`].
    pub reference: Option<String>,
    /// See [`super::Extra::user_data_128`].
    pub user_data_128: Option<u128>,
    /// See [`super::Extra::user_data_64`].
    pub user_data_64: Option<u64>,
    /// See [`super::Extra::user_data_32`].
    pub user_data_32: Option<u32>,
    /// In this state, as of the view.
    pub outcome: Option<Outcome>,
    /// Recorded at this time or later.
    pub from: Option<Stamp>,
    /// Recorded before this time.
    pub before: Option<Stamp>,
}

/// An account's side of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It gave.
    Debit,
    /// It received.
    Credit,
}

/// What became of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; none that was pending.
    Done,
    /// Refused.
    Refused,
    /// Pending, in this state.
    Pending(PendingState),
}

/// A query for a page.
#[derive(Clone, Debug)]
pub struct Search {
    /// What to find.
    pub filter: Filter,
    /// Oldest or newest first.
    pub order: Order,
    /// Go on after this place, in that order.
    pub after: Option<Place>,
    /// Maximum transfers to find, above zero.
    pub limit: usize,
    /// See [`READS_MAX`].
    pub reads_max: usize,
}

/// A page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// In the order that was asked for.
    pub transfers: Vec<TransferView>,
    /// Where to go on; `None` at the end. There may be more though nothing was found.
    pub next: Option<Place>,
}

impl Filter {
    /// Whether a recorded transfer is wanted, but for the state of a pending one.
    fn takes(&self, entry: &Entry) -> bool {
        let transfer = entry.transfer();
        let extra = &transfer.extra;
        self.code.is_none_or(|code| code == transfer.code)
            && self.reference.as_deref().is_none_or(|reference| reference == transfer.reference)
            && self.user_data_128.is_none_or(|number| number == extra.user_data_128)
            && self.user_data_64.is_none_or(|number| number == extra.user_data_64)
            && self.user_data_32.is_none_or(|number| number == extra.user_data_32)
            && self.account.is_none_or(|account| self.touches(account, entry))
            && self.outcome.is_none_or(|outcome| {
                let (done, pending) = (entry.code == Code::Ok, matches!(transfer.kind, Kind::Pending { .. }));
                match outcome {
                    Outcome::Refused => !done,
                    Outcome::Done => done && !pending,
                    Outcome::Pending(_) => done && pending,
                }
            })
    }

    fn touches(&self, account: u128, entry: &Entry) -> bool {
        entry.effect().is_some_and(|effect| match self.side {
            Some(Side::Debit) => effect.debit == account,
            Some(Side::Credit) => effect.credit == account,
            None => effect.debit == account || effect.credit == account,
        })
    }

    /// Whether the present state of a transfer is wanted.
    fn takes_state(&self, state: TransferState) -> bool {
        match (self.outcome, state) {
            (Some(Outcome::Pending(wanted)), TransferState::Pending(state, ..)) => wanted == state,
            _ => true,
        }
    }
}

/// A page of what is wanted.
///
/// # Errors
/// The store failed.
pub fn search(view: View<'_>, progress: &Progress, search: &Search) -> Result<Found, StoreError> {
    let mut page = Page { view, search, found: Found::default(), last: None, reads: 0, bytes: 0 };
    let Some((low, high)) = bounds(view, progress, search)? else { return Ok(page.found) };
    let legs = legs(view, &search.filter, low, high)?;
    for piece in pieces(view, legs, search.order, search.after) {
        if page.take(piece?)? {
            page.found.next = page.last;
            break;
        }
    }
    Ok(page.found)
}

/// The revisions in which something can be found; `None` if there are none.
fn bounds(
    view: View<'_>,
    progress: &Progress,
    search: &Search,
) -> Result<Option<(Revision, Revision)>, StoreError> {
    let (mut low, mut high) = (Revision(1), progress.revision);
    // The newest revision of all that are earlier than a moment.
    let earlier = |moment: Stamp| match moment.0.checked_sub(1) {
        Some(before) => revision_at(view, progress, Stamp(before)),
        None => Ok(Revision(0)),
    };
    if let Some(from) = search.filter.from {
        low = earlier(from)?.next();
    }
    if let Some(before) = search.filter.before {
        high = earlier(before)?;
    }
    match (search.order, search.after) {
        (Order::Ascending, Some((revision, _))) => low = low.max(revision),
        (Order::Descending, Some((revision, _))) => high = high.min(revision),
        (_, None) => {}
    }
    Ok((low <= high).then_some((low, high)))
}

/// A page while it is filled.
struct Page<'v, 's> {
    view: View<'v>,
    search: &'s Search,
    found: Found,
    /// The last place that was examined.
    last: Option<Place>,
    reads: usize,
    bytes: usize,
}

impl Page<'_, '_> {
    /// Whether no further transfer has room. Something was examined then, so that the next page is another one.
    fn is_full(&self) -> bool {
        self.last.is_some()
            && (self.found.transfers.len() >= self.search.limit
                || self.bytes >= PAGE_BYTES
                || self.has_read_enough())
    }

    fn has_read_enough(&self) -> bool {
        self.last.is_some() && self.reads >= self.search.reads_max
    }

    /// Examines a part of the journal, or some of its transfers. Returns whether the page ended before its end.
    fn take(&mut self, piece: Piece) -> Result<bool, StoreError> {
        // One that is full goes on: there may be no more transfers.
        if self.has_read_enough() {
            return Ok(true);
        }
        self.reads += 1;
        let Piece { revision, part, value, picked } = piece;
        let key = journal::journal_key(revision, part);
        let value = match value {
            Some(value) => Some(value),
            None => self.view.get(&key)?,
        };
        let missing = || StoreError::new("read the journal", "what an index names is missing");
        let Some(transfers) = Part::open(&key, value.ok_or_else(missing)?)? else {
            // Accounts or a currency. Transfers may follow in other parts, with the positions of those.
            let first = u32::from(part) * PART_TRANSFERS;
            let last = first + PART_TRANSFERS - 1;
            let place = (revision, if self.search.order == Order::Ascending { last } else { first });
            if is_beyond(self.search.order, self.search.after, place) {
                self.last = Some(place);
            }
            return Ok(false);
        };
        let mut positions = picked.unwrap_or_else(|| transfers.positions().collect());
        if self.search.order == Order::Descending {
            positions.reverse();
        }
        for position in positions {
            let place = (revision, position);
            if is_beyond(self.search.order, self.search.after, place) {
                if self.is_full() {
                    return Ok(true);
                }
                self.last = Some(place);
                self.examine(transfers.entry(position)?.ok_or_else(missing)?)?;
            }
        }
        Ok(false)
    }

    fn examine(&mut self, entry: Entry) -> Result<(), StoreError> {
        if !self.search.filter.takes(&entry) {
            return Ok(());
        }
        if entry.code == Code::Ok && matches!(entry.transfer().kind, Kind::Pending { .. }) {
            self.reads += 1;
        }
        let found = view_of(self.view, entry)?;
        if self.search.filter.takes_state(found.state) {
            self.bytes += ITEM_BYTES + found.entry.bytes();
            self.found.transfers.push(found);
        }
        Ok(())
    }
}

/// Whether a place comes after another one in an order.
pub(super) fn is_beyond(order: Order, after: Option<Place>, place: Place) -> bool {
    after.is_none_or(|after| match order {
        Order::Ascending => place > after,
        Order::Descending => place < after,
    })
}
