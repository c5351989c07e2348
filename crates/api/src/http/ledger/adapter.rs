//! The paths and bodies of the balance service `rt-balance`, for clients that were written for it; off unless
//! `ledger.rt_balance` is set.
//!
//! Amounts are JSON numbers there, ids of requests come in `X-Request-ID`, account numbers need not be unique and every
//! account may go below zero. So a number is kept as the account's user data, and an amount with more decimals than the
//! currency has is rounded, half away from zero, as that service's database does. What differs: a transaction that
//! is sent again is done once, amounts below the smallest unit are refused, and a negative amount is too.
//!
//! Deliberately absent: its outbox and its topics, in place of which there are `/v1/events`.

use super::desk::Desk;
use super::ids;
use super::model::shown;
use super::transfers::apply;
use crate::error::Error;
use crate::http::extract::{Body, Named};
use crate::http::problem::Problem;
use crate::ledger::check_texts;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use quoin_core::ledger::{
    self, AccountRecord, Balances, Code, Kind, Rule, Status, Transfers, format_signed, world_account,
};
use quoin_engine::Consistency;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Maximum characters of an amount.
const AMOUNT_CHARACTERS_MAX: usize = 64;
/// Maximum size of an amount's exponent: beyond it, no amount fits.
const EXPONENT_MAX: u32 = 64;

