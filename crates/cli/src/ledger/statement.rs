//! `quoin ledger statement`: an account's transfers, with the balance after each.

use super::account::{balance, locked};
use super::client::{client, find_at, join, kind_name};
use crate::connection::{Connection, Read};
use crate::output;
use anyhow::Result;
use clap::Args;
use quoin_core::ledger::format_amount;
use quoin_proto::quoin::ledger::v1 as pb;
use serde_json::{Value, json};
use std::process::ExitCode;

/// A statement.
#[derive(Args)]
pub(crate) struct Statement {
    /// Number or id of the account
    account: String,
    /// Maximum number of transfers
    #[arg(long, default_value_t = 20)]
    limit: u32,
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn statement(wanted: Statement) -> Result<ExitCode> {
    let Statement { account, limit, read, connection } = wanted;
    let mut client = client(&connection).await?;
    let account = find_at(&mut client, &account, None, read).await?;
    let (id, consistency) = (account.id.clone(), read.consistency());
    let request = pb::StatementRequest { id, limit, consistency, ..Default::default() };
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
        output::json(&lines)?;
    } else {
        output::table(&head, &rows)?;
    }
    Ok(ExitCode::SUCCESS)
}
