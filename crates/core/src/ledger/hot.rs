//! A cache of accounts, so that transfers between cached ones read nothing.
//!
//! **Invariant: Derived (memory).** Forgetting any of it costs only time. Within a command it is ahead of the
//! store, to which every touched account is written once, when the command ends. Bounded in bytes;
//! a full cache evicts by the clock algorithm.
//!
//! An account takes 80 bytes and its place in a hash table, because ledgers have millions of them: balances are the low
//! halves of their numbers, and what few accounts have (limits of their own, balances beyond 64 bits) is apart.

use super::command::Status;
use super::currency::Currency;
use super::query::{latest_history, read_account};
use super::record::{AccountRecord, Balances, HistoryRecord};
use crate::store::{StoreError, View};
use crate::types::Revision;
use foldhash::quality::RandomState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

/// The bound unless another is set: about ten million accounts.
const BYTES_MAX: usize = 1 << 30;
/// A slot, and its share of the tables.
const ACCOUNT_BYTES: usize = 96;
/// A command touches fewer accounts than this, all of which stay until it ends.
const ACCOUNTS_MIN: usize = 1 << 16;
/// Slots that are allocated together, so that growing moves none.
const CHUNK: usize = 1 << 14;
/// Tables of places, each small enough to grow within a millisecond.
const TABLES: usize = 1 << 10;

/// What judging a transfer needs to know of an account.
#[derive(Debug)]
pub(super) struct Slot {
    id: u128,
    /// The low halves of the balances.
    low: [u64; 4],
    beyond: Option<Box<Beyond>>,
    currency: Currency,
    /// Where the command that runs may have noted that it touched the account, see `run.rs`.
    pub(super) touch: u32,
    /// The last command that used it, by the low half of its sequence.
    used: u32,
    scale: u8,
    status: Status,
    /// A pending transfer has closed it.
    pub(super) closed: bool,
    /// It may not go below zero; for accounts without limits of their own.
    no_overdraft: bool,
    /// Used since the clock's hand passed last.
    recent: bool,
}

/// What few accounts have.
#[derive(Debug)]
struct Beyond {
    /// The high halves of the balances.
    high: [u64; 4],
    limits: Option<Limits>,
}

/// Limits that not every account has.
#[derive(Clone, Copy, Debug)]
struct Limits {
    allowance: Option<u128>,
    ceiling: u128,
}

impl Slot {
    fn new(account: &AccountRecord, balances: Balances, closed: bool, now: u64) -> Self {
        let mut slot = Self {
            id: account.id(),
            low: [0; 4],
            beyond: None,
            currency: account.currency(),
            touch: 0,
            used: now as u32,
            scale: u8::try_from(account.scale).expect("scales are small"),
            status: account.status(),
            closed,
            no_overdraft: false,
            recent: true,
        };
        slot.set_limits(account);
        slot.set_balances(&balances);
        slot
    }

    pub(super) fn id(&self) -> u128 {
        self.id
    }

    pub(super) fn currency(&self) -> Currency {
        self.currency
    }

    pub(super) fn scale(&self) -> u8 {
        self.scale
    }

    pub(super) fn status(&self) -> Status {
        self.status
    }

    pub(super) fn balances(&self) -> Balances {
        let high = self.beyond.as_ref().map_or([0; 4], |beyond| beyond.high);
        let number = |place: usize| u128::from(high[place]) << 64 | u128::from(self.low[place]);
        Balances {
            debits_posted: number(0),
            credits_posted: number(1),
            debits_pending: number(2),
            credits_pending: number(3),
        }
    }

    pub(super) fn set_balances(&mut self, balances: &Balances) {
        let Balances { debits_posted, credits_posted, debits_pending, credits_pending } = *balances;
        let numbers = [debits_posted, credits_posted, debits_pending, credits_pending];
        self.low = numbers.map(|number| number as u64);
        let high = numbers.map(|number| (number >> 64) as u64);
        match &mut self.beyond {
            Some(beyond) => beyond.high = high,
            None if high == [0; 4] => {}
            beyond => *beyond = Some(Box::new(Beyond { high, limits: None })),
        }
    }

    /// How far it may go below zero; `None` if there is no bound.
    pub(super) fn allowance(&self) -> Option<u128> {
        match self.limits() {
            Some(limits) => limits.allowance,
            None => self.no_overdraft.then_some(0),
        }
    }

    /// How much it may hold, pending credits counted; `u128::MAX` if there is no bound.
    pub(super) fn ceiling(&self) -> u128 {
        self.limits().map_or(u128::MAX, |limits| limits.ceiling)
    }

    fn limits(&self) -> Option<Limits> {
        self.beyond.as_ref()?.limits
    }

