//! How the ledger is read: every answer comes from the store, as of a view.

use super::code::Code;
use super::currency::{self, Currency};
use super::journal::{self, Entry, JOURNAL, Journal, PART_TRANSFERS};
use super::part::Part;
use super::past;
use super::record::{
    self, AccountRecord, Balances, HISTORY, HistoryRecord, IDS, Location, PENDING, PendingRecord, REVERTS,
};
use super::reply::{Account, Line, Page, TransferState, TransferView};
use super::transfer::Kind;
use crate::codec::Reader;
use crate::store::{Order, StoreError, View, prefix_end};
use crate::types::{Progress, Revision, Stamp};
use bytes::Bytes;
use prost::Message;

/// A currency's number of decimal places; `None` if there is no such currency.
///
/// # Errors
/// The store failed.
pub fn currency_scale(view: View<'_>, currency: Currency) -> Result<Option<u32>, StoreError> {
    if let Some(scale) = currency::iso_scale(currency) {
        return Ok(Some(scale));
    }
    let record = view.get(&record::currency_key(currency))?;
    Ok(record.and_then(|record| record.first().copied()).map(u32::from))
}

/// An account as of the view.
///
/// # Errors
/// The store failed.
pub fn account(view: View<'_>, id: u128) -> Result<Option<Account>, StoreError> {
    account_at(view, id, Revision(u64::MAX))
}

/// An account as of a revision, which may be compacted; `None` if it did not exist.
///
/// # Errors
/// The store failed.
pub fn account_at(view: View<'_>, id: u128, at: Revision) -> Result<Option<Account>, StoreError> {
    match read_account(view, id)? {
        Some(record) => as_of(view, record, at),
        None => Ok(None),
    }
}

/// What was recorded of an account at a revision, given what is `now`.
pub(super) fn as_of(view: View<'_>, now: AccountRecord, at: Revision) -> Result<Option<Account>, StoreError> {
    let Some(record) = past::record_at(view, now, at)? else { return Ok(None) };
    let (balance_revision, balances, closed) = match latest_history(view, record.id(), at)? {
        Some((revision, history)) => (revision, history.balances, history.closed),
        None => (Revision(0), Balances::default(), false),
    };
    Ok(Some(Account { record, balances, balance_revision, closed }))
}

/// The id of the account with this number.
///
/// # Errors
/// The store failed.
pub fn account_by_number(view: View<'_>, number: &str) -> Result<Option<u128>, StoreError> {
    let id = view.get(&record::number_key(number))?;
    Ok(id.and_then(|id| id[..].try_into().ok()).map(u128::from_be_bytes))
}

/// The newest revision whose ledger state is that of `moment`; 0 if the ledger was empty then.
///
/// # Errors
/// The store failed.
pub fn revision_at(view: View<'_>, progress: &Progress, moment: Stamp) -> Result<Revision, StoreError> {
    let (mut low, mut high) = (0, progress.revision.0);
    while low < high {
        let middle = high - (high - low) / 2;
        match last_journal(view, Revision(middle))? {
            Some((revision, stamp)) if stamp > moment => high = revision.0 - 1,
            // All changes up to here are early enough, or not the ledger's.
            _ => low = middle,
        }
    }
    Ok(Revision(low))
}

/// When the newest part of the journal at or before a revision was recorded; 0 if there is none.
///
/// # Errors
/// The store failed.
pub fn recorded_at(view: View<'_>, revision: Revision) -> Result<Stamp, StoreError> {
    Ok(last_journal(view, revision)?.map_or(Stamp(0), |(_, stamp)| stamp))
}

/// Revision and stamp of the newest part of the journal at or before a revision.
fn last_journal(view: View<'_>, at: Revision) -> Result<Option<(Revision, Stamp)>, StoreError> {
    let (from, _) = record::keyspace(JOURNAL);
    let to = journal::journal_key(at.next(), 0);
    let Some(pair) = view.scan(&from, &to, Order::Descending).next() else { return Ok(None) };
    let (key, value) = pair?;
    let (revision, _) = journal::decode_journal_key(&key)?;
    Ok(Some((revision, journal_stamp(&value)?)))
}

