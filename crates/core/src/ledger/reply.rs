//! What the ledger answers.

use super::code::Code;
use super::command::Status;
use super::currency::Currency;
use super::indexes::Indexes;
use super::journal::{Entry, Resolution};
use super::record::{AccountRecord, Balances, PendingState};
use crate::store::StoreError;
use crate::types::{Revision, Stamp};

/// The answer to a ledger command.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The newest revision after the command.
    pub revision: Revision,
    /// When the command was applied.
    pub stamp: Stamp,
    /// The response, by the kind of the command.
    pub response: Response,
}

/// The responses to the kinds of commands.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// One per transfer.
    Transfers(Vec<TransferReply>),
    /// One per account to create: the account as it is now; and whether any of them is new.
    Accounts(Vec<Result<AccountRecord, AccountCode>>, bool),
    /// To a change of an account.
    Account(Result<Box<AccountRecord>, AccountCode>),
    /// To a new currency.
    Currency(Result<(), AccountCode>),
    /// To a change of the indexes: those that are on now.
    Indexes(Indexes),
    /// The request's key was used before, for something else. Nothing was done.
    KeyConflict,
    /// The batch before it on its stream is not recorded. Nothing was done.
    Fenced,
    /// The bytes are not a command of this version.
    Malformed,
}

/// The answer to a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferReply {
    /// The result.
    pub code: Code,
    /// The id was known: this repeats its first answer.
    pub duplicate: bool,
    /// Where it is recorded; 0 for an id conflict.
    pub revision: Revision,
    /// Its position among the transfers of that revision.
    pub position: u32,
    /// When it was recorded.
    pub stamp: Stamp,
    /// Accounts and balances, if they were asked for and the transfer succeeded.
    pub detail: Option<Box<Detail>>,
}

/// The effect of a transfer that succeeded.
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

/// Why an operation on an account or currency was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccountCode {
    /// The id was used before with other content.
    #[error("the id was used before for an account with other content")]
    IdConflict,
    /// Another account has the number.
    #[error("the number belongs to another account")]
    NumberTaken,
    /// Neither an ISO code nor a custom unit.
    #[error("the currency is neither one of ISO 4217 nor a custom unit that was created")]
    CurrencyUnknown,
    /// The id is reserved for the ledger.
    #[error("the id is reserved: neither nil nor one of the ledger's own accounts")]
    IdReserved,
    /// The number is reserved for the ledger, or too long.
    #[error("a number has at most 64 bytes, and does not begin with @")]
    NumberReserved,
    /// The number cannot be told from an id, or cannot be written in a path.
    #[error(
        "the number must have characters that show and none that control, and be neither `.`, `..`, nor like a UUID"
    )]
    NumberMalformed,
    /// No such account.
    #[error("the account does not exist")]
    Unknown,
    /// Closed for good.
    #[error("the account is closed, which is final")]
    Closed,
    /// Only an account without balances can be closed.
    #[error("the account can be closed only when its balance and what is pending are zero")]
    NotEmpty,
    /// The account was changed after the given revision.
    #[error("the account was changed after the revision given")]
    Changed,
    /// The balances break the new rule already.
    #[error("the account is further below zero than the new rule allows")]
    BelowLimit,
    /// The balances break the new maximum already.
    #[error("the account holds more, with what is pending, than the new maximum allows")]
    AboveMaximum,
    /// Another account of the chain was refused.
    #[error("another account of the linked chain was refused")]
    LinkedFailed,
    /// The account's opening transfer was refused.
    #[error("the transfer of the initial balance is refused: {}", .0.text())]
    OpeningRefused(Code),
    /// The code exists with another scale.
    #[error("the currency exists with another scale")]
    CurrencyExists,
    /// The code is malformed, or the scale out of bounds.
    #[error("a currency needs a code of 3 to 8 capital letters and digits and a scale of at most 18")]
    CurrencyMalformed,
    /// An unknown rule or status, or a change to one of the ledger's own accounts.
    #[error(
        "the ledger's own accounts cannot be changed, rule and status must be known ones, and only a new account is pending"
    )]
    NotAllowed,
}

/// A fault of the store, a refusal, or a result.
pub(super) type Done<T> = Result<Result<T, AccountCode>, StoreError>;

/// An account with its balances.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// All but its balances.
    pub record: AccountRecord,
    /// Its balances.
    pub balances: Balances,
    /// The last revision that changed the balances; 0 for none.
    pub balance_revision: Revision,
    /// A pending transfer has closed it; until that is voided or expires, its status does not count.
    pub closed: bool,
}

impl Account {
    /// Its status, as transfers see it.
    pub fn status(&self) -> Status {
        if self.closed { Status::Closed } else { self.record.status() }
    }
}

/// A transfer and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferView {
    /// As it was recorded.
    pub entry: Entry,
    /// Its present state.
    pub state: TransferState,
    /// The transfer that reverted it.
    pub reverted_by: Option<u128>,
}

/// The present state of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferState {
    /// Done.
    Done,
    /// Refused.
    Refused(Code),
    /// A pending one: its state, when it expires (0: never), and the revision that ended it.
    Pending(PendingState, Stamp, Revision),
}

/// A line of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The transfer.
    pub entry: Entry,
    /// The account's balances after it.
    pub balances: Balances,
}

/// A page of a long answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    /// The items, in order.
    pub items: Vec<T>,
    /// There are more.
    pub more: bool,
}
