//! Transactions: several legs in one body, done together or not at all. Each leg is a transfer; they are linked.

use super::desk::Desk;
use super::ids;
use super::model::{AcceptedAll, NewTransaction, Transaction, Transfer, Trial, shown};
use super::transfers::{accepted, accepted_response, answered, apply, check_imports, understand};
use crate::http::extract::{Body, Params};
use crate::http::problem::Problem;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use quoin_core::ledger::{Code, TRANSFERS_MAX, Transfers};

/// Create transfers that are done together or not at all
///
/// If a leg is refused, the problem is the leg's, and its `field` says which. The transfers get their ids from the
/// transaction's id, which the Idempotency-Key may stand for: the same request again does nothing and gets the same
/// answer, and the same id or key with another body is refused (409).
#[utoipa::path(post, path = "/v1/transactions", operation_id = "create_transaction", tag = "transfers", request_body = NewTransaction,
    params(("Idempotency-Key" = Option<String>, Header, description = "Instead of an id"),
        ("Prefer" = Option<String>, Header, description = "respond-async: answer 202 when it is durable"), Trial),
    responses((status = 201, body = Transaction), (status = 200, body = Transaction, description = "It was done before"),
        (status = 202, body = AcceptedAll), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create(
    State(desk): State<Desk>,
    Params(Trial { dry_run }): Params<Trial>,
    headers: HeaderMap,
    Body(body): Body<NewTransaction>,
) -> Result<Response, Problem> {
    let id = ids::request_id(&headers, body.id.as_deref())?;
    let accepted_only = !dry_run && ids::responds_async(&headers);
    let legs = legs(body)?;
    check_imports(&legs, "legs")?;
    let (mut command, mut all) = (Transfers::new(!accepted_only), Vec::with_capacity(legs.len()));
    for (place, leg) in legs.iter().enumerate() {
        let prefix = format!("legs[{place}].");
        let leg_id = ids::item_id(Some(id), None, place, &prefix)?;
        let mut wanted = understand(&desk, leg, leg_id, &prefix).await?;
        wanted.transfer.linked = place + 1 < legs.len();
        command.push(&wanted.transfer);
        all.push(wanted);
    }
    let key = ids::keyed(id, "transaction", command.content());
    let replies = apply(&desk, command, Some(key), dry_run).await?.replies;
    if accepted_only {
        let accepted = all.iter().map(|wanted| accepted(wanted.transfer.id)).collect();
        return Ok(accepted_response(None, &AcceptedAll { accepted }));
    }
    let refused = replies.iter().position(|reply| !matches!(reply.code, Code::Ok | Code::LinkedFailed));
    if let Some(place) = refused {
        let (wanted, reply) = (&all[place], &replies[place]);
        let transfer =
            (reply.code != Code::IdConflict).then(|| Transfer { dry_run, ..answered(wanted, reply) });
        return Err(Problem::refused(reply.code, transfer).named(format!("legs[{place}]")));
    }
    let again = replies.iter().all(|reply| reply.duplicate);
    let transfers = all.iter().zip(&replies).map(|(wanted, reply)| answered(wanted, reply)).collect();
    let status = if again || dry_run { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(Transaction { id: shown(id), dry_run, transfers })).into_response())
}

/// The legs, with what the transaction says for all of them.
fn legs(body: NewTransaction) -> Result<Vec<super::model::NewTransfer>, Problem> {
    let NewTransaction { mut legs, code, reference, user_data, .. } = body;
    if legs.is_empty() || legs.len() > TRANSFERS_MAX {
        let detail = format!("{} is not between 1 and {TRANSFERS_MAX}", legs.len());
        return Err(Problem::field("legs", detail));
    }
    for (place, leg) in legs.iter_mut().enumerate() {
        let field = |name: &str| format!("legs[{place}].{name}");
        if leg.id.is_some() {
            return Err(Problem::field(field("id"), "legs get their ids from the transaction's"));
        }
        if leg.linked {
            return Err(Problem::field(field("linked"), "all legs are linked; leave it out"));
        }
        if leg.code == 0 {
            leg.code = code;
        }
        if leg.reference.is_empty() {
            leg.reference.clone_from(&reference);
        }
        if leg.user_data.is_empty() {
            leg.user_data.clone_from(&user_data);
        }
    }
    Ok(legs)
}
