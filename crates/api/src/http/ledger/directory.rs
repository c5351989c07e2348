//! Accounts by number, and what they hold together.

use super::desk::{Desk, page_size};
use super::ids;
use super::model::{Account, AccountPage, AccountQuery, Balance, CurrencySum, SumPage, SumQuery, shown};
use crate::commands::long_read;
use crate::http::extract::Params;
use crate::http::problem::Problem;
use crate::ledger::{query_accounts, sum_balances};
use axum::Json;
use axum::extract::State;
use quoin_core::Revision;
use quoin_core::ledger::{ACCOUNTS_EXAMINED_MAX, AccountFilter, FoundAccounts, find_accounts};

/// List accounts, all or those that have all that is given
///
/// By id, or by number where their numbers have a prefix. A page of some accounts may be short or empty though more follow: it
/// ends after 2,000 accounts, found or not. Go on with its `cursor`.
#[utoipa::path(get, path = "/v1/accounts", operation_id = "list_accounts", tag = "accounts", params(AccountQuery),
    responses((status = 200, body = AccountPage), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(desk): State<Desk>,
    Params(asked): Params<AccountQuery>,
) -> Result<Json<AccountPage>, Problem> {
    let limit = page_size(asked.limit)?;
    let currency = asked.currency.as_deref().map(|code| ids::currency(code, "currency")).transpose()?;
    let filter =
        AccountFilter { prefix: asked.prefix.unwrap_or_default(), currency, user_data: asked.user_data };
    if filter == AccountFilter::default() && asked.cursor.is_none() {
        let view = desk.read(asked.local, asked.lag_entries_max, asked.lag_ms_max).await?;
        let after = asked.after.as_deref().map(|after| ids::uuid(after, "after")).transpose()?;
        let found = long_read(move || {
            let after = after.map(u128::to_be_bytes);
            let after = after.as_ref().map(|after| &after[..]);
            find_accounts(view.view(), &filter, Revision(u64::MAX), after, limit, ACCOUNTS_EXAMINED_MAX)
        });
        let FoundAccounts { accounts, next } = found.await?;
        if accounts.is_empty() && after.is_some() {
            let problem = Problem::not_found("page_beyond_end", "there is no account after this one");
            return Err(problem.named("after"));
        }
        let next = accounts.last().filter(|_| next.is_some()).map(|last| shown(last.record.id()));
        let accounts = accounts.iter().map(Account::with_balances).collect();
        return Ok(Json(AccountPage { accounts, next, cursor: None }));
    }
    if asked.after.is_some() {
        return Err(Problem::field("after", "goes on with a list of all accounts; give the cursor instead"));
    }
    let view = desk.read(asked.local, asked.lag_entries_max, asked.lag_ms_max).await?;
    let cursor = asked.cursor.unwrap_or_default();
    let found = query_accounts(&desk.book, view, filter, limit, &cursor).await;
    let (found, cursor) = found.map_err(Problem::of_request)?;
    let accounts = found.iter().map(Account::with_balances).collect();
    Ok(Json(AccountPage { accounts, next: None, cursor }))
}

/// Add up the balances of all accounts whose numbers begin alike, by currency
///
/// A page adds up to 2,000 accounts: go on with its `cursor`, and add the pages. All of them show the revision of the first.
#[utoipa::path(get, path = "/v1/balances", operation_id = "sum_balances", tag = "accounts", params(SumQuery),
    responses((status = 200, body = SumPage), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn sums(
    State(desk): State<Desk>,
    Params(asked): Params<SumQuery>,
) -> Result<Json<SumPage>, Problem> {
    let view = desk.read(asked.local, asked.lag_entries_max, asked.lag_ms_max).await?;
    let cursor = asked.cursor.unwrap_or_default();
    let at = ids::revision_at(&view, asked.at_revision, asked.at_time.as_deref())?;
    let page = sum_balances(&desk.book, view, asked.prefix, at.map(|at| at.0), &cursor).await;
    let (page, at, cursor) = page.map_err(Problem::of_request)?;
    let sums = page.sums.iter().map(|(currency, sum)| CurrencySum {
        currency: currency.to_string(),
        accounts: sum.accounts,
        total: Balance::of(&sum.balances, sum.scale),
    });
    Ok(Json(SumPage { sums: sums.collect(), revision: at.0, cursor }))
}
