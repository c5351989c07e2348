//! `quoin ledger`: accounts and transfers from the shell. What is refused exits with 2, so that scripts can tell it
//! from errors. Accounts are named by their number or id, amounts are decimal.
//!
//! `journal.rs` reads everything that happened, for `export.rs` (CSV, Parquet) and `verify.rs` (the proof).

mod export;
mod journal;
mod verify;

pub(crate) use verify::prove;

use crate::connection::Connection;
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clap::{Args, Subcommand, ValueEnum};
use quoin_core::ledger::{format_amount, format_signed, iso_scale, parse_amount};
use quoin_proto::quoin::ledger::v1 as pb;
use quoin_proto::quoin::ledger::v1::get_account_request::{Account as Named, At};
use quoin_proto::quoin::ledger::v1::ledger_client::LedgerClient;
use serde_json::{Value, json};
use std::process::ExitCode;
use tonic::transport::Channel;
use uuid::Uuid;

/// Something was refused.
const REFUSED: u8 = 2;
/// Bytes of an answer at most.
const ANSWER_BYTES_MAX: usize = 64 << 20;

type Client = LedgerClient<Channel>;

/// What can be done with the ledger.
#[derive(Subcommand)]
pub(crate) enum Ledger {
    /// Accounts: create, show, list, set
    #[command(subcommand)]
    Account(Account),
    /// Make a custom unit of account
    Currency {
        /// 3 to 8 capital letters and digits
        code: String,
        /// Decimal places
        scale: u32,
        #[command(flatten)]
        connection: Connection,
    },
    /// Move money between two accounts; @world/EUR is where euros come from and go to
    Transfer(Transfer),
    /// Move what a pending transfer set aside, or a part of it
    Post {
        /// The pending transfer
        pending: Uuid,
        /// The part of it; the rest is free again
        amount: Option<String>,
        #[command(flatten)]
        label: Label,
        #[command(flatten)]
        connection: Connection,
    },
    /// Free what a pending transfer set aside
    Void {
        /// The pending transfer
        pending: Uuid,
        #[command(flatten)]
        label: Label,
        #[command(flatten)]
        connection: Connection,
    },
    /// Show an account's transfers with the balance after each, newest first
    Statement {
        account: String,
        /// At most this many
        #[arg(long, default_value_t = 20)]
        limit: u32,
        #[command(flatten)]
        connection: Connection,
    },
    /// Write all transfers to a file
    Export(export::Export),
    /// Replay all transfers and prove that sums are zero and every balance is what its transfers make it
    Verify {
        #[command(flatten)]
        connection: Connection,
    },
}

/// What can be done with accounts.
#[derive(Subcommand)]
pub(crate) enum Account {
    /// Make an account
    Create {
        /// What people call it
        number: String,
        /// ISO 4217's code, or a custom unit's
        #[arg(long)]
        currency: String,
        /// Its id, so that the command can be repeated; a new one if not given
        #[arg(long)]
        id: Option<Uuid>,
        #[command(flatten)]
        rule: Rule,
        /// Anything
        #[arg(long, default_value = "")]
        data: String,
        /// Anything, by name
        #[arg(long = "meta", value_name = "NAME=VALUE")]
        metadata: Vec<String>,
        #[command(flatten)]
        connection: Connection,
    },
    /// Show an account
    Show {
        account: String,
        /// As of this revision
        #[arg(long)]
        at_revision: Option<u64>,
        /// As of this moment, milliseconds since the Unix epoch
        #[arg(long, conflicts_with = "at_revision")]
        at_time_ms: Option<u64>,
        #[command(flatten)]
        connection: Connection,
    },
    /// List accounts
    List {
        /// At most this many
        #[arg(long, default_value_t = 100)]
        limit: u32,
        #[command(flatten)]
        connection: Connection,
    },
    /// Change status or rule
    Set {
        account: String,
        #[arg(long, value_enum)]
        status: Option<Status>,
        #[command(flatten)]
        rule: Rule,
        #[command(flatten)]
        connection: Connection,
    },
}

