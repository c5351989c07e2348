//! The ledger face: accounts, and transfers between them, double-entry.
//!
//! `command.rs` is what may be asked, `machine.rs` what it does to accounts and `transfers.rs` to balances, `query.rs`
//! how it is read, `record.rs` the bytes in the store, `currency.rs` units and decimal amounts.
//!
//! **Invariant (sums).** Every change of balances debits one account and credits another of the same currency by the
//! same amount, so the balances of a currency always sum to zero. Asserted for each command that is applied.
//!
//! **Invariant (once).** A transfer's id is recorded with its result in the same step as its effect, and is kept
//! forever: the id with the same content gives the first answer again, with other content a conflict.
//!
//! What it deliberately does not do: convert between currencies (two linked transfers do), compute interest, or
//! forget. Journal and histories of accounts are kept when revisions are compacted.

mod command;
mod currency;
mod hot;
mod machine;
#[cfg(test)]
mod property;
mod query;
mod record;
#[cfg(test)]
mod script;
mod transfers;

pub use command::{
    Kind, NewAccount, NewCurrency, Operation, REFERENCE_BYTES_MAX, TRANSFERS_MAX, Transfer, Transfers,
    UpdateAccount,
};
pub use currency::{AmountError, Currency, SCALE_MAX, format_amount, format_signed, iso_scale, parse_amount};
pub use machine::{AccountCode, Machine, NUMBER_BYTES_MAX, Reply, Response};
pub use query::{
    Account, Line, Page, TransferState, TransferView, account, account_at, account_by_number, accounts,
    currency_scale, entries, entry_at, journal_range, revision_at, statement, transfer,
};
pub use record::{
    AccountRecord, Balances, Entry, Journal, PendingState, Resolution, Rule, Status, decode_journal,
    journal_revision, world_account,
};
pub use transfers::{Code, Detail, TransferReply};
