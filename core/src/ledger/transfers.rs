//! A command of transfers: judged one after the other, in order, in memory; written once when the command ends.
//!
//! Reading order: [`Run::group`], [`Run::attempt`], [`Run::finish`].
//!
//! **Invariant (group).** Either every transfer of a linked group has its effect or none has: what a group did is
//! undone before its refusal is recorded. **Invariant (recorded).** Every transfer with a new id goes into the journal
//! with its result, refusals too; nothing else does.

use super::command::{Kind, Transfer};
use super::currency::Currency;
use super::hot::{Hot, NO_LINK};
use super::query;
use super::record::{
    self, Balances, Entry, IDS, Journal, PART_TRANSFERS, PENDING, PendingRecord, PendingState, Resolution,
    Status,
};
use crate::codec::Malformed;
use crate::store::{StoreError, View};
use crate::tx::Tx;
use crate::types::{Revision, Stamp};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $word:literal, $text:literal;)*) => {
        /// What came of a transfer. The numbers are on disk and on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Code {
            $($(#[$doc])* $name = $number,)*
        }

        impl Code {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its stable name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// What it means.
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }

        impl TryFrom<u8> for Code {
            type Error = Malformed;

            fn try_from(number: u8) -> Result<Self, Malformed> {
                match number {
                    $($number => Ok(Self::$name),)*
                    _ => Err(Malformed { what: "result code" }),
                }
            }
        }
    };
}

codes! {
    /// Done.
    Ok = 0, "ok", "done";
    /// The debit account's rule does not allow it.
    InsufficientFunds = 1, "insufficient_funds", "the debit account has too little, by its rule";
    /// No such account.
    DebitUnknown = 2, "debit_account_unknown", "the debit account does not exist";
    /// No such account.
    CreditUnknown = 3, "credit_account_unknown", "the credit account does not exist";
    /// Frozen.
    DebitFrozen = 4, "debit_account_frozen", "the debit account is frozen";
    /// Frozen.
    CreditFrozen = 5, "credit_account_frozen", "the credit account is frozen";
    /// Closed.
    DebitClosed = 6, "debit_account_closed", "the debit account is closed";
    /// Closed.
    CreditClosed = 7, "credit_account_closed", "the credit account is closed";
    /// Two currencies, or another than the transfer names.
    CurrencyMismatch = 8, "currency_mismatch",
        "the accounts and the transfer are not of one currency; exchange with two linked transfers";
    /// Debit and credit account are the same.
    SameAccount = 9, "same_account", "debit and credit account are the same";
    /// Nothing to move.
    ZeroAmount = 10, "zero_amount", "the amount is zero";
    /// No such pending transfer.
    PendingUnknown = 11, "pending_unknown", "the pending transfer does not exist or was refused";
    /// The transfer named is not a pending one.
    NotPending = 12, "not_pending", "the transfer is not a pending one";
    /// Posted already.
    AlreadyPosted = 13, "already_posted", "the pending transfer was posted already";
    /// Voided already.
    AlreadyVoided = 14, "already_voided", "the pending transfer was voided already";
    /// Its time ran out.
    PendingExpired = 15, "pending_expired", "the pending transfer has expired";
    /// More than was set aside.
    ExceedsPending = 16, "exceeds_pending", "the amount is larger than the pending transfer's";
    /// Another transfer of the group was refused.
    LinkedFailed = 17, "linked_failed", "another transfer of the linked group was refused";
    /// A sum would leave the range.
    Overflow = 18, "overflow", "an account's sum would exceed 2^128 minor units";
    /// The id is taken by another content. Not recorded.
    IdConflict = 19, "id_conflict", "the id was used before with other content";
}

/// What a transfer is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferReply {
    /// What came of it.
    pub code: Code,
    /// The id was known: this is the first answer again.
    pub duplicate: bool,
    /// Where it is recorded; 0 for an id conflict.
    pub revision: Revision,
    /// Its place in that revision.
    pub position: u32,
    /// When it was recorded.
    pub stamp: Stamp,
    /// Accounts and balances, where they were asked for and the transfer was done.
    pub detail: Option<Box<Detail>>,
}

/// What a transfer that was done did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detail {
    /// What it moved.
    pub resolution: Resolution,
    /// The currency of both accounts.
    pub currency: Currency,
    /// Its number of decimal places.
    pub scale: u8,
    /// The debit account's balances after this transfer.
    pub debit: Balances,
    /// The credit account's.
    pub credit: Balances,
}

