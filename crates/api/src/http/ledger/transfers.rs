//! Transfers, alone and in batches, answered when they are done or as soon as they are accepted.
//!
//! Both are one command in the log. Accepted means that the command is on the disks of a majority; it is
//! applied in the order of the log, so an accepted transfer can neither lose its result nor overtake another.

use super::desk::Desk;
use super::ids;
use super::model::{
    Accepted, AcceptedAll, Balance, Ending, Fresh, Known, Movement, NewTransfer, NewTransfers, Reverting,
    Sides, Transfer, TransferKind, TransferResult, TransferResults, Trial, shown,
};
use crate::error::Error;
use crate::http::answer::created;
use crate::http::extract::{Body, BodyOrNone, Named, Params};
use crate::http::problem::Problem;
use crate::ledger::{Applied, TIMEOUT_MS_MAX, check_metadata_bytes};
use crate::time;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use quoin_core::ledger::{
    self, Code, Currency, Extra, Key, Kind, Metadata, REFERENCE_BYTES_MAX, TRANSFERS_MAX, Times,
    TransferReply, Transfers, world_account,
};

/// A transfer to create.
pub(super) struct Wanted<'a> {
    pub(super) transfer: ledger::Transfer<'a>,
    unit: Option<(Currency, u32)>,
}

