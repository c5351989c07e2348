//! `quoin ledger transfers`, `sum` and `indexes`: transfers by what they hold, accounts added up, and what makes both
//! fast.

use super::account::{balance, locked};
use super::client::{Known, client, find_at, id_text, join, kind_name};
use super::pages::{Entry, List, count};
use super::recorded::{accounts, amount, fields, object, status};
use crate::connection::{Connection, Read};
use crate::outcome::Write as _;
use crate::output;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use quoin_proto::quoin::ledger::v1 as pb;
use serde_json::json;
use std::collections::BTreeMap;
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
    #[arg(long, default_value_t = 20, value_name = "NUMBER", value_parser = count, allow_negative_numbers = true)]
    limit: u64,
    /// Show all of them
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Go on where a page with the same filters and order ended
    #[arg(long, default_value = "", hide_default_value = true, value_name = "CURSOR")]
    cursor: String,
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
    /// Keep these from now on, and no others; --unique-references leaves them as they are [default: only show what is kept]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "INDEX,...")]
    set: Option<Vec<Index>>,
    /// Refuse a transfer if another one since now has its reference, or no longer; --set leaves it as it is
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    unique_references: Option<bool>,
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
        cursor: wanted.cursor,
        consistency: wanted.read.consistency(),
        ..Default::default()
    };
    let mut list = List::new(&wanted.connection, "transfers", HEAD, wanted.limit, wanted.all);
    let mut known = Known::new(wanted.read);
    // A page may end early; the cursor does not depend on the limit.
    loop {
        request.limit = list.page();
        let page = client.query_transfers(request.clone()).await?.into_inner();
        let found = page.transfers.iter().map(both).collect::<Result<Vec<_>>>()?;
        known
            .learn(&mut client, found.iter().flat_map(|(recorded, asked)| accounts(recorded, asked)))
            .await?;
        let states = page.transfers.iter().map(pb::FoundTransfer::state);
        let entry = |((recorded, asked), state)| entry(recorded, asked, state, &known);
        list.print(found.into_iter().zip(states).map(entry).collect())?;
        request.cursor = page.cursor;
        if request.cursor.is_empty() || list.page() == 0 {
            break;
        }
    }
    list.end((!request.cursor.is_empty()).then_some(("cursor", request.cursor)))
}

const HEAD: &[&str] =
    &["place", "id", "kind", "status", "debit", "credit", "amount", "currency", "reference"];

/// A transfer with its result, and as it was asked for.
fn both(found: &pb::FoundTransfer) -> Result<(&pb::Recorded, &pb::Transfer)> {
    let recorded = found.transfer.as_ref().context("an answer without a transfer")?;
    let asked = recorded.transfer.as_ref().context("an answer without a transfer")?;
    Ok((recorded, asked))
}

fn entry(recorded: &pb::Recorded, asked: &pb::Transfer, state: pb::PendingState, known: &Known) -> Entry {
    let [debit, credit] = accounts(recorded, asked);
    let currency = known.get(debit).map_or(&asked.currency, |account| &account.currency);
    let cells = vec![
        format!("{}.{}", recorded.revision, recorded.position),
        id_text(&asked.id),
        kind_name(asked.kind()),
        status(recorded.code(), state),
        known.name(debit),
        known.name(credit),
        amount(recorded, asked, known),
        currency.clone(),
        asked.reference.clone(),
    ];
    (cells, object(fields(recorded, asked, state, known)))
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
    let mut states = client.get_indexes(pb::GetIndexesRequest::default()).await?.into_inner();
    if wanted.set.is_some() || wanted.unique_references.is_some() {
        // A request sets both; what is not named stays.
        let on = match wanted.set {
            Some(set) => set.into_iter().filter_map(number).map(Into::into).collect(),
            None => states.on.iter().map(|one| one.index).collect(),
        };
        let unique_references = wanted.unique_references.unwrap_or(states.unique_references_since > 0);
        let request = pb::SetIndexesRequest { on, unique_references };
        states = client.set_indexes(request).await.or_send_again()?.into_inner();
    }
    let mut rows = vec![vec!["account".into(), "always".into()]];
    rows.extend(states.on.iter().map(|one| vec![index_name(one.index()), one.since_revision.to_string()]));
    let unique = match states.unique_references_since {
        0 => "off".into(),
        since => since.to_string(),
    };
    rows.push(vec!["unique references".into(), unique]);
    print(&wanted.connection, &["index", "since"], &rows)
}

fn number(index: Index) -> Option<pb::Index> {
    match index {
        Index::None => None,
        Index::Reference => Some(pb::Index::Reference),
        Index::UserData128 => Some(pb::Index::UserData128),
        Index::UserData64 => Some(pb::Index::UserData64),
        Index::UserData32 => Some(pb::Index::UserData32),
        Index::Code => Some(pb::Index::Code),
    }
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
