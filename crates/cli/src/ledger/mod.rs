//! `quoin ledger`: accounts and transfers from the shell. Accounts are named by their number or id, amounts
//! are decimal.
//!
//! `account.rs`, `transfer.rs` and `statement.rs` are the daily commands. `journal.rs` reads everything that
//! happened, for `export.rs` (CSV, Parquet), `verify.rs` (the proof) and `proof.rs` (that of the indexes); `query.rs`
//! finds transfers and adds accounts up. `recorded.rs` is how transfers are shown, `pages.rs` how lists are.
//!
//! Whatever writes says with its error whether it may have been done (`outcome.rs`).

mod account;
mod client;
mod export;
mod journal;
mod pages;
mod proof;
mod query;
mod recorded;
mod statement;
mod transfer;
mod verify;

pub(crate) use verify::prove;

use crate::connection::Connection;
use crate::outcome::Write as _;
use anyhow::Result;
use clap::Subcommand;
use quoin_proto::quoin::ledger::v1 as pb;
use serde_json::json;
use std::process::ExitCode;

/// Commands on the ledger.
#[derive(Subcommand)]
pub(crate) enum Ledger {
    /// Accounts: create, show, list, set
    #[command(subcommand)]
    Account(account::Account),
    /// Create a custom unit of account
    Currency {
        /// Code of the unit: 3 to 8 capital letters and digits
        code: String,
        /// Number of decimal places
        scale: u32,
        #[command(flatten)]
        connection: Connection,
    },
    /// Move money between two accounts; euros enter and leave the ledger through @world/EUR
    Transfer(transfer::Transfer),
    /// Move what a pending transfer has set aside, or a part of it
    Post(transfer::Post),
    /// Free what a pending transfer has set aside
    Void(transfer::Void),
    /// Move back what a transfer or a post has moved, once
    Revert(transfer::Revert),
    /// Show a transfer: its state, why it was refused, what ended or reverted it
    Show(recorded::Show),
    /// Show an account's transfers with the balance after each, newest first
    Statement(statement::Statement),
    /// Find transfers by account, reference, code, user data or status
    Transfers(query::Transfers),
    /// Add up the balances of all accounts whose numbers begin alike
    Sum(query::Sum),
    /// Show or set which indexes make finding transfers fast, and whether references are unique
    Indexes(query::Indexes),
    /// Write all transfers to a CSV or Parquet file
    Export(export::Export),
    /// Replay all transfers; prove that balances sum to zero, that each follows from its transfers, and the indexes
    Verify {
        #[command(flatten)]
        connection: Connection,
    },
}

/// Runs a command on the ledger.
pub(crate) async fn run(ledger: Ledger) -> Result<ExitCode> {
    match ledger {
        Ledger::Account(account) => account::run(account).await,
        Ledger::Currency { code, scale, connection } => {
            let request = pb::CreateCurrencyRequest { code, scale };
            client::client(&connection).await?.create_currency(request).await.or_send_again()?;
            connection.say(&json!({ "outcome": "done" }), "done")
        }
        Ledger::Transfer(transfer) => transfer::transfer(transfer).await,
        Ledger::Post(post) => transfer::post(post).await,
        Ledger::Void(void) => transfer::void(void).await,
        Ledger::Revert(revert) => transfer::revert(revert).await,
        Ledger::Show(show) => recorded::show(show).await,
        Ledger::Statement(statement) => statement::statement(statement).await,
        Ledger::Transfers(wanted) => query::transfers(wanted).await,
        Ledger::Sum(wanted) => query::sum(wanted).await,
        Ledger::Indexes(wanted) => query::indexes(wanted).await,
        Ledger::Export(export) => export::run(export).await,
        Ledger::Verify { connection } => verify::run(&connection).await,
    }
}
