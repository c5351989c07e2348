//! `quoin.ledger.v1` to the ledger's commands, and replies back. Invalid requests are refused here, with the
//! field.

use crate::error::Error;
use crate::ledger::{Applied, TIMEOUT_MS_MAX, check_texts, check_transfer_metadata};
use bytes::Bytes;
use quoin_core::ledger::{
    self, AccountRecord, Amount, Balances, Code, Entry, Extra, Journal, Kind, Metadata, NewAccount,
    NewCurrency, Options, PendingState, REFERENCE_BYTES_MAX, Rule, Status as AccountStatus, TRANSFERS_MAX,
    Times, Transfer, TransferReply, TransferState, Transfers, UpdateAccount,
};
use quoin_core::{Revision, Stamp};
use quoin_proto::quoin::ledger::v1 as pb;
use std::collections::BTreeMap;
use std::fmt::Display;

fn invalid(field: impl Display, problem: impl Display) -> Error {
    Error::invalid(format_args!("{field}: {problem}"))
}

/// An id of 16 bytes, not zero.
pub(super) fn id(bytes: &[u8], field: impl Display) -> Result<u128, Error> {
    read_id(bytes).map_err(|problem| invalid(field, problem))
}

fn read_id(bytes: &[u8]) -> Result<u128, String> {
    match <[u8; 16]>::try_from(bytes).map(u128::from_be_bytes) {
        Ok(0) => Err("an id must not be zero".into()),
        Ok(id) => Ok(id),
        Err(_) => Err(format!("{} bytes; an id has 16", bytes.len())),
    }
}

fn id_bytes(id: u128) -> Bytes {
    Bytes::copy_from_slice(&id.to_be_bytes())
}

