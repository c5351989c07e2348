//! What a ledger command does to the state: accounts and currencies here, transfers in `transfers.rs`.
//!
//! Time: a pending transfer with a timeout has an entry in the expiry index. A batch whose stamp has reached the
//! deadline frees what was set aside before its commands see the state.

use super::command::{
    self, Kind, NewAccount, NewCurrency, OPERATION, Operation, TRANSFERS, Transfer, UpdateAccount,
};
use super::currency::{self, Currency};
use super::hot::{self, Hot};
use super::record::{self, AccountRecord, Cursor, EXPIRIES, Rule, Status};
use super::transfers::{Member, Ordered, Run, TransferReply};
use crate::store::{Order, StoreError, View};
use crate::tx::Tx;
use crate::types::{Revision, Stamp};
use bytes::Bytes;
use prost::Message;

/// Pending transfers that expire in one batch at most; the rest wait for the next.
const EXPIRIES_PER_BATCH_MAX: usize = 1000;
/// Bytes of an account's number at most.
pub const NUMBER_BYTES_MAX: usize = 64;

/// What a ledger command is answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The newest revision after the command.
    pub revision: Revision,
    /// When the command was applied.
    pub stamp: Stamp,
    /// What came of it.
    pub response: Response,
}

/// The answers to the kinds of commands.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// One per transfer.
    Transfers(Vec<TransferReply>),
    /// One per account to be made: the account, as it is now.
    Accounts(Vec<Result<AccountRecord, AccountCode>>),
    /// To a change of an account.
    Account(Result<Box<AccountRecord>, AccountCode>),
    /// To a new currency.
    Currency(Result<(), AccountCode>),
    /// The bytes are no command of this version.
    Malformed,
}

/// Why an operation on an account or currency was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccountCode {
    /// The id is taken by another content.
    #[error("the id was used before for an account with other content")]
    IdConflict,
    /// The number is another account's.
    #[error("the number belongs to another account")]
    NumberTaken,
    /// Neither ISO's nor created.
    #[error("the currency is neither one of ISO 4217 nor a custom unit that was created")]
    CurrencyUnknown,
    /// The id is the ledger's own.
    #[error("the id is reserved: neither nil nor one of the ledger's own accounts")]
    IdReserved,
    /// The number is the ledger's own, or too long.
    #[error("the number must not begin with @ and have at most 64 bytes")]
    NumberReserved,
    /// No such account.
    #[error("the account does not exist")]
    Unknown,
    /// Closed for good.
    #[error("the account is closed, which is final")]
    Closed,
    /// Closing takes empty balances.
    #[error("the account can be closed only when its balance and what is pending are zero")]
    NotEmpty,
    /// The account was changed meanwhile.
    #[error("the account was changed after the revision given")]
    Changed,
    /// The rule would be broken already.
    #[error("the account is further below zero than the new rule allows")]
    BelowLimit,
    /// The code is ISO's or has another scale.
    #[error("the currency exists with another scale")]
    CurrencyExists,
    /// The scale is out of bounds, or the code none.
    #[error("a currency needs a code of 3 to 8 capital letters and digits and a scale of at most 18")]
    CurrencyMalformed,
    /// A rule or status that does not exist, or a change to the ledger's own account.
    #[error("the ledger's own accounts cannot be changed, and rule and status must be known ones")]
    NotAllowed,
}

type Done<T> = Result<Result<T, AccountCode>, StoreError>;

/// The ledger's machine: the store holds its state; this holds what is derived from it.
#[derive(Debug)]
pub struct Machine {
    hot: Hot,
    ordered: Ordered,
    /// No entry of the expiry index is before this.
    expiries_from: u64,
    /// The first entry's deadline, or earlier.
    next_deadline: Option<u64>,
}

