//! The ledger's refusals as problems: the only place where they become HTTP statuses.

use super::model::Transfer;
use crate::http::problem::Problem;
use axum::http::StatusCode;
use quoin_core::ledger::{AccountCode, Code};

impl Problem {
    /// A transfer was refused, which is recorded.
    pub(in crate::http) fn refused(code: Code, transfer: Option<Transfer>) -> Self {
        let (status, title) = match code {
            Code::IdConflict => (StatusCode::CONFLICT, "The id was used before"),
            _ => (StatusCode::UNPROCESSABLE_ENTITY, "The transfer was refused"),
        };
        Self::new(status, code.name(), title, code.text()).about(transfer)
    }

    /// The `Idempotency-Key` of a request for several things was used before, for something else.
    pub(in crate::http) fn key_conflict() -> Self {
        let detail = "the key was used before for another request, and nothing was done: take a new key";
        Self::new(StatusCode::CONFLICT, "id_conflict", "The key was used before", detail)
            .named("Idempotency-Key")
    }
}

/// The only place where refusals of accounts and currencies become HTTP statuses, each with the field that is
/// wrong.
impl From<AccountCode> for Problem {
    fn from(code: AccountCode) -> Self {
        let (status, word, field) = match code {
            AccountCode::Unknown => (StatusCode::NOT_FOUND, "account_unknown", None),
            AccountCode::IdConflict => (StatusCode::CONFLICT, "id_conflict", Some("id")),
            AccountCode::NumberTaken => (StatusCode::CONFLICT, "number_taken", Some("number")),
            AccountCode::CurrencyExists => (StatusCode::CONFLICT, "currency_exists", Some("scale")),
            AccountCode::Changed => (StatusCode::PRECONDITION_FAILED, "changed", None),
            AccountCode::Closed => (StatusCode::UNPROCESSABLE_ENTITY, "account_closed", None),
            AccountCode::NotEmpty => (StatusCode::UNPROCESSABLE_ENTITY, "not_empty", Some("status")),
            AccountCode::BelowLimit => (StatusCode::UNPROCESSABLE_ENTITY, "below_limit", Some("limit")),
            AccountCode::AboveMaximum => {
                (StatusCode::UNPROCESSABLE_ENTITY, "above_maximum", Some("maximum_balance"))
            }
            AccountCode::LinkedFailed => (StatusCode::UNPROCESSABLE_ENTITY, "linked_failed", None),
            AccountCode::OpeningRefused(code @ Code::IdConflict) => {
                (StatusCode::CONFLICT, code.name(), Some("id"))
            }
            AccountCode::OpeningRefused(code) => {
                (StatusCode::UNPROCESSABLE_ENTITY, code.name(), Some("initial_balance"))
            }
            AccountCode::CurrencyUnknown => {
                (StatusCode::UNPROCESSABLE_ENTITY, "currency_unknown", Some("currency"))
            }
            AccountCode::IdReserved => (StatusCode::BAD_REQUEST, "id_reserved", Some("id")),
            AccountCode::NumberReserved => (StatusCode::BAD_REQUEST, "number_reserved", Some("number")),
            AccountCode::NumberMalformed => (StatusCode::BAD_REQUEST, "number_malformed", Some("number")),
            AccountCode::CurrencyMalformed => (StatusCode::BAD_REQUEST, "currency_malformed", None),
            _ => (StatusCode::BAD_REQUEST, "not_allowed", None),
        };
        let problem = Self::new(status, word, "The request was refused", code.to_string());
        match field {
            Some(field) => problem.named(field),
            None => problem,
        }
    }
}