fn journal_stamp(value: &Bytes) -> Result<Stamp, StoreError> {
    let mut reader = Reader::new(&value[..], "journal");
    let _version_and_kind = reader.array::<2>()?;
    Ok(Stamp(reader.varint()?))
}

/// The store keys `from..to` of the journal from a revision on, to watch.
pub fn journal_range(from: Revision) -> (Bytes, Bytes) {
    let to = record::keyspace(JOURNAL).1;
    (Bytes::copy_from_slice(&journal::journal_key(from, 0)), Bytes::copy_from_slice(&to))
}

/// The journal from a revision and part on, in order, lazily.
pub fn entries<'a>(
    view: View<'a>,
    from: (Revision, u16),
) -> impl Iterator<Item = Result<(Revision, u16, Journal), StoreError>> + 'a {
    let (first, to) = (journal::journal_key(from.0, from.1), record::keyspace(JOURNAL).1);
    view.scan(&first, &to, Order::Ascending).map(|pair| {
        let (key, value) = pair?;
        let (revision, part) = journal::decode_journal_key(&key)?;
        Ok((revision, part, journal::decode_journal(&key, &value)?))
    })
}

/// The transfer at a position of a revision.
///
/// # Errors
/// The store failed.
pub fn entry_at(view: View<'_>, revision: Revision, position: u32) -> Result<Option<Entry>, StoreError> {
    let part = part_of(view, revision, position)?;
    Ok(part.map(|part| part.entry(position)).transpose()?.flatten())
}

fn part_of(view: View<'_>, revision: Revision, position: u32) -> Result<Option<Part>, StoreError> {
    let Ok(part) = u16::try_from(position / PART_TRANSFERS) else { return Ok(None) };
    let key = journal::journal_key(revision, part);
    Ok(view.get(&key)?.map(|value| Part::open(&key, value)).transpose()?.flatten())
}

/// A transfer by its id.
///
/// # Errors
/// The store failed.
pub fn transfer(view: View<'_>, id: u128) -> Result<Option<TransferView>, StoreError> {
    let Some(location) = view.get(&record::id_key(IDS, id))? else { return Ok(None) };
    let Location::At(revision, position) = record::decode_location(&location)? else { return Ok(None) };
    let Some(entry) = entry_at(view, revision, position)? else { return Ok(None) };
    view_of(view, entry).map(Some)
}

/// A transfer of the journal with its present state.
pub(super) fn view_of(view: View<'_>, entry: Entry) -> Result<TransferView, StoreError> {
    let transfer = entry.transfer();
    let state = match entry.code {
        Code::Ok if matches!(transfer.kind, Kind::Pending { .. }) => {
            let record = view.get(&record::id_key(PENDING, transfer.id))?;
            let missing = || StoreError::new("read a pending transfer", "its state is missing");
            let pending = PendingRecord::decode(&record.ok_or_else(missing)?)?;
            TransferState::Pending(pending.state, Stamp(pending.deadline), pending.ended)
        }
        Code::Ok => TransferState::Done,
        code => TransferState::Refused(code),
    };
    let moved =
        state == TransferState::Done && matches!(transfer.kind, Kind::Single { .. } | Kind::Post { .. });
    let reverted_by = if moved { reverted_by(view, transfer.id)? } else { None };
    Ok(TransferView { entry, state, reverted_by })
}

/// The transfer that reverted the one with this id.
pub(super) fn reverted_by(view: View<'_>, id: u128) -> Result<Option<u128>, StoreError> {
    let revert = view.get(&record::id_key(REVERTS, id))?;
    Ok(revert.map(|revert| record::decode_id(&revert)).transpose()?)
}

/// An account's balances right after one of its transfers.
pub(super) fn balances_after(
    view: View<'_>,
    account: u128,
    revision: Revision,
) -> Result<Vec<(u32, Balances)>, StoreError> {
    let history = latest_history(view, account, revision)?;
    let gone = || StoreError::new("read an account's history", "a recorded transfer is missing");
    let (_, history) = history.filter(|(found, _)| *found == revision).ok_or_else(gone)?;
    let mut lines = Lines::default();
    lines.add(view, account, revision, &history)?;
    Ok(lines.items.into_iter().map(|line| (line.entry.position, line.balances)).collect())
}