impl Machine {
    /// The machine of a store that may hold state already.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(view: View<'_>) -> Result<Self, StoreError> {
        let ordered = Ordered::open(view)?;
        let mut machine = Self { hot: Hot::default(), ordered, expiries_from: 0, next_deadline: None };
        machine.find_deadline(view)?;
        Ok(machine)
    }

    /// When the next pending transfer may expire; never later than it does.
    pub fn next_deadline(&self) -> Option<Stamp> {
        self.next_deadline.map(Stamp)
    }

    fn find_deadline(&mut self, view: View<'_>) -> Result<(), StoreError> {
        let (_, to) = record::keyspace(EXPIRIES);
        let from = record::expiry_key(self.expiries_from, 0);
        let first = view.scan(&from, &to, Order::Ascending).next().transpose()?;
        self.next_deadline =
            first.map(|(key, _)| record::read_expiry(&key)).transpose()?.map(|(deadline, _)| deadline);
        Ok(())
    }

    /// Lets the pending transfers that are due expire, up to a bound, in one revision; false where none is due.
    pub(crate) fn expire(&mut self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let stamp = tx.stamp().0;
        if self.next_deadline.is_none_or(|deadline| deadline > stamp) {
            return Ok(false);
        }
        let from = record::expiry_key(self.expiries_from, 0);
        let to = record::expiry_key(stamp.saturating_add(1), 0);
        let due = tx.scan(&from, &to).take(EXPIRIES_PER_BATCH_MAX);
        let due: Vec<(u64, u128)> =
            due.map(|pair| Ok(record::read_expiry(&pair?.0)?)).collect::<Result<_, StoreError>>()?;
        let mut run = Run::new(tx, &mut self.hot, &mut self.ordered, false, due.len());
        let mut raw = Vec::new();
        for (_, id) in &due {
            let transfer = Transfer::new(*id, Kind::Expired { pending: *id });
            raw.clear();
            transfer.encode(&mut raw);
            run.expired(&(transfer, &raw))?;
        }
        run.finish();
        self.expiries_from = due.last().map_or(stamp, |(deadline, _)| *deadline);
        self.find_deadline(tx.view())?;
        Ok(!due.is_empty())
    }

    /// Applies one command.
    ///
    /// # Errors
    /// The store failed. What a client may not do is a reply, not an error.
    pub fn apply(&mut self, tx: &mut Tx<'_>, bytes: Bytes) -> Result<Reply, StoreError> {
        let response = match bytes.get(..2) {
            Some([command::VERSION, TRANSFERS]) => self.transfers(tx, &bytes)?,
            Some([command::VERSION, OPERATION]) => match Operation::decode(bytes) {
                Some(operation) => self.operation(tx, operation)?,
                None => Response::Malformed,
            },
            _ => Response::Malformed,
        };
        Ok(Reply { revision: tx.revision(), stamp: tx.stamp(), response })
    }

    fn transfers(&mut self, tx: &mut Tx<'_>, bytes: &[u8]) -> Result<Response, StoreError> {
        let Some((details, members)) = decode_transfers(bytes) else { return Ok(Response::Malformed) };
        let mut run = Run::new(tx, &mut self.hot, &mut self.ordered, details, members.len());
        for group in members.chunk_by(|(one, _), _| one.linked) {
            run.group(group)?;
        }
        let (replies, deadline) = run.finish();
        self.next_deadline = self.next_deadline.into_iter().chain(deadline).min();
        Ok(Response::Transfers(replies))
    }

    fn operation(&mut self, tx: &mut Tx<'_>, operation: Operation) -> Result<Response, StoreError> {
        Ok(match operation {
            Operation::CreateAccounts(new) => Response::Accounts(self.create_accounts(tx, new.accounts)?),
            Operation::UpdateAccount(update) => {
                Response::Account(self.update_account(tx, &update)?.map(Box::new))
            }
            Operation::CreateCurrency(new) => Response::Currency(create_currency(tx, &new)?),
        })
    }

    fn create_accounts(
        &mut self,
        tx: &mut Tx<'_>,
        accounts: Vec<NewAccount>,
    ) -> Result<Vec<Result<AccountRecord, AccountCode>>, StoreError> {
        let (mut results, mut made) = (Vec::with_capacity(accounts.len()), Vec::new());
        for account in accounts {
            results.push(self.create_account(tx, account, &mut made)?);
        }
        if !made.is_empty() {
            let key = record::journal_key(tx.next_revision(), 0);
            tx.change(Bytes::copy_from_slice(&key), Some(record::accounts_part(tx.stamp(), &made)));
        }
        Ok(results)
    }

    fn create_account(
        &mut self,
        tx: &mut Tx<'_>,
        new: NewAccount,
        made: &mut Vec<AccountRecord>,
    ) -> Done<AccountRecord> {
        if record::is_reserved(new.id()) {
            return Ok(Err(AccountCode::IdReserved));
        }
        if new.number.starts_with('@') || new.number.len() > NUMBER_BYTES_MAX {
            return Ok(Err(AccountCode::NumberReserved));
        }
        if Rule::try_from(new.rule).is_err() {
            return Ok(Err(AccountCode::NotAllowed));
        }
        if let Some(known) = hot::read_account(tx.view(), new.id())? {
            return Ok(if known.origin == new { Ok(known) } else { Err(AccountCode::IdConflict) });
        }
        let Ok(currency) = new.currency.parse::<Currency>() else {
            return Ok(Err(AccountCode::CurrencyUnknown));
        };
        let Some(scale) = super::query::currency_scale(tx.view(), currency)? else {
            return Ok(Err(AccountCode::CurrencyUnknown));
        };
        if !new.number.is_empty() && tx.get(&record::number_key(&new.number))?.is_some() {
            return Ok(Err(AccountCode::NumberTaken));
        }
        self.make_world(tx, currency, scale, made)?;
        Ok(Ok(self.make_account(tx, new, scale, made)))
    }

    /// Makes the account that a currency's money comes from, with the first account of the currency.
    fn make_world(
        &mut self,
        tx: &mut Tx<'_>,
        currency: Currency,
        scale: u32,
        made: &mut Vec<AccountRecord>,
    ) -> Result<(), StoreError> {
        let (id, number) = record::world_account(currency);
        if self.hot.find(tx.view(), id, tx.sequence().0)?.is_none() {
            let rule = Rule::Unlimited.into();
            let world = NewAccount { number, currency: currency.to_string(), rule, ..NewAccount::default() };
            self.make_account(tx, world.with_id(id), scale, made);
        }
        Ok(())
    }

    fn make_account(
        &mut self,
        tx: &mut Tx<'_>,
        new: NewAccount,
        scale: u32,
        made: &mut Vec<AccountRecord>,
    ) -> AccountRecord {
        let revision = tx.next_revision().0;
        let account = AccountRecord {
            origin: new,
            scale,
            status: Status::Active.into(),
            created_ms: tx.stamp().0,
            created_revision: revision,
            changed_revision: revision,
            changed: None,
        };
        if !account.origin.number.is_empty() {
            let id = Bytes::copy_from_slice(&account.id().to_be_bytes());
            tx.put(&record::number_key(&account.origin.number), id);
        }
        put_account(tx, &account);
        self.hot.created(&account, tx.sequence().0);
        made.push(account.clone());
        account
    }

    fn update_account(&mut self, tx: &mut Tx<'_>, update: &UpdateAccount) -> Done<AccountRecord> {
        let id = update.id();
        let Some(place) = self.hot.find(tx.view(), id, tx.sequence().0)? else {
            return Ok(Err(AccountCode::Unknown));
        };
        let known = hot::read_account(tx.view(), id)?.expect("what is hot is stored");
        if record::is_reserved(id) {
            return Ok(Err(AccountCode::NotAllowed));
        }
        if update.unchanged_since != 0 && known.changed_revision > update.unchanged_since {
            return Ok(Err(AccountCode::Changed));
        }
        let Some(mut account) = updated(&known, update) else { return Ok(Err(AccountCode::NotAllowed)) };
        if account == known {
            return Ok(Ok(known));
        }
        if known.status() == Status::Closed {
            return Ok(Err(AccountCode::Closed));
        }
        let balances = &self.hot.get(place).balances;
        let pending = balances.debits_pending > 0 || balances.credits_pending > 0;
        if account.status() == Status::Closed
            && (pending || balances.debits_posted != balances.credits_posted)
        {
            return Ok(Err(AccountCode::NotEmpty));
        }
        let spent = balances.debits_posted.saturating_add(balances.debits_pending);
        let stricter = update.rule.is_some();
        if stricter
            && account.allowance().is_some_and(|most| spent > balances.credits_posted.saturating_add(most))
        {
            return Ok(Err(AccountCode::BelowLimit));
        }
        account.changed_revision = tx.next_revision().0;
        put_account(tx, &account);
        self.hot.changed(&account);
        let key = record::journal_key(tx.next_revision(), 0);
        let part = record::accounts_part(tx.stamp(), std::slice::from_ref(&account));
        tx.change(Bytes::copy_from_slice(&key), Some(part));
        Ok(Ok(account))
    }
}

