//! A cache of accounts, so that transfers between recently used ones read nothing.
//!
//! **Invariant: Derived (memory).** Forgetting any of it costs only time. Within a command it is ahead of the
//! store, to which every touched account is written once, when the command ends. Bounded by [`ACCOUNTS_MAX`];
//! a full cache evicts by the clock algorithm.

use super::command::Status;
use super::currency::Currency;
use super::query::{latest_history, read_account};
use super::record::{AccountRecord, Balances};
use crate::store::{StoreError, View};
use crate::types::Revision;
use std::collections::HashMap;

/// Maximum accounts in memory: about 250 MB.
const ACCOUNTS_MAX: usize = 1 << 20;
/// No transfer of this command has touched the account.
pub(super) const NO_LINK: u32 = u32::MAX;

/// What judging a transfer needs to know of an account.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) id: u128,
    pub(super) balances: Balances,
    /// The balances before the last command that touched the account.
    pub(super) before: Balances,
    /// How far it may go below zero; `None` if there is no bound.
    pub(super) allowance: Option<u128>,
    /// How much it may hold, pending credits counted; `u128::MAX` if there is no bound.
    pub(super) ceiling: u128,
    pub(super) currency: Currency,
    pub(super) scale: u8,
    pub(super) status: Status,
    /// A pending transfer has closed it.
    pub(super) closed: bool,
    /// The newest of the command's transfers that touched it, see `transfers.rs`.
    pub(super) link: u32,
    /// The sequence of the last command that changed it.
    pub(super) touched: u64,
    /// The sequence of the last command that read it.
    used: u64,
    /// Used since the clock's hand passed last.
    recent: bool,
}

/// The cache.
#[derive(Debug, Default)]
pub(super) struct Hot {
    slots: Vec<Slot>,
    places: HashMap<u128, u32>,
    hand: usize,
}

impl Hot {
    /// The account's place, after reading it if need be; `None` if it does not exist. It keeps this place at
    /// least until the command with sequence `now` ends.
    pub(super) fn find(&mut self, view: View<'_>, id: u128, now: u64) -> Result<Option<u32>, StoreError> {
        if let Some(place) = self.places.get(&id) {
            let slot = &mut self.slots[*place as usize];
            slot.used = now;
            slot.recent = true;
            return Ok(Some(*place));
        }
        let Some(account) = read_account(view, id)? else { return Ok(None) };
        let newest = latest_history(view, id, Revision(u64::MAX))?.map(|(_, history)| history);
        let (balances, closed) =
            newest.map_or_else(Default::default, |newest| (newest.balances, newest.closed));
        Ok(Some(self.insert(&account, balances, closed, now)))
    }

    pub(super) fn get(&self, place: u32) -> &Slot {
        &self.slots[place as usize]
    }

    pub(super) fn get_mut(&mut self, place: u32) -> &mut Slot {
        &mut self.slots[place as usize]
    }

    /// Adds an account that was just created and has no history.
    pub(super) fn created(&mut self, account: &AccountRecord, now: u64) {
        self.insert(account, Balances::default(), false, now);
    }

    /// Forgets an account that was not created after all.
    pub(super) fn forget(&mut self, id: u128) {
        if let Some(place) = self.places.remove(&id) {
            // No account has this id, so that nothing else is forgotten when the place is given away.
            self.slots[place as usize].id = 0;
        }
    }

    /// Takes over changes to an account's record.
    pub(super) fn changed(&mut self, account: &AccountRecord) {
        if let Some(place) = self.places.get(&account.id()) {
            let slot = &mut self.slots[*place as usize];
            slot.allowance = account.allowance();
            slot.ceiling = account.ceiling();
            slot.status = account.status();
        }
    }

    fn insert(&mut self, account: &AccountRecord, balances: Balances, closed: bool, now: u64) -> u32 {
        let slot = Slot {
            id: account.id(),
            balances,
            before: balances,
            allowance: account.allowance(),
            ceiling: account.ceiling(),
            currency: account.currency(),
            scale: u8::try_from(account.scale).expect("scales are small"),
            status: account.status(),
            closed,
            link: NO_LINK,
            touched: 0,
            used: now,
            recent: true,
        };
        let place = if self.slots.len() < ACCOUNTS_MAX {
            self.slots.push(slot);
            self.slots.len() - 1
        } else {
            let place = self.make_room(now);
            self.places.remove(&self.slots[place].id);
            self.slots[place] = slot;
            place
        };
        let place = u32::try_from(place).expect("the cache is bounded below 2^32");
        self.places.insert(account.id(), place);
        place
    }

    fn make_room(&mut self, now: u64) -> usize {
        loop {
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[self.hand];
            // A command touches fewer accounts than there is room for, so the hand finds one.
            if slot.used != now && !std::mem::take(&mut slot.recent) {
                return self.hand;
            }
        }
    }
}
