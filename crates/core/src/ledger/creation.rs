//! Creation of accounts: one by one, or in chains, in which all are created or none is. An account may open with a
//! balance: its first transfer, from its currency's world account, is done with it or neither is.
//!
//! **Invariant: All or none.** A chain is judged before anything of it is written; its opening transfers last, as a group.
//! What they saw in the cache is forgotten if one is refused.
//!
//! An opening transfer has the id of its account. A refused one is not recorded, as nothing is of a refused account.

use super::code::Code;
use super::command::{NewAccount, Rule, Status};
use super::currency::Currency;
use super::journal;
use super::machine::{NUMBER_BYTES_MAX, is_clear, put_new_account};
use super::query::{currency_scale, read_account};
use super::record::{self, AccountRecord, IDS, Location};
use super::reply::{AccountCode, Done};
use super::run::{Member, Run};
use super::transfer::{Kind, Transfer};
use crate::mutants;
use crate::store::StoreError;
use bytes::Bytes;
use std::collections::HashSet;

/// The accounts of one command while they are created.
pub(super) struct Creation<'m, 's> {
    run: Run<'m, 's>,
    made: Vec<AccountRecord>,
    results: Vec<Result<AccountRecord, AccountCode>>,
}

/// The accounts of a chain before one of them: a chain may be as long as a batch.
#[derive(Default)]
struct Before<'a> {
    ids: HashSet<u128>,
    numbers: HashSet<&'a str>,
}

/// What is to be done about an account that may be created.
enum Verdict {
    /// It was created before.
    Known(Box<AccountRecord>),
    New(Currency, u32),
}

impl<'m, 's> Creation<'m, 's> {
    pub(super) fn new(mut run: Run<'m, 's>, count: usize) -> Self {
        run.begin_after_accounts();
        Self { run, made: Vec::new(), results: Vec::with_capacity(count) }
    }

    /// Creates a chain of accounts, or a single one.
    pub(super) fn chain(&mut self, chain: &[NewAccount]) -> Result<(), StoreError> {
        if let Err((place, code)) = self.create(chain)? {
            let result = |other| Err(if other == place { code } else { AccountCode::LinkedFailed });
            self.results.extend((0..chain.len()).map(result));
        }
        Ok(())
    }

    /// Writes what was made. Returns the result of each account, and whether any of them is new.
    pub(super) fn finish(self) -> (Vec<Result<AccountRecord, AccountCode>>, bool) {
        let Self { run, made, results } = self;
        if !made.is_empty() {
            let key = journal::journal_key(run.tx.next_revision(), 0);
            let part = journal::encode_accounts(run.tx.stamp(), &made);
            run.tx.change(Bytes::copy_from_slice(&key), Some(part));
        }
        run.finish();
        (results, !made.is_empty())
    }

    fn create(&mut self, chain: &[NewAccount]) -> Result<Result<(), (usize, AccountCode)>, StoreError> {
        let mut verdicts = Vec::with_capacity(chain.len());
        let mut before = Before::default();
        for (place, new) in chain.iter().enumerate() {
            match self.judge(new, &before)? {
                Ok(verdict) => verdicts.push(verdict),
                Err(code) => return Ok(Err((place, code))),
            }
            if new.linked {
                before.ids.insert(new.id());
                before.numbers.insert(&new.number);
            }
        }
        let before = self.made.len();
        let (mut records, mut openings) = (Vec::with_capacity(chain.len()), Vec::new());
        for (place, (new, verdict)) in chain.iter().zip(verdicts).enumerate() {
            match verdict {
                Verdict::Known(record) => {
                    let place = self.run.account(record.id())?;
                    let closed = place.is_some_and(|place| self.run.hot.get(place).closed);
                    records.push(record.seen(closed));
                }
                Verdict::New(currency, scale) => {
                    records.push(self.make(new, currency, scale)?);
                    openings.extend(new.opening.map(|amount| (place, opening(new, currency, amount.into()))));
                }
            }
        }
        if let Err((opening, code)) = self.open(&openings)?
            && !mutants::is("unopened-account-stays")
        {
            self.made.drain(before..).for_each(|made| self.run.hot.forget(made.id()));
            return Ok(Err((openings[opening].0, AccountCode::OpeningRefused(code))));
        }
        self.made[before..].iter().for_each(|made| put_new_account(self.run.tx, made));
        self.results.extend(records.into_iter().map(Ok));
        Ok(Ok(()))
    }