/// Up to `limit` lines of an account's statement, newest first, beginning before the transfer at `before` (or
/// at the newest), down to revision `since`.
///
/// # Errors
/// The store failed.
pub fn statement(
    view: View<'_>,
    account: u128,
    before: Option<(Revision, u32)>,
    since: Revision,
    limit: usize,
) -> Result<Page<Line>, StoreError> {
    let (newest, below) = before.unwrap_or((Revision(u64::MAX - 1), 0));
    let from = record::history_key(account, since);
    let to = record::history_key(account, Revision(newest.0.saturating_add(1)));
    let mut lines = Lines::default();
    for pair in view.scan(&from, &to, Order::Descending) {
        let (key, value) = pair?;
        let (revision, history) = (record::key_revision(&key), record::decode_history(&value)?);
        lines.add(view, account, revision, &history)?;
        if Some(revision) == before.map(|(revision, _)| revision) {
            lines.items.retain(|line| line.entry.position < below);
        }
        if lines.items.len() > limit {
            break;
        }
    }
    let more = lines.items.len() > limit;
    lines.items.truncate(limit);
    Ok(Page { items: lines.items, more })
}

#[derive(Default)]
struct Lines {
    items: Vec<Line>,
    /// The part that was read last.
    part: Option<Part>,
}

impl Lines {
    /// Adds the lines of one history record, newest first.
    fn add(
        &mut self,
        view: View<'_>,
        account: u128,
        revision: Revision,
        history: &HistoryRecord,
    ) -> Result<(), StoreError> {
        let mut balances = history.balances;
        for position in history.positions.iter().rev() {
            let entry = self.entry(view, revision, *position)?;
            let before = balances.before(account, &entry);
            self.items.push(Line { entry, balances: std::mem::replace(&mut balances, before) });
        }
        Ok(())
    }

    fn entry(&mut self, view: View<'_>, revision: Revision, position: u32) -> Result<Entry, StoreError> {
        if self.part.as_ref().is_none_or(|part| !part.covers(revision, position)) {
            self.part = part_of(view, revision, position)?;
        }
        let entry = self.part.as_ref().map(|part| part.entry(position)).transpose()?.flatten();
        entry.ok_or_else(|| StoreError::new("read the journal", "a recorded transfer is missing"))
    }
}

/// An account without its balances.
pub(super) fn read_account(view: View<'_>, id: u128) -> Result<Option<AccountRecord>, StoreError> {
    let record = view.get(&record::id_key(record::ACCOUNTS, id))?;
    record.map(decode_account).transpose()
}

pub(super) fn decode_account(record: Bytes) -> Result<AccountRecord, StoreError> {
    AccountRecord::decode(record).map_err(|error| StoreError::new("decode an account", error))
}

/// The newest record of an account's history at or before revision `at`.
pub(super) fn latest_history(
    view: View<'_>,
    id: u128,
    at: Revision,
) -> Result<Option<(Revision, HistoryRecord)>, StoreError> {
    let from = record::id_key(HISTORY, id);
    let to = match at.0.checked_add(1) {
        Some(next) => record::history_key(id, Revision(next)).to_vec(),
        None => prefix_end(&from),
    };
    let newest = view.scan(&from, &to, Order::Descending).next().transpose()?;
    newest.map(|(key, value)| Ok((record::key_revision(&key), record::decode_history(&value)?))).transpose()
}

/// Every history record of an account, oldest first, for tests that compare all of it.
#[cfg(test)]
pub(super) fn histories(view: View<'_>, account: u128) -> Vec<(Revision, HistoryRecord)> {
    let prefix = record::id_key(record::HISTORY, account);
    let read = |pair: Result<(Bytes, Bytes), StoreError>| {
        let (key, value) = pair.unwrap();
        (record::key_revision(&key), record::decode_history(&value).unwrap())
    };
    view.scan_prefix(&prefix, Order::Ascending).map(read).collect()
}