/// The pages.
pub(super) fn routes() -> Router<Desk> {
    Router::new()
        .route("/account", post(create))
        .route("/account/{id}", get(detail))
        .route("/account:transfer", post(transfer))
        .route("/account:transfer/message", post(accept))
        .route("/account:transfer/async", post(accept))
        .route("/account:debit/{id}", post(debit))
        .route("/account:credit/{id}", post(credit))
        .route("/transaction", post(transact))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewAccount {
    account_number: String,
    currency: Option<String>,
    balance: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct Identity {
    id: String,
    #[serde(rename = "resourceType", skip_serializing_if = "Option::is_none")]
    resource_type: Option<&'static str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Detail {
    id: String,
    account_number: String,
    account_currency: String,
    balance: Box<RawValue>,
    total_locked: Box<RawValue>,
    status: &'static str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    transaction_id: String,
    from_account: String,
    to_account: String,
    amount: Box<RawValue>,
}

#[derive(Deserialize)]
struct Transaction {
    from: String,
    to: String,
    amount: Box<RawValue>,
}

#[derive(Deserialize)]
struct Movement {
    amount: Box<RawValue>,
}

async fn create(
    State(desk): State<Desk>,
    headers: HeaderMap,
    Body(wanted): Body<NewAccount>,
) -> Result<Response, Problem> {
    let id = request_id(&headers)?;
    let code =
        wanted.currency.unwrap_or_else(|| desk.book.engine().settings().ledger.rt_balance_currency.clone());
    let currency = ids::currency(&code, "currency")?;
    let scale = desk.known_scale(currency, "currency").await.map_err(as_there)?;
    let opening = wanted.balance.map(|balance| balance_of(&balance, scale)).transpose()?;
    check_texts(&wanted.account_number, &Default::default())
        .map_err(|(_, problem)| Problem::field("accountNumber", problem))?;
    let new = ledger::NewAccount {
        currency: code,
        rule: Rule::Unlimited.into(),
        user_data: wanted.account_number,
        opening: opening.filter(|amount| *amount > 0).map(Into::into),
        ..ledger::NewAccount::default()
    };
    let (account, _) =
        desk.book.create_account(new.with_id(id)).await?.map_err(Problem::from).map_err(as_there)?;
    let identity = Identity { id: shown(account.id()), resource_type: None };
    Ok((StatusCode::CREATED, Json(identity)).into_response())
}

async fn detail(State(desk): State<Desk>, Named(id): Named) -> Result<Response, Problem> {
    let id = ids::uuid(&id, "id")?;
    let view = desk.book.view(Consistency::Linearizable).await?;
    let account = ledger::account(view.view(), id)?.ok_or_else(|| unknown(id, "id"))?;
    Ok(Json(Detail::of(&account.record, account.status(), &account.balances)).into_response())
}

async fn transfer(State(desk): State<Desk>, Body(message): Body<Message>) -> Result<Response, Problem> {
    let moved = Moved::of_message(&desk, &message).await?;
    let after = moved.apply(&desk).await?;
    Ok(Json(Detail::of(&moved.from, moved.from.status(), &after)).into_response())
}

/// Accepts a transfer, whose result is in the journal.
async fn accept(State(desk): State<Desk>, Body(message): Body<Message>) -> Result<StatusCode, Problem> {
    let moved = Moved::of_message(&desk, &message).await?;
    let mut command = Transfers::new(false);
    command.push(&moved.transfer());
    let replies = apply(&desk, command, None, false).await?.replies;
    // The only refusal that is not in the journal.
    if replies.iter().any(|reply| reply.code == Code::IdConflict) {
        return Err(Problem::refused(Code::IdConflict, None).named("transactionId"));
    }
    Ok(StatusCode::ACCEPTED)
}

async fn debit(
    State(desk): State<Desk>,
    headers: HeaderMap,
    Named(id): Named,
    Body(movement): Body<Movement>,
) -> Result<Response, Problem> {
    across(&desk, &headers, &id, &movement, false).await
}

async fn credit(
    State(desk): State<Desk>,
    headers: HeaderMap,
    Named(id): Named,
    Body(movement): Body<Movement>,
) -> Result<Response, Problem> {
    across(&desk, &headers, &id, &movement, true).await
}

/// Moves an amount between an account and its currency's world account.
async fn across(
    desk: &Desk,
    headers: &HeaderMap,
    id: &str,
    movement: &Movement,
    into: bool,
) -> Result<Response, Problem> {
    let account = record(desk, ids::uuid(id, "id")?, "id").await?;
    let amount = amount(&movement.amount, account.scale)?;
    let (own, world) = (account.id(), world_account(account.currency()).0);
    let (debit, credit) = if into { (world, own) } else { (own, world) };
    let moved = Moved { id: request_id(headers)?, debit, credit, amount, from: account };
    let after = moved.apply(desk).await?;
    Ok(Json(Detail::of(&moved.from, moved.from.status(), &after)).into_response())
}

async fn transact(
    State(desk): State<Desk>,
    headers: HeaderMap,
    Body(wanted): Body<Transaction>,
) -> Result<Response, Problem> {
    let id = request_id(&headers)?;
    let from = record(&desk, ids::uuid(&wanted.from, "from")?, "from").await?;
    let amount = amount(&wanted.amount, from.scale)?;
    let moved = Moved { id, debit: from.id(), credit: ids::uuid(&wanted.to, "to")?, amount, from };
    moved.apply(&desk).await?;
    let identity = Identity { id: shown(id), resource_type: Some("TRANSACTION") };
    Ok((StatusCode::CREATED, Json(identity)).into_response())
}

/// A transfer that a request asks for.
struct Moved {
    id: u128,
    debit: u128,
    credit: u128,
    amount: u128,
    /// The account that is answered.
    from: AccountRecord,
}

impl Moved {
    async fn of_message(desk: &Desk, message: &Message) -> Result<Self, Problem> {
        let id = ids::uuid(&message.transaction_id, "transactionId")?;
        let debit = ids::uuid(&message.from_account, "fromAccount")?;
        let credit = ids::uuid(&message.to_account, "toAccount")?;
        let from = record(desk, debit, "fromAccount").await?;
        Ok(Self { id, debit, credit, amount: amount(&message.amount, from.scale)?, from })
    }

    fn transfer(&self) -> ledger::Transfer<'static> {
        let Self { id, debit, credit, amount, .. } = *self;
        ledger::Transfer::new(id, Kind::Single { debit, credit, amount })
    }

    /// Does it, and returns the balances of the account that is answered.
    async fn apply(&self, desk: &Desk) -> Result<Balances, Problem> {
        let mut command = Transfers::new(true);
        command.push(&self.transfer());
        let reply = apply(desk, command, None, false).await?.replies.into_iter().next();
        let reply = reply.ok_or_else(|| Error::fault("a transfer without a reply"))?;
        if reply.code != Code::Ok {
            return Err(as_there(Problem::refused(reply.code, None)));
        }
        let detail = reply.detail.ok_or_else(|| Error::fault("a transfer without its balances"))?;
        Ok(if self.debit == self.from.id() { detail.debit } else { detail.credit })
    }
}

impl Detail {
    fn of(account: &AccountRecord, status: Status, balances: &Balances) -> Self {
        let number = |plus, minus| {
            let text = format_signed(plus, minus, account.scale);
            RawValue::from_string(text).expect("a decimal number is JSON")
        };
        let present = account.present();
        Self {
            id: shown(account.id()),
            account_number: match &account.origin.number {
                number if present.user_data.is_empty() => number.clone(),
                _ => present.user_data,
            },
            account_currency: account.origin.currency.clone(),
            balance: number(balances.credits_posted, balances.debits_posted),
            total_locked: number(balances.debits_pending, 0),
            status: match status {
                Status::Active => "ACTIVE",
                Status::Pending => "PENDING",
                Status::Frozen => "FROZEN",
                Status::Closed => "CLOSED",
            },
        }
    }
}

/// The account with this id, as new as this replica knows it.
async fn record(desk: &Desk, id: u128, field: &str) -> Result<AccountRecord, Problem> {
    let found = match ledger::account(desk.book.engine().latest().view(), id)? {
        Some(account) => Some(account),
        // It may be newer than this replica's state.
        None => ledger::account(desk.book.view(Consistency::Linearizable).await?.view(), id)?,
    };
    found.map(|account| account.record).ok_or_else(|| unknown(id, field))
}

fn unknown(id: u128, field: &str) -> Problem {
    let detail = format!("there is no account {}", shown(id));
    as_there(Problem::not_found("account_unknown", detail)).named(field)
}

/// That service knows no 404 and no 422.
fn as_there(problem: Problem) -> Problem {
    match problem.status() {
        404 | 422 => problem.with_status(StatusCode::BAD_REQUEST),
        _ => problem,
    }
}

fn request_id(headers: &HeaderMap) -> Result<u128, Problem> {
    let id = headers.get("x-request-id").and_then(|id| id.to_str().ok());
    ids::uuid(id.ok_or_else(|| Problem::field("X-Request-ID", "missing: a UUID"))?, "X-Request-ID")
}

/// The balance of a new account, which may be zero.
fn balance_of(raw: &RawValue, scale: u32) -> Result<u128, Problem> {
    let balance = units(raw.get(), scale, "balance")?;
    let mantissa = raw.get().split(['e', 'E']).next().unwrap_or_default();
    if balance == 0 && mantissa.bytes().any(|byte| (b'1'..=b'9').contains(&byte)) {
        return Err(nothing("balance", raw, scale));
    }
    Ok(balance)
}

fn nothing(field: &str, raw: &RawValue, scale: u32) -> Problem {
    Problem::field(field, format!("{} is nothing in a currency of {scale} decimals", raw.get()))
}

fn amount(raw: &RawValue, scale: u32) -> Result<u128, Problem> {
    match units(raw.get(), scale, "amount")? {
        0 => Err(nothing("amount", raw, scale)),
        amount => Ok(amount),
    }
}

/// The minor units of an amount, a JSON number or a string with one, rounded half away from zero.
fn units(json: &str, scale: u32, field: &str) -> Result<u128, Problem> {
    let text = json.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(json);
    let shown: String = text.chars().take(AMOUNT_CHARACTERS_MAX).collect();
    let wrong =
        || Problem::field(field, format!("{shown:?} is not an amount, a number of zero or more as 12.50"));
    if text.len() > AMOUNT_CHARACTERS_MAX {
        return Err(wrong());
    }
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent =
        exponent.parse::<i32>().ok().filter(|size| size.unsigned_abs() <= EXPONENT_MAX).ok_or_else(wrong)?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = [whole, fraction].concat();
    if whole.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    // So many digits, from the first, are minor units.
    let kept = whole.len() as i32 + exponent + scale as i32;
    let digit = |place: i32| {
        let digit = usize::try_from(place).ok().and_then(|place| digits.as_bytes().get(place));
        digit.map_or(0, |digit| u128::from(digit - b'0'))
    };
    let up = u128::from(digit(kept) >= 5);
    let rounded = (0..kept).try_fold(0_u128, |units, place| units.checked_mul(10)?.checked_add(digit(place)));
    let too_large = || Problem::field(field, format!("{shown:?} is too large"));
    rounded.and_then(|units| units.checked_add(up)).ok_or_else(too_large)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Pages;
    use super::*;
    use crate::testing::{alone_with, settings};
    use serde_json::{Value, json};

    #[test]
    fn amounts_are_rounded_to_the_currency() {
        let of = |text: &str, scale| units(text, scale, "amount").ok();
        for (text, expected) in [
            ("12.50", Some(1250)),
            ("\"12.50\"", Some(1250)),
            ("0.005", Some(1)),
            ("0.00499", Some(0)),
            ("9.995", Some(1000)),
            ("1e3", Some(100_000)),
            ("1.5E-1", Some(15)),
            ("5e-3", Some(1)),
            ("9.2e-7", Some(0)),
            ("0", Some(0)),
            ("0.7312845162387461", Some(73)),
            ("-1", None),
            ("1e99", None),
            ("1e-99", None),
            ("1e-2147483648", None),
            ("1e", None),
            (".5", None),
            ("true", None),
            ("null", None),
            ("[1]", None),
            ("\"\"", None),
            ("1_0", None),
            ("340282366920938463463374607431768211456", None),
        ] {
            assert_eq!(of(text, 2), expected, "{text}");
        }
        assert_eq!((of("12.5", 0), of("1.23456", 4)), (Some(13), Some(12346)));
    }

    const ONE: &str = "0190b5e2-7f2c-7c1e-9d1a-000000000011";
    const TWO: &str = "0190b5e2-7f2c-7c1e-9d1a-000000000012";

    fn with_adapter() -> quoin_engine::Settings {
        let mut settings = settings();
        settings.ledger.rt_balance = true;
        settings
    }

    #[test]
    fn clients_of_that_service_are_answered_as_there() {
        alone_with(with_adapter(), |engine| async move {
            let mut pages = Pages::of(engine);
            let account = |number| json!({"accountNumber": number, "status": "OPEN"});
            for id in [ONE, TWO, TWO] {
                let created =
                    pages.with_headers("POST", "/account", [("x-request-id", id)], &account("test")).await;
                assert_eq!(created, (201, json!({"id": id})));
            }
            let other =
                pages.with_headers("POST", "/account", [("x-request-id", ONE)], &account("else")).await;
            assert_eq!(other.0, 409);
            assert_eq!(pages.ask("POST", "/account", None, &account("test")).await.0, 400);

            let message = |id: u32, amount: Value| {
                let id = format!("0190b5e2-7f2c-7c1e-9d1a-00000000{id:04}");
                json!({"transactionId": id, "fromAccount": ONE, "toAccount": TWO, "amount": amount,
                    "timestamp": "2026-11-23T00:00:00Z"})
            };
            let path = "/account:transfer";
            for _ in 0..2 {
                let (status, detail) = pages.ask("POST", path, None, &message(1, json!(12.345))).await;
                let expected = json!({"id": ONE, "accountNumber": "test", "accountCurrency": "USD",
                    "balance": -12.35, "totalLocked": 0.0, "status": "ACTIVE"});
                assert_eq!((status, &detail), (200, &expected), "the same again is done once");
            }
            assert_eq!(pages.ask("POST", path, None, &message(1, json!(1))).await.0, 409);
            for wrong in [json!(-1), json!(0), json!(0.001), json!("x"), json!(null)] {
                assert_eq!(pages.ask("POST", path, None, &message(2, wrong.clone())).await.0, 400, "{wrong}");
            }
            for path in ["/account:transfer/message", "/account:transfer/async"] {
                let (status, body) = pages.ask("POST", path, None, &message(3, json!(1))).await;
                assert_eq!((status, body), (202, Value::Null));
            }
            for path in ["/account:transfer/message", "/account:transfer/async"] {
                let (status, _) = pages.ask("POST", path, None, &message(3, json!(2))).await;
                assert_eq!(status, 409, "it would be lost, and nobody told");
            }
            for (balance, status) in [(json!(0.001), 400), (json!(0.0), 201)] {
                let id = "0190b5e2-7f2c-7c1e-9d1a-000000000031";
                let new = json!({"accountNumber": "b", "balance": balance});
                let made = pages.with_headers("POST", "/account", [("x-request-id", id)], &new).await;
                assert_eq!(made.0, status, "{new}");
            }
            let transaction = json!({"from": TWO, "to": ONE, "amount": 3});
            let id = "0190b5e2-7f2c-7c1e-9d1a-000000000021";
            let done = pages.with_headers("POST", "/transaction", [("x-request-id", id)], &transaction).await;
            assert_eq!(done, (201, json!({"id": id, "resourceType": "TRANSACTION"})));
            let id = "0190b5e2-7f2c-7c1e-9d1a-000000000022";
            let path = format!("/account:credit/{ONE}");
            let credited =
                pages.with_headers("POST", &path, [("x-request-id", id)], &json!({"amount": 100})).await;
            assert_eq!((credited.0, &credited.1["balance"]), (200, &json!(89.65)));
            let id = "0190b5e2-7f2c-7c1e-9d1a-000000000023";
            let path = format!("/account:debit/{TWO}");
            let debited =
                pages.with_headers("POST", &path, [("x-request-id", id)], &json!({"amount": "0.35"})).await;
            assert_eq!((debited.0, &debited.1["balance"]), (200, &json!(10.0)));
            let (status, detail) = pages.get(&format!("/account/{ONE}")).await;
            assert_eq!((status, &detail["balance"]), (200, &json!(89.65)));

            let nobody = "0190b5e2-7f2c-7c1e-9d1a-0000000000ff";
            assert_eq!(pages.get(&format!("/account/{nobody}")).await.0, 400);
            let lost = json!({"from": ONE, "to": nobody, "amount": 3});
            let id = "0190b5e2-7f2c-7c1e-9d1a-000000000024";
            assert_eq!(
                pages.with_headers("POST", "/transaction", [("x-request-id", id)], &lost).await.0,
                400
            );
        });
    }

    #[test]
    fn without_the_setting_there_is_nothing_at_those_paths() {
        alone_with(settings(), |engine| async move {
            let mut pages = Pages::of(engine);
            let answer = pages
                .with_headers("POST", "/account", [("x-request-id", ONE)], &json!({"accountNumber": "x"}))
                .await;
            assert_eq!(answer.0, 404);
        });
    }
}
