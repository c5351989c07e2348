//! `quoin ledger transfer`, `post`, `void` and `revert`.

use super::client::{Client, client, code_name, code_text, find, halves, id_bytes, id_text, join};
use crate::connection::Connection;
use crate::outcome;
use crate::outcome::Write as _;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use quoin_core::ledger::{format_amount, parse_amount};
use quoin_proto::quoin::ledger::v1 as pb;
use serde_json::{Map, Value, json};
use std::process::ExitCode;
use uuid::Uuid;

/// A transfer.
#[derive(Args)]
pub(crate) struct Transfer {
    /// Account to debit: the one that gives
    debit: String,
    /// Account to credit: the one that receives
    credit: String,
    /// Amount in the currency of the accounts, e.g. 12.50; `all` of a balancing transfer
    #[arg(allow_negative_numbers = true)]
    amount: String,
    /// Move at most the amount, and no more than this side's account allows
    #[arg(long, value_enum, value_name = "SIDE")]
    balancing: Option<Side>,
    /// Close this side's account until the pending transfer is voided or lapses; the amount may be 0
    #[arg(long, value_enum, value_name = "SIDE", requires = "pending")]
    closing: Option<Side>,
    /// Only set the amount aside, until `post` or `void`
    #[arg(long)]
    pending: bool,
    /// Milliseconds after which a pending transfer lapses; 0 is never
    #[arg(long, default_value_t = 0, value_name = "MS", requires = "pending")]
    timeout_ms: u64,
    #[command(flatten)]
    label: Label,
    #[command(flatten)]
    connection: Connection,
}

/// The end of a pending transfer by `post`.
#[derive(Args)]
pub(crate) struct Post {
    /// Id of the pending transfer
    pending: Uuid,
    /// Part of the amount to move; the rest becomes free again [default: all of it]
    #[arg(allow_negative_numbers = true)]
    amount: Option<String>,
    #[command(flatten)]
    label: Label,
    #[command(flatten)]
    connection: Connection,
}

/// The end of a pending transfer by `void`.
#[derive(Args)]
pub(crate) struct Void {
    /// Id of the pending transfer
    pending: Uuid,
    #[command(flatten)]
    label: Label,
    #[command(flatten)]
    connection: Connection,
}

/// The side of a transfer that is balancing, or that it closes.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Side {
    /// The debit account
    Debit,
    /// The credit account
    Credit,
    /// Both
    Both,
}

/// A revert.
#[derive(Args)]
pub(crate) struct Revert {
    /// Id of the transfer to revert
    reverted: Uuid,
    #[command(flatten)]
    label: Label,
    #[command(flatten)]
    connection: Connection,
}

/// Id of a transfer, and what is kept with it.
#[derive(Args)]
pub(crate) struct Label {
    /// Id of the transfer; with it the command can be repeated [default: a new id]
    #[arg(long, value_name = "UUID")]
    id: Option<Uuid>,
    /// Purpose of the transfer, shown in statements
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    reference: String,
    /// Only say what would be done; nothing is recorded
    #[arg(long)]
    dry_run: bool,
    /// Purpose of the transfer, as a number
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    code: u32,
    /// Number of 128 bits to keep with the transfer
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "NUMBER")]
    user_data_128: u128,
    /// Number of 64 bits to keep with the transfer
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "NUMBER")]
    user_data_64: u64,
    /// Number of 32 bits to keep with the transfer
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "NUMBER")]
    user_data_32: u32,
    /// Text to keep with the transfer, by name; repeatable
    #[arg(long = "meta", value_name = "NAME=VALUE")]
    metadata: Vec<String>,
}

impl Label {
    /// Adds all but the id to a transfer.
    fn put_on(self, transfer: &mut pb::Transfer) -> Result<()> {
        let (user_data_128, user_data_128_high) = halves(self.user_data_128);
        let (user_data_64, user_data_32) = (self.user_data_64, self.user_data_32);
        let pair = |pair: &String| {
            let parts = pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
            parts.with_context(|| format!("--meta {pair:?} is not NAME=VALUE"))
        };
        let metadata = self.metadata.iter().map(pair).collect::<Result<_>>()?;
        let extra = pb::Extra { user_data_128, user_data_128_high, user_data_64, user_data_32, metadata };
        transfer.extra = (extra != pb::Extra::default()).then(|| Box::new(extra));
        (transfer.code, transfer.reference) = (self.code, self.reference);
        Ok(())
    }
}

pub(super) async fn transfer(wanted: Transfer) -> Result<ExitCode> {
    let Transfer { debit, credit, amount, balancing, closing, pending, timeout_ms, label, connection } =
        wanted;
    let mut client = client(&connection).await?;
    let names = (debit, credit);
    let debit = find(&mut client, &names.0).await?;
    let credit = find(&mut client, &names.1).await?;
    let moves = Asked {
        people: format!("{amount} {} from {} to {}", credit.currency, names.0, names.1),
        named: vec![
            ("debit_account", names.0),
            ("credit_account", names.1),
            ("amount", amount.clone()),
            ("currency", credit.currency.clone()),
        ],
    };
    let amount = match amount.as_str() {
        "all" if balancing.is_some() => 0,
        amount => match parse_amount(amount, credit.scale)? {
            // On the wire it is no bound at all.
            0 if balancing.is_some() => bail!("{amount} moves nothing: give an amount above zero, or all"),
            amount => amount,
        },
    };
    let (amount, amount_high) = halves(amount);
    let transfer = pb::Transfer {
        kind: if pending { pb::Kind::Pending } else { pb::Kind::Single }.into(),
        debit_account: debit.id,
        credit_account: credit.id,
        amount,
        amount_high,
        timeout_ms,
        currency: credit.currency,
        balancing_debit: matches!(balancing, Some(Side::Debit | Side::Both)),
        balancing_credit: matches!(balancing, Some(Side::Credit | Side::Both)),
        closing_debit: matches!(closing, Some(Side::Debit | Side::Both)),
        closing_credit: matches!(closing, Some(Side::Credit | Side::Both)),
        ..pb::Transfer::default()
    };
    let scale = balancing.map(|_| credit.scale);
    submit(&connection, client, transfer, label, moves, scale).await
}