/// What is known of the recorded ids that grow with time: one that is above all of them is new without a look-up.
/// Others say nothing about each other, and are looked up each.
#[derive(Debug)]
pub(super) struct Ordered {
    /// None of them is above it.
    newest: u128,
    /// The same, as stored: a bound that is raised seldom.
    ceiling: u128,
}

impl Ordered {
    /// What the store knows.
    pub(super) fn open(view: View<'_>) -> Result<Self, StoreError> {
        let ceiling = view.get(record::CEILING_KEY)?;
        let ceiling = ceiling.and_then(|bytes| bytes[..].try_into().ok()).map_or(0, u128::from_be_bytes);
        Ok(Self { newest: ceiling, ceiling })
    }
}

/// A known id's place.
#[derive(Clone, Copy)]
enum Known {
    /// In this command, at this position.
    Here(u32),
    Stored(Revision, u32),
}

/// A transfer that touched an account, and the one before it: a list per account, newest first.
struct Link {
    position: u32,
    previous: u32,
}

/// What a transfer does, if it may.
struct Effect {
    debit: u32,
    credit: u32,
    resolution: Resolution,
    detail: Option<Box<Detail>>,
}

type Verdict = Result<Effect, Code>;

/// One member of a group: decoded, and as it stood in the command.
pub(super) type Member<'c> = (Transfer<'c>, &'c [u8]);

/// A command at work.
pub(super) struct Run<'m, 's> {
    tx: &'m mut Tx<'s>,
    hot: &'m mut Hot,
    /// See [`Ordered`].
    ordered: &'m mut Ordered,
    now: u64,
    details: bool,
    parts: Vec<Vec<u8>>,
    recorded: u32,
    ids: Vec<(u128, u32)>,
    /// `ids` by id; made when the first id comes that is not above all others.
    places: Option<HashMap<u128, u32>>,
    links: Vec<Link>,
    touched: Vec<u32>,
    pendings: BTreeMap<u128, PendingRecord>,
    /// What the group at work has to undo.
    undo: Vec<(u32, Balances)>,
    undo_pendings: Vec<(u128, Option<PendingRecord>)>,
    replies: Vec<TransferReply>,
    /// The reply of each recorded position.
    reply_of: Vec<u32>,
}

impl<'m, 's> Run<'m, 's> {
    pub(super) fn new(
        tx: &'m mut Tx<'s>,
        hot: &'m mut Hot,
        ordered: &'m mut Ordered,
        details: bool,
        count: usize,
    ) -> Self {
        let now = tx.sequence().0;
        Self {
            tx,
            hot,
            ordered,
            now,
            details,
            parts: Vec::with_capacity(count.div_ceil(PART_TRANSFERS as usize)),
            recorded: 0,
            ids: Vec::with_capacity(count),
            places: None,
            links: Vec::with_capacity(2 * count),
            touched: Vec::new(),
            pendings: BTreeMap::new(),
            undo: Vec::new(),
            undo_pendings: Vec::new(),
            replies: Vec::with_capacity(count),
            reply_of: Vec::with_capacity(count),
        }
    }

