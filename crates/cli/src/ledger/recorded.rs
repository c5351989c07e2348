//! Recorded transfers as they are shown, and `quoin ledger show`.

use super::client::{
    Client, Known, client, code_name, code_text, id_bytes, id_text, join, kind_name, time_text,
};
use crate::connection::{Connection, Read};
use crate::output;
use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use quoin_core::ledger::format_amount;
use quoin_proto::quoin::ledger::v1 as pb;
use quoin_proto::quoin::ledger::v1::event::Event as Happened;
use serde_json::{Value, json};
use std::process::ExitCode;
use uuid::Uuid;

/// A transfer to show.
#[derive(Args)]
pub(crate) struct Show {
    /// Id of the transfer
    transfer: Uuid,
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    connection: Connection,
}

/// The accounts of a transfer: those that it changed, or was to change.
pub(super) fn accounts<'t>(recorded: &'t pb::Recorded, asked: &'t pb::Transfer) -> [&'t Bytes; 2] {
    match recorded.code() {
        pb::Code::Ok => [&recorded.debit_account, &recorded.credit_account],
        _ => [&asked.debit_account, &asked.credit_account],
    }
}

/// What it moved or set aside, or was to; empty if the currency is unknown, and of what moves nothing by itself.
pub(super) fn amount(recorded: &pb::Recorded, asked: &pb::Transfer, known: &Known) -> String {
    let scale = accounts(recorded, asked).iter().find_map(|id| known.get(id)).map(|account| account.scale);
    let units = match recorded.code() {
        pb::Code::Ok => join(recorded.moved, recorded.moved_high),
        _ => join(asked.amount, asked.amount_high),
    };
    scale.map_or(String::new(), |scale| format_amount(units, scale))
}

/// `done`, what became of a pending one, or why it was refused.
pub(super) fn status(code: pb::Code, state: pb::PendingState) -> String {
    match (code, state) {
        (pb::Code::Ok, pb::PendingState::None) => "done".into(),
        (pb::Code::Ok, pb::PendingState::Open) => "pending".into(),
        (pb::Code::Ok, state) => state.as_str_name().trim_start_matches("PENDING_STATE_").to_lowercase(),
        (code, _) => code_name(code),
    }
}

