//! The accounts that transfers touched last, in memory, so that a transfer between them reads nothing.
//!
//! Derived from the store: forgetting any of it changes nothing but time. Within a command it is ahead of the store,
//! which gets every touched account once, when the command ends. Bounded by [`ACCOUNTS_MAX`]; when it is full, an
//! account that was not used since the clock's hand came by last makes room.

use super::currency::Currency;
use super::record::{self, AccountRecord, Balances, HISTORY, HistoryRecord, Status};
use crate::store::{Order, StoreError, View};
use crate::types::Revision;
use prost::Message;
use std::collections::HashMap;

/// Accounts in memory at most: about 250 MB.
const ACCOUNTS_MAX: usize = 1 << 20;
/// No transfer of this command touched the account yet.
pub(super) const NO_LINK: u32 = u32::MAX;

/// What judging a transfer needs of an account.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) id: u128,
    pub(super) balances: Balances,
    /// As they were before the command that touched it last.
    pub(super) before: Balances,
    /// How far it may go below zero; `None` for without bound.
    pub(super) allowance: Option<u128>,
    pub(super) currency: Currency,
    pub(super) scale: u8,
    pub(super) status: Status,
    /// The newest link to a transfer of the command, see `transfers.rs`.
    pub(super) link: u32,
    /// The sequence of the command that changed it last.
    pub(super) touched: u64,
    /// The sequence of the command that looked at it last.
    used: u64,
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
    /// Where the account is, having been read if it was not there; `None` where it does not exist. It stays at this
    /// place at least until the command with sequence `now` ends.
    pub(super) fn find(&mut self, view: View<'_>, id: u128, now: u64) -> Result<Option<u32>, StoreError> {
        if let Some(place) = self.places.get(&id) {
            let slot = &mut self.slots[*place as usize];
            slot.used = now;
            slot.recent = true;
            return Ok(Some(*place));
        }
        let Some(account) = read_account(view, id)? else { return Ok(None) };
        let balances = latest_history(view, id, Revision(u64::MAX))?.map(|(_, history)| history.balances);
        Ok(Some(self.insert(&account, balances.unwrap_or_default(), now)))
    }

    pub(super) fn get(&self, place: u32) -> &Slot {
        &self.slots[place as usize]
    }

    pub(super) fn get_mut(&mut self, place: u32) -> &mut Slot {
        &mut self.slots[place as usize]
    }

    /// An account that was just made: it has no history to be read.
    pub(super) fn created(&mut self, account: &AccountRecord, now: u64) {
        self.insert(account, Balances::default(), now);
    }

    /// An account's record has changed.
    pub(super) fn changed(&mut self, account: &AccountRecord) {
        if let Some(place) = self.places.get(&account.id()) {
            let slot = &mut self.slots[*place as usize];
            slot.allowance = account.allowance();
            slot.status = account.status();
        }
    }

    fn insert(&mut self, account: &AccountRecord, balances: Balances, now: u64) -> u32 {
        let slot = Slot {
            id: account.id(),
            balances,
            before: balances,
            allowance: account.allowance(),
            currency: account.currency(),
            scale: u8::try_from(account.scale).expect("scales are small"),
            status: account.status(),
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
            // A command touches fewer accounts than there is room for, so the hand comes to rest.
            if slot.used != now && !std::mem::take(&mut slot.recent) {
                return self.hand;
            }
        }
    }
}

/// The stored record of an account.
pub(super) fn read_account(view: View<'_>, id: u128) -> Result<Option<AccountRecord>, StoreError> {
    let record = view.get(&record::id_key(record::ACCOUNTS, id))?;
    record.map(decode_account).transpose()
}

pub(super) fn decode_account(record: bytes::Bytes) -> Result<AccountRecord, StoreError> {
    AccountRecord::decode(record).map_err(|error| StoreError::new("decode an account", error))
}

/// The newest record of an account's history at or before a revision.
pub(super) fn latest_history(
    view: View<'_>,
    id: u128,
    at: Revision,
) -> Result<Option<(Revision, HistoryRecord)>, StoreError> {
    let from = record::id_key(HISTORY, id);
    let to = match at.0.checked_add(1) {
        Some(next) => record::history_key(id, Revision(next)).to_vec(),
        None => crate::store::prefix_end(&from),
    };
    let newest = view.scan(&from, &to, Order::Descending).next().transpose()?;
    newest.map(|(key, value)| Ok((history_revision(&key), record::decode_history(&value)?))).transpose()
}

pub(super) fn history_revision(key: &[u8]) -> Revision {
    let tail = key.last_chunk().expect("history keys end with a revision");
    Revision(u64::from_be_bytes(*tail))
}
