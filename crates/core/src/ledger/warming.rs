//! Reading accounts into the cache before transfers ask for them, while nothing else is to be done: after a start all
//! accounts are cold, and reading them one by one in random order costs many times what reading them in order does.
//!
//! **Invariant: Derived (memory).** It only adds what [`Hot::find`] would have read at the same moment, and evicts
//! nothing: it ends once the cache is full.

use super::hot::Hot;
use super::query::latest_history;
use super::record::{self, ACCOUNTS, AccountRecord, HISTORY, HistoryRecord};
use crate::store::{Order, StoreError, View};
use crate::types::Revision;
use prost::Message;

/// Accounts that one step reads: about a millisecond of work, for which a command may have to wait.
const STEP: usize = 256;
/// Records of one account's history that are passed over; beyond them, its newest one is looked for.
const PASSED_MAX: usize = 64;

/// How far it has come.
#[derive(Debug, Default)]
pub(super) struct Warming {
    /// All accounts up to this id have been read.
    after: u128,
    done: bool,
}

impl Warming {
    /// Reads some accounts; false once there is nothing left to do.
    pub(super) fn step(&mut self, view: View<'_>, hot: &mut Hot) -> Result<bool, StoreError> {
        if self.done || hot.is_full() {
            self.done = true;
            return Ok(false);
        }
        // Ids are never 0, nor the largest: those are not UUIDs.
        let from = record::id_key(ACCOUNTS, self.after.saturating_add(1));
        let mut accounts = Vec::with_capacity(STEP);
        for pair in view.scan(&from, &record::keyspace(ACCOUNTS).1, Order::Ascending).take(STEP) {
            let (key, value) = pair?;
            accounts.push((record::decode_id(&key[2..])?, value));
        }
        let (Some((first, _)), Some((last, _))) = (accounts.first(), accounts.last()) else {
            self.done = true;
            return Ok(false);
        };
        let mut histories = Histories::new(view, *first, *last);
        for (id, value) in &accounts {
            if hot.holds(*id) || hot.is_full() {
                continue;
            }
            let newest = histories.newest_of(*id)?;
            let account = AccountRecord::decode(&value[..])
                .map_err(|error| StoreError::new("read an account", error))?;
            hot.read(&account, newest, view.sequence().0);
        }
        self.after = *last;
        Ok(true)
    }
}

/// The histories of a range of accounts, read in order.
struct Histories<'a> {
    view: View<'a>,
    last: u128,
    rows: std::iter::Peekable<crate::store::Scan<'a>>,
}

impl<'a> Histories<'a> {
    fn new(view: View<'a>, first: u128, last: u128) -> Self {
        let to = record::history_key(last, Revision(u64::MAX));
        let rows = view.scan(&record::id_key(HISTORY, first), &to, Order::Ascending).peekable();
        Self { view, last, rows }
    }

    /// The newest record of an account, which must be above those asked for before.
    fn newest_of(&mut self, id: u128) -> Result<Option<HistoryRecord>, StoreError> {
        let (mut newest, mut passed) = (None, 0);
        while let Some(row) = self.rows.peek() {
            let owner = match row {
                Ok((key, _)) => record::decode_id(&key[2..18])?,
                Err(_) => id,
            };
            if owner > id {
                break;
            }
            let Some((_, value)) = self.rows.next().transpose()? else { break };
            if owner < id {
                continue;
            }
            newest = Some(value);
            passed += 1;
            if passed > PASSED_MAX {
                *self = Self::new(self.view, id.saturating_add(1), self.last);
                return Ok(latest_history(self.view, id, Revision(u64::MAX))?.map(|(_, history)| history));
            }
        }
        Ok(newest.map(|value| record::decode_history(&value)).transpose()?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, NewAccount, Operation, Rule, Transfer, Transfers};
    use super::*;
    use crate::store::spied::{Spied, Spy};
    use crate::{Batch, Command, Machines, Reply, Stamp, Term};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// Counts the accounts that are read.
    #[derive(Default)]
    struct Accounts(AtomicUsize);

    impl Spy for Accounts {
        fn before_get(&self, key: &[u8]) {
            self.0.fetch_add(usize::from(key.starts_with(&record::keyspace(ACCOUNTS).0)), Relaxed);
        }
    }

    #[derive(Default)]
    struct Replica {
        store: Spied<Accounts>,
        machines: Option<Machines>,
    }

    impl Replica {
        fn machines(&mut self) -> &mut Machines {
            self.machines.get_or_insert_with(|| Machines::open(&self.store).unwrap())
        }

        fn apply(&mut self, command: Command) -> Reply {
            let index = self.machines().progress().index.next();
            let batch = Batch::encode(Stamp(index.0), &[command]);
            let Self { store, machines } = self;
            let machines = machines.as_mut().unwrap();
            machines.apply(store, index, Term(1), batch).unwrap().replies.remove(0)
        }

        fn warm(&mut self) -> bool {
            self.machines();
            self.machines.as_mut().unwrap().warm(&self.store).unwrap()
        }
    }

    fn transfer(id: u128, credit: u128, balances: bool) -> Command {
        let mut transfers = Transfers::new(balances);
        transfers.push(&Transfer::new(id, Kind::Single { debit: 1, credit, amount: id }));
        transfers.into_command()
    }

    /// After a start each account was read when a transfer asked for it. Here one has more history than is passed over,
    /// some have a little, most have none; one is made while the others are read.
    #[test]
    fn warm_accounts_are_as_others_and_are_not_read_again() {
        let (mut warm, mut other) = (Replica::default(), Replica::default());
        let ids: Vec<u128> = (1..1800).step_by(3).collect();
        let create = |ids: &[u128]| {
            let new = |id: &u128| {
                let rule = Rule::Unlimited.into();
                NewAccount { currency: "EUR".into(), rule, ..NewAccount::default() }.with_id(*id)
            };
            Operation::create_accounts(ids.iter().map(new).collect()).into_command()
        };
        let few = (1..=300).map(|id| transfer(10_000 + id, ids[id as usize % 50 + 2], false));
        let many = (1..=100).map(|id| transfer(20_000 + id, ids[1], false));
        for command in [create(&ids)].into_iter().chain(few).chain(many) {
            assert_eq!(warm.apply(command.clone()), other.apply(command));
        }
        warm.machines = None;
        assert!(warm.warm());
        for command in [create(&[2, 5]), transfer(30_000, 5, false), transfer(30_001, 1702, false)] {
            assert_eq!(warm.apply(command.clone()), other.apply(command));
        }
        while warm.warm() {}
        let before = warm.store.spy.0.load(Relaxed);
        for (number, id) in ids.iter().chain(&[2, 5]).skip(1).enumerate() {
            let command = transfer(40_000 + number as u128, *id, true);
            assert_eq!(warm.apply(command.clone()), other.apply(command), "account {id}");
        }
        assert_eq!(warm.store.spy.0.load(Relaxed), before);
    }
}
