//! Transfers by what they hold.

use super::desk::{Desk, page_size, place};
use super::ids;
use super::model::{Direction, SideName, Transfer, TransferFilter, TransferPage, TransferStatus};
use super::units::Units;
use crate::http::extract::Params;
use crate::http::problem::Problem;
use crate::ledger::{TransferQuery, query_transfers};
use axum::Json;
use axum::extract::State;
use quoin_core::ledger::{Filter, Outcome, PendingState, Side};
use quoin_core::{Order, Revision};

/// List transfers, all or those that have all that is given
///
/// A page may be short or empty though more follow: it ends after 2,000 reads, each of up to 64 transfers. Go on with its
/// `cursor`.
#[utoipa::path(get, path = "/v1/transfers", operation_id = "list_transfers", tag = "transfers", params(TransferFilter),
    responses((status = 200, body = TransferPage), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn transfers(
    State(desk): State<Desk>,
    Params(asked): Params<TransferFilter>,
) -> Result<Json<TransferPage>, Problem> {
    let after = asked.after.as_deref().map(|after| place(after, "after")).transpose()?;
    let order = match asked.order {
        Direction::Oldest => Order::Ascending,
        Direction::Newest => Order::Descending,
    };
    let (limit, filter) = (page_size(asked.limit)?, filter(&desk, &asked).await?);
    let plain = filter == Filter::default() && order == Order::Ascending;
    if after.is_some() && (!plain || asked.cursor.is_some()) {
        return Err(Problem::field("after", "goes on with a list of all transfers; give the cursor instead"));
    }
    let view = desk.read(asked.local, asked.lag_entries_max, asked.lag_ms_max).await?;
    let newest = view.progress().revision;
    let cursor = asked.cursor.unwrap_or_default();
    let query = TransferQuery { filter, order, limit, cursor, after };
    let page = query_transfers(&desk.book, view, query, |view, found| {
        let mut units = Units::default();
        let shown = found.into_iter().map(|found| {
            let unit = units.of(view.view(), &found.entry)?;
            Ok(Transfer::of_view(&found, unit))
        });
        shown.collect::<Result<Vec<_>, _>>()
    });
    let page = page.await.map_err(Problem::of_request)?;
    if after.is_some_and(|(revision, _)| revision > newest) {
        return Err(Problem::not_found("page_beyond_end", "there is nothing after this place").named("after"));
    }
    let (place, cursor) = page.next.unzip();
    let next =
        place.filter(|_| plain).map(|(revision, position): (Revision, u32)| format!("{revision}.{position}"));
    Ok(Json(TransferPage { transfers: page.found, next, cursor }))
}

async fn filter(desk: &Desk, asked: &TransferFilter) -> Result<Filter, Problem> {
    let account = match &asked.account {
        Some(name) => Some(desk.account(name, "account").await?),
        None => None,
    };
    let moment =
        |text: &Option<String>, field| text.as_deref().map(|text| ids::moment(text, field)).transpose();
    Ok(Filter {
        account,
        side: asked.side.map(|side| match side {
            SideName::Debit => Side::Debit,
            SideName::Credit => Side::Credit,
        }),
        code: asked.code,
        reference: asked.reference.clone(),
        user_data_128: asked
            .user_data_128
            .as_deref()
            .map(|text| ids::decimal(text, "user_data_128"))
            .transpose()?,
        user_data_64: asked.user_data_64,
        user_data_32: asked.user_data_32,
        outcome: asked.status.map(|status| match status {
            TransferStatus::Done => Outcome::Done,
            TransferStatus::Refused => Outcome::Refused,
            TransferStatus::Pending => Outcome::Pending(PendingState::Open),
            TransferStatus::Posted => Outcome::Pending(PendingState::Posted),
            TransferStatus::Voided => Outcome::Pending(PendingState::Voided),
            TransferStatus::Expired => Outcome::Pending(PendingState::Expired),
        }),
        from: moment(&asked.from_time, "from_time")?,
        before: moment(&asked.to_time, "to_time")?,
    })
}