    /// Judges a linked group, or a transfer alone.
    pub(super) fn group(&mut self, members: &[Member<'_>]) -> Result<(), StoreError> {
        if self.answer_known(members)? {
            return Ok(());
        }
        self.undo.clear();
        self.undo_pendings.clear();
        let mut effects = Vec::with_capacity(members.len());
        for (place, (transfer, _)) in members.iter().enumerate() {
            match self.attempt(transfer)? {
                Ok(effect) => effects.push(effect),
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

    /// Records that a pending transfer's time ran out, if it is still open.
    pub(super) fn expired(&mut self, member: &Member<'_>) -> Result<(), StoreError> {
        match self.attempt(&member.0)? {
            Ok(effect) => self.record(member, Code::Ok, Some(effect)),
            // An index entry without an open transfer says nothing; none is left when a transfer is ended.
            Err(code) => {
                unreachable!("an entry of the expiry index leads to an open transfer, not to {code:?}")
            }
        }
        Ok(())
    }

    // Ids that are known.

    /// Answers a group some of whose ids are known; false where none is.
    fn answer_known(&mut self, members: &[Member<'_>]) -> Result<bool, StoreError> {
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
        // A group of which a part is known, or known as something else, is another group than the first time.
        if replies.len() < members.len() {
            replies = vec![conflict(); members.len()];
        }
        self.replies.append(&mut replies);
        Ok(true)
    }

    fn known(&mut self, id: u128) -> Result<Option<Known>, StoreError> {
        if record::is_ordered(id) && id > self.ordered.newest {
            return Ok(None);
        }
        let places = self.places.get_or_insert_with(|| self.ids.iter().copied().collect());
        if let Some(position) = places.get(&id) {
            return Ok(Some(Known::Here(*position)));
        }
        let Some(location) = self.tx.get(&record::id_key(IDS, id))? else { return Ok(None) };
        let (revision, position) = record::decode_location(&location)?;
        Ok(Some(Known::Stored(revision, position)))
    }

    /// The answer that the id was given first; `None` where its content was another.
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
            Known::Stored(revision, position) => {
                let entry = query::entry_at(self.tx.view(), revision, position)?;
                let entry = entry
                    .ok_or_else(|| StoreError::new("read the journal", "a recorded transfer is gone"))?;
                if !entry.transfer().same_content(transfer) {
                    return Ok(None);
                }
                let detail = if self.details { self.stored_detail(&entry)? } else { None };
                let Entry { code, stamp, .. } = entry;
                Ok(Some(TransferReply { code, duplicate: true, revision, position, stamp, detail }))
            }
        }
    }

    fn entry_here(&self, position: u32) -> Result<Entry, StoreError> {
        let part = position / PART_TRANSFERS;
        let value = Bytes::copy_from_slice(&self.parts[part as usize]);
        let key = record::journal_key(self.tx.next_revision(), part as u16);
        match record::decode_journal(&key, &value)? {
            Journal::Transfers(mut entries) => Ok(entries.swap_remove((position % PART_TRANSFERS) as usize)),
            other => unreachable!("this part was begun for transfers, not {other:?}"),
        }
    }

    fn stored_detail(&mut self, entry: &Entry) -> Result<Option<Box<Detail>>, StoreError> {
        let Some(resolution) = entry.effect() else { return Ok(None) };
        let place = self.account(resolution.debit)?.expect("accounts are never removed");
        let (currency, scale) = (self.hot.get(place).currency, self.hot.get(place).scale);
        let after = |account| query::balances_after(self.tx.view(), account, entry.revision, entry.position);
        let (debit, credit) = (after(resolution.debit)?, after(resolution.credit)?);
        Ok(Some(Box::new(Detail { resolution, currency, scale, debit, credit })))
    }

    // Judging.

    fn account(&mut self, id: u128) -> Result<Option<u32>, StoreError> {
        self.hot.find(self.tx.view(), id, self.now)
    }

    fn attempt(&mut self, transfer: &Transfer<'_>) -> Result<Verdict, StoreError> {
        match transfer.kind {
            Kind::Single { debit, credit, amount } => self.movement(transfer, debit, credit, amount, false),
            Kind::Pending { debit, credit, amount, timeout_ms } => {
                let verdict = self.movement(transfer, debit, credit, amount, true)?;
                if verdict.is_ok() {
                    let stamp = self.tx.stamp().0;
                    let deadline = if timeout_ms == 0 { 0 } else { stamp.saturating_add(timeout_ms) };
                    let state = PendingState::Open;
                    let record = PendingRecord { state, debit, credit, amount, deadline, ended: Revision(0) };
                    self.set_pending(transfer.id, record);
                }
                Ok(verdict)
            }
            Kind::Post { pending, amount } => self.resolve(transfer, pending, PendingState::Posted, amount),
            Kind::Void { pending } => self.resolve(transfer, pending, PendingState::Voided, None),
            Kind::Expired { pending } => self.resolve(transfer, pending, PendingState::Expired, None),
        }
    }

    fn movement(
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
        if amount == 0 {
            return Ok(Err(Code::ZeroAmount));
        }
        let Some(from) = self.account(debit)? else { return Ok(Err(Code::DebitUnknown)) };
        let Some(to) = self.account(credit)? else { return Ok(Err(Code::CreditUnknown)) };
        if let Err(code) = self.check_open(from, to, transfer.currency) {
            return Ok(Err(code));
        }
        let (mut giver, mut taker) = (self.hot.get(from).balances, self.hot.get(to).balances);
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
        if taker.credits_posted.checked_add(taker.credits_pending).is_none() {
            return Ok(Err(Code::Overflow));
        }
        if let Some(allowance) = self.hot.get(from).allowance
            && spent > giver.credits_posted.saturating_add(allowance)
        {
            return Ok(Err(Code::InsufficientFunds));
        }
        let resolution = Resolution { debit, credit, amount, pending_amount: 0 };
        Ok(Ok(self.effect(from, to, giver, taker, resolution)))
    }

    fn check_open(&self, from: u32, to: u32, currency: Option<Currency>) -> Result<(), Code> {
        let (giver, taker) = (self.hot.get(from), self.hot.get(to));
        if giver.currency != taker.currency || currency.is_some_and(|named| named != giver.currency) {
            return Err(Code::CurrencyMismatch);
        }
        match (giver.status, taker.status) {
            (Status::Active, Status::Active) => Ok(()),
            (Status::Frozen, _) => Err(Code::DebitFrozen),
            (Status::Closed, _) => Err(Code::DebitClosed),
            (_, Status::Frozen) => Err(Code::CreditFrozen),
            (_, Status::Closed) => Err(Code::CreditClosed),
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
        let currency = transfer.currency.is_some_and(|named| named != self.hot.get(from).currency);
        if currency {
            return Ok(Err(Code::CurrencyMismatch));
        }
        if posting && let Err(code) = self.check_open(from, to, transfer.currency) {
            return Ok(Err(code));
        }
        let (mut giver, mut taker) = (self.hot.get(from).balances, self.hot.get(to).balances);
        giver.debits_pending -= pending.amount;
        taker.credits_pending -= pending.amount;
        // What was pending counted against the same bound, so its posting cannot overflow.
        giver.debits_posted += amount;
        taker.credits_posted += amount;
        let (debit, credit, pending_amount) = (pending.debit, pending.credit, pending.amount);
        let ended = self.tx.next_revision();
        self.set_pending(id, PendingRecord { state, ended, ..pending });
        let resolution = Resolution { debit, credit, amount, pending_amount };
        Ok(Ok(self.effect(from, to, giver, taker, resolution)))
    }

    fn not_pending(&mut self, id: u128) -> Result<Code, StoreError> {
        let entry = match self.known(id)? {
            Some(Known::Here(position)) => Some(self.entry_here(position)?),
            Some(Known::Stored(revision, position)) => query::entry_at(self.tx.view(), revision, position)?,
            None => None,
        };
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

    /// Puts new balances in place, so that the next transfer of the group sees them.
    fn effect(
        &mut self,
        from: u32,
        to: u32,
        giver: Balances,
        taker: Balances,
        resolution: Resolution,
    ) -> Effect {
        for (place, balances) in [(from, giver), (to, taker)] {
            let (now, slot) = (self.now, self.hot.get_mut(place));
            if slot.touched != now {
                slot.touched = now;
                slot.before = slot.balances;
                slot.link = NO_LINK;
                self.touched.push(place);
            }
            self.undo.push((place, slot.balances));
            slot.balances = balances;
        }
        let slot = self.hot.get(from);
        let (currency, scale) = (slot.currency, slot.scale);
        let detail = self
            .details
            .then(|| Box::new(Detail { resolution, currency, scale, debit: giver, credit: taker }));
        Effect { debit: from, credit: to, resolution, detail }
    }

    fn roll_back(&mut self) {
        for (place, balances) in self.undo.drain(..).rev() {
            self.hot.get_mut(place).balances = balances;
        }
        for (id, before) in self.undo_pendings.drain(..).rev() {
            match before {
                Some(record) => self.pendings.insert(id, record),
                None => self.pendings.remove(&id),
            };
        }
    }

    // Recording.

    fn record(&mut self, (transfer, raw): &Member<'_>, code: Code, effect: Option<Effect>) {
        let position = self.recorded;
        self.recorded += 1;
        if position.is_multiple_of(PART_TRANSFERS) {
            self.parts.push(record::begin_transfers(self.tx.stamp()));
        }
        let moves = matches!(transfer.kind, Kind::Single { .. } | Kind::Pending { .. });
        let resolution = effect.as_ref().map(|effect| &effect.resolution).filter(|_| !moves);
        let part = self.parts.last_mut().expect("a part was begun");
        record::append_transfer(part, code, raw, resolution);
        if !matches!(transfer.kind, Kind::Expired { .. }) {
            self.ids.push((transfer.id, position));
            if record::is_ordered(transfer.id) {
                self.ordered.newest = self.ordered.newest.max(transfer.id);
            }
            if let Some(places) = &mut self.places {
                places.insert(transfer.id, position);
            }
        }
        let mut detail = None;
        if let Some(effect) = effect {
            for place in [effect.debit, effect.credit] {
                let slot = self.hot.get_mut(place);
                let link = Link { position, previous: slot.link };
                slot.link = u32::try_from(self.links.len()).expect("a command is bounded");
                self.links.push(link);
            }
            detail = effect.detail;
        }
        self.reply_of.push(u32::try_from(self.replies.len()).expect("a command is bounded"));
        let (revision, stamp) = (self.tx.next_revision(), self.tx.stamp());
        self.replies.push(TransferReply { code, duplicate: false, revision, position, stamp, detail });
    }

    /// Writes what the command did, once per record, and returns the replies in the order of the transfers; with
    /// the earliest deadline among its new pending transfers.
    pub(super) fn finish(mut self) -> (Vec<TransferReply>, Option<u64>) {
        if self.recorded == 0 {
            return (self.replies, None);
        }
        self.assert_sums();
        let revision = self.tx.next_revision();
        for (number, part) in std::mem::take(&mut self.parts).into_iter().enumerate() {
            let number = u16::try_from(number).expect("a command is bounded");
            self.tx.change(Bytes::copy_from_slice(&record::journal_key(revision, number)), Some(part.into()));
        }
        // In the order of the keys, which the store takes fastest.
        self.ids.sort_unstable();
        for (id, position) in &self.ids {
            self.tx.put(&record::id_key(IDS, *id), record::encode_location(revision, *position));
        }
        if self.ordered.newest > self.ordered.ceiling {
            self.ordered.ceiling = record::ceiling_above(self.ordered.newest);
            self.tx.put(record::CEILING_KEY, Bytes::copy_from_slice(&self.ordered.ceiling.to_be_bytes()));
        }
        self.write_histories(revision);
        let deadline = self.write_pendings();
        (self.replies, deadline)
    }

    fn write_histories(&mut self, revision: Revision) {
        let hot = &*self.hot;
        self.touched.sort_unstable_by_key(|place| hot.get(*place).id);
        let (stamp, mut positions) = (self.tx.stamp(), Vec::new());
        for place in &self.touched {
            let slot = hot.get(*place);
            positions.clear();
            let mut link = slot.link;
            while let Some(Link { position, previous }) = self.links.get(link as usize) {
                positions.push(*position);
                link = *previous;
            }
            // Touched by groups only that were undone.
            if positions.is_empty() {
                continue;
            }
            positions.reverse();
            let record = record::encode_history(stamp, &slot.balances, &positions);
            self.tx.put(&record::history_key(slot.id, revision), record);
        }
    }

    fn write_pendings(&mut self) -> Option<u64> {
        let mut earliest = None;
        for (id, pending) in &self.pendings {
            self.tx.put(&record::id_key(PENDING, *id), pending.encode());
            if pending.deadline == 0 {
                continue;
            }
            let expiry = record::expiry_key(pending.deadline, *id);
            if pending.state == PendingState::Open {
                self.tx.put(&expiry, Bytes::new());
                earliest = Some(earliest.map_or(pending.deadline, |other: u64| other.min(pending.deadline)));
            } else {
                self.tx.delete(&expiry);
            }
        }
        earliest
    }

    /// The balances of each currency summed to zero before the command; so they must after it.
    fn assert_sums(&self) {
        let mut sums: Vec<(Currency, u128, u128)> = Vec::new();
        for place in &self.touched {
            let slot = self.hot.get(*place);
            let (before, after) = (&slot.before, &slot.balances);
            let grown = |after: u128, before: u128| after.wrapping_sub(before);
            let posted = grown(after.credits_posted, before.credits_posted)
                .wrapping_sub(grown(after.debits_posted, before.debits_posted));
            let pending = grown(after.credits_pending, before.credits_pending)
                .wrapping_sub(grown(after.debits_pending, before.debits_pending));
            let sum = match sums.iter_mut().find(|(currency, ..)| *currency == slot.currency) {
                Some(sum) => sum,
                None => {
                    sums.push((slot.currency, 0, 0));
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
