//! Accounts by their numbers: those that begin with a prefix, and what they hold together.
//!
//! The index of numbers is in their order, so a prefix is a stretch of it.
//!
//! **Invariant: Bounded.** A page ends after [`ACCOUNTS_EXAMINED_MAX`] accounts, and says where the next one goes on.

use super::currency::Currency;
use super::query::{as_of, decode_account, read_account};
use super::record::{self, AccountRecord, Balances};
use super::reply::Account;
use crate::store::{Order, StoreError, View, prefix_end};
use crate::types::Revision;
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;

/// Maximum accounts that are examined for a page.
pub const ACCOUNTS_EXAMINED_MAX: usize = 2000;
/// A page ends after about this many bytes of accounts.
const PAGE_BYTES: usize = 2 << 20;
/// What an account takes in an answer besides its texts, about.
const ITEM_BYTES: usize = 256;
/// Bytes of a key before what tells it from others in its keyspace.
const SPACE_BYTES: usize = 2;

/// Which accounts to find; what is absent does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountFilter {
    /// Their numbers begin like this. If it is empty, accounts without a number are found too.
    pub prefix: String,
    /// They are in this currency.
    pub currency: Option<Currency>,
    /// They have this text now.
    pub user_data: Option<String>,
}

/// A page of accounts: by number if the filter has a prefix, otherwise by id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FoundAccounts {
    /// In their order.
    pub accounts: Vec<Account>,
    /// Where to go on; `None` at the end. There may be more though nothing was found.
    pub next: Option<Bytes>,
}

/// What the accounts of one currency hold together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// The currency's decimal places.
    pub scale: u32,
    /// How many there are.
    pub accounts: u64,
    /// The sums of all their balances.
    pub balances: Balances,
}

/// A page of accounts, added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// By currency.
    pub sums: BTreeMap<Currency, Sum>,
    /// Where to go on; `None` at the end. The sums of all pages are to be added.
    pub next: Option<Bytes>,
}

/// A page of the accounts that `filter` takes and that existed at a revision, after the place `after`.
///
/// # Errors
/// The store failed.
pub fn find_accounts(
    view: View<'_>,
    filter: &AccountFilter,
    at: Revision,
    after: Option<&[u8]>,
    limit: usize,
    examined_max: usize,
) -> Result<FoundAccounts, StoreError> {
    let (mut page, mut bytes, mut last) = (FoundAccounts::default(), 0, None);
    for (examined, place) in places(view, &filter.prefix, after).enumerate() {
        let (place, record) = place?;
        if page.accounts.len() == limit || examined == examined_max || bytes >= PAGE_BYTES {
            page.next = last;
            break;
        }
        last = Some(place);
        let wanted = record.created_revision <= at.0
            && filter.currency.is_none_or(|currency| currency == record.currency())
            && filter.user_data.as_ref().is_none_or(|text| *text == record.present().user_data);
        if wanted {
            bytes += ITEM_BYTES + record.encoded_len();
            page.accounts.extend(as_of(view, record, at)?);
        }
    }
    Ok(page)
}

/// What accounts whose numbers begin with `prefix`, which is not empty, hold together as of a revision: those after the
/// place `after`, up to a bound. `None` if a sum exceeds 128 bits.
///
/// # Errors
/// The store failed.
pub fn sums(
    view: View<'_>,
    prefix: &str,
    at: Revision,
    after: Option<&[u8]>,
    examined_max: usize,
) -> Result<Option<Sums>, StoreError> {
    let (mut page, mut last) = (Sums::default(), None);
    for (examined, place) in places(view, prefix, after).enumerate() {
        let (place, record) = place?;
        if examined == examined_max {
            page.next = last;
            break;
        }
        last = Some(place);
        let Some(account) = as_of(view, record, at)? else { continue };
        let scale = account.record.scale;
        let sum = page.sums.entry(account.record.currency()).or_insert(Sum { scale, ..Sum::default() });
        let Some(balances) = added(&sum.balances, &account.balances) else { return Ok(None) };
        *sum = Sum { scale, accounts: sum.accounts + 1, balances };
    }
    Ok(Some(page))
}

/// The sums of two accounts' balances; `None` if one exceeds 128 bits.
fn added(one: &Balances, other: &Balances) -> Option<Balances> {
    Some(Balances {
        debits_posted: one.debits_posted.checked_add(other.debits_posted)?,
        credits_posted: one.credits_posted.checked_add(other.credits_posted)?,
        debits_pending: one.debits_pending.checked_add(other.debits_pending)?,
        credits_pending: one.credits_pending.checked_add(other.credits_pending)?,
    })
}

