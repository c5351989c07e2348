//! Writing what a command of transfers did, once per record.
//!
//! **Invariant: Recorded.** Every transfer with a new id goes into the journal with its result, refusals too;
//! nothing else does.
//!
//! **Invariant: Sums.** Every change of balances debits one account and credits another of the same currency
//! by the same amount, so the balances of a currency always sum to zero. Asserted for each command.

use super::code::Code;
use super::currency::Currency;
use super::journal;
use super::record::{self, IDS, PENDING, PendingState};
use super::reply::TransferReply;
use super::run::{Effect, Link, Member, Run, Touch};
use super::transfer::Kind;
use crate::types::{Revision, Stamp};
use bytes::Bytes;

impl Run<'_, '_> {
    /// Adds a transfer with a new id to the journal, and answers it.
    pub(super) fn record(&mut self, (transfer, raw): &Member<'_>, code: Code, effect: Option<Effect>) {
        let position = self.recorded;
        self.recorded += 1;
        if position.is_multiple_of(journal::PART_TRANSFERS) {
            self.parts.push(journal::begin_transfers(self.tx.stamp()));
        }
        let resolution = effect.as_ref().map(|effect| &effect.resolution).filter(|_| transfer.is_resolved());
        let part = self.parts.last_mut().expect("a part was begun");
        journal::append_transfer(part, code, raw, resolution);
        if !matches!(transfer.kind, Kind::Expired { .. }) {
            self.ids.push((transfer.id, position));
            self.stretch.record(transfer.id, self.tx.stamp());
            if let Some(places) = &mut self.places {
                places.insert(transfer.id, position);
            }
            if let Some(rows) = &mut self.rows {
                rows.note(transfer, position);
            }
        }
        let mut detail = None;
        if let Some(effect) = effect {
            for place in [effect.debit, effect.credit] {
                let touch = &mut self.touched[self.hot.get(place).touch as usize];
                let link = Link { position, previous: touch.link };
                touch.link = u32::try_from(self.links.len()).expect("a command is bounded");
                self.links.push(link);
            }
            detail = effect.detail;
        }
        self.reply_of.push(u32::try_from(self.replies.len()).expect("a command is bounded"));
        let (revision, stamp) = (self.tx.next_revision(), self.tx.stamp());
        self.replies.push(TransferReply { code, duplicate: false, revision, position, stamp, detail });
    }

    /// Writes the command's effects and returns the replies in the order of the transfers.
    pub(super) fn finish(mut self) -> Vec<TransferReply> {
        if self.recorded == self.first {
            return self.replies;
        }
        self.assert_sums();
        let revision = self.tx.next_revision();
        for (number, part) in std::mem::take(&mut self.parts).into_iter().enumerate() {
            let number = u16::try_from(number).expect("a command is bounded");
            // The one that was left to accounts.
            if part.is_empty() {
                continue;
            }
            self.tx
                .change(Bytes::copy_from_slice(&journal::journal_key(revision, number)), Some(part.into()));
        }
        // In key order, which the store takes fastest.
        self.ids.sort_unstable();
        for (id, position) in &self.ids {
            self.tx.put(&record::id_key(IDS, *id), record::encode_location(revision, *position));
        }
        self.write_histories(revision);
        self.write_pendings();
        self.write_reverts();
        self.write_import();
        self.write_references();
        if let Some(rows) = &self.rows {
            rows.write(self.tx, revision);
        }
        self.replies
    }

    fn write_histories(&mut self, revision: Revision) {
        // In key order, which the store takes fastest.
        let mut order: Vec<(u128, usize)> =
            self.touched.iter().enumerate().map(|(place, touch)| (touch.id, place)).collect();
        order.sort_unstable();
        let (stamp, mut positions) = (self.tx.stamp(), Vec::new());
        for (id, place) in order {
            let touch = &self.touched[place];
            positions.clear();
            let mut link = touch.link;
            while let Some(Link { position, previous }) = self.links.get(link as usize) {
                positions.push(*position);
                link = *previous;
            }
            // Only groups that were undone touched it.
            if positions.is_empty() {
                continue;
            }
            positions.reverse();
            let slot = self.hot.get(touch.place);
            let record = record::encode_history(stamp, &slot.balances(), &positions, slot.closed);
            self.tx.put(&record::history_key(id, revision), record);
        }
    }

    fn write_pendings(&mut self) {
        for (id, pending) in &self.pendings {
            self.tx.put(&record::id_key(PENDING, *id), pending.encode());
            let (deadline, subject) = (Stamp(pending.deadline), id.to_be_bytes());
            match pending.state {
                _ if pending.deadline == 0 => {}
                PendingState::Open => self.expiries.add(self.tx, deadline, &subject),
                _ => self.expiries.remove(self.tx, deadline, &subject),
            }
        }
    }

    /// The balances of each currency summed to zero before the command, so they must after it.
    fn assert_sums(&self) {
        let mut sums: Vec<(Currency, u128, u128)> = Vec::new();
        for Touch { place, before, .. } in &self.touched {
            let slot = self.hot.get(*place);
            let after = slot.balances();
            let grown = |after: u128, before: u128| after.wrapping_sub(before);
            let posted = grown(after.credits_posted, before.credits_posted)
                .wrapping_sub(grown(after.debits_posted, before.debits_posted));
            let pending = grown(after.credits_pending, before.credits_pending)
                .wrapping_sub(grown(after.debits_pending, before.debits_pending));
            let sum = match sums.iter_mut().find(|(currency, ..)| *currency == slot.currency()) {
                Some(sum) => sum,
                None => {
                    sums.push((slot.currency(), 0, 0));
                    sums.last_mut().expect("just pushed")
                }
            };
            sum.1 = sum.1.wrapping_add(posted);
            sum.2 = sum.2.wrapping_add(pending);
        }
        for (currency, posted, pending) in sums {
            assert_eq!((posted, pending), (0, 0), "the balances in {currency} no longer sum to zero");
        }
    }
}
