//! The ledger face: accounts, and transfers between them, double-entry.
//!
//! `command.rs`, `transfer.rs`, `reply.rs` and `code.rs` are what clients ask and are answered; `machine.rs`
//! and `creation.rs` are what a command does to accounts, `run.rs`, `transfers.rs`, `known.rs` and `recording.rs` what
//! it does to balances, `indexes.rs` and `references.rs` to what is found by the clients' own fields, `balancing.rs` and
//! `reverts.rs` for the transfers of these names, with `options.rs`; `query.rs` and `past.rs` are how the store is read,
//! `lookup.rs`, `search.rs`, `plan.rs` and `directory.rs` how many transfers and accounts are found,
//! `record.rs`, `journal.rs` and `part.rs` are its bytes, `extra.rs` what is the clients' own;
//! `currency.rs` is units and decimal amounts, `hot.rs` a cache, which `warming.rs` fills, `stretch.rs` tells new ids without a lookup,
//! `fence.rs` keeps streams in order, `dry_run.rs` answers without recording,
//! `times.rs` and `imports.rs` are the client's times.
//!
//! What it deliberately does not do: convert between currencies (two linked transfers do), compute interest,
//! or forget. The journal and the histories of accounts are kept when revisions are compacted.

mod balancing;
mod code;
mod command;
mod creation;
mod currency;
mod directory;
mod dry_run;
mod extra;
mod fence;
mod hot;
mod imports;
mod indexes;
mod journal;
mod known;
mod lookup;
mod machine;
mod options;
mod part;
mod past;
mod plan;
#[cfg(test)]
mod property;
mod query;
mod record;
mod recording;
mod references;
mod reply;
mod reverts;
mod run;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod script;
mod search;
#[cfg(test)]
mod searched;
mod stretch;
mod times;
mod transfer;
mod transfers;
mod warming;

pub use code::Code;
pub use command::{Amount, NewAccount, NewCurrency, Operation, Rule, SetIndexes, Status, UpdateAccount};
pub use currency::{AmountError, Currency, SCALE_MAX, format_amount, format_signed, iso_scale, parse_amount};
pub use directory::{ACCOUNTS_EXAMINED_MAX, AccountFilter, FoundAccounts, Sum, Sums, find_accounts, sums};
pub use dry_run::dry_run;
pub use extra::{Extra, Metadata, TRANSFER_METADATA_BYTES_MAX};
pub use fence::Fence;
pub use indexes::{Index, IndexRow, IndexRows, Indexes, index_rows};
pub use journal::{Entry, Journal, Resolution};
pub use lookup::{LOOKUP_MAX, lookup_accounts, lookup_transfers};
pub use machine::{ACCOUNTS_MAX, Machine, NUMBER_BYTES_MAX};
pub use options::Options;
pub use query::{
    account, account_at, account_by_number, currency_scale, entries, entry_at, journal_range, recorded_at,
    revision_at, statement, transfer,
};
pub(crate) use record::FACE;
pub use record::{AccountRecord, Balances, PendingState, world_account};
pub use reply::{
    Account, AccountCode, Detail, Line, Page, Reply, Response, TransferReply, TransferState, TransferView,
};
pub use search::{Filter, Found, Outcome, Place, READS_MAX, Search, Side, search};
pub use times::Times;
pub use transfer::{Key, Kind, REFERENCE_BYTES_MAX, TRANSFERS_MAX, Transfer, Transfers};