/// Accounts, each with its place: by number if there is a prefix, otherwise by id.
fn places<'a>(
    view: View<'a>,
    prefix: &str,
    after: Option<&[u8]>,
) -> impl Iterator<Item = Result<(Bytes, AccountRecord), StoreError>> + 'a {
    let by_number = !prefix.is_empty();
    let (mut from, to) = if by_number {
        let from = record::number_key(prefix);
        let to = prefix_end(&from);
        (from, to)
    } else {
        let (from, to) = record::keyspace(record::ACCOUNTS);
        (from.to_vec(), to.to_vec())
    };
    if let Some(after) = after {
        from = [&from[..SPACE_BYTES], after, &[0]].concat();
    }
    view.scan(&from, &to, Order::Ascending).map(move |pair| {
        let (key, value) = pair?;
        let record = if by_number {
            let missing = || StoreError::new("read an account", "an account that has a number is missing");
            read_account(view, record::decode_id(&value)?)?.ok_or_else(missing)?
        } else {
            decode_account(value)?
        };
        Ok((key.slice(SPACE_BYTES..), record))
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, NewAccount, Operation, Rule, Transfer, Transfers};
    use super::*;
    use crate::store::MemoryStore;
    use crate::{Batch, Machines, Stamp, Term};

    const NEWEST: Revision = Revision(u64::MAX);
    const NUMBERS: [&str; 7] = ["a", "a:1", "a:2", "a:20", "a:3", "b", ""];

    /// Accounts of two currencies, of which each has got its id's cents from the world.
    fn store() -> (MemoryStore, Machines) {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        let mut apply = |command| {
            let index = machines.progress().index.next();
            machines.apply(&store, index, Term(1), Batch::encode(Stamp(1), &[command])).unwrap();
        };
        for (number, id) in NUMBERS.iter().zip(1_u128..) {
            let new = NewAccount {
                number: (*number).into(),
                currency: if id == 3 { "USD" } else { "EUR" }.into(),
                user_data: if id.is_multiple_of(2) { "even" } else { "odd" }.into(),
                rule: Rule::NoOverdraft.into(),
                ..NewAccount::default()
            };
            apply(Operation::create_accounts(vec![new.with_id(id)]).into_command());
            let world = super::super::world_account(if id == 3 { "USD" } else { "EUR" }.parse().unwrap()).0;
            let mut transfers = Transfers::new(false);
            transfers.push(&Transfer::new(100 + id, Kind::Single { debit: world, credit: id, amount: id }));
            apply(transfers.into_command());
        }
        (store, machines)
    }

    #[test]
    fn accounts_are_found_by_prefix_currency_and_text_in_bounded_pages() {
        let (store, machines) = store();
        let view = View::new(&store, machines.progress().sequence);
        let found = |filter: &AccountFilter, limit, examined_max| {
            let (mut ids, mut after, mut pages) = (Vec::new(), None, 0);
            loop {
                let page =
                    find_accounts(view, filter, NEWEST, after.as_deref(), limit, examined_max).unwrap();
                assert!(page.accounts.len() <= limit);
                ids.extend(page.accounts.iter().map(|account| account.record.id() as u64));
                pages += 1;
                after = page.next;
                if after.is_none() {
                    return (ids, pages);
                }
            }
        };
        let filter = |prefix: &str, currency: Option<&str>, text: Option<&str>| AccountFilter {
            prefix: prefix.into(),
            currency: currency.map(|code| code.parse().unwrap()),
            user_data: text.map(Into::into),
        };
        assert_eq!(found(&filter("a:", None, None), 1, 100), (vec![2, 3, 4, 5], 4));
        assert_eq!(found(&filter("a:2", None, None), 9, 1), (vec![3, 4], 2));
        assert_eq!(found(&filter("a:", Some("EUR"), Some("even")), 9, 3), (vec![2, 4], 2));
        assert_eq!(found(&filter("", None, Some("odd")), 2, 100).0, [1, 3, 5, 7]);
        assert_eq!(found(&filter("c", None, None), 2, 100).0, []);
    }

    /// A list as of an early revision read all later accounts for its first page.
    #[test]
    fn a_list_of_the_past_is_bounded_though_all_accounts_are_younger() {
        let (store, machines) = store();
        let view = View::new(&store, machines.progress().sequence);
        let (all, mut after, mut pages) = (AccountFilter::default(), None, 0);
        loop {
            let page = find_accounts(view, &all, Revision(0), after.as_deref(), 10, 2).unwrap();
            assert_eq!(page.accounts, []);
            pages += 1;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        // Two accounts of the world are listed beside them.
        assert_eq!(pages, (NUMBERS.len() + 2).div_ceil(2));
        let early = find_accounts(view, &all, Revision(5), None, 10, 100).unwrap();
        let numbers = early.accounts.iter().map(|found| &found.record.origin.number[..]);
        assert_eq!(numbers.filter(|number| number.starts_with('a')).count(), 2);
    }

    #[test]
    fn sums_of_a_prefix_are_those_of_its_accounts_at_a_revision() {
        let (store, machines) = store();
        let view = View::new(&store, machines.progress().sequence);
        let total = |prefix, at, examined_max| {
            let (mut total, mut after) = (BTreeMap::<String, (u64, u128)>::new(), None);
            loop {
                let page = sums(view, prefix, Revision(at), after.as_deref(), examined_max).unwrap().unwrap();
                for (currency, sum) in page.sums {
                    let all = total.entry(currency.to_string()).or_default();
                    *all = (all.0 + sum.accounts, all.1 + sum.balances.credits_posted);
                }
                after = page.next;
                if after.is_none() {
                    return total
                        .into_iter()
                        .map(|(currency, (accounts, sum))| (currency, accounts, sum))
                        .collect::<Vec<_>>();
                }
            }
        };
        let newest = machines.progress().revision.0;
        let now: Vec<(String, u64, u128)> = vec![("EUR".into(), 3, 2 + 4 + 5), ("USD".into(), 1, 3)];
        for examined_max in [1, 2, 100] {
            assert_eq!(total("a:", newest, examined_max), now);
        }
        // After account 3 was made, before it got something.
        assert_eq!(total("a:", 6, 100), [("EUR".into(), 1, 2), ("USD".into(), 1, 0)]);
        assert_eq!(total("a:", 2, 100), []);
        let most = Balances { credits_pending: u128::MAX, ..Balances::default() };
        assert_eq!((added(&most, &Balances::default()), added(&most, &most)), (Some(most), None));
    }
}
