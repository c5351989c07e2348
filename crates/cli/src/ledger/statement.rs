//! `quoin ledger statement`: an account's transfers, with the balance after each.
//!
//! The amounts of all lines add up to the balance, and what they set aside and freed to what is pending.

use super::account::{balance, locked};
use super::client::{Known, client, find_at, join, kind_name};
use super::pages::{Entry, List, count};
use super::recorded::{fields, object};
use crate::connection::{Connection, Read};
use anyhow::{Context, Result};
use clap::Args;
use quoin_core::ledger::{format_amount, format_signed};
use quoin_proto::quoin::ledger::v1 as pb;
use std::process::ExitCode;

/// A statement.
#[derive(Args)]
pub(crate) struct Statement {
    /// Number or id of the account
    account: String,
    /// Maximum number of transfers
    #[arg(long, default_value_t = 20, value_name = "NUMBER", value_parser = count, allow_negative_numbers = true)]
    limit: u64,
    /// Show all of them
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Show those before this place: the last one of the page before
    #[arg(long, value_name = "PLACE", value_parser = place)]
    before: Option<(u64, u32)>,
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    connection: Connection,
}

/// A revision and the place in it, for clap.
fn place(text: &str) -> Result<(u64, u32), String> {
    let place = text.split_once('.').and_then(|(revision, position)| {
        let (revision, position) = (revision.parse().ok()?, position.parse().ok()?);
        (revision > 0).then_some((revision, position))
    });
    place.ok_or_else(|| "not a place, like 17.0: the revision and the place in it".into())
}

const HEAD: &[&str] = &["place", "kind", "account", "amount", "pending", "balance", "locked", "reference"];

pub(super) async fn statement(wanted: Statement) -> Result<ExitCode> {
    let Statement { account, limit, all, before, read, connection } = wanted;
    let mut client = client(&connection).await?;
    let account = find_at(&mut client, &account, None, read).await?;
    let mut known = Known::new(read);
    let mut list = List::new(&connection, "lines", HEAD, limit, all);
    let (mut before, mut more) = (before.unwrap_or_default(), true);
    while more && list.page() > 0 {
        let request = pb::StatementRequest {
            id: account.id.clone(),
            before_revision: before.0,
            before_position: before.1,
            limit: list.page(),
            consistency: read.consistency(),
            ..Default::default()
        };
        let page = client.statement(request).await?.into_inner();
        more = page.more;
        let changed = page.lines.iter().filter_map(|line| line.transfer.as_ref());
        known.learn(&mut client, changed.flat_map(|one| [&one.debit_account, &one.credit_account])).await?;
        if let Some(last) = page.lines.last().and_then(|line| line.transfer.as_ref()) {
            before = (last.revision, last.position);
        }
        list.print(page.lines.iter().map(|line| entry(line, &account, &known)).collect::<Result<_>>()?)?;
    }
    list.end(more.then(|| ("before", format!("{}.{}", before.0, before.1))))
}

fn entry(line: &pb::Line, account: &pb::Account, known: &Known) -> Result<Entry> {
    let recorded = line.transfer.as_ref().context("a line without a transfer")?;
    let asked = recorded.transfer.as_ref().context("a line without a transfer")?;
    let balances = line.balances.as_ref().context("a line without balances")?;
    let gives = recorded.debit_account == account.id;
    let other = known.name(if gives { &recorded.credit_account } else { &recorded.debit_account });
    let (moved, released) =
        (join(recorded.moved, recorded.moved_high), join(recorded.released, recorded.released_high));
    let (posted, set_aside) = if asked.kind() == pb::Kind::Pending { (0, moved) } else { (moved, 0) };
    let signed = |amount: u128, minus: bool| match (amount, minus) {
        (0, _) => String::new(),
        (amount, true) => format!("-{}", format_amount(amount, account.scale)),
        (amount, false) => format!("+{}", format_amount(amount, account.scale)),
    };
    // What was set aside of a debit is to go, of a credit to come; freed, it no longer is.
    let (amount, pending) = match set_aside {
        0 => (signed(posted, gives), signed(released, !gives)),
        set_aside => (String::new(), signed(set_aside, gives)),
    };
    let held = balance(balances, account.scale);
    let locked = locked(balances, account.scale);
    let incoming =
        format_signed(join(balances.credits_pending, balances.credits_pending_high), 0, account.scale);
    let mut all = fields(recorded, asked, pb::PendingState::None, known);
    // The state of a pending transfer is not a line's: it ends by a later one.
    all.retain(|(name, _)| !["status", "amount", "released"].contains(name));
    all.extend([
        ("account", other.clone().into()),
        ("amount", amount.clone().into()),
        ("pending", pending.clone().into()),
        ("balance", held.clone().into()),
        ("locked", locked.clone().into()),
        ("incoming", incoming.into()),
    ]);
    let place = format!("{}.{}", recorded.revision, recorded.position);
    let cells =
        vec![place, kind_name(asked.kind()), other, amount, pending, held, locked, asked.reference.clone()];
    Ok((cells, object(all)))
}