/// How far an account may go below zero.
#[derive(Args, Default)]
pub(crate) struct Rule {
    /// It may go this far below zero
    #[arg(long, value_name = "AMOUNT", group = "overdraft")]
    limit: Option<String>,
    /// It may go below zero without bound
    #[arg(long, group = "overdraft")]
    unlimited: bool,
    /// It may not go below zero, which is usual
    #[arg(long, group = "overdraft")]
    no_overdraft: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Status {
    Active,
    Frozen,
    Closed,
}

/// A transfer.
#[derive(Args)]
pub(crate) struct Transfer {
    /// The account that gives
    debit: String,
    /// The account that takes
    credit: String,
    amount: String,
    /// Only set the amount aside, until `post` or `void`
    #[arg(long)]
    pending: bool,
    /// A pending transfer lapses after this many milliseconds
    #[arg(long, default_value_t = 0, requires = "pending")]
    timeout_ms: u64,
    #[command(flatten)]
    label: Label,
    #[command(flatten)]
    connection: Connection,
}

/// What a transfer is called.
#[derive(Args)]
pub(crate) struct Label {
    /// Its id, so that the command can be repeated; a new one if not given
    #[arg(long)]
    id: Option<Uuid>,
    /// What it is for
    #[arg(long, default_value = "")]
    reference: String,
}

/// Does what was asked.
pub(crate) async fn run(ledger: Ledger) -> Result<ExitCode> {
    match ledger {
        Ledger::Account(account) => run_account(account).await,
        Ledger::Currency { code, scale, connection } => {
            let request = pb::CreateCurrencyRequest { code, scale };
            let done = client(&connection).await?.create_currency(request).await;
            match done {
                Ok(_) => connection.say(&json!({ "outcome": "done" }), "done"),
                Err(status) => refused_or_error(&connection, status),
            }
        }
        Ledger::Transfer(transfer) => run_transfer(transfer).await,
        Ledger::Post { pending, amount, label, connection } => {
            let mut client = client(&connection).await?;
            let amount = match amount {
                Some(text) => parse_amount(&text, scale_of(&mut client, pending).await?)?,
                None => 0,
            };
            end(&connection, client, pb::Kind::Post, pending, amount, label).await
        }
        Ledger::Void { pending, label, connection } => {
            let client = client(&connection).await?;
            end(&connection, client, pb::Kind::Void, pending, 0, label).await
        }
        Ledger::Statement { account, limit, connection } => statement(&connection, &account, limit).await,
        Ledger::Export(export) => export::run(export).await,
        Ledger::Verify { connection } => verify::run(&connection).await,
    }
}

async fn client(connection: &Connection) -> Result<Client> {
    Ok(LedgerClient::new(connection.any().await?).max_decoding_message_size(ANSWER_BYTES_MAX))
}

fn refused(connection: &Connection, why: &str) -> Result<ExitCode> {
    connection.say(&json!({ "outcome": "refused", "reason": why }), &format!("refused: {why}"))?;
    Ok(ExitCode::from(REFUSED))
}

/// A refusal of an operation on an account comes as a status.
fn refused_or_error(connection: &Connection, status: tonic::Status) -> Result<ExitCode> {
    use tonic::Code;
    match status.code() {
        Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted => {
            refused(connection, status.message().trim_start_matches("quoin: "))
        }
        _ => Err(status.into()),
    }
}

/// An id as it is shown.
fn shown(id: &[u8]) -> String {
    Uuid::from_slice(id).map_or_else(|_| output::text(id), |id| id.to_string())
}

fn bytes_of(id: Uuid) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

fn join(low: u64, high: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

fn named(account: &str) -> Named {
    match Uuid::parse_str(account) {
        Ok(id) => Named::Id(bytes_of(id)),
        Err(_) => Named::Number(account.to_owned()),
    }
}

async fn find(client: &mut Client, account: &str, at: Option<At>) -> Result<pb::Account> {
    let request = pb::GetAccountRequest { account: Some(named(account)), at, local: false };
    let found =
        client.get_account(request).await.with_context(|| format!("reading the account {account:?}"))?;
    found.into_inner().account.context("an answer without an account")
}

async fn run_account(account: Account) -> Result<ExitCode> {
    match account {
        Account::Create { number, currency, id, rule, data, metadata, connection } => {
            let mut client = client(&connection).await?;
            let mut account = pb::Account {
                id: bytes_of(id.unwrap_or_else(Uuid::now_v7)),
                number,
                user_data: data,
                ..pb::Account::default()
            };
            for pair in metadata {
                let (name, value) =
                    pair.split_once('=').with_context(|| format!("--meta {pair:?} must be NAME=VALUE"))?;
                account.metadata.insert(name.into(), value.into());
            }
            let scale = currency.parse().ok().and_then(iso_scale);
            account.currency = currency;
            if let Some((wanted, limit)) = rule_of(&rule, scale)? {
                account.rule = wanted.into();
                (account.limit, account.limit_high) = (limit as u64, (limit >> 64) as u64);
            }
            let request = pb::CreateAccountsRequest { accounts: vec![account] };
            let mut results = client.create_accounts(request).await?.into_inner().results;
            match results.pop() {
                Some(pb::AccountResult { account: Some(account), .. }) => {
                    connection.say(&account_json(&account), &shown(&account.id))
                }
                Some(result) => refused(&connection, &result.refused),
                None => bail!("an answer without a result"),
            }
        }
        Account::Show { account, at_revision, at_time_ms, connection } => {
            let at = at_revision.map(At::Revision).or(at_time_ms.map(At::TimeMs));
            show(&connection, &[find(&mut client(&connection).await?, &account, at).await?])
        }
        Account::List { limit, connection } => {
            let request = pb::ListAccountsRequest { limit, ..Default::default() };
            let found = client(&connection).await?.list_accounts(request).await?.into_inner();
            show(&connection, &found.accounts)
        }
        Account::Set { account, status, rule, connection } => {
            let mut client = client(&connection).await?;
            let known = find(&mut client, &account, None).await?;
            let status = status.map(|status| match status {
                Status::Active => pb::Status::Active,
                Status::Frozen => pb::Status::Frozen,
                Status::Closed => pb::Status::Closed,
            });
            let rule = rule_of(&rule, Some(known.scale))?;
            ensure!(status.is_some() || rule.is_some(), "nothing is to be set: give --status, --limit, ...");
            let limit = rule.map_or(0, |(_, limit)| limit);
            let request = pb::UpdateAccountRequest {
                id: known.id,
                status: status.map(Into::into),
                rule: rule.map(|(rule, _)| rule.into()),
                limit: limit as u64,
                limit_high: (limit >> 64) as u64,
                ..Default::default()
            };
            match client.update_account(request).await {
                Ok(done) => {
                    let account = done.into_inner().account.context("an answer without an account")?;
                    connection.say(&account_json(&account), "done")
                }
                Err(status) => refused_or_error(&connection, status),
            }
        }
    }
}

fn rule_of(rule: &Rule, scale: Option<u32>) -> Result<Option<(pb::Rule, u128)>> {
    Ok(match rule {
        Rule { limit: Some(limit), .. } => {
            let scale = scale.context("a limit in a custom unit can be set once the account is there")?;
            Some((pb::Rule::Limit, parse_amount(limit, scale)?))
        }
        Rule { unlimited: true, .. } => Some((pb::Rule::Unlimited, 0)),
        Rule { no_overdraft: true, .. } => Some((pb::Rule::NoOverdraft, 0)),
        _ => None,
    })
}

fn balance(balances: &pb::Balances, scale: u32) -> String {
    let credits = join(balances.credits_posted, balances.credits_posted_high);
    format_signed(credits, join(balances.debits_posted, balances.debits_posted_high), scale)
}

fn locked(balances: &pb::Balances, scale: u32) -> String {
    format_amount(join(balances.debits_pending, balances.debits_pending_high), scale)
}

fn rule_text(account: &pb::Account) -> String {
    match account.rule() {
        pb::Rule::NoOverdraft => "none".into(),
        pb::Rule::Limit => format_amount(join(account.limit, account.limit_high), account.scale),
        pb::Rule::Unlimited => "unlimited".into(),
    }
}

fn status_text(account: &pb::Account) -> &'static str {
    match account.status() {
        pb::Status::Active => "active",
        pb::Status::Frozen => "frozen",
        pb::Status::Closed => "closed",
    }
}

fn account_json(account: &pb::Account) -> Value {
    let mut value = json!({
        "id": shown(&account.id),
        "number": account.number,
        "currency": account.currency,
        "status": status_text(account),
        "overdraft": rule_text(account),
        "created_revision": account.created_revision,
    });
    if let Some(balances) = &account.balances {
        value["balance"] = balance(balances, account.scale).into();
        value["locked"] = locked(balances, account.scale).into();
    }
    value
}

fn show(connection: &Connection, accounts: &[pb::Account]) -> Result<ExitCode> {
    if connection.json {
        output::json(&accounts.iter().map(account_json).collect())?;
        return Ok(ExitCode::SUCCESS);
    }
    let none = pb::Balances::default();
    let row = |account: &pb::Account| {
        let balances = account.balances.as_ref().unwrap_or(&none);
        let (balance, locked) = (balance(balances, account.scale), locked(balances, account.scale));
        let name = if account.number.is_empty() { shown(&account.id) } else { account.number.clone() };
        vec![name, account.currency.clone(), balance, locked, rule_text(account), status_text(account).into()]
    };
    let rows: Vec<_> = accounts.iter().map(row).collect();
    output::table(&["account", "currency", "balance", "locked", "overdraft", "status"], &rows)?;
    Ok(ExitCode::SUCCESS)
}

async fn run_transfer(wanted: Transfer) -> Result<ExitCode> {
    let Transfer { debit, credit, amount, pending, timeout_ms, label, connection } = wanted;
    let mut client = client(&connection).await?;
    let (debit, credit) = (find(&mut client, &debit, None).await, find(&mut client, &credit, None).await);
    // The world's account is there once the currency has an account, which the other one is.
    let known = credit.as_ref().or(debit.as_ref()).map_err(|error| anyhow::anyhow!("{error:#}"))?;
    let (scale, currency) = (known.scale, known.currency.clone());
    let amount = parse_amount(&amount, scale)?;
    let transfer = pb::Transfer {
        kind: if pending { pb::Kind::Pending } else { pb::Kind::Single }.into(),
        debit_account: debit?.id,
        credit_account: credit?.id,
        amount: amount as u64,
        amount_high: (amount >> 64) as u64,
        timeout_ms,
        currency,
        ..pb::Transfer::default()
    };
    submit(&connection, client, transfer, label).await
}

async fn end(
    connection: &Connection,
    client: Client,
    kind: pb::Kind,
    pending: Uuid,
    amount: u128,
    label: Label,
) -> Result<ExitCode> {
    let transfer = pb::Transfer {
        kind: kind.into(),
        pending_id: bytes_of(pending),
        amount: amount as u64,
        amount_high: (amount >> 64) as u64,
        ..pb::Transfer::default()
    };
    submit(connection, client, transfer, label).await
}

async fn scale_of(client: &mut Client, transfer: Uuid) -> Result<u32> {
    let request = pb::GetTransferRequest { id: bytes_of(transfer), local: false };
    let found = client.get_transfer(request).await?.into_inner().transfer.unwrap_or_default();
    Ok(find(client, &shown(&found.debit_account), None).await?.scale)
}

async fn submit(
    connection: &Connection,
    mut client: Client,
    transfer: pb::Transfer,
    label: Label,
) -> Result<ExitCode> {
    let id = label.id.unwrap_or_else(Uuid::now_v7);
    let transfer = pb::Transfer { id: bytes_of(id), reference: label.reference, ..transfer };
    let request = pb::CreateTransfersRequest { transfers: vec![transfer], ..Default::default() };
    let answer = client.create_transfers(request).await?.into_inner();
    let result = answer.results.first().context("an answer without a result")?;
    if result.code() != pb::Code::Ok {
        return refused(connection, &code_name(result.code()));
    }
    let outcome = if result.duplicate { "done before" } else { "done" };
    connection.say(&json!({ "outcome": outcome, "id": id.to_string() }), &format!("{outcome} {id}"))
}

/// `insufficient_funds` of `CODE_INSUFFICIENT_FUNDS`.
fn code_name(code: pb::Code) -> String {
    code.as_str_name().trim_start_matches("CODE_").to_lowercase()
}

fn kind_name(kind: pb::Kind) -> String {
    kind.as_str_name().trim_start_matches("KIND_").to_lowercase()
}

async fn statement(connection: &Connection, account: &str, limit: u32) -> Result<ExitCode> {
    let mut client = client(connection).await?;
    let account = find(&mut client, account, None).await?;
    let request = pb::StatementRequest { id: account.id.clone(), limit, ..Default::default() };
    let lines = client.statement(request).await?.into_inner().lines;
    let mut rows = Vec::with_capacity(lines.len());
    for line in lines {
        let (recorded, balances) = (line.transfer.unwrap_or_default(), line.balances.unwrap_or_default());
        let sign = if recorded.debit_account == account.id { "-" } else { "+" };
        let moved = format_amount(join(recorded.moved, recorded.moved_high), account.scale);
        let asked = recorded.transfer.unwrap_or_default();
        rows.push(vec![
            format!("{}.{}", recorded.revision, recorded.position),
            kind_name(asked.kind()),
            format!("{sign}{moved}"),
            balance(&balances, account.scale),
            locked(&balances, account.scale),
            asked.reference,
        ]);
    }
    let head = ["place", "kind", "amount", "balance", "locked", "reference"];
    if connection.json {
        let object = |row: &Vec<String>| {
            head.iter().zip(row).map(|(name, cell)| ((*name).into(), json!(cell))).collect()
        };
        let lines: Vec<Value> = rows.iter().map(|row| Value::Object(object(row))).collect();
        output::json(&json!(lines))?;
    } else {
        output::table(&head, &rows)?;
    }
    Ok(ExitCode::SUCCESS)
}