pub(super) async fn post(post: Post) -> Result<ExitCode> {
    let Post { pending, amount, label, connection } = post;
    let mut client = client(&connection).await?;
    let mut ends = ends("post", pending);
    ends.named.extend(amount.clone().map(|amount| ("amount", amount)));
    let amount = match amount {
        Some(text) => match parse_amount(&text, scale_of(&mut client, pending).await?)? {
            // On the wire it is all that is reserved.
            0 => bail!(
                "{text} posts nothing: give an amount above zero, or none for all; quoin ledger void releases all"
            ),
            amount => amount,
        },
        None => 0,
    };
    let (amount, amount_high) = halves(amount);
    let transfer = pb::Transfer { amount, amount_high, ..end(pb::Kind::Post, pending) };
    submit(&connection, client, transfer, label, ends, None).await
}

pub(super) async fn void(void: Void) -> Result<ExitCode> {
    let Void { pending, label, connection } = void;
    let client = client(&connection).await?;
    submit(&connection, client, end(pb::Kind::Void, pending), label, ends("void", pending), None).await
}

pub(super) async fn revert(revert: Revert) -> Result<ExitCode> {
    let Revert { reverted, label, connection } = revert;
    let client = client(&connection).await?;
    let transfer = pb::Transfer {
        kind: pb::Kind::Revert.into(),
        reverted_id: id_bytes(reverted),
        ..pb::Transfer::default()
    };
    let named = vec![("reverted_id", reverted.to_string())];
    let reverts = Asked { people: format!("revert of {reverted}"), named };
    submit(&connection, client, transfer, label, reverts, None).await
}

/// What ends a pending transfer, as a refusal names it.
fn ends(how: &str, pending: Uuid) -> Asked {
    Asked { people: format!("{how} of {pending}"), named: vec![("pending_id", pending.to_string())] }
}

/// A transfer that ends a pending one.
fn end(kind: pb::Kind, pending: Uuid) -> pb::Transfer {
    pb::Transfer { kind: kind.into(), pending_id: id_bytes(pending), ..pb::Transfer::default() }
}

/// Decimal places of the currency of a transfer.
async fn scale_of(client: &mut Client, transfer: Uuid) -> Result<u32> {
    let request = pb::GetTransferRequest { id: id_bytes(transfer), consistency: None };
    let found = client
        .get_transfer(request)
        .await
        .with_context(|| format!("nothing was done: reading {transfer}"))?
        .into_inner()
        .transfer
        .unwrap_or_default();
    Ok(find(client, &id_text(&found.debit_account)).await?.scale)
}

/// What a transfer was to do, for a refusal: as people and as programs read it.
struct Asked {
    people: String,
    named: Vec<(&'static str, String)>,
}

/// Ends the command with a refusal that says what was refused, and why.
fn refuse(code: pb::Code, id: Uuid, asked: Asked, dry_run: bool) -> Result<ExitCode> {
    let text = format!("\n  {}: {}, id {id}", code_text(code), asked.people);
    let named = asked.named.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
    let mut details = Map::from_iter(named);
    details.insert("detail".into(), code_text(code).into());
    details.insert("id".into(), id.to_string().into());
    details.insert("recorded".into(), Value::Bool(code != pb::Code::IdConflict && !dry_run));
    outcome::refuse_with(code_name(code), text, details)
}

/// Asks for a transfer; with `moved_scale`, what it moved is said with this number of decimal places.
async fn submit(
    connection: &Connection,
    mut client: Client,
    mut transfer: pb::Transfer,
    label: Label,
    asked: Asked,
    moved_scale: Option<u32>,
) -> Result<ExitCode> {
    let id = label.id.unwrap_or_else(Uuid::now_v7);
    let dry_run = label.dry_run;
    transfer.id = id_bytes(id);
    label.put_on(&mut transfer)?;
    let request = pb::CreateTransfersRequest { transfers: vec![transfer], dry_run, ..Default::default() };
    let answer = client.create_transfers(request).await;
    let answer = match dry_run {
        true => answer?,
        false => answer.or_repeat_with_id(&id.to_string())?,
    };
    let answer = answer.into_inner();
    let result = answer.results.first().context("an answer without a result")?;
    if result.code() != pb::Code::Ok {
        return refuse(result.code(), id, asked, dry_run);
    }
    let outcome = match (dry_run, result.duplicate) {
        (_, true) => "done before",
        (true, false) => "would be done",
        (false, false) => "done",
    };
    let moved = moved_scale.map(|scale| format_amount(join(result.moved, result.moved_high), scale));
    let mut machine = json!({ "outcome": outcome, "id": id.to_string() });
    let mut people = format!("{outcome} {id}");
    if let Some(moved) = moved {
        people = format!("{people} {moved}");
        machine["moved"] = moved.into();
    }
    connection.say(&machine, &people)
}
