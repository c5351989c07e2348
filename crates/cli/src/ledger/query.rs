//! `quoin ledger transfers`, `sum` and `indexes`: transfers by what they hold, accounts added up, and what makes both
//! fast.

use super::account::{balance, locked};
use super::client::{Client, client, code_name, find, find_at, id_text, join, kind_name};
use crate::connection::{Connection, Read};
use crate::output;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use quoin_core::ledger::format_amount;
use quoin_proto::quoin::ledger::v1 as pb;
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;

/// A query for transfers.
#[derive(Args)]
pub(crate) struct Transfers {
    /// Only those that changed this account: its number or id
    #[arg(long)]
    account: Option<String>,
    /// Only those on this side of the account
    #[arg(long, value_enum, requires = "account")]
    side: Option<Side>,
    /// Only those with this code
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    code: u32,
    /// Only those with this reference
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    reference: String,
    /// Only those with this user data of 128 bits
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "NUMBER")]
    user_data_128: u128,
    /// Only those with this user data of 64 bits
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "NUMBER")]
    user_data_64: u64,
    /// Only those with this user data of 32 bits
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "NUMBER")]
    user_data_32: u32,
    /// Only those in this state now
    #[arg(long, value_enum)]
    status: Option<Status>,
    /// Newest first
    #[arg(long)]
    newest: bool,
    /// Maximum number of transfers
    #[arg(long, default_value_t = 20)]
    limit: u32,
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    connection: Connection,
}

/// An account's side of a transfer.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Side {
    Debit,
    Credit,
}

/// What became of a transfer.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Status {
    Done,
    Refused,
    Pending,
    Posted,
    Voided,
    Expired,
}

/// Accounts to add up.
#[derive(Args)]
pub(crate) struct Sum {
    /// How the numbers of the accounts begin
    prefix: String,
    /// As of this revision [default: the newest]
    #[arg(long, value_name = "REVISION", default_value_t = 0, hide_default_value = true)]
    at_revision: u64,
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    connection: Connection,
}