/// Names and values, in the order in which people read them.
pub(super) type Fields = Vec<(&'static str, Value)>;

/// A transfer with all that is kept with it; what is empty is left out. Needs its accounts in `known`.
pub(super) fn fields(
    recorded: &pb::Recorded,
    asked: &pb::Transfer,
    state: pb::PendingState,
    known: &Known,
) -> Fields {
    let [debit, credit] = accounts(recorded, asked);
    let account = known.get(debit).or_else(|| known.get(credit));
    let released = join(recorded.released, recorded.released_high);
    let released = account.filter(|_| released > 0).map(|account| format_amount(released, account.scale));
    let id = |id: &Bytes| if id.is_empty() { String::new() } else { id_text(id) };
    let name = |id: &Bytes| if id.is_empty() { String::new() } else { known.name(id) };
    let time = |ms: u64| if ms > 0 { time_text(ms) } else { String::new() };
    let extra = asked.extra.as_deref().cloned().unwrap_or_default();
    let user_data_128 = join(extra.user_data_128, extra.user_data_128_high);
    let mut fields = vec![
        ("id", json!(id_text(&asked.id))),
        ("place", json!(format!("{}.{}", recorded.revision, recorded.position))),
        ("time", json!(time_text(recorded.time_ms))),
        ("kind", json!(kind_name(asked.kind()))),
        ("status", json!(status(recorded.code(), state))),
        ("reason", json!(if recorded.code() == pb::Code::Ok { "" } else { code_text(recorded.code()) })),
        ("debit_account", json!(name(debit))),
        ("debit_account_id", json!(id(debit))),
        ("credit_account", json!(name(credit))),
        ("credit_account_id", json!(id(credit))),
        ("amount", json!(amount(recorded, asked, known))),
        ("released", json!(released.unwrap_or_default())),
        ("currency", json!(account.map_or(&asked.currency, |account| &account.currency))),
        ("pending_id", json!(id(&asked.pending_id))),
        ("reverted_id", json!(id(&asked.reverted_id))),
        ("reference", json!(asked.reference)),
        ("code", json!(asked.code)),
        ("user_data", json!(asked.user_data)),
        // Programs read numbers of JSON as 64-bit floats.
        ("user_data_128", json!(if user_data_128 == 0 { String::new() } else { user_data_128.to_string() })),
        (
            "user_data_64",
            json!(match extra.user_data_64 {
                0 => String::new(),
                data => data.to_string(),
            }),
        ),
        ("user_data_32", json!(extra.user_data_32)),
        ("metadata", json!(extra.metadata)),
        ("timeout_ms", json!(asked.timeout_ms)),
        ("client_time", json!(time(asked.client_time_ms))),
        ("settle_time", json!(time(asked.settle_time_ms))),
        ("imported", json!(asked.imported)),
        ("linked", json!(asked.linked)),
    ];
    fields.retain(|(_, value)| match value {
        Value::String(text) => !text.is_empty(),
        Value::Number(number) => number.as_u64() != Some(0),
        Value::Object(object) => !object.is_empty(),
        value => *value == Value::Bool(true),
    });
    fields
}

/// As an object of JSON.
pub(super) fn object(fields: Fields) -> Value {
    Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Shows a transfer with its state, why it was refused, and what ended or reverted it.
pub(super) async fn show(wanted: Show) -> Result<ExitCode> {
    let Show { transfer, read, connection } = wanted;
    let mut client = client(&connection).await?;
    let request = pb::GetTransferRequest { id: id_bytes(transfer), consistency: read.consistency() };
    let found =
        client.get_transfer(request).await.with_context(|| format!("reading {transfer}"))?.into_inner();
    let state = found.state();
    let recorded = found.transfer.context("an answer without a transfer")?;
    let asked = recorded.transfer.clone().context("an answer without a transfer")?;
    let mut known = Known::new(read);
    known.learn(&mut client, accounts(&recorded, &asked)).await?;
    let mut fields = fields(&recorded, &asked, state, &known);
    if found.deadline_ms > 0 {
        fields.push(("deadline", time_text(found.deadline_ms).into()));
    }
    if found.ended_revision > 0 {
        fields.push(("ended_revision", found.ended_revision.into()));
        if let Some(id) = ended_by(&mut client, &asked.id, found.ended_revision).await? {
            fields.push(("ended_by", id.into()));
        }
    }
    if !found.reverted_by.is_empty() {
        fields.push(("reverted_by", id_text(&found.reverted_by).into()));
    }
    if connection.json {
        output::json(&object(fields))?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let rows: Vec<_> = fields.iter().map(|(name, value)| vec![(*name).to_owned(), text(value)]).collect();
    output::table(&["field", "value"], &rows)?;
    Ok(ExitCode::SUCCESS)
}

/// The transfer that ended a pending one at this revision; none if it lapsed.
async fn ended_by(client: &mut Client, pending: &Bytes, revision: u64) -> Result<Option<String>> {
    let request =
        pb::EventsRequest { from_revision: revision, until_revision: revision, ..Default::default() };
    let mut events = client.events(request).await?.into_inner();
    while let Some(message) = events.message().await.context("reading what ended it")? {
        for event in message.events {
            let Some(Happened::Transfer(recorded)) = event.event else { continue };
            let asked = recorded.transfer.as_ref().context("an event without its transfer")?;
            let ended = recorded.code() == pb::Code::Ok && asked.pending_id == pending;
            if ended && asked.kind() != pb::Kind::Expired {
                return Ok(Some(id_text(&asked.id)));
            }
        }
    }
    Ok(None)
}
