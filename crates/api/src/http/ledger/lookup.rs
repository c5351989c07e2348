//! Many transfers or accounts by id.

use super::desk::{Desk, named};
use super::ids;
use super::model::{Account, AccountNames, FoundAccounts, FoundTransfers, Fresh, Transfer, TransferIds};
use super::units::Units;
use crate::commands::long_read;
use crate::http::extract::{Body, Params};
use crate::http::problem::Problem;
use axum::Json;
use axum::extract::State;
use quoin_core::ledger;

/// Read up to 1,000 transfers by id
#[utoipa::path(post, path = "/v1/transfers/lookup", operation_id = "look_up_transfers", tag = "transfers", request_body = TransferIds, params(Fresh),
    responses((status = 200, body = FoundTransfers), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn transfers(
    State(desk): State<Desk>,
    Params(fresh): Params<Fresh>,
    Body(TransferIds { ids: names }): Body<TransferIds>,
) -> Result<Json<FoundTransfers>, Problem> {
    if names.is_empty() {
        return Err(Problem::field("ids", "name at least one"));
    }
    let id = |(place, name): (usize, &String)| ids::uuid(name, &format!("ids[{place}]"));
    let ids = names.iter().enumerate().map(id).collect::<Result<Vec<_>, _>>()?;
    let view = desk.read(fresh.local, fresh.lag_entries_max, fresh.lag_ms_max).await?;
    let read = long_read(move || {
        let mut units = Units::default();
        let found = ledger::lookup_transfers(view.view(), &ids)?.into_iter().map(|found| {
            let Some(found) = found else { return Ok(None) };
            let unit = units.of(view.view(), &found.entry)?;
            Ok(Some(Transfer::of_view(&found, unit)))
        });
        found.collect::<Result<Vec<_>, _>>()
    });
    let found = read.await?;
    let mut answer = FoundTransfers { transfers: Vec::new(), absent: Vec::new(), answered: found.len() };
    for (name, found) in names.into_iter().zip(found) {
        match found {
            Some(transfer) => answer.transfers.push(transfer),
            None => answer.absent.push(name),
        }
    }
    Ok(Json(answer))
}

/// Read up to 1,000 accounts by id or number
#[utoipa::path(post, path = "/v1/accounts/lookup", operation_id = "look_up_accounts", tag = "accounts", request_body = AccountNames, params(Fresh),
    responses((status = 200, body = FoundAccounts), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn accounts(
    State(desk): State<Desk>,
    Params(fresh): Params<Fresh>,
    Body(AccountNames { accounts: names }): Body<AccountNames>,
) -> Result<Json<FoundAccounts>, Problem> {
    if names.is_empty() {
        return Err(Problem::field("accounts", "name at least one"));
    }
    let view = desk.read(fresh.local, fresh.lag_entries_max, fresh.lag_ms_max).await?;
    let read = long_read(move || {
        // No account has the id 0.
        let id = |name: &String| named(view.view(), name).map(Option::unwrap_or_default);
        let ids = names.iter().map(id).collect::<Result<Vec<_>, _>>()?;
        Ok((ledger::lookup_accounts(view.view(), &ids)?, names))
    });
    let (found, names) = read.await?;
    let mut answer = FoundAccounts { accounts: Vec::new(), absent: Vec::new(), answered: found.len() };
    for (name, found) in names.into_iter().zip(found) {
        match found {
            Some(account) => answer.accounts.push(Account::with_balances(&account)),
            None => answer.absent.push(name),
        }
    }
    Ok(Json(answer))
}