    fn set_limits(&mut self, account: &AccountRecord) {
        let (allowance, ceiling) = (account.allowance(), account.ceiling());
        self.no_overdraft = allowance == Some(0);
        let plain = ceiling == u128::MAX && allowance.is_none_or(|most| most == 0);
        let limits = (!plain).then_some(Limits { allowance, ceiling });
        match &mut self.beyond {
            Some(beyond) => beyond.limits = limits,
            None if plain => {}
            beyond => *beyond = Some(Box::new(Beyond { high: [0; 4], limits })),
        }
    }
}

/// The cache.
#[derive(Debug)]
pub(super) struct Hot {
    chunks: Vec<Vec<Slot>>,
    /// Maximum number of slots.
    most: usize,
    places: Places,
    hand: usize,
}

impl Default for Hot {
    fn default() -> Self {
        Self { chunks: Vec::new(), most: accounts_in(BYTES_MAX), places: Places::default(), hand: 0 }
    }
}

/// How many accounts fit in so many bytes.
fn accounts_in(bytes: usize) -> usize {
    (bytes / ACCOUNT_BYTES).clamp(ACCOUNTS_MIN, u32::MAX as usize)
}

impl Hot {
    /// Bounds the cache, which has never held anything.
    pub(super) fn set_bytes_max(&mut self, bytes: usize) {
        self.most = accounts_in(bytes);
    }

    /// The account's place, after reading it if need be; `None` if it does not exist. It keeps this place at
    /// least until the command with sequence `now` ends.
    pub(super) fn find(&mut self, view: View<'_>, id: u128, now: u64) -> Result<Option<u32>, StoreError> {
        if let Some(place) = self.places.get(id, &self.chunks) {
            let slot = self.get_mut(place);
            slot.used = now as u32;
            slot.recent = true;
            return Ok(Some(place));
        }
        let Some(account) = read_account(view, id)? else { return Ok(None) };
        let newest = latest_history(view, id, Revision(u64::MAX))?.map(|(_, history)| history);
        Ok(Some(self.read(&account, newest, now)))
    }

    /// Adds an account that was read, with the newest record of its history, and that is not there yet.
    pub(super) fn read(&mut self, account: &AccountRecord, newest: Option<HistoryRecord>, now: u64) -> u32 {
        let (balances, closed) =
            newest.map_or_else(Default::default, |newest| (newest.balances, newest.closed));
        self.insert(Slot::new(account, balances, closed, now), now)
    }

    /// As [`Self::read`], of an account that nobody has asked for: it is the first to go.
    pub(super) fn warm(&mut self, account: &AccountRecord, newest: Option<HistoryRecord>, now: u64) {
        let place = self.read(account, newest, now);
        self.get_mut(place).recent = false;
    }

    /// Whether the account is there.
    pub(super) fn holds(&self, id: u128) -> bool {
        self.places.get(id, &self.chunks).is_some()
    }

    /// Whether another account takes the place of one that is there.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.most
    }

    pub(super) fn get(&self, place: u32) -> &Slot {
        slot(&self.chunks, place)
    }

    pub(super) fn get_mut(&mut self, place: u32) -> &mut Slot {
        &mut self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }

    /// Adds an account that was just created and has no history.
    pub(super) fn created(&mut self, account: &AccountRecord, now: u64) {
        self.insert(Slot::new(account, Balances::default(), false, now), now);
    }

    /// Forgets an account that was not created after all.
    pub(super) fn forget(&mut self, id: u128) {
        if let Some(place) = self.places.remove(id, &self.chunks) {
            // No account has this id, so that nothing else is forgotten when the place is given away.
            self.get_mut(place).id = 0;
        }
    }

    /// Takes over changes to an account's record.
    pub(super) fn changed(&mut self, account: &AccountRecord) {
        if let Some(place) = self.places.get(account.id(), &self.chunks) {
            let slot = self.get_mut(place);
            slot.set_limits(account);
            slot.status = account.status();
        }
    }

    fn insert(&mut self, new: Slot, now: u64) -> u32 {
        let place = if self.is_full() {
            let place = self.make_room(now);
            self.places.remove(self.get(place).id, &self.chunks);
            *self.get_mut(place) = new;
            place
        } else {
            let place = self.len();
            if place.is_multiple_of(CHUNK) {
                self.chunks.push(Vec::with_capacity(CHUNK));
            }
            self.chunks[place / CHUNK].push(new);
            place as u32
        };
        self.places.insert(place, &self.chunks);
        place
    }

    fn len(&self) -> usize {
        self.chunks.split_last().map_or(0, |(last, full)| full.len() * CHUNK + last.len())
    }

    fn make_room(&mut self, now: u64) -> u32 {
        loop {
            self.hand = (self.hand + 1) % self.len();
            let place = self.hand as u32;
            let slot = self.get_mut(place);
            // A command touches fewer accounts than there is room for, so the hand finds one.
            if slot.used != now as u32 && !std::mem::take(&mut slot.recent) {
                return place;
            }
        }
    }
}