    /// Whether an account can be created.
    fn judge(&self, new: &NewAccount, before: &Before<'_>) -> Done<Verdict> {
        if record::is_reserved(new.id()) {
            return Ok(Err(AccountCode::IdReserved));
        }
        if new.number.starts_with('@') || new.number.len() > NUMBER_BYTES_MAX {
            return Ok(Err(AccountCode::NumberReserved));
        }
        let begins = [Ok(Status::Active), Ok(Status::Pending)].contains(&Status::try_from(new.status));
        if Rule::try_from(new.rule).is_err() || !begins {
            return Ok(Err(AccountCode::NotAllowed));
        }
        let (tx, id) = (&self.run.tx, new.id());
        if let Some(known) = read_account(tx.view(), id)? {
            let same = known.origin == *new;
            return Ok(if same { Ok(Verdict::Known(Box::new(known))) } else { Err(AccountCode::IdConflict) });
        }
        // Accounts of earlier versions may have such numbers.
        if !is_clear(&new.number) {
            return Ok(Err(AccountCode::NumberMalformed));
        }
        let known = tx.get(&record::id_key(IDS, id))?.map(|known| record::decode_location(&known));
        if let Some(Location::Key { .. }) = known.transpose()? {
            // The key of a request for several things was used again, for one account.
            return Ok(Err(AccountCode::IdConflict));
        }
        let Ok(currency) = new.currency.parse::<Currency>() else {
            return Ok(Err(AccountCode::CurrencyUnknown));
        };
        let Some(scale) = currency_scale(tx.view(), currency)? else {
            return Ok(Err(AccountCode::CurrencyUnknown));
        };
        if before.ids.contains(&id) {
            return Ok(Err(AccountCode::IdConflict));
        }
        if !new.number.is_empty()
            && (tx.get(&record::number_key(&new.number))?.is_some()
                || before.numbers.contains(&new.number[..]))
        {
            return Ok(Err(AccountCode::NumberTaken));
        }
        Ok(Ok(Verdict::New(currency, scale)))
    }

    /// Makes an account in the cache, after its currency's world account if that is the first.
    fn make(
        &mut self,
        new: &NewAccount,
        currency: Currency,
        scale: u32,
    ) -> Result<AccountRecord, StoreError> {
        let (id, number) = record::world_account(currency);
        if self.run.account(id)?.is_none() {
            let rule = Rule::Unlimited.into();
            let world = NewAccount { number, currency: currency.to_string(), rule, ..NewAccount::default() };
            self.make_one(world.with_id(id), scale);
        }
        Ok(self.make_one(new.clone(), scale))
    }

    fn make_one(&mut self, new: NewAccount, scale: u32) -> AccountRecord {
        let revision = self.run.tx.next_revision().0;
        let account = AccountRecord {
            scale,
            status: new.status,
            created_ms: self.run.tx.stamp().0,
            created_revision: revision,
            changed_revision: revision,
            changed: None,
            indexed_from: revision,
            origin: new,
        };
        self.run.hot.created(&account, self.run.now);
        self.made.push(account.clone());
        account
    }

    /// Does the opening transfers, or none of them.
    fn open(&mut self, openings: &[(usize, Transfer<'_>)]) -> Result<Result<(), (usize, Code)>, StoreError> {
        let encode = |(_, transfer): &(usize, Transfer<'_>)| {
            let mut raw = Vec::new();
            transfer.encode_into(&mut raw);
            raw
        };
        let raw: Vec<Vec<u8>> = openings.iter().map(encode).collect();
        let members = openings.iter().zip(&raw).map(|((_, transfer), raw)| (*transfer, &raw[..]));
        self.run.together(&members.collect::<Vec<Member<'_>>>())
    }
}

fn opening(new: &NewAccount, currency: Currency, amount: u128) -> Transfer<'static> {
    let (debit, credit) = (record::world_account(currency).0, new.id());
    Transfer::new(new.id(), Kind::Single { debit, credit, amount })
}