/// The indexes of transfers.
#[derive(Args)]
pub(crate) struct Indexes {
    /// Keep these from now on, and no others [default: only show what is kept]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "INDEX,...")]
    set: Option<Vec<Index>>,
    /// Refuse a transfer if another one since now has its reference
    #[arg(long, requires = "set")]
    unique_references: bool,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Index {
    None,
    Reference,
    #[value(name = "user-data-128")]
    UserData128,
    #[value(name = "user-data-64")]
    UserData64,
    #[value(name = "user-data-32")]
    UserData32,
    Code,
}

pub(super) async fn transfers(wanted: Transfers) -> Result<ExitCode> {
    let mut client = client(&wanted.connection).await?;
    let account = match &wanted.account {
        Some(name) => find_at(&mut client, name, None, wanted.read).await?.id,
        None => Default::default(),
    };
    let side = match wanted.side {
        None => pb::Side::Any,
        Some(Side::Debit) => pb::Side::Debit,
        Some(Side::Credit) => pb::Side::Credit,
    };
    let status = match wanted.status {
        None => pb::TransferStatus::Any,
        Some(Status::Done) => pb::TransferStatus::Done,
        Some(Status::Refused) => pb::TransferStatus::Refused,
        Some(Status::Pending) => pb::TransferStatus::Pending,
        Some(Status::Posted) => pb::TransferStatus::Posted,
        Some(Status::Voided) => pb::TransferStatus::Voided,
        Some(Status::Expired) => pb::TransferStatus::Expired,
    };
    let order = if wanted.newest { pb::Order::NewestFirst } else { pb::Order::OldestFirst };
    let mut request = pb::QueryTransfersRequest {
        account,
        side: side.into(),
        code: wanted.code,
        reference: wanted.reference,
        user_data_128: wanted.user_data_128 as u64,
        user_data_128_high: (wanted.user_data_128 >> 64) as u64,
        user_data_64: wanted.user_data_64,
        user_data_32: wanted.user_data_32,
        status: status.into(),
        order: order.into(),
        limit: wanted.limit,
        consistency: wanted.read.consistency(),
        ..Default::default()
    };
    // A page may end early; the cursor does not depend on the limit.
    let mut found = Vec::new();
    loop {
        let page = client.query_transfers(request.clone()).await?.into_inner();
        found.extend(page.transfers);
        request.limit = wanted.limit.saturating_sub(u32::try_from(found.len()).unwrap_or(u32::MAX));
        request.cursor = page.cursor;
        if request.cursor.is_empty() || request.limit == 0 {
            break;
        }
    }
    show(&wanted.connection, &mut client, &found).await
}

async fn show(connection: &Connection, client: &mut Client, found: &[pb::FoundTransfer]) -> Result<ExitCode> {
    let head = ["place", "id", "kind", "status", "amount", "reference"];
    let (mut rows, mut scales) = (Vec::with_capacity(found.len()), HashMap::new());
    for one in found {
        let recorded = one.transfer.as_ref().context("an answer without a transfer")?;
        let asked = recorded.transfer.as_ref().context("an answer without a transfer")?;
        let status = match (recorded.code(), one.state()) {
            (pb::Code::Ok, pb::PendingState::None) => "done".into(),
            (pb::Code::Ok, pb::PendingState::Open) => "pending".into(),
            (pb::Code::Ok, state) => state.as_str_name().trim_start_matches("PENDING_STATE_").to_lowercase(),
            (code, _) => code_name(code),
        };
        let mut amount = String::new();
        if recorded.code() == pb::Code::Ok {
            let account = &recorded.debit_account;
            if !scales.contains_key(account) {
                scales.insert(account.clone(), find(client, &id_text(account)).await?.scale);
            }
            amount = format_amount(join(recorded.moved, recorded.moved_high), scales[account]);
        }
        let place = format!("{}.{}", recorded.revision, recorded.position);
        let kind = kind_name(asked.kind());
        rows.push(vec![place, id_text(&asked.id), kind, status, amount, asked.reference.clone()]);
    }
    print(connection, &head, &rows)
}

pub(super) async fn sum(wanted: Sum) -> Result<ExitCode> {
    let mut client = client(&wanted.connection).await?;
    let mut request = pb::SumBalancesRequest {
        prefix: wanted.prefix,
        revision: wanted.at_revision,
        consistency: wanted.read.consistency(),
        ..Default::default()
    };
    let mut sums: BTreeMap<String, pb::CurrencySum> = BTreeMap::new();
    loop {
        let page = client.sum_balances(request.clone()).await?.into_inner();
        for sum in page.sums {
            match sums.get_mut(&sum.currency) {
                Some(all) => {
                    all.accounts += sum.accounts;
                    let both = (all.balances.as_mut(), sum.balances.as_ref());
                    let (Some(all), Some(more)) = both else { continue };
                    add(all, more).context("a sum exceeds 2^128 minor units")?;
                }
                None => {
                    sums.insert(sum.currency.clone(), sum);
                }
            }
        }
        request.cursor = page.cursor;
        if request.cursor.is_empty() {
            break;
        }
    }
    let none = pb::Balances::default();
    let row = |sum: &pb::CurrencySum| {
        let balances = sum.balances.as_ref().unwrap_or(&none);
        let (held, set_aside) = (balance(balances, sum.scale), locked(balances, sum.scale));
        vec![sum.currency.clone(), sum.accounts.to_string(), held, set_aside]
    };
    let rows: Vec<_> = sums.values().map(row).collect();
    print(&wanted.connection, &["currency", "accounts", "balance", "locked"], &rows)
}

/// Adds balances; `None` if a sum is too large.
fn add(all: &mut pb::Balances, more: &pb::Balances) -> Option<()> {
    let add = |low: &mut u64, high: &mut u64, more_low: u64, more_high: u64| {
        let sum = join(*low, *high).checked_add(join(more_low, more_high))?;
        (*low, *high) = (sum as u64, (sum >> 64) as u64);
        Some(())
    };
    let from = more;
    add(&mut all.debits_posted, &mut all.debits_posted_high, from.debits_posted, from.debits_posted_high)?;
    add(
        &mut all.credits_posted,
        &mut all.credits_posted_high,
        from.credits_posted,
        from.credits_posted_high,
    )?;
    add(
        &mut all.debits_pending,
        &mut all.debits_pending_high,
        from.debits_pending,
        from.debits_pending_high,
    )?;
    add(
        &mut all.credits_pending,
        &mut all.credits_pending_high,
        from.credits_pending,
        from.credits_pending_high,
    )
}

pub(super) async fn indexes(wanted: Indexes) -> Result<ExitCode> {
    let mut client = client(&wanted.connection).await?;
    let states = match wanted.set {
        None => client.get_indexes(pb::GetIndexesRequest::default()).await?,
        Some(on) => {
            let number = |index: Index| match index {
                Index::None => None,
                Index::Reference => Some(pb::Index::Reference.into()),
                Index::UserData128 => Some(pb::Index::UserData128.into()),
                Index::UserData64 => Some(pb::Index::UserData64.into()),
                Index::UserData32 => Some(pb::Index::UserData32.into()),
                Index::Code => Some(pb::Index::Code.into()),
            };
            let on = on.into_iter().filter_map(number).collect();
            let unique_references = wanted.unique_references;
            client.set_indexes(pb::SetIndexesRequest { on, unique_references }).await?
        }
    };
    let states = states.into_inner();
    let mut rows = vec![vec!["account".into(), "always".into()]];
    rows.extend(states.on.iter().map(|one| vec![index_name(one.index()), one.since_revision.to_string()]));
    if states.unique_references_since > 0 {
        rows.push(vec!["unique references".into(), states.unique_references_since.to_string()]);
    }
    print(&wanted.connection, &["index", "since"], &rows)
}

/// `user_data_64` for `INDEX_USER_DATA_64`.
pub(super) fn index_name(index: pb::Index) -> String {
    index.as_str_name().trim_start_matches("INDEX_").to_lowercase()
}

fn print(connection: &Connection, head: &[&str], rows: &[Vec<String>]) -> Result<ExitCode> {
    if connection.json {
        let object = |row: &Vec<String>| {
            head.iter().zip(row).map(|(name, cell)| ((*name).to_owned(), json!(cell))).collect()
        };
        output::json(&rows.iter().map(|row| serde_json::Value::Object(object(row))).collect::<Vec<_>>())?;
    } else {
        output::table(head, rows)?;
    }
    Ok(ExitCode::SUCCESS)
}
