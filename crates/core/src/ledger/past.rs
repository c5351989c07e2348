//! Accounts as they were: status, limit and texts at a past revision.
//!
//! An account's record is the present one. How it was is in the journal, in the parts of the revisions that changed it,
//! and an index says which those are. As it was created it can be told from the present record.
//!
//! Versions before this one kept no index. What they changed is found by reading the journal backwards, which takes
//! long where the journal is; the next change of such an account begins its index.

use super::journal::{self, JOURNAL, Journal};
use super::record::{self, AccountRecord, CHANGES};
use crate::store::{Order, StoreError, View};
use crate::types::Revision;

/// An account's record as of a revision, given the present one; `None` if it did not exist.
pub(super) fn record_at(
    view: View<'_>,
    now: AccountRecord,
    at: Revision,
) -> Result<Option<AccountRecord>, StoreError> {
    if at.0 < now.created_revision {
        return Ok(None);
    }
    if at.0 >= now.changed_revision {
        return Ok(Some(now));
    }
    let id = now.id();
    let found = match indexed_change(view, id, at)? {
        Some(revision) => changed_at(view, id, revision)?,
        None if now.indexed_from > 0 && now.indexed_from <= at.0 => None,
        None => unindexed_change(view, id, Revision(now.created_revision), at)?,
    };
    Ok(Some(found.unwrap_or_else(|| now.original())))
}

/// The newest revision up to `at` that changed the account, by the index.
fn indexed_change(view: View<'_>, id: u128, at: Revision) -> Result<Option<Revision>, StoreError> {
    let (from, to) = (record::id_key(CHANGES, id), record::change_key(id, at.next()));
    let newest = view.scan(&from, &to, Order::Descending).next().transpose()?;
    Ok(newest.map(|(key, _)| record::key_revision(&key)))
}

/// The account as a revision left it, which changed it.
fn changed_at(view: View<'_>, id: u128, revision: Revision) -> Result<Option<AccountRecord>, StoreError> {
    let key = journal::journal_key(revision, 0);
    let part = view.get(&key)?.map(|value| journal::decode_journal(&key, &value)).transpose()?;
    let found = part.and_then(|part| of_part(part, id));
    // What the index names is in the journal, which forgets nothing.
    found.map(Some).ok_or_else(|| StoreError::new("read the journal", "a change of an account is missing"))
}

/// The account as the newest revision in `after + 1 ..= at` left it that changed it, by the journal.
fn unindexed_change(
    view: View<'_>,
    id: u128,
    after: Revision,
    at: Revision,
) -> Result<Option<AccountRecord>, StoreError> {
    let (from, to) = (journal::journal_key(after.next(), 0), journal::journal_key(at.next(), 0));
    debug_assert_eq!(from[1], JOURNAL);
    for pair in view.scan(&from, &to, Order::Descending) {
        let (key, value) = pair?;
        if journal::holds_accounts(&value)
            && let Some(found) = of_part(journal::decode_journal(&key, &value)?, id)
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn of_part(part: Journal, id: u128) -> Option<AccountRecord> {
    match part {
        Journal::Accounts(_, _, accounts) => accounts.into_iter().find(|account| account.id() == id),
        Journal::Transfers(_) | Journal::Currency(..) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NewAccount, Operation, Status, UpdateAccount, account_at};
    use super::*;
    use crate::store::{MemoryStore, Store};
    use crate::{Batch, Machines, Stamp, Term};
    use bytes::Bytes;
    use prost::Message;

    fn apply(store: &MemoryStore, operation: Operation) {
        let mut machines = Machines::open(store).unwrap();
        let index = machines.progress().index.next();
        machines.apply(store, index, Term(1), Batch::encode(Stamp(1), &[operation.into_command()])).unwrap();
    }

    fn change(store: &MemoryStore, id: u128, status: Status, user_data: &str) {
        let (status, user_data) = (Some(status.into()), Some(user_data.to_owned()));
        apply(store, Operation::UpdateAccount(UpdateAccount { status, user_data, ..UpdateAccount::of(id) }));
    }

    /// The account at each revision: whether it is frozen, its text, and the revision that made it so.
    fn all(store: &MemoryStore, id: u128) -> Vec<Option<(Status, String, u64)>> {
        let progress = Machines::open(store).unwrap().progress();
        let at = |at| {
            let found = account_at(View::new(store, progress.sequence), id, Revision(at)).unwrap();
            let record = found.map(|found| found.record);
            record.map(|record| (record.status(), record.present().user_data, record.changed_revision))
        };
        (0..=progress.revision.0 + 1).map(at).collect()
    }

    /// Makes the store one of the version before the index: account 1 was last changed by that.
    fn forget_index(store: &MemoryStore) {
        let sequence = Machines::open(store).unwrap().progress().sequence;
        let view = View::new(store, sequence);
        let (from, to) = record::keyspace(CHANGES);
        let rows: Vec<_> = view.scan(&from, &to, Order::Ascending).map(|pair| pair.unwrap().0).collect();
        rows.iter().for_each(|key| store.delete(key, sequence));
        let key = record::id_key(record::ACCOUNTS, 1);
        let account = AccountRecord::decode(view.get(&key).unwrap().unwrap()).unwrap();
        let account = AccountRecord { indexed_from: 0, ..account };
        store.put(&key, Bytes::from(account.encode_to_vec()), sequence);
    }

    /// The past had the status, the limit and the texts of today, and accounts before they existed.
    #[test]
    fn an_account_is_shown_as_it_was_whichever_version_changed_it() {
        let store = MemoryStore::new();
        let account = |id| {
            let new = NewAccount { currency: "EUR".into(), user_data: "new".into(), ..NewAccount::default() };
            Operation::create_accounts(vec![new.with_id(id)])
        };
        apply(&store, account(1));
        apply(&store, account(2));
        change(&store, 1, Status::Frozen, "a");
        change(&store, 2, Status::Frozen, "other");
        change(&store, 1, Status::Active, "b");
        let was = |status, text: &str, revision| Some((status, text.to_owned(), revision));
        let new = was(Status::Active, "new", 2);
        let (a, b) = (was(Status::Frozen, "a", 4), was(Status::Active, "b", 6));
        let expected = [None, None, new.clone(), new, a.clone(), a, b.clone(), b.clone()];
        assert_eq!(all(&store, 1), expected);
        forget_index(&store);
        assert_eq!(all(&store, 1), expected);
        change(&store, 1, Status::Frozen, "c");
        let c = was(Status::Frozen, "c", 7);
        assert_eq!(all(&store, 1), [&expected[..7], &[c.clone(), c]].concat());
    }
}