/// The account with the changes; `None` where rule or status are not known ones.
fn updated(known: &AccountRecord, update: &UpdateAccount) -> Option<AccountRecord> {
    let mut account = known.clone();
    if let Some(status) = update.status {
        account.status = Status::try_from(status).ok()?.into();
    }
    let mut present = known.present();
    if let Some(rule) = update.rule {
        present.rule = Rule::try_from(rule).ok()?.into();
        (present.limit_low, present.limit_high) = (update.limit_low, update.limit_high);
    }
    if let Some(user_data) = &update.user_data {
        present.user_data.clone_from(user_data);
    }
    if update.replace_metadata {
        present.metadata.clone_from(&update.metadata);
    }
    if present != known.present() {
        account.changed = Some(present);
    }
    Some(account)
}

fn put_account(tx: &mut Tx<'_>, account: &AccountRecord) {
    tx.put(&record::id_key(record::ACCOUNTS, account.id()), account.encode_to_vec().into());
}

fn create_currency(tx: &mut Tx<'_>, new: &NewCurrency) -> Done<()> {
    let Ok(currency) = new.code.parse::<Currency>() else { return Ok(Err(AccountCode::CurrencyMalformed)) };
    if new.scale > currency::SCALE_MAX {
        return Ok(Err(AccountCode::CurrencyMalformed));
    }
    if let Some(scale) = super::query::currency_scale(tx.view(), currency)? {
        return Ok(if scale == new.scale { Ok(()) } else { Err(AccountCode::CurrencyExists) });
    }
    let scale = new.scale as u8;
    tx.put(&record::currency_key(currency), Bytes::copy_from_slice(&[scale]));
    let key = record::journal_key(tx.next_revision(), 0);
    tx.change(Bytes::copy_from_slice(&key), Some(record::currency_part(tx.stamp(), currency, scale)));
    Ok(Ok(()))
}

/// The transfers of a command, each with its own bytes; `None` where they are none of this version.
fn decode_transfers(bytes: &[u8]) -> Option<(bool, Vec<Member<'_>>)> {
    let (details, count, mut cursor) = command::transfers_header(bytes).ok()?;
    let mut members = Vec::with_capacity(count);
    for _ in 0..count {
        let before: &[u8] = cursor.rest();
        let transfer = Transfer::decode(&mut cursor).ok()?;
        // Time is the log's, not a client's.
        if matches!(transfer.kind, Kind::Expired { .. }) || transfer.id == 0 {
            return None;
        }
        members.push((transfer, &before[..before.len() - Cursor::rest(&cursor).len()]));
    }
    cursor.is_empty().then_some((details, members))
}