fn number(low: u64, high: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

fn halves(number: u128) -> (u64, u64) {
    (number as u64, (number >> 64) as u64)
}

/// The command of a batch of transfers.
pub(super) fn transfers(request: &pb::CreateTransfersRequest) -> Result<Transfers, Error> {
    let count = request.transfers.len();
    if count == 0 || count > TRANSFERS_MAX {
        return Err(invalid("transfers", format_args!("{count} is not between 1 and {TRANSFERS_MAX}")));
    }
    let mut transfers = Transfers::new(request.balances);
    for (place, wanted) in request.transfers.iter().enumerate() {
        let problem =
            |(field, problem): (&str, String)| invalid(format_args!("transfers[{place}].{field}"), problem);
        let metadata = wanted.extra.as_ref().map_or(Vec::new(), |extra| Metadata::encode(&extra.metadata));
        transfers.push(&transfer(wanted, &metadata).map_err(problem)?);
    }
    if request.transfers.iter().any(|wanted| wanted.imported != request.transfers[0].imported) {
        return Err(invalid("transfers", "either all are imported or none is; send the others apart"));
    }
    if request.transfers.last().is_some_and(|last| last.linked) {
        return Err(invalid("transfers", "the last one is linked to the next, which is missing"));
    }
    Ok(transfers)
}

type Problem = (&'static str, String);

/// A transfer; `metadata` is its metadata, encoded.
fn transfer<'a>(wanted: &'a pb::Transfer, metadata: &'a [u8]) -> Result<Transfer<'a>, Problem> {
    let id = |bytes: &[u8], field| read_id(bytes).map_err(|problem| (field, problem));
    let amount = number(wanted.amount, wanted.amount_high);
    let pair =
        || Ok((id(&wanted.debit_account, "debit_account")?, id(&wanted.credit_account, "credit_account")?));
    let kind = match pb::Kind::try_from(wanted.kind) {
        Ok(pb::Kind::Single) => {
            let (debit, credit) = pair()?;
            Kind::Single { debit, credit, amount }
        }
        Ok(pb::Kind::Pending) => {
            let (debit, credit) = pair()?;
            Kind::Pending { debit, credit, amount, timeout_ms: wanted.timeout_ms }
        }
        Ok(pb::Kind::Post) => Kind::Post {
            pending: id(&wanted.pending_id, "pending_id")?,
            amount: Some(amount).filter(|amount| *amount > 0),
        },
        Ok(pb::Kind::Void) => Kind::Void { pending: id(&wanted.pending_id, "pending_id")? },
        Ok(pb::Kind::Revert) => Kind::Revert { reverted: id(&wanted.reverted_id, "reverted_id")? },
        Ok(pb::Kind::Expired) | Err(_) => {
            return Err(("kind", format!("{} is not a kind of transfer to create", wanted.kind)));
        }
    };
    check_fields(wanted, &kind)?;
    let currency = match wanted.currency.as_str() {
        "" => None,
        code => Some(code.parse().map_err(|problem| ("currency", problem))?),
    };
    Ok(Transfer {
        id: id(&wanted.id, "id")?,
        kind,
        linked: wanted.linked,
        currency,
        code: wanted.code,
        reference: &wanted.reference,
        user_data: &wanted.user_data,
        options: Options {
            balancing_debit: wanted.balancing_debit,
            balancing_credit: wanted.balancing_credit,
            closing_debit: wanted.closing_debit,
            closing_credit: wanted.closing_credit,
        },
        times: Times {
            client_ms: wanted.client_time_ms,
            settle_ms: wanted.settle_time_ms,
            imported: wanted.imported,
        },
        extra: wanted.extra.as_ref().map_or(Extra::default(), |extra| Extra {
            user_data_128: number(extra.user_data_128, extra.user_data_128_high),
            user_data_64: extra.user_data_64,
            user_data_32: extra.user_data_32,
            metadata: Metadata::encoded(metadata),
        }),
    })
}

/// Refuses fields that the kind of transfer does not have, and texts that are too long.
fn check_fields(wanted: &pb::Transfer, kind: &Kind) -> Result<(), Problem> {
    let moves = matches!(kind, Kind::Single { .. } | Kind::Pending { .. });
    let (ends, reverts) =
        (matches!(kind, Kind::Post { .. } | Kind::Void { .. }), matches!(kind, Kind::Revert { .. }));
    let pending = matches!(kind, Kind::Pending { .. });
    let foreign = [
        ("debit_account", !moves && !wanted.debit_account.is_empty()),
        ("credit_account", !moves && !wanted.credit_account.is_empty()),
        ("pending_id", !ends && !wanted.pending_id.is_empty()),
        ("reverted_id", !reverts && !wanted.reverted_id.is_empty()),
        ("balancing_debit", !moves && wanted.balancing_debit),
        ("balancing_credit", !moves && wanted.balancing_credit),
        (
            "amount",
            !moves && !matches!(kind, Kind::Post { .. }) && (wanted.amount, wanted.amount_high) != (0, 0),
        ),
        ("timeout_ms", !pending && wanted.timeout_ms > 0),
        ("closing_debit", !pending && wanted.closing_debit),
        ("closing_credit", !pending && wanted.closing_credit),
    ];
    if let Some((field, _)) = foreign.iter().find(|(_, given)| *given) {
        return Err((field, "a transfer of this kind has no such field".into()));
    }
    if wanted.imported && wanted.client_time_ms == 0 {
        return Err(("client_time_ms", "an imported transfer has one".into()));
    }
    if wanted.imported && wanted.timeout_ms > 0 {
        return Err(("timeout_ms", "an imported transfer does not expire".into()));
    }
    if wanted.timeout_ms > TIMEOUT_MS_MAX {
        return Err((
            "timeout_ms",
            format!("{} is more than {TIMEOUT_MS_MAX}, ten years", wanted.timeout_ms),
        ));
    }
    for (field, text) in [("reference", &wanted.reference), ("user_data", &wanted.user_data)] {
        if text.len() > REFERENCE_BYTES_MAX {
            return Err((field, format!("has {} bytes, at most {REFERENCE_BYTES_MAX}", text.len())));
        }
    }
    match &wanted.extra {
        None => Ok(()),
        Some(extra) => {
            check_transfer_metadata(&extra.metadata).map_err(|problem| ("extra.metadata", problem))
        }
    }
}

/// The answer to a batch.
pub(super) fn transfers_response(tag: u64, applied: Applied) -> pb::CreateTransfersResponse {
    let Applied { replies, revision, stamp } = applied;
    let results = replies.into_iter().map(|reply| transfer_result(reply, revision, stamp)).collect();
    pb::CreateTransfersResponse { tag, results, revision: revision.0, time_ms: stamp.0, dry_run: false }
}

/// The answer to a dry run of a batch.
pub(super) fn dry_run_response(tag: u64, applied: Applied) -> pb::CreateTransfersResponse {
    pb::CreateTransfersResponse { dry_run: true, ..transfers_response(tag, applied) }
}

fn transfer_result(reply: TransferReply, newest: Revision, now: Stamp) -> pb::TransferResult {
    let TransferReply { code, duplicate, revision, position, stamp, detail } = reply;
    let (moved, moved_high) = halves(detail.as_ref().map_or(0, |detail| detail.resolution.amount));
    let usual = revision == newest && stamp == now;
    pb::TransferResult {
        code: code_of(code),
        duplicate,
        revision: if usual { 0 } else { revision.0 },
        time_ms: if usual { 0 } else { stamp.0 },
        position,
        debit_balances: detail.as_ref().map(|detail| balances(&detail.debit)),
        credit_balances: detail.as_ref().map(|detail| balances(&detail.credit)),
        moved,
        moved_high,
    }
}

fn code_of(code: Code) -> i32 {
    i32::from(code as u8)
}

pub(super) fn balances(from: &Balances) -> pb::Balances {
    let (debits_posted, debits_posted_high) = halves(from.debits_posted);
    let (credits_posted, credits_posted_high) = halves(from.credits_posted);
    let (debits_pending, debits_pending_high) = halves(from.debits_pending);
    let (credits_pending, credits_pending_high) = halves(from.credits_pending);
    pb::Balances {
        debits_posted,
        debits_posted_high,
        credits_posted,
        credits_posted_high,
        debits_pending,
        debits_pending_high,
        credits_pending,
        credits_pending_high,
    }
}

/// An account to create.
pub(super) fn new_account(wanted: pb::Account, place: usize) -> Result<NewAccount, Error> {
    let field = |name: &str| format!("accounts[{place}].{name}");
    let answers_only = wanted.balances.is_some() || wanted.created_ms > 0 || wanted.scale != 0;
    if answers_only {
        return Err(invalid(field(""), "the ledger sets scale, balances and times; leave them out"));
    }
    if ![pb::Status::Active as i32, pb::Status::Pending as i32].contains(&wanted.status) {
        return Err(invalid(field("status"), "a new account is active or pending"));
    }
    let new = NewAccount {
        number: wanted.number,
        currency: wanted.currency,
        rule: rule(wanted.rule, wanted.limit, wanted.limit_high)
            .map_err(|problem| invalid(field("rule"), problem))?,
        user_data: wanted.user_data,
        metadata: wanted.metadata.into_iter().collect(),
        maximum: wanted.maximum.map(amount),
        linked: wanted.linked,
        opening: wanted.opening.map(amount),
        status: wanted.status,
        ..NewAccount::default()
    };
    check_texts(&new.user_data, &new.metadata).map_err(|(name, problem)| invalid(field(name), problem))?;
    Ok(new.with_id(id(&wanted.id, field("id"))?).with_limit(number(wanted.limit, wanted.limit_high)))
}

fn amount(wanted: pb::Amount) -> Amount {
    Amount { low: wanted.amount, high: wanted.amount_high }
}

fn shown_amount(Amount { low, high }: Amount) -> pb::Amount {
    pb::Amount { amount: low, amount_high: high }
}

fn rule(rule: i32, low: u64, high: u64) -> Result<i32, String> {
    let rule = Rule::try_from(rule).map_err(|_| format!("{rule} is not a rule"))?;
    if rule != Rule::Limit && (low, high) != (0, 0) {
        return Err("a limit needs RULE_LIMIT".into());
    }
    Ok(rule.into())
}

/// A change of an account.
pub(super) fn update(request: pb::UpdateAccountRequest) -> Result<UpdateAccount, Error> {
    let id = id(&request.id, "id")?;
    if let Some(status) = request.status {
        AccountStatus::try_from(status)
            .map_err(|_| invalid("status", format_args!("{status} is not a status")))?;
    }
    let (limit_low, limit_high) = (request.limit, request.limit_high);
    match request.rule {
        Some(wanted) => {
            rule(wanted, limit_low, limit_high).map_err(|problem| invalid("rule", problem))?;
        }
        None if (limit_low, limit_high) != (0, 0) => return Err(invalid("limit", "a limit needs a rule")),
        None => {}
    }
    let metadata: BTreeMap<_, _> = request.metadata.into_iter().collect();
    if !metadata.is_empty() && !request.replace_metadata {
        return Err(invalid("metadata", "it replaces all metadata; set replace_metadata"));
    }
    if request.maximum.is_some() && request.no_maximum {
        return Err(invalid("no_maximum", "set a maximum or take it away, not both"));
    }
    check_texts(request.user_data.as_deref().unwrap_or_default(), &metadata)
        .map_err(|(field, problem)| invalid(field, problem))?;
    Ok(UpdateAccount {
        status: request.status,
        rule: request.rule,
        limit_low,
        limit_high,
        user_data: request.user_data,
        metadata,
        replace_metadata: request.replace_metadata,
        unchanged_since: request.unchanged_since,
        maximum: request.maximum.map(amount),
        no_maximum: request.no_maximum,
        ..UpdateAccount::of(id)
    })
}

pub(super) fn currency(request: pb::CreateCurrencyRequest) -> NewCurrency {
    NewCurrency { code: request.code, scale: request.scale }
}

/// An account without its balances.
pub(super) fn account_record(record: &AccountRecord) -> pb::Account {
    let present = record.present();
    pb::Account {
        id: id_bytes(record.id()),
        number: record.origin.number.clone(),
        currency: record.origin.currency.clone(),
        scale: record.scale,
        rule: present.rule,
        limit: present.limit_low,
        limit_high: present.limit_high,
        status: record.status,
        user_data: present.user_data,
        metadata: present.metadata.into_iter().collect(),
        balances: None,
        created_ms: record.created_ms,
        created_revision: record.created_revision,
        changed_revision: record.changed_revision,
        balance_revision: 0,
        maximum: present.maximum.map(shown_amount),
        linked: false,
        opening: record.origin.opening.map(shown_amount),
    }
}

pub(super) fn account(account: &ledger::Account) -> pb::Account {
    pb::Account {
        balances: Some(balances(&account.balances)),
        balance_revision: account.balance_revision.0,
        status: account.status().into(),
        ..account_record(&account.record)
    }
}

/// A transfer as requested.
fn asked(transfer: &Transfer<'_>) -> pb::Transfer {
    let mut out = pb::Transfer {
        id: id_bytes(transfer.id),
        linked: transfer.linked,
        currency: transfer.currency.map(|currency| currency.to_string()).unwrap_or_default(),
        code: transfer.code,
        reference: transfer.reference.to_owned(),
        user_data: transfer.user_data.to_owned(),
        balancing_debit: transfer.options.balancing_debit,
        balancing_credit: transfer.options.balancing_credit,
        closing_debit: transfer.options.closing_debit,
        closing_credit: transfer.options.closing_credit,
        imported: transfer.times.imported,
        client_time_ms: transfer.times.client_ms,
        settle_time_ms: transfer.times.settle_ms,
        ..pb::Transfer::default()
    };
    if transfer.extra != Extra::default() {
        let Extra { user_data_128, user_data_64, user_data_32, metadata } = transfer.extra;
        let metadata = metadata.iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        let (user_data_128, user_data_128_high) = halves(user_data_128);
        let extra = pb::Extra { user_data_128, user_data_128_high, user_data_64, user_data_32, metadata };
        out.extra = Some(Box::new(extra));
    }
    match transfer.kind {
        Kind::Single { debit, credit, amount } => {
            (out.debit_account, out.credit_account) = (id_bytes(debit), id_bytes(credit));
            (out.amount, out.amount_high) = halves(amount);
        }
        Kind::Pending { debit, credit, amount, timeout_ms } => {
            out.kind = pb::Kind::Pending.into();
            (out.debit_account, out.credit_account) = (id_bytes(debit), id_bytes(credit));
            (out.amount, out.amount_high) = halves(amount);
            out.timeout_ms = timeout_ms;
        }
        Kind::Post { pending, amount } => {
            out.kind = pb::Kind::Post.into();
            out.pending_id = id_bytes(pending);
            (out.amount, out.amount_high) = halves(amount.unwrap_or(0));
        }
        Kind::Void { pending } => {
            out.kind = pb::Kind::Void.into();
            out.pending_id = id_bytes(pending);
        }
        Kind::Revert { reverted } => {
            out.kind = pb::Kind::Revert.into();
            out.reverted_id = id_bytes(reverted);
        }
        Kind::Expired { pending } => {
            out.kind = pb::Kind::Expired.into();
            out.pending_id = id_bytes(pending);
        }
    }
    out
}

/// A transfer with its result.
pub(super) fn recorded(entry: &Entry) -> pb::Recorded {
    let mut out = pb::Recorded {
        transfer: Some(asked(&entry.transfer())),
        code: code_of(entry.code),
        revision: entry.revision.0,
        position: entry.position,
        time_ms: entry.stamp.0,
        ..pb::Recorded::default()
    };
    if let Some(effect) = entry.effect() {
        (out.debit_account, out.credit_account) = (id_bytes(effect.debit), id_bytes(effect.credit));
        (out.moved, out.moved_high) = halves(effect.amount);
        (out.released, out.released_high) = halves(effect.pending_amount);
    }
    out
}

/// A transfer and its state.
pub(super) fn found(view: ledger::TransferView, newest: Revision) -> pb::GetTransferResponse {
    let pb::FoundTransfer { transfer, state, deadline_ms, ended_revision, reverted_by } =
        found_transfer(&view);
    pb::GetTransferResponse { transfer, state, deadline_ms, ended_revision, revision: newest.0, reverted_by }
}

/// As [`found`], one of several.
pub(super) fn found_transfer(view: &ledger::TransferView) -> pb::FoundTransfer {
    let transfer = Some(recorded(&view.entry));
    let reverted_by = view.reverted_by.map(id_bytes).unwrap_or_default();
    let mut out = pb::FoundTransfer { transfer, reverted_by, ..pb::FoundTransfer::default() };
    if let TransferState::Pending(state, deadline, ended) = view.state {
        let state = match state {
            PendingState::Open => pb::PendingState::Open,
            PendingState::Posted => pb::PendingState::Posted,
            PendingState::Voided => pb::PendingState::Voided,
            PendingState::Expired => pb::PendingState::Expired,
        };
        (out.state, out.deadline_ms, out.ended_revision) = (state.into(), deadline.0, ended.0);
    }
    out
}

/// The events of a part of the journal.
pub(super) fn events(part: &Journal) -> Vec<pb::Event> {
    let event = |revision: &Revision, stamp: &Stamp, event| pb::Event {
        revision: revision.0,
        time_ms: stamp.0,
        event: Some(event),
    };
    match part {
        Journal::Transfers(entries) => entries
            .iter()
            .map(|entry| event(&entry.revision, &entry.stamp, pb::event::Event::Transfer(recorded(entry))))
            .collect(),
        Journal::Accounts(revision, stamp, accounts) => accounts
            .iter()
            .map(|account| event(revision, stamp, pb::event::Event::Account(account_record(account))))
            .collect(),
        Journal::Currency(revision, stamp, currency, scale) => {
            let currency = pb::CreateCurrencyRequest { code: currency.to_string(), scale: *scale };
            vec![event(revision, stamp, pb::event::Event::Currency(currency))]
        }
    }
}
