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

/// Accounts that one step reads at most.
const STEP: usize = 256;
/// Records of histories after which a step ends: with as many accounts about a millisecond of work, for which a command
/// may have to wait.
const ROWS_MAX: usize = 1024;
/// Records of histories that are passed over in a row before the place that is wanted is looked for.
const PASSED_MAX: usize = 64;

/// How far it has come.
#[derive(Debug, Default)]
pub(super) struct Warming {
    /// All accounts below this id have been read.
    next: u128,
    done: bool,
}

impl Warming {
    /// Reads some accounts; false once there is nothing left to do. An account that cannot be read is none of this: who
    /// needs it will find out.
    pub(super) fn step(&mut self, view: View<'_>, hot: &mut Hot) -> bool {
        if !self.done && self.read(view, hot).is_err() {
            self.done = true;
        }
        !self.done
    }

    fn read(&mut self, view: View<'_>, hot: &mut Hot) -> Result<(), StoreError> {
        let from = record::id_key(ACCOUNTS, self.next);
        let mut accounts = Vec::with_capacity(STEP);
        for pair in view.scan(&from, &record::keyspace(ACCOUNTS).1, Order::Ascending).take(STEP) {
            let (key, value) = pair?;
            accounts.push((record::decode_id(&key[2..])?, value));
        }
        self.done = accounts.len() < STEP;
        let Some(((first, _), (last, _))) = accounts.first().zip(accounts.last()) else { return Ok(()) };
        let mut histories = Histories::new(view, *first, *last);
        for (id, value) in &accounts {
            if hot.is_full() {
                self.done = true;
                return Ok(());
            }
            if histories.rows_read > ROWS_MAX {
                self.done = false;
                return Ok(());
            }
            if !hot.holds(*id) {
                let newest = histories.newest_of(*id)?;
                let account = AccountRecord::decode(&value[..])
                    .map_err(|error| StoreError::new("read an account", error))?;
                hot.warm(&account, newest, view.sequence().0);
            }
            match id.checked_add(1) {
                Some(next) => self.next = next,
                None => self.done = true,
            }
        }
        Ok(())
    }
}

/// The histories of a range of accounts, read in order.
struct Histories<'a> {
    view: View<'a>,
    last: u128,
    rows: std::iter::Peekable<crate::store::Scan<'a>>,
    rows_read: usize,
}

impl<'a> Histories<'a> {
    fn new(view: View<'a>, first: u128, last: u128) -> Self {
        Self { view, last, rows: scan(view, first, last), rows_read: 0 }
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
            // A long history, its own or that of an account that is not wanted.
            if passed == PASSED_MAX {
                let next = id.saturating_add(1);
                self.rows = scan(self.view, next, self.last.max(next));
                return Ok(latest_history(self.view, id, Revision(u64::MAX))?.map(|(_, history)| history));
            }
            let Some((_, value)) = self.rows.next().transpose()? else { break };
            (passed, self.rows_read) = (passed + 1, self.rows_read + 1);
            if owner == id {
                newest = Some(value);
            }
        }
        Ok(newest.map(|value| record::decode_history(&value)).transpose()?)
    }
}

fn scan(view: View<'_>, first: u128, last: u128) -> std::iter::Peekable<crate::store::Scan<'_>> {
    let to = record::history_key(last, Revision(u64::MAX));
    view.scan(&record::id_key(HISTORY, first), &to, Order::Ascending).peekable()
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, NewAccount, Operation, Rule, Transfer, Transfers};
    use super::*;
    use crate::store::Scan;
    use crate::store::spied::{Spied, Spy};
    use crate::{Batch, Command, Machines, Reply, Stamp, Term};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

    /// Counts the accounts that are looked up, and the records of history that are passed; can refuse to read accounts in
    /// order.
    #[derive(Default)]
    struct Reads {
        accounts: AtomicUsize,
        histories: AtomicUsize,
        broken: AtomicBool,
    }

    impl Spy for Reads {
        fn before_get(&self, key: &[u8]) {
            self.accounts.fetch_add(usize::from(key.starts_with(&record::keyspace(ACCOUNTS).0)), Relaxed);
        }

        fn instead_of_scan<'a>(&'a self, from: &[u8], _to: &[u8]) -> Option<Scan<'a>> {
            let breaks = self.broken.load(Relaxed) && from.starts_with(&record::keyspace(ACCOUNTS).0);
            breaks.then(|| -> Scan<'a> {
                Box::new(std::iter::once(Err(StoreError::new("read", "a bad block"))))
            })
        }

        fn scanned(&self, key: &[u8]) {
            self.histories.fetch_add(usize::from(key.starts_with(&record::keyspace(HISTORY).0)), Relaxed);
        }
    }

    #[derive(Default)]
    struct Replica {
        store: Spied<Reads>,
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
            self.machines.as_mut().unwrap().warm(&self.store)
        }
    }

    fn create(ids: &[u128]) -> Command {
        let new = |id: &u128| {
            let rule = Rule::Unlimited.into();
            NewAccount { currency: "EUR".into(), rule, ..NewAccount::default() }.with_id(*id)
        };
        Operation::create_accounts(ids.iter().map(new).collect()).into_command()
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
        let before = warm.store.spy.accounts.load(Relaxed);
        for (number, id) in ids.iter().chain(&[2, 5]).skip(1).enumerate() {
            let command = transfer(40_000 + number as u128, *id, true);
            assert_eq!(warm.apply(command.clone()), other.apply(command), "account {id}");
        }
        assert_eq!(warm.store.spy.accounts.load(Relaxed), before);
    }
    /// The account with the largest id was read again and again: a node without work took a core, and did not stop.
    #[test]
    fn the_largest_id_ends_it() {
        let mut replica = Replica::default();
        replica.apply(create(&[1, u128::MAX]));
        replica.machines = None;
        assert!((0..10).any(|_| !replica.warm()));
        let mut many = Replica::default();
        let ids: Vec<u128> = (0..STEP as u128 - 1).map(|less| u128::MAX - less).collect();
        // With the currency's world account, just as many as a step reads.
        many.apply(create(&ids));
        many.machines = None;
        assert!((0..10).any(|_| !many.warm()));
    }

    /// The history of an account that was in memory already was read whole, ten million records in one step.
    #[test]
    fn a_long_history_that_is_not_wanted_is_not_read() {
        let mut replica = Replica::default();
        replica.apply(create(&[1, 2, 3]));
        for id in 0..3000 {
            replica.apply(transfer(10_000 + id, 2, false));
        }
        replica.machines = None;
        replica.apply(transfer(20_000, 2, false));
        replica.store.spy.histories.store(0, Relaxed);
        while replica.warm() {}
        let read = replica.store.spy.histories.load(Relaxed);
        assert!(read < 500, "{read} records were read");
    }

    /// A bad block in an account that nobody used stopped the node, at every start.
    #[test]
    fn what_cannot_be_read_ends_it_and_nothing_else() {
        let mut replica = Replica::default();
        replica.apply(create(&[1, 2]));
        replica.machines = None;
        replica.store.spy.broken.store(true, Relaxed);
        assert!(!replica.warm());
        replica.apply(transfer(10, 2, false));
    }
}
