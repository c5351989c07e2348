//! Transfers and accounts by what they hold, and sums of accounts.

use super::translate;
use crate::consistency;
use crate::error::Error;
use crate::ledger::{Book, TransferQuery, query_accounts, query_transfers, sum_balances};
use crate::page::PageSizes;
use quoin_core::ledger::{AccountFilter, Currency, Filter, Outcome, PendingState, Side, Sum};
use quoin_core::{Order, Stamp};
use quoin_proto::quoin::ledger::v1 as pb;

const PAGE: PageSizes = PageSizes { default: 1000, max: 1000 };

pub(super) async fn transfers(
    book: &Book,
    request: pb::QueryTransfersRequest,
) -> Result<pb::QueryTransfersResponse, Error> {
    let query = translated(&request)?;
    let view = book.view(consistency::of(request.consistency.as_ref())).await?;
    let revision = view.progress().revision.0;
    let page = query_transfers(book, view, query, |_, found| {
        Ok(found.iter().map(translate::found_transfer).collect())
    });
    let page = page.await?;
    let cursor = page.next.map(|(_, cursor)| cursor).unwrap_or_default();
    Ok(pb::QueryTransfersResponse { transfers: page.found, cursor, revision })
}

pub(super) async fn accounts(
    book: &Book,
    request: pb::QueryAccountsRequest,
) -> Result<pb::QueryAccountsResponse, Error> {
    let pb::QueryAccountsRequest { prefix, currency, user_data, limit, cursor, consistency: asked } = request;
    let problem = |problem: String| Error::invalid(format_args!("currency: {problem}"));
    let currency = given(currency).map(|code| code.parse().map_err(problem)).transpose()?;
    let filter = AccountFilter { prefix, currency, user_data: given(user_data) };
    let limit = PAGE.of_field(limit)?;
    let view = book.view(consistency::of(asked.as_ref())).await?;
    let revision = view.progress().revision.0;
    let (found, next) = query_accounts(book, view, filter, limit, &cursor).await?;
    let accounts = found.iter().map(translate::account).collect();
    Ok(pb::QueryAccountsResponse { accounts, cursor: next.unwrap_or_default(), revision })
}

pub(super) async fn sums(
    book: &Book,
    request: pb::SumBalancesRequest,
) -> Result<pb::SumBalancesResponse, Error> {
    let pb::SumBalancesRequest { prefix, revision, cursor, consistency: asked } = request;
    let view = book.view(consistency::of(asked.as_ref())).await?;
    let (page, at, next) = sum_balances(book, view, prefix, given(revision), &cursor).await?;
    let sum = |(currency, sum): (&Currency, &Sum)| pb::CurrencySum {
        currency: currency.to_string(),
        scale: sum.scale,
        accounts: sum.accounts,
        balances: Some(translate::balances(&sum.balances)),
    };
    let sums = page.sums.iter().map(sum).collect();
    Ok(pb::SumBalancesResponse { sums, cursor: next.unwrap_or_default(), revision: at.0 })
}

fn translated(request: &pb::QueryTransfersRequest) -> Result<TransferQuery, Error> {
    let wrong =
        |field: &str, number: i32| Error::invalid(format_args!("{field}: {number} is none of its values"));
    let side = match pb::Side::try_from(request.side).map_err(|_| wrong("side", request.side))? {
        pb::Side::Any => None,
        pb::Side::Debit => Some(Side::Debit),
        pb::Side::Credit => Some(Side::Credit),
    };
    let status = pb::TransferStatus::try_from(request.status).map_err(|_| wrong("status", request.status))?;
    let order = match pb::Order::try_from(request.order).map_err(|_| wrong("order", request.order))? {
        pb::Order::OldestFirst => Order::Ascending,
        pb::Order::NewestFirst => Order::Descending,
    };
    let user_data_128 = u128::from(request.user_data_128_high) << 64 | u128::from(request.user_data_128);
    let account =
        if request.account.is_empty() { None } else { Some(translate::id(&request.account, "account")?) };
    let filter = Filter {
        account,
        side,
        code: given(request.code),
        reference: given(request.reference.clone()),
        user_data_128: given(user_data_128),
        user_data_64: given(request.user_data_64),
        user_data_32: given(request.user_data_32),
        outcome: outcome(status),
        from: given(request.from_time_ms).map(Stamp),
        before: given(request.to_time_ms).map(Stamp),
    };
    let (limit, cursor) = (PAGE.of_field(request.limit)?, request.cursor.clone());
    Ok(TransferQuery { filter, order, limit, cursor, after: None })
}

/// What is 0 or empty does not matter.
fn given<T: Default + PartialEq>(field: T) -> Option<T> {
    Some(field).filter(|field| *field != T::default())
}

fn outcome(status: pb::TransferStatus) -> Option<Outcome> {
    Some(match status {
        pb::TransferStatus::Any => return None,
        pb::TransferStatus::Done => Outcome::Done,
        pb::TransferStatus::Refused => Outcome::Refused,
        pb::TransferStatus::Pending => Outcome::Pending(PendingState::Open),
        pb::TransferStatus::Posted => Outcome::Pending(PendingState::Posted),
        pb::TransferStatus::Voided => Outcome::Pending(PendingState::Voided),
        pb::TransferStatus::Expired => Outcome::Pending(PendingState::Expired),
    })
}
