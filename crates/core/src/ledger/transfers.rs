//! A command of transfers: judged one after the other, in order, in memory; written once when the command
//! ends.
//!
//! Reading order: [`Run::group`] and [`Run::attempt`] here, [`Run::answer_known`] in `known.rs`,
//! [`Run::record`] and [`Run::finish`] in `recording.rs`.
//!
//! **Invariant: All or none.** Either every transfer of a linked group takes effect or none does: the effects
//! of a group are undone before its refusal is recorded.

use super::balancing;
use super::code::Code;
use super::command::Status;
use super::currency::Currency;
use super::journal::{Entry, Resolution};
use super::options::Options;
use super::record::{self, Balances, Closing, PENDING, PendingRecord, PendingState};
use super::reply::Detail;
use super::run::{Effect, Member, NO_LINK, Run, Touch};
use super::transfer::{Kind, Transfer};
use crate::store::StoreError;
use crate::types::Revision;

pub(super) type Verdict = Result<Effect, Code>;

impl Run<'_, '_> {
    /// Judges a linked group, or a single transfer, and records the result.
    pub(super) fn group(&mut self, members: &[Member<'_>]) -> Result<(), StoreError> {
        if self.answer_known(members)? {
            return Ok(());
        }
        self.begin_group();
        let mut effects = Vec::with_capacity(members.len());
        for (place, (transfer, _)) in members.iter().enumerate() {
            let verdict = match self.reference_is_taken(transfer)? {
                true => Err(Code::ReferenceTaken),
                false => self.attempt(transfer)?,
            };
            match verdict {
                Ok(effect) => {
                    self.take_reference(transfer);
                    effects.push(effect);
                }
                Err(code) => {
                    self.roll_back();
                    for (other, member) in members.iter().enumerate() {
                        let code = if other == place { code } else { Code::LinkedFailed };
                        self.record(member, code, None);
                    }
                    return Ok(());
                }
            }
        }
        for (member, effect) in members.iter().zip(effects) {
            self.record(member, Code::Ok, Some(effect));
        }
        Ok(())
    }

    /// Does transfers with new ids all or none; nothing is recorded of refused ones.
    pub(super) fn together(
        &mut self,
        members: &[Member<'_>],
    ) -> Result<Result<(), (usize, Code)>, StoreError> {
        self.begin_group();
        let mut effects = Vec::with_capacity(members.len());
        for (place, (transfer, _)) in members.iter().enumerate() {
            let verdict = match self.known(transfer.id)? {
                Some(_) => Err(Code::IdConflict),
                None => self.attempt(transfer)?,
            };
            match verdict {
                Ok(effect) => effects.push(effect),
                Err(code) => {
                    self.roll_back();
                    return Ok(Err((place, code)));
                }
            }
        }
        for (member, effect) in members.iter().zip(effects) {
            self.record(member, Code::Ok, Some(effect));
        }
        Ok(Ok(()))
    }

    /// Records that a pending transfer expired.
    pub(super) fn expired(&mut self, member: &Member<'_>) -> Result<(), StoreError> {
        match self.attempt(&member.0)? {
            Ok(effect) => self.record(member, Code::Ok, Some(effect)),
            Err(code) => {
                unreachable!("an entry of the expiry index leads to an open transfer, not to {code:?}")
            }
        }
        Ok(())
    }

    // Judging.

    fn attempt(&mut self, transfer: &Transfer<'_>) -> Result<Verdict, StoreError> {
        if transfer.times.imported
            && let Err(code) = self.import(transfer)?
        {
            return Ok(Err(code));
        }
        match transfer.kind {
            Kind::Single { debit, credit, amount } => self.movement(transfer, debit, credit, amount, false),
            Kind::Pending { debit, credit, amount, timeout_ms } => {
                let Options { closing_debit, closing_credit, .. } = transfer.options;
                let closing = Closing { debit: closing_debit, credit: closing_credit };
                // All money in the currency passes through it.
                if closing_debit && record::is_reserved(debit)
                    || closing_credit && record::is_reserved(credit)
                {
                    return Ok(Err(Code::ClosingReserved));
                }
                let verdict = self.movement(transfer, debit, credit, amount, true)?;
                if let Ok(Effect { resolution: Resolution { amount, .. }, .. }) = verdict {
                    let stamp = self.tx.stamp().0;
                    let deadline = if timeout_ms == 0 { 0 } else { stamp.saturating_add(timeout_ms) };
                    let state = PendingState::Open;
                    let ended = Revision(0);
                    let record = PendingRecord { state, debit, credit, amount, deadline, ended, closing };
                    self.set_closed(debit, credit, closing, true)?;
                    self.set_pending(transfer.id, record);
                }
                Ok(verdict)
            }
            Kind::Post { pending, amount } => self.resolve(transfer, pending, PendingState::Posted, amount),
            Kind::Void { pending } => self.resolve(transfer, pending, PendingState::Voided, None),
            Kind::Revert { reverted } => self.revert(transfer, reverted),
            Kind::Expired { pending } => self.resolve(transfer, pending, PendingState::Expired, None),
        }
    }

    /// Judges the movement of an amount, at once or when it is posted.
    pub(super) fn movement(
        &mut self,
        transfer: &Transfer<'_>,
        debit: u128,
        credit: u128,
        amount: u128,
        pending: bool,
    ) -> Result<Verdict, StoreError> {
        if debit == credit {
            return Ok(Err(Code::SameAccount));
        }
        let options = transfer.options;
        if amount == 0 && !options.is_balancing() && !options.is_closing() {
            return Ok(Err(Code::ZeroAmount));
        }
        let Some(from) = self.account(debit)? else { return Ok(Err(Code::DebitUnknown)) };
        let Some(to) = self.account(credit)? else { return Ok(Err(Code::CreditUnknown)) };
        if let Err(code) = self.check_open(from, to, transfer.currency) {
            return Ok(Err(code));
        }
        let amount = if options.is_balancing() {
            match balancing::amount(options, amount, self.hot.get(from), self.hot.get(to)) {
                Ok(amount) => amount,
                Err(code) => return Ok(Err(code)),
            }
        } else {
            amount
        };
        let (mut giver, mut taker) = (self.hot.get(from).balances(), self.hot.get(to).balances());
        let (debits, credits) = if pending {
            (&mut giver.debits_pending, &mut taker.credits_pending)
        } else {
            (&mut giver.debits_posted, &mut taker.credits_posted)
        };
        let (Some(more_debits), Some(more_credits)) =
            (debits.checked_add(amount), credits.checked_add(amount))
        else {
            return Ok(Err(Code::Overflow));
        };
        (*debits, *credits) = (more_debits, more_credits);
        let Some(spent) = giver.debits_posted.checked_add(giver.debits_pending) else {
            return Ok(Err(Code::Overflow));
        };
        let Some(taken) = taker.credits_posted.checked_add(taker.credits_pending) else {
            return Ok(Err(Code::Overflow));
        };
        if let Some(allowance) = self.hot.get(from).allowance()
            && spent > giver.credits_posted.saturating_add(allowance)
        {
            return Ok(Err(Code::InsufficientFunds));
        }
        if taken > taker.debits_posted.saturating_add(self.hot.get(to).ceiling()) {
            return Ok(Err(Code::MaximumExceeded));
        }
        let resolution = Resolution { debit, credit, amount, pending_amount: 0 };
        // Who asks for a balancing transfer does not know what it moves.
        let wanted = self.details || options.is_balancing();
        Ok(Ok(self.effect(from, to, giver, taker, resolution, wanted)))
    }

    fn check_open(&self, from: u32, to: u32, currency: Option<Currency>) -> Result<(), Code> {
        let (giver, taker) = (self.hot.get(from), self.hot.get(to));
        if giver.currency() != taker.currency() || currency.is_some_and(|named| named != giver.currency()) {
            return Err(Code::CurrencyMismatch);
        }
        if giver.closed {
            return Err(Code::DebitClosed);
        }
        if taker.closed {
            return Err(Code::CreditClosed);
        }
        match (giver.status(), taker.status()) {
            (Status::Active, Status::Active) => Ok(()),
            (Status::Frozen, _) => Err(Code::DebitFrozen),
            (Status::Closed, _) => Err(Code::DebitClosed),
            (_, Status::Frozen) => Err(Code::CreditFrozen),
            (_, Status::Closed) => Err(Code::CreditClosed),
            (Status::Pending, _) => Err(Code::DebitPending),
            (_, Status::Pending) => Err(Code::CreditPending),
        }
    }

    fn resolve(
        &mut self,
        transfer: &Transfer<'_>,
        id: u128,
        state: PendingState,
        amount: Option<u128>,
    ) -> Result<Verdict, StoreError> {
        let Some(pending) = self.pending(id)? else {
            let known = self.known(id)?;
            return Ok(Err(if known.is_some() { self.not_pending(id)? } else { Code::PendingUnknown }));
        };
        let lapsed = pending.deadline != 0 && pending.deadline <= self.tx.stamp().0;
        match pending.state {
            PendingState::Posted => return Ok(Err(Code::AlreadyPosted)),
            PendingState::Voided => return Ok(Err(Code::AlreadyVoided)),
            PendingState::Expired => return Ok(Err(Code::PendingExpired)),
            PendingState::Open if lapsed && state != PendingState::Expired => {
                return Ok(Err(Code::PendingExpired));
            }
            PendingState::Open => {}
        }
        let posting = state == PendingState::Posted;
        let amount = if posting { amount.unwrap_or(pending.amount) } else { 0 };
        if amount > pending.amount {
            return Ok(Err(Code::ExceedsPending));
        }
        let from = self.account(pending.debit)?.expect("accounts are never removed");
        let to = self.account(pending.credit)?.expect("accounts are never removed");
        let currency = transfer.currency.is_some_and(|named| named != self.hot.get(from).currency());
        if currency {
            return Ok(Err(Code::CurrencyMismatch));
        }
        if posting && let Err(code) = self.check_open(from, to, transfer.currency) {
            return Ok(Err(code));
        }
        let (mut giver, mut taker) = (self.hot.get(from).balances(), self.hot.get(to).balances());
        giver.debits_pending -= pending.amount;
        taker.credits_pending -= pending.amount;
        // The pending amount counted against the same bound, so posting it cannot overflow.
        giver.debits_posted += amount;
        taker.credits_posted += amount;
        let (debit, credit, pending_amount) = (pending.debit, pending.credit, pending.amount);
        let closing = pending.closing;
        let ended = self.tx.next_revision();
        self.set_pending(id, PendingRecord { state, ended, ..pending });
        let resolution = Resolution { debit, credit, amount, pending_amount };
        let effect = self.effect(from, to, giver, taker, resolution, self.details);
        self.set_closed(debit, credit, closing, false)?;
        Ok(Ok(effect))
    }

    /// Closes accounts, or opens them again. Their balances were set in the same step, so their state before is noted.
    fn set_closed(
        &mut self,
        debit: u128,
        credit: u128,
        closing: Closing,
        closed: bool,
    ) -> Result<(), StoreError> {
        for (id, wanted) in [(debit, closing.debit), (credit, closing.credit)] {
            if wanted {
                let place = self.account(id)?.expect("accounts are never removed");
                self.hot.get_mut(place).closed = closed;
            }
        }
        Ok(())
    }

    fn not_pending(&mut self, id: u128) -> Result<Code, StoreError> {
        let entry = self.entry_of(id)?;
        let refused = |entry: &Entry| matches!(entry.transfer().kind, Kind::Pending { .. });
        Ok(if entry.as_ref().is_none_or(refused) { Code::PendingUnknown } else { Code::NotPending })
    }

    fn pending(&self, id: u128) -> Result<Option<PendingRecord>, StoreError> {
        if let Some(pending) = self.pendings.get(&id) {
            return Ok(Some(*pending));
        }
        let record = self.tx.get(&record::id_key(PENDING, id))?;
        Ok(record.map(|record| PendingRecord::decode(&record)).transpose()?)
    }

    fn set_pending(&mut self, id: u128, record: PendingRecord) {
        let before = self.pendings.insert(id, record);
        self.undo_pendings.push((id, before));
    }

    /// Sets the new balances, so that the next transfer sees them; they are told too, if `wanted`.
    fn effect(
        &mut self,
        from: u32,
        to: u32,
        giver: Balances,
        taker: Balances,
        resolution: Resolution,
        wanted: bool,
    ) -> Effect {
        for (place, balances) in [(from, giver), (to, taker)] {
            let slot = self.hot.get_mut(place);
            let before = slot.balances();
            if self.touched.get(slot.touch as usize).is_none_or(|touch| touch.place != place) {
                slot.touch = u32::try_from(self.touched.len()).expect("a command is bounded");
                self.touched.push(Touch { place, id: slot.id(), before, link: NO_LINK });
            }
            self.undo.push((place, before, slot.closed));
            slot.set_balances(&balances);
        }
        let slot = self.hot.get(from);
        let (currency, scale) = (slot.currency(), slot.scale());
        let detail =
            wanted.then(|| Box::new(Detail { resolution, currency, scale, debit: giver, credit: taker }));
        Effect { debit: from, credit: to, resolution, detail }
    }

    fn begin_group(&mut self) {
        self.group += 1;
        self.undo.clear();
        self.undo_pendings.clear();
        self.undo_reverts.clear();
        self.undo_imported_ms = None;
        self.undo_references.clear();
    }

    fn roll_back(&mut self) {
        for (place, balances, closed) in self.undo.drain(..).rev() {
            let slot = self.hot.get_mut(place);
            slot.set_balances(&balances);
            slot.closed = closed;
        }
        if let Some(before) = self.undo_imported_ms.take() {
            self.imported_ms = Some(before);
        }
        for (id, before) in self.undo_pendings.drain(..).rev() {
            match before {
                Some(record) => self.pendings.insert(id, record),
                None => self.pendings.remove(&id),
            };
        }
        for reverted in self.undo_reverts.drain(..) {
            self.reverts.remove(&reverted);
        }
        for reference in self.undo_references.drain(..) {
            self.references.remove(&reference);
        }
    }
}