/// Create a transfer
#[utoipa::path(post, path = "/v1/transfers", operation_id = "create_transfer", tag = "transfers", request_body = NewTransfer,
    params(("Idempotency-Key" = Option<String>, Header, description = "Instead of an id"),
        ("Prefer" = Option<String>, Header, description = "respond-async: answer 202 when it is durable"), Trial),
    responses((status = 201, body = Transfer), (status = 200, body = Transfer, description = "It was done before"),
        (status = 202, body = Accepted), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create(
    State(desk): State<Desk>,
    Params(trial): Params<Trial>,
    headers: HeaderMap,
    Body(body): Body<NewTransfer>,
) -> Result<Response, Problem> {
    if body.linked {
        return Err(Problem::field("linked", "there is no next transfer to link to; use a batch"));
    }
    let id = ids::request_id(&headers, body.id.as_deref())?;
    let wanted = understand(&desk, &body, id, "").await?;
    submit(&desk, &headers, wanted, trial).await
}

/// Create up to 8,190 transfers in order, in one step
///
/// With an Idempotency-Key the same request again does nothing and gets the same answer, and the key with another body
/// is refused (409), as a whole.
#[utoipa::path(post, path = "/v1/transfers/batch", operation_id = "create_transfers", tag = "transfers", request_body = NewTransfers,
    params(("Idempotency-Key" = Option<String>, Header, description = "For the whole batch; transfers without an id get theirs from it"),
        ("Prefer" = Option<String>, Header, description = "respond-async: answer 202 when they are durable"), Trial),
    responses((status = 200, body = TransferResults), (status = 202, body = AcceptedAll),
        (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create_many(
    State(desk): State<Desk>,
    Params(trial): Params<Trial>,
    headers: HeaderMap,
    Body(NewTransfers { transfers }): Body<NewTransfers>,
) -> Result<Response, Problem> {
    let count = transfers.len();
    if count == 0 || count > TRANSFERS_MAX {
        let detail = format!("{count} is not between 1 and {TRANSFERS_MAX}");
        return Err(Problem::field("transfers", detail));
    }
    if transfers.last().is_some_and(|last| last.linked) {
        return Err(Problem::field("transfers", "the last one is linked to the next, which is missing"));
    }
    check_imports(&transfers, "transfers")?;
    let dry_run = trial.dry_run;
    let (accepted_only, key) = (!dry_run && ids::responds_async(&headers), ids::request_key(&headers)?);
    let mut command = Transfers::new(!accepted_only);
    let mut all = Vec::with_capacity(count);
    for (place, body) in transfers.iter().enumerate() {
        let prefix = format!("transfers[{place}].");
        let id = ids::item_id(key, body.id.as_deref(), place, &prefix)?;
        let wanted = understand(&desk, body, id, &prefix).await?;
        command.push(&wanted.transfer);
        all.push(wanted);
    }
    let key = key.map(|key| ids::keyed(key, "transfers", command.content()));
    let applied = apply(&desk, command, key, dry_run).await?;
    let replies = applied.replies;
    if accepted_only && replies.iter().all(|reply| reply.code != Code::IdConflict) {
        let accepted = all.iter().map(|wanted| accepted(wanted.transfer.id)).collect();
        return Ok(accepted_response(None, &AcceptedAll { accepted }));
    }
    let result = |(wanted, reply): (&Wanted<'_>, TransferReply)| TransferResult {
        duplicate: reply.duplicate,
        conflict: (reply.code == Code::IdConflict).then(|| reply.code.name()),
        transfer: (reply.code != Code::IdConflict).then(|| answered(wanted, &reply)),
    };
    let results = all.iter().zip(replies).map(result).collect();
    Ok(Json(TransferResults { results, dry_run }).into_response())
}

/// Post a pending transfer, in full or in part
#[utoipa::path(post, path = "/v1/transfers/{id}/post", operation_id = "post_transfer", tag = "transfers", request_body = Option<Ending>,
    params(("id" = String, Path, description = "The pending transfer's id"),
        ("Idempotency-Key" = Option<String>, Header), ("Prefer" = Option<String>, Header), Trial),
    responses((status = 201, body = Transfer), (status = 200, body = Transfer), (status = 202, body = Accepted),
        (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn post(
    State(desk): State<Desk>,
    Named(pending): Named,
    Params(trial): Params<Trial>,
    headers: HeaderMap,
    BodyOrNone(ending): BodyOrNone<Ending>,
) -> Result<Response, Problem> {
    end(&desk, &headers, TransferKind::Post, pending, ending, trial).await
}

/// Void a pending transfer
#[utoipa::path(post, path = "/v1/transfers/{id}/void", operation_id = "void_transfer", tag = "transfers", request_body = Option<Ending>,
    params(("id" = String, Path, description = "The pending transfer's id"),
        ("Idempotency-Key" = Option<String>, Header), ("Prefer" = Option<String>, Header), Trial),
    responses((status = 201, body = Transfer), (status = 200, body = Transfer), (status = 202, body = Accepted),
        (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn void(
    State(desk): State<Desk>,
    Named(pending): Named,
    Params(trial): Params<Trial>,
    headers: HeaderMap,
    BodyOrNone(ending): BodyOrNone<Ending>,
) -> Result<Response, Problem> {
    end(&desk, &headers, TransferKind::Void, pending, ending, trial).await
}

async fn end(
    desk: &Desk,
    headers: &HeaderMap,
    kind: TransferKind,
    pending: String,
    ending: Ending,
    trial: Trial,
) -> Result<Response, Problem> {
    let Ending {
        id,
        amount,
        currency,
        code,
        reference,
        user_data,
        user_data_128,
        user_data_64,
        user_data_32,
        metadata,
    } = ending;
    let id = ids::request_id(headers, id.as_deref())?;
    let pending_id = Some(pending);
    let body = NewTransfer {
        kind,
        pending_id,
        amount,
        currency,
        code,
        reference,
        user_data,
        user_data_128,
        user_data_64,
        user_data_32,
        metadata,
        ..NewTransfer::default()
    };
    submit(desk, headers, understand(desk, &body, id, "").await?, trial).await
}

/// Move back what a single transfer or a post has moved, once
#[utoipa::path(post, path = "/v1/transfers/{id}/revert", operation_id = "revert_transfer", tag = "transfers", request_body = Option<Reverting>,
    params(("id" = String, Path, description = "The id of the transfer to revert"),
        ("Idempotency-Key" = Option<String>, Header), ("Prefer" = Option<String>, Header), Trial),
    responses((status = 201, body = Transfer), (status = 200, body = Transfer), (status = 202, body = Accepted),
        (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn revert(
    State(desk): State<Desk>,
    Named(reverted): Named,
    Params(trial): Params<Trial>,
    headers: HeaderMap,
    BodyOrNone(reverting): BodyOrNone<Reverting>,
) -> Result<Response, Problem> {
    let Reverting { id, code, reference, user_data } = reverting;
    let id = ids::request_id(&headers, id.as_deref())?;
    let (kind, reverted_id) = (TransferKind::Revert, Some(reverted));
    let body = NewTransfer { kind, reverted_id, code, reference, user_data, ..NewTransfer::default() };
    submit(&desk, &headers, understand(&desk, &body, id, "").await?, trial).await
}

/// Bring money in from outside
#[utoipa::path(post, path = "/v1/deposits", tag = "transfers", request_body = Movement,
    params(("Idempotency-Key" = Option<String>, Header), ("Prefer" = Option<String>, Header), Trial),
    responses((status = 201, body = Transfer), (status = 200, body = Transfer), (status = 202, body = Accepted),
        (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn deposit(
    State(desk): State<Desk>,
    Params(trial): Params<Trial>,
    headers: HeaderMap,
    Body(movement): Body<Movement>,
) -> Result<Response, Problem> {
    across(&desk, &headers, movement, true, trial).await
}

/// Take money out
#[utoipa::path(post, path = "/v1/withdrawals", tag = "transfers", request_body = Movement,
    params(("Idempotency-Key" = Option<String>, Header), ("Prefer" = Option<String>, Header), Trial),
    responses((status = 201, body = Transfer), (status = 200, body = Transfer), (status = 202, body = Accepted),
        (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn withdraw(
    State(desk): State<Desk>,
    Params(trial): Params<Trial>,
    headers: HeaderMap,
    Body(movement): Body<Movement>,
) -> Result<Response, Problem> {
    across(&desk, &headers, movement, false, trial).await
}

async fn across(
    desk: &Desk,
    headers: &HeaderMap,
    movement: Movement,
    into: bool,
    trial: Trial,
) -> Result<Response, Problem> {
    let id = ids::request_id(headers, movement.id.as_deref())?;
    let currency = ids::currency(&movement.currency, "currency")?;
    let scale = desk.known_scale(currency, "currency").await?;
    let amount = ids::amount(&movement.amount, scale, "amount")?;
    check_texts(&movement.reference, &movement.user_data, "")?;
    let extra = extra(
        (movement.user_data_128.as_deref(), movement.user_data_64.as_deref(), movement.user_data_32),
        &movement.metadata,
        "",
    )?;
    let (account, (world, _)) = (desk.account(&movement.account, "account").await?, world_account(currency));
    let (debit, credit) = if into { (world, account) } else { (account, world) };
    let transfer = ledger::Transfer {
        currency: Some(currency),
        code: movement.code,
        reference: &movement.reference,
        user_data: &movement.user_data,
        extra,
        ..ledger::Transfer::new(id, Kind::Single { debit, credit, amount })
    };
    submit(desk, headers, Wanted { transfer, unit: Some((currency, scale)) }, trial).await
}

fn check_texts(reference: &str, user_data: &str, prefix: &str) -> Result<(), Problem> {
    for (name, text) in [("reference", reference), ("user_data", user_data)] {
        if text.len() > REFERENCE_BYTES_MAX {
            let detail = format!("has {} bytes, at most {REFERENCE_BYTES_MAX}", text.len());
            return Err(Problem::field(format!("{prefix}{name}"), detail));
        }
    }
    Ok(())
}

/// A body's user data of 128, 64 and 32 bits, and its metadata.
fn extra<'a>(
    (user_data_128, user_data_64, user_data_32): (Option<&str>, Option<&str>, u32),
    metadata: &'a [u8],
    prefix: &str,
) -> Result<Extra<'a>, Problem> {
    let metadata = Metadata::encoded(metadata);
    let problem = |problem| Problem::field(format!("{prefix}metadata"), problem);
    check_metadata_bytes(metadata.bytes()).map_err(problem)?;
    Ok(Extra {
        user_data_128: user_data_128
            .map_or(Ok(0), |text| ids::decimal(text, &format!("{prefix}user_data_128")))?,
        user_data_64: user_data_64
            .map_or(Ok(0), |text| ids::decimal(text, &format!("{prefix}user_data_64")))?,
        user_data_32,
        metadata,
    })
}

/// The transfer that a body asks for.
pub(super) async fn understand<'a>(
    desk: &Desk,
    body: &'a NewTransfer,
    id: u128,
    prefix: &str,
) -> Result<Wanted<'a>, Problem> {
    let field = |name: &str| format!("{prefix}{name}");
    let moves = matches!(body.kind, TransferKind::Single | TransferKind::Pending);
    let foreign = [
        ("debit_account", !moves && body.debit_account.is_some()),
        ("credit_account", !moves && body.credit_account.is_some()),
        (
            "pending_id",
            !matches!(body.kind, TransferKind::Post | TransferKind::Void) && body.pending_id.is_some(),
        ),
        ("reverted_id", body.kind != TransferKind::Revert && body.reverted_id.is_some()),
        ("balancing", !moves && body.balancing.is_some()),
        ("amount", matches!(body.kind, TransferKind::Void | TransferKind::Revert) && body.amount.is_some()),
        ("timeout_ms", body.kind != TransferKind::Pending && body.timeout_ms.is_some()),
        ("closing", body.kind != TransferKind::Pending && body.closing.is_some()),
    ];
    if let Some((name, _)) = foreign.iter().find(|(_, given)| *given) {
        return Err(Problem::field(field(name), "a transfer of this kind has no such field"));
    }
    check_texts(&body.reference, &body.user_data, prefix)?;
    let missing = |name: &str| Problem::field(field(name), "missing");
    let mut unit = None;
    if let Some(code) = &body.currency {
        let currency = ids::currency(code, &field("currency"))?;
        let scale = desk.known_scale(currency, &field("currency")).await?;
        unit = Some((currency, scale));
    }
    let amount = match (&body.amount, unit) {
        (None, _) => None,
        // What is posted is in the currency of what was reserved.
        (Some(text), None) if body.kind == TransferKind::Post => {
            let pending = ids::uuid(body.pending_id.as_deref().unwrap_or_default(), &field("pending_id"))?;
            match desk.unit_of(pending).await? {
                Some((_, scale)) => Some(ids::amount(text, scale, &field("amount"))?),
                None => return Err(missing("currency")),
            }
        }
        (Some(_), None) => return Err(missing("currency")),
        (Some(text), Some((_, scale))) => Some(ids::amount(text, scale, &field("amount"))?),
    };
    let kind = if moves {
        let (debit, credit) = (body.debit_account.as_deref(), body.credit_account.as_deref());
        let debit =
            desk.account(debit.ok_or_else(|| missing("debit_account"))?, &field("debit_account")).await?;
        let credit =
            desk.account(credit.ok_or_else(|| missing("credit_account"))?, &field("credit_account")).await?;
        if debit == credit {
            return Err(Problem::field(field("credit_account"), "the debit account is the same"));
        }
        let amount = match amount {
            None if body.balancing.or(body.closing).is_some() && unit.is_some() => 0,
            None if body.balancing.or(body.closing).is_some() => return Err(missing("currency")),
            None => return Err(missing("amount")),
            Some(amount) => amount,
        };
        match body.kind {
            TransferKind::Pending => {
                let timeout_ms = body.timeout_ms.unwrap_or(0);
                if timeout_ms > TIMEOUT_MS_MAX {
                    let detail = format!("{timeout_ms} is more than {TIMEOUT_MS_MAX}, ten years");
                    return Err(Problem::field(field("timeout_ms"), detail));
                }
                Kind::Pending { debit, credit, amount, timeout_ms }
            }
            _ => Kind::Single { debit, credit, amount },
        }
    } else if body.kind == TransferKind::Revert {
        let reverted = body.reverted_id.as_deref().ok_or_else(|| missing("reverted_id"))?;
        Kind::Revert { reverted: ids::uuid(reverted, &field("reverted_id"))? }
    } else {
        let pending = body.pending_id.as_deref().ok_or_else(|| missing("pending_id"))?;
        let pending = ids::uuid(pending, &field("pending_id"))?;
        match body.kind {
            TransferKind::Post => Kind::Post { pending, amount },
            _ => Kind::Void { pending },
        }
    };
    let transfer = ledger::Transfer {
        id,
        kind,
        linked: body.linked,
        currency: unit.map(|(currency, _)| currency),
        code: body.code,
        reference: &body.reference,
        user_data: &body.user_data,
        options: Sides::options(body.balancing, body.closing),
        times: times(body, prefix)?,
        extra: extra(
            (body.user_data_128.as_deref(), body.user_data_64.as_deref(), body.user_data_32),
            &body.metadata,
            prefix,
        )?,
    };
    Ok(Wanted { transfer, unit })
}

/// The client's times that a body has.
fn times(body: &NewTransfer, prefix: &str) -> Result<Times, Problem> {
    let field = |name: &str| format!("{prefix}{name}");
    let moment = |text: Option<&str>, name: &str| match text.map(time::parse) {
        None => Ok(0),
        Some(Some(moment)) if moment > 0 => Ok(moment),
        Some(_) => {
            let detail = "not a time in RFC 3339 and UTC after 1970, as 2026-11-21T09:45:00Z";
            Err(Problem::field(field(name), detail))
        }
    };
    let client_ms = moment(body.client_time.as_deref(), "client_time")?;
    let settle_ms = moment(body.settle_time.as_deref(), "settle_time")?;
    if body.imported && client_ms == 0 {
        return Err(Problem::field(field("client_time"), "missing: an imported transfer has one"));
    }
    if body.imported && body.timeout_ms.is_some_and(|timeout_ms| timeout_ms > 0) {
        return Err(Problem::field(field("timeout_ms"), "an imported transfer does not expire"));
    }
    Ok(Times { client_ms, settle_ms, imported: body.imported })
}

/// Either all transfers of a request are imported or none is.
pub(super) fn check_imports(bodies: &[NewTransfer], field: &str) -> Result<(), Problem> {
    if bodies.iter().any(|body| body.imported != bodies[0].imported) {
        return Err(Problem::field(field, "either all are imported or none is; send the others apart"));
    }
    Ok(())
}

/// Applies one transfer, and answers as the client prefers.
async fn submit(
    desk: &Desk,
    headers: &HeaderMap,
    wanted: Wanted<'_>,
    Trial { dry_run }: Trial,
) -> Result<Response, Problem> {
    let accepted_only = !dry_run && ids::responds_async(headers);
    let mut command = Transfers::new(!accepted_only);
    command.push(&wanted.transfer);
    let applied = apply(desk, command, None, dry_run).await?;
    let reply =
        applied.replies.into_iter().next().ok_or_else(|| Error::fault("a transfer without a reply"))?;
    if reply.code == Code::IdConflict {
        return Err(match ids::has_key(headers) {
            true => Problem::key_conflict(),
            false => Problem::refused(reply.code, None).named("id"),
        });
    }
    let location = location(wanted.transfer.id);
    if accepted_only {
        return Ok(accepted_response(Some(&location), &accepted(wanted.transfer.id)));
    }
    let transfer = Transfer { dry_run, ..answered(&wanted, &reply) };
    if reply.code != Code::Ok {
        return Err(Problem::refused(reply.code, Some(transfer)));
    }
    if dry_run {
        return Ok(Json(transfer).into_response());
    }
    let status = if reply.duplicate { StatusCode::OK } else { StatusCode::CREATED };
    Ok(created(status, &location, &transfer))
}

/// Applies the transfers of a request, or says what that would do.
pub(super) async fn apply(
    desk: &Desk,
    command: Transfers,
    key: Option<Key>,
    dry_run: bool,
) -> Result<Applied, Problem> {
    let applied = match key {
        key if dry_run => desk.book.dry_run(command, key).await?,
        Some(key) => desk.book.transfers_keyed(command, key).await?,
        None => Some(desk.book.transfers(command).await?),
    };
    applied.ok_or_else(Problem::key_conflict)
}

fn location(id: u128) -> String {
    format!("/v1/transfers/{}", shown(id))
}

pub(super) fn accepted(id: u128) -> Accepted {
    Accepted { id: shown(id), status: "accepted", location: location(id) }
}

pub(super) fn accepted_response(location: Option<&str>, body: &impl serde::Serialize) -> Response {
    let mut response = (StatusCode::ACCEPTED, Json(body)).into_response();
    let headers = response.headers_mut();
    headers.insert("preference-applied", HeaderValue::from_static("respond-async"));
    if let Some(location) = location.and_then(|location| HeaderValue::from_str(location).ok()) {
        headers.insert("location", location);
    }
    response
}

/// A transfer with its result and the balances after it.
pub(super) fn answered(wanted: &Wanted<'_>, reply: &TransferReply) -> Transfer {
    let TransferReply { code, revision, position, stamp, detail, .. } = reply;
    let unit = detail.as_ref().map(|detail| (detail.currency, u32::from(detail.scale))).or(wanted.unit);
    let effect = detail.as_ref().map(|detail| detail.resolution);
    let (transfer, (code, revision, position, stamp)) =
        (&wanted.transfer, (*code, *revision, *position, *stamp));
    let mut answer = Transfer::of(&Known { transfer, code, revision, position, stamp, effect, unit });
    if let Some(detail) = detail {
        answer.debit_balance = Some(Balance::of(&detail.debit, detail.scale.into()));
        answer.credit_balance = Some(Balance::of(&detail.credit, detail.scale.into()));
    }
    answer
}

/// Read a transfer with its state
#[utoipa::path(get, path = "/v1/transfers/{id}", operation_id = "get_transfer", tag = "transfers", params(("id" = String, Path), Fresh),
    responses((status = 200, body = Transfer), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(
    State(desk): State<Desk>,
    Named(id): Named,
    Params(fresh): Params<Fresh>,
) -> Result<Json<Transfer>, Problem> {
    let id = ids::uuid(&id, "id")?;
    let view = desk.read(fresh.local, fresh.lag_entries_max, fresh.lag_ms_max).await?;
    let found = ledger::transfer(view.view(), id)?;
    let found = found.ok_or_else(|| Problem::not_found("transfer_unknown", "the transfer does not exist"))?;
    let unit = super::units::unit_of(view.view(), &found.entry)?;
    Ok(Json(Transfer::of_view(&found, unit)))
}