fn slot(chunks: &[Vec<Slot>], place: u32) -> &Slot {
    &chunks[place as usize / CHUNK][place as usize % CHUNK]
}

/// The places of the cached accounts by their ids, which are in the slots.
#[derive(Debug)]
struct Places {
    hasher: RandomState,
    tables: Box<[HashTable<u32>]>,
}

impl Default for Places {
    fn default() -> Self {
        Self { hasher: RandomState::default(), tables: (0..TABLES).map(|_| HashTable::new()).collect() }
    }
}

impl Places {
    fn get(&self, id: u128, chunks: &[Vec<Slot>]) -> Option<u32> {
        let hash = self.hasher.hash_one(id);
        self.tables[table_of(hash)].find(hash, |place| slot(chunks, *place).id == id).copied()
    }

    /// Adds the account in this place, which is not there yet.
    fn insert(&mut self, place: u32, chunks: &[Vec<Slot>]) {
        let hasher = &self.hasher;
        let hash_of = |place: &u32| hasher.hash_one(slot(chunks, *place).id);
        let hash = hash_of(&place);
        self.tables[table_of(hash)].insert_unique(hash, place, hash_of);
    }

    fn remove(&mut self, id: u128, chunks: &[Vec<Slot>]) -> Option<u32> {
        let hash = self.hasher.hash_one(id);
        let entry = self.tables[table_of(hash)].find_entry(hash, |place| slot(chunks, *place).id == id);
        entry.ok().map(|entry| entry.remove().0)
    }
}

/// The tables use the lowest and the highest bits themselves.
fn table_of(hash: u64) -> usize {
    (hash >> 32) as usize % TABLES
}

#[cfg(test)]
mod tests {
    use super::super::{NewAccount, Rule};
    use super::*;
    use crate::store::MemoryStore;
    use crate::types::Sequence;

    fn record(id: u128, new: NewAccount) -> AccountRecord {
        let origin = NewAccount { currency: "EUR".into(), ..new }.with_id(id);
        AccountRecord { origin, scale: 2, ..AccountRecord::default() }
    }

    #[test]
    fn a_slot_is_small_and_holds_every_balance_and_limit() {
        assert_eq!(size_of::<Slot>(), 80);
        let limited = NewAccount { rule: Rule::Limit.into(), maximum: Some(7.into()), ..Default::default() };
        let balances = Balances {
            debits_posted: u128::MAX,
            credits_posted: 1 << 64,
            debits_pending: 3,
            credits_pending: u128::from(u64::MAX),
        };
        for (new, allowance, ceiling) in [
            (NewAccount { rule: Rule::NoOverdraft.into(), ..Default::default() }, Some(0), u128::MAX),
            (NewAccount { rule: Rule::Unlimited.into(), ..Default::default() }, None, u128::MAX),
            (limited.with_limit(1 << 90), Some(1 << 90), 7),
        ] {
            let mut slot = Slot::new(&record(1, new), Balances::default(), false, 1);
            assert_eq!((slot.allowance(), slot.ceiling()), (allowance, ceiling));
            for balances in [balances, Balances::default(), balances] {
                slot.set_balances(&balances);
                assert_eq!(slot.balances(), balances);
                assert_eq!((slot.allowance(), slot.ceiling()), (allowance, ceiling));
            }
            slot.set_limits(&record(1, NewAccount { rule: Rule::Unlimited.into(), ..Default::default() }));
            assert_eq!((slot.balances(), slot.allowance(), slot.ceiling()), (balances, None, u128::MAX));
        }
    }

    /// More accounts than there is room for: the cache stays within its bound, forgets none that the command has used,
    /// and finds each of those that it kept.
    #[test]
    fn a_full_cache_forgets_what_was_not_used_lately() {
        let mut hot = Hot::default();
        hot.set_bytes_max(0);
        let most = ACCOUNTS_MIN as u128;
        let store = MemoryStore::new();
        let view = View::new(&store, Sequence(1));
        (1..=most).for_each(|id| hot.created(&record(id, NewAccount::default()), 1));
        assert!(hot.find(view, 5, 2).unwrap().is_some());
        (most + 1..most + 1000).for_each(|id| hot.created(&record(id, NewAccount::default()), 2));
        assert_eq!(hot.len() as u128, most);
        let mut kept = 0;
        for id in 1..most + 1000 {
            if let Some(place) = hot.find(view, id, 3).unwrap() {
                assert_eq!(hot.get(place).id(), id);
                kept += 1;
            }
        }
        assert_eq!(kept, most);
        assert!(hot.find(view, 5, 3).unwrap().is_some());
        hot.forget(5);
        assert!(hot.find(view, 5, 3).unwrap().is_none());
    }
}
