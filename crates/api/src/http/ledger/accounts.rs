//! Accounts, their statements, and currencies.

use super::desk::{Desk, page_size, place};
use super::ids;
use super::model::{
    Account, AccountPatch, AccountResult, AccountResults, AccountStatus, At, Balance, Before, Line,
    NewAccount, NewAccounts, NewCurrency, Rule, StatementPage, Transfer, Unit, shown,
};
use crate::commands::long_read;
use crate::error::{Error, Kind};
use crate::http::answer::created;
use crate::http::extract::{Body, Named, NoParams, Params};
use crate::http::problem::Problem;
use crate::ledger::{account_at, check_texts};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use quoin_core::Revision;
use quoin_core::ledger::{self, ACCOUNTS_MAX, world_account};
use quoin_engine::Consistency;

const NEWEST: Revision = Revision(u64::MAX);

/// Create an account
#[utoipa::path(post, path = "/v1/accounts", operation_id = "create_account", tag = "accounts", request_body = NewAccount,
    params(("Idempotency-Key" = Option<String>, Header, description = "Instead of an id")),
    responses((status = 201, body = Account), (status = 200, body = Account, description = "It was created before"),
        (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create(
    State(desk): State<Desk>,
    _: NoParams,
    headers: HeaderMap,
    Body(wanted): Body<NewAccount>,
) -> Result<Response, Problem> {
    if wanted.linked {
        return Err(Problem::field("linked", "there is no next account to link to; use a batch"));
    }
    let id = ids::request_id(&headers, wanted.id.as_deref())?;
    let new = new_account(&desk, wanted, id, "").await?;
    let made = desk.book.create_account(new).await?;
    let (account, new) = made.map_err(|code| match code {
        ledger::AccountCode::IdConflict if ids::has_key(&headers) => Problem::key_conflict(),
        code => code.into(),
    })?;
    let location = format!("/v1/accounts/{}", shown(id));
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok(created(status, &location, &Account::of(&account)))
}

/// Create up to 1,000 accounts
///
/// With an Idempotency-Key the same request again creates nothing and gets the accounts, and the key with another body is
/// refused (409), as a whole.
#[utoipa::path(post, path = "/v1/accounts/batch", operation_id = "create_accounts", tag = "accounts", request_body = NewAccounts,
    params(("Idempotency-Key" = Option<String>, Header, description = "For the whole batch; accounts without an id get theirs from it")),
    responses((status = 200, body = AccountResults), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create_many(
    State(desk): State<Desk>,
    _: NoParams,
    headers: HeaderMap,
    Body(wanted): Body<NewAccounts>,
) -> Result<Json<AccountResults>, Problem> {
    let count = wanted.accounts.len();
    if count == 0 || count > ACCOUNTS_MAX {
        return Err(Problem::field("accounts", format!("{count} is not between 1 and {ACCOUNTS_MAX}")));
    }
    if wanted.accounts.last().is_some_and(|last| last.linked) {
        return Err(Problem::field("accounts", "the last one is linked to the next, which is missing"));
    }
    let key = ids::request_key(&headers)?;
    let mut accounts = Vec::with_capacity(count);
    for (place, wanted) in wanted.accounts.into_iter().enumerate() {
        let field = format!("accounts[{place}].");
        let id = ids::item_id(key, wanted.id.as_deref(), place, &field)?;
        accounts.push(new_account(&desk, wanted, id, &field).await?);
    }
    let result = |result: Result<ledger::AccountRecord, ledger::AccountCode>| match result {
        Ok(account) => AccountResult { account: Some(Account::of(&account)), refused: None, reason: None },
        Err(code) => {
            let (refused, reason) = (Some(code.to_string()), Some(Problem::from(code).word().to_owned()));
            AccountResult { account: None, refused, reason }
        }
    };
    let made = match key {
        None => desk.book.create_accounts(accounts).await?.0,
        Some(key) => {
            let content = ledger::Operation::create_accounts(accounts.clone()).into_command().bytes;
            let key = ids::keyed(key, "accounts", &content);
            desk.book.create_accounts_keyed(accounts, key).await?.ok_or_else(Problem::key_conflict)?
        }
    };
    let results = made.into_iter().map(result).collect();
    Ok(Json(AccountResults { results }))
}

async fn new_account(
    desk: &Desk,
    wanted: NewAccount,
    id: u128,
    prefix: &str,
) -> Result<ledger::NewAccount, Problem> {
    let field = |name: &str| format!("{prefix}{name}");
    let currency = ids::currency(&wanted.currency, &field("currency"))?;
    let scale = desk.known_scale(currency, &field("currency")).await?;
    let limit = wanted.limit.as_deref().map(|limit| ids::limit(limit, scale, &field("limit"))).transpose()?;
    let rule = rule(wanted.rule, limit, prefix)?.unwrap_or(ledger::Rule::NoOverdraft);
    let maximum = wanted.maximum_balance.as_deref();
    let maximum = maximum.map(|most| ids::limit(most, scale, &field("maximum_balance"))).transpose()?;
    let opening = wanted.initial_balance.as_deref();
    let opening = opening.map(|amount| ids::amount(amount, scale, &field("initial_balance"))).transpose()?;
    let status = match wanted.status {
        None | Some(AccountStatus::Active) => ledger::Status::Active,
        Some(AccountStatus::Pending) => ledger::Status::Pending,
        Some(AccountStatus::Frozen | AccountStatus::Closed) => {
            return Err(Problem::field(field("status"), "a new account is active or pending"));
        }
    };
    check_texts(&wanted.user_data, &wanted.metadata)
        .map_err(|(name, problem)| Problem::field(field(name), problem))?;
    let new = ledger::NewAccount {
        number: wanted.number,
        currency: wanted.currency,
        rule: rule.into(),
        user_data: wanted.user_data,
        metadata: wanted.metadata,
        maximum: maximum.map(Into::into),
        linked: wanted.linked,
        opening: opening.map(Into::into),
        status: status.into(),
        ..ledger::NewAccount::default()
    };
    Ok(new.with_id(id).with_limit(limit.unwrap_or(0)))
}

/// The rule that a rule and a limit mean together; `None` if neither is given.
fn rule(rule: Option<Rule>, limit: Option<u128>, prefix: &str) -> Result<Option<ledger::Rule>, Problem> {
    match (rule, limit) {
        (None, None) => Ok(None),
        (None | Some(Rule::Limit), Some(_)) => Ok(Some(ledger::Rule::Limit)),
        (Some(Rule::Limit), None) => {
            Err(Problem::field(format!("{prefix}limit"), "the rule limit needs a limit"))
        }
        (Some(_), Some(_)) => {
            Err(Problem::field(format!("{prefix}limit"), "only the rule limit has a limit"))
        }
        (Some(Rule::NoOverdraft), None) => Ok(Some(ledger::Rule::NoOverdraft)),
        (Some(Rule::Unlimited), None) => Ok(Some(ledger::Rule::Unlimited)),
    }
}

/// That an account does not exist has one word, whenever it does not.
fn account_problem(error: Error) -> Problem {
    match error {
        Error::Refused(Kind::NotFound, detail) => Problem::not_found("account_unknown", detail),
        error => error.into(),
    }
}

/// Read an account, as it is or as it was
#[utoipa::path(get, path = "/v1/accounts/{account}", operation_id = "get_account", tag = "accounts",
    params(("account" = String, Path, description = "The account's id or number"), At),
    responses((status = 200, body = Account), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(
    State(desk): State<Desk>,
    Named(name): Named,
    Params(at): Params<At>,
) -> Result<Json<Account>, Problem> {
    let id = desk.account(&name, "account").await?;
    let view = desk.read(at.local, at.lag_entries_max, at.lag_ms_max).await?;
    let revision = ids::revision_at(&view, at.at_revision, at.at_time.as_deref())?;
    let account = account_at(view, id, revision.unwrap_or(NEWEST)).await.map_err(account_problem)?;
    Ok(Json(Account::with_balances(&account)))
}

/// Change status, limit, user data or metadata
#[utoipa::path(patch, path = "/v1/accounts/{account}", operation_id = "patch_account", tag = "accounts", request_body = AccountPatch,
    params(("account" = String, Path, description = "The account's id or number")),
    responses((status = 200, body = Account), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn patch(
    State(desk): State<Desk>,
    Named(name): Named,
    _: NoParams,
    Body(patch): Body<AccountPatch>,
) -> Result<Json<Account>, Problem> {
    let id = desk.account(&name, "account").await?;
    let known = desk.book.view(Consistency::Linearizable).await?;
    let known = ledger::account(known.view(), id)?.ok_or(ledger::AccountCode::Unknown)?;
    let limit =
        patch.limit.as_deref().map(|limit| ids::limit(limit, known.record.scale, "limit")).transpose()?;
    let rule = rule(patch.rule, limit, "")?;
    let no_maximum = patch.maximum_balance.as_deref() == Some("none");
    let maximum = patch.maximum_balance.as_deref().filter(|_| !no_maximum);
    let maximum = maximum.map(|most| ids::limit(most, known.record.scale, "maximum_balance")).transpose()?;
    let none = Default::default();
    check_texts(patch.user_data.as_deref().unwrap_or_default(), patch.metadata.as_ref().unwrap_or(&none))
        .map_err(|(field, problem)| Problem::field(field, problem))?;
    let status = patch.status.map(|status| match status {
        AccountStatus::Active => ledger::Status::Active,
        AccountStatus::Frozen => ledger::Status::Frozen,
        AccountStatus::Closed => ledger::Status::Closed,
        AccountStatus::Pending => ledger::Status::Pending,
    });
    let limit = limit.unwrap_or(0);
    let update = ledger::UpdateAccount {
        status: status.map(i32::from),
        rule: rule.map(i32::from),
        limit_low: limit as u64,
        limit_high: (limit >> 64) as u64,
        user_data: patch.user_data,
        replace_metadata: patch.metadata.is_some(),
        metadata: patch.metadata.unwrap_or_default(),
        unchanged_since: patch.unchanged_since.unwrap_or(0),
        maximum: maximum.map(Into::into),
        no_maximum,
        ..ledger::UpdateAccount::of(id)
    };
    let (account, _) = desk.book.update_account(update).await??;
    Ok(Json(Account::of(&account)))
}

/// Read an account's transfers with the balance after each, newest first
#[utoipa::path(get, path = "/v1/accounts/{account}/statement", operation_id = "get_statement", tag = "accounts",
    params(("account" = String, Path, description = "The account's id or number"), Before),
    responses((status = 200, body = StatementPage), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn statement(
    State(desk): State<Desk>,
    Named(name): Named,
    Params(page): Params<Before>,
) -> Result<Json<StatementPage>, Problem> {
    let id = desk.account(&name, "account").await?;
    let before = page.before.as_deref().map(|before| place(before, "before")).transpose()?;
    let limit = page_size(page.limit)?;
    let view = desk.read(page.local, page.lag_entries_max, page.lag_ms_max).await?;
    let stretch = ids::stretch(&view, page.from_time.as_deref(), page.to_time.as_deref())?;
    let since = stretch.start.max(Revision(page.since_revision.unwrap_or(0)));
    let first = before.unwrap_or((stretch.end, 0)).min((stretch.end, 0));
    let found = long_read(move || {
        let Some(account) = ledger::account(view.view(), id)? else { return Ok(None) };
        Ok(Some((account.record, ledger::statement(view.view(), id, Some(first), since, limit)?)))
    });
    let (record, found) = found.await?.ok_or(ledger::AccountCode::Unknown)?;
    if found.items.is_empty() && before.is_some() {
        return Err(
            Problem::not_found("page_beyond_end", "there is nothing before this place").named("before")
        );
    }
    let unit = (record.currency(), record.scale);
    let line = |line: &ledger::Line| Line {
        side: if line.entry.effect().is_some_and(|effect| effect.debit == id) { "debit" } else { "credit" },
        transfer: Transfer::of_entry(&line.entry, Some(unit)),
        after: Balance::of(&line.balances, record.scale),
    };
    let next = found.items.last().filter(|_| found.more);
    let next = next.map(|last| format!("{}.{}", last.entry.revision, last.entry.position));
    let lines = found.items.iter().map(line).collect();
    Ok(Json(StatementPage { account: shown(id), currency: unit.0.to_string(), lines, next }))
}

/// Create a custom unit of account
#[utoipa::path(put, path = "/v1/currencies/{code}", tag = "currencies", request_body = NewCurrency,
    params(("code" = String, Path, description = "3 to 8 capital letters and digits")),
    responses((status = 200, body = Unit), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put_currency(
    State(desk): State<Desk>,
    Named(code): Named,
    _: NoParams,
    Body(wanted): Body<NewCurrency>,
) -> Result<Json<Unit>, Problem> {
    let currency = ids::currency(&code, "code")?;
    desk.book.create_currency(ledger::NewCurrency { code, scale: wanted.scale }).await??;
    Ok(Json(unit(currency, wanted.scale)))
}

/// Read a unit of account
#[utoipa::path(get, path = "/v1/currencies/{code}", tag = "currencies",
    params(("code" = String, Path, description = "3 to 8 capital letters and digits")),
    responses((status = 200, body = Unit), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get_currency(
    State(desk): State<Desk>,
    Named(code): Named,
    _: NoParams,
) -> Result<Json<Unit>, Problem> {
    let currency = ids::currency(&code, "code")?;
    let missing = || {
        let detail = format!("{currency}: {}", ledger::AccountCode::CurrencyUnknown);
        Problem::not_found("currency_unknown", detail)
    };
    Ok(Json(unit(currency, desk.scale(currency).await?.ok_or_else(missing)?)))
}

fn unit(currency: ledger::Currency, scale: u32) -> Unit {
    Unit { code: currency.to_string(), scale, world_account: world_account(currency).1 }
}
