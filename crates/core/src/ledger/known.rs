//! Ids that were used before: their first answer again.
//!
//! **Invariant: Idempotence.** A transfer's id is recorded with its result in the same step as its effect,
//! and kept forever: the same id with the same content gets the first answer again, with other content a
//! conflict.

use super::code::Code;
use super::journal::{self, Entry, Journal, PART_TRANSFERS};
use super::query;
use super::record::{self, IDS, Location};
use super::reply::{Detail, TransferReply};
use super::run::{Known, Member, Run};
use super::transfer::Transfer;

use crate::store::StoreError;
use crate::types::{Revision, Stamp};
use bytes::Bytes;
use std::collections::BTreeSet;

impl Run<'_, '_> {
    /// Answers a group if some of its ids are known; otherwise returns false.
    pub(super) fn answer_known(&mut self, members: &[Member<'_>]) -> Result<bool, StoreError> {
        let mut known = Vec::new();
        for (transfer, _) in members {
            known.extend(self.known(transfer.id)?);
        }
        let twice = members.len() > 1 && {
            let ids: BTreeSet<u128> = members.iter().map(|(transfer, _)| transfer.id).collect();
            ids.len() < members.len()
        };
        if known.is_empty() && !twice {
            return Ok(false);
        }
        let mut replies = Vec::new();
        if known.len() == members.len() && !twice {
            for ((transfer, _), known) in members.iter().zip(&known) {
                replies.extend(self.first_answer(transfer, *known)?);
            }
        }
        // Some ids are new, or have other content: this is not the group of the first time.
        if replies.len() < members.len() {
            replies = vec![conflict(); members.len()];
        }
        self.replies.append(&mut replies);
        Ok(true)
    }

    pub(super) fn known(&mut self, id: u128) -> Result<Option<Known>, StoreError> {
        if self.recorded == self.first {
            self.stretch.reopen(self.tx.view())?;
        }
        if self.stretch.holds(id) {
            return Ok(None);
        }
        let places = self.places.get_or_insert_with(|| self.ids.iter().copied().collect());
        if let Some(position) = places.get(&id) {
            return Ok(Some(Known::Here(*position)));
        }
        let Some(location) = self.tx.get(&record::id_key(IDS, id))? else { return Ok(None) };
        Ok(Some(match record::decode_location(&location)? {
            Location::At(revision, position) => Known::Stored(revision, position),
            Location::Key { .. } => Known::Key,
        }))
    }

    /// The id's first answer; `None` if its content was different.
    fn first_answer(
        &mut self,
        transfer: &Transfer<'_>,
        known: Known,
    ) -> Result<Option<TransferReply>, StoreError> {
        match known {
            Known::Here(position) => {
                let entry = self.entry_here(position)?;
                let first = &self.replies[self.reply_of[position as usize] as usize];
                let same = entry.transfer().same_content(transfer);
                Ok(same.then(|| TransferReply { duplicate: true, ..first.clone() }))
            }
            Known::Key => Ok(None),
            Known::Stored(revision, position) => {
                let entry = query::entry_at(self.tx.view(), revision, position)?;
                let entry = entry
                    .ok_or_else(|| StoreError::new("read the journal", "a recorded transfer is missing"))?;
                if !entry.transfer().same_content(transfer) {
                    return Ok(None);
                }
                let detail = if self.details || transfer.options.is_balancing() {
                    self.stored_detail(&entry)?
                } else {
                    None
                };
                let Entry { code, stamp, .. } = entry;
                Ok(Some(TransferReply { code, duplicate: true, revision, position, stamp, detail }))
            }
        }
    }

    pub(super) fn entry_here(&self, position: u32) -> Result<Entry, StoreError> {
        let part = position / PART_TRANSFERS;
        let value = Bytes::copy_from_slice(&self.parts[part as usize]);
        let key = journal::journal_key(self.tx.next_revision(), part as u16);
        match journal::decode_journal(&key, &value)? {
            Journal::Transfers(mut entries) => Ok(entries.swap_remove((position % PART_TRANSFERS) as usize)),
            other => unreachable!("this part was begun for transfers, not {other:?}"),
        }
    }

    fn stored_detail(&mut self, entry: &Entry) -> Result<Option<Box<Detail>>, StoreError> {
        let Some(resolution) = entry.effect() else { return Ok(None) };
        let place = self.account(resolution.debit)?.expect("accounts are never removed");
        let (currency, scale) = (self.hot.get(place).currency(), self.hot.get(place).scale());
        let after = |account| query::balances_after(self.tx.view(), account, entry.revision, entry.position);
        let (debit, credit) = (after(resolution.debit)?, after(resolution.credit)?);
        Ok(Some(Box::new(Detail { resolution, currency, scale, debit, credit })))
    }
}

fn conflict() -> TransferReply {
    TransferReply {
        code: Code::IdConflict,
        duplicate: false,
        revision: Revision(0),
        position: 0,
        stamp: Stamp(0),
        detail: None,
    }
}
