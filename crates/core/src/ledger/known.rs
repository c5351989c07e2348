//! Ids that were used before: their first answer again.
//!
//! **Invariant: Idempotence.** A transfer's id is recorded with its result in the same step as its effect,
//! and kept forever: the same id with the same content gets the first answer again, with other content a
//! conflict.

use super::code::Code;
use super::journal::{self, Entry, PART_TRANSFERS};
use super::part::Part;
use super::query;
use super::record::{self, Balances, IDS, Location};
use super::reply::{Detail, TransferReply};
use super::run::{Known, Member, Run};
use super::transfer::Transfer;

use crate::store::StoreError;
use crate::types::{Revision, Stamp};
use bytes::Bytes;
use std::collections::BTreeSet;

/// Maximum lines of histories that are remembered while a command is answered again.
const WALKED_LINES_MAX: usize = 1 << 16;

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
        let entry = Part::open(&key, value)?.map(|part| part.entry(position)).transpose()?.flatten();
        Ok(entry.expect("this part was begun for transfers, and this one is in it"))
    }

    fn stored_detail(&mut self, entry: &Entry) -> Result<Option<Box<Detail>>, StoreError> {
        let Some(resolution) = entry.effect() else { return Ok(None) };
        let place = self.account(resolution.debit)?.expect("accounts are never removed");
        let (currency, scale) = (self.hot.get(place).currency(), self.hot.get(place).scale());
        let debit = self.balances_after(resolution.debit, entry)?;
        let credit = self.balances_after(resolution.credit, entry)?;
        Ok(Some(Box::new(Detail { resolution, currency, scale, debit, credit })))
    }

    /// The balances of an account after a recorded transfer. A batch that is sent again asks for all of a revision, so
    /// those are read once.
    fn balances_after(&mut self, account: u128, entry: &Entry) -> Result<Balances, StoreError> {
        let key = (account, entry.revision);
        if !self.walked.contains_key(&key) {
            let walked = query::balances_after(self.tx.view(), account, entry.revision)?;
            if self.walked_lines + walked.len() > WALKED_LINES_MAX {
                self.walked.clear();
                self.walked_lines = 0;
            }
            self.walked_lines += walked.len();
            self.walked.insert(key, walked);
        }
        let lines = &self.walked[&key];
        // Newest first.
        let place = lines.binary_search_by(|(position, _)| entry.position.cmp(position));
        let gone = |_| StoreError::new("read an account's history", "a recorded transfer is missing");
        place.map(|place| lines[place].1).map_err(gone)
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

#[cfg(test)]
mod tests {
    use super::super::{Kind, NewAccount, Operation, Rule, Transfers};
    use super::*;
    use crate::store::Scan;
    use crate::store::spied::{Spied, Spy};
    use crate::{Batch, Command, Machines, Reply, Term};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// Counts looks into histories.
    #[derive(Default)]
    struct Histories(AtomicUsize);

    impl Spy for Histories {
        fn instead_of_scan<'a>(&'a self, from: &[u8], _to: &[u8]) -> Option<Scan<'a>> {
            self.0.fetch_add(usize::from(from.starts_with(&record::keyspace(record::HISTORY).0)), Relaxed);
            None
        }
    }

    /// Each transfer of a batch that was sent again had all later ones of the batch undone, to tell its balances: ten
    /// seconds for 8,190 transfers from one account, on every replica.
    #[test]
    fn a_batch_that_is_sent_again_reads_each_history_once() {
        let store = Spied::<Histories>::default();
        let mut machines = Machines::open(&store).unwrap();
        let mut apply = |command: Command| {
            let index = machines.progress().index.next();
            let batch = Batch::encode(Stamp(1), &[command]);
            machines.apply(&store, index, Term(1), batch).unwrap().replies.remove(0)
        };
        let new = |id| {
            let rule = Rule::Unlimited.into();
            NewAccount { currency: "EUR".into(), rule, ..NewAccount::default() }.with_id(id)
        };
        apply(Operation::create_accounts((1..=3).map(new).collect()).into_command());
        let batch = || {
            let mut transfers = Transfers::new(true);
            for id in 0..500 {
                let kind = Kind::Single { debit: 1, credit: 2 + id % 2, amount: 1 + id };
                transfers.push(&Transfer::new(1000 + id, kind));
            }
            transfers.into_command()
        };
        let replies = |reply: Reply| match reply {
            Reply::Ledger(super::super::Reply {
                response: super::super::Response::Transfers(replies),
                ..
            }) => replies,
            other => panic!("{other:?}"),
        };
        let first = replies(apply(batch()));
        store.spy.0.store(0, Relaxed);
        let again = replies(apply(batch()));
        assert_eq!(store.spy.0.load(Relaxed), 3);
        for (first, again) in first.into_iter().zip(again) {
            assert!(again.duplicate && first.detail.is_some());
            assert_eq!(again, TransferReply { duplicate: true, ..first });
        }
    }
}
