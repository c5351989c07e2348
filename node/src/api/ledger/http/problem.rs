//! What a request that fails is answered: problem details (RFC 9457), with a stable `type` and the field that is wrong.
//!
//! The one place where the ledger's errors become HTTP statuses. A problem of a client's making is a 4xx and changed
//! nothing; 503 means that the outcome is unknown or there is no leader, and that the same request may be sent again.

use super::model::Transfer;
use crate::engine::{ProposeError, ReadError};
use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use quoin_core::StoreError;
use quoin_core::ledger::{AccountCode, Code};
use serde::Serialize;
use utoipa::ToSchema;

/// Why a request was not done (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// What kind of problem it is; stable. `urn:quoin:problem:` and a word.
    #[serde(rename = "type")]
    #[schema(example = "urn:quoin:problem:insufficient_funds")]
    kind: String,
    /// What this kind of problem is.
    title: String,
    /// The HTTP status.
    status: u16,
    /// What is wrong here, and what to do.
    detail: String,
    /// The field of the request that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// The transfer as it was recorded, where it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer: Option<Box<Transfer>>,
    #[serde(skip)]
    retry_after_s: Option<u32>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, word: &str, title: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:quoin:problem:{word}"),
            title: title.to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            field: None,
            transfer: None,
            retry_after_s: None,
        }
    }

    /// A field that cannot be as it is.
    pub(super) fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        let problem =
            Self::new(StatusCode::BAD_REQUEST, "invalid_field", "A field of the request is wrong", detail);
        problem.named(field)
    }

    /// With the field that is wrong.
    pub(super) fn named(self, field: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..self }
    }

    /// Something that does not exist.
    pub(super) fn not_found(word: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, word, "There is no such thing", detail)
    }

    /// A transfer that was refused, and recorded as that.
    pub(super) fn refused(code: Code, transfer: Option<Transfer>) -> Self {
        let (status, title) = match code {
            Code::IdConflict => (StatusCode::CONFLICT, "The id was used before"),
            _ => (StatusCode::UNPROCESSABLE_ENTITY, "The transfer was refused"),
        };
        Self { transfer: transfer.map(Box::new), ..Self::new(status, code.name(), title, code.text()) }
    }

    fn with_retry(self, retry_after_s: u32) -> Self {
        Self { retry_after_s: Some(retry_after_s), ..self }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry = self.retry_after_s.map(HeaderValue::from);
        let mut response = (status, Json(self)).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if let Some(retry) = retry {
            response.headers_mut().insert(HeaderName::from_static("retry-after"), retry);
        }
        response
    }
}

impl From<ProposeError> for Problem {
    fn from(error: ProposeError) -> Self {
        let unavailable = |detail: &str| {
            let title = "The cluster cannot answer now";
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", title, detail).with_retry(1)
        };
        match error {
            ProposeError::Busy => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_requests",
                "Too many requests are under way",
                "nothing was done; send it again later",
            )
            .with_retry(1),
            ProposeError::TooLarge { bytes, max } => Self::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too_large",
                "The request is too large",
                format!("it takes {bytes} bytes in the log, at most {max}: send it in parts"),
            ),
            ProposeError::NoSpace => Self::new(
                StatusCode::INSUFFICIENT_STORAGE,
                "no_space",
                "Disk or quota is used up",
                "nothing was done; an operator must make room",
            ),
            ProposeError::NoLeader | ProposeError::LeaderChanged => {
                unavailable("nothing was done: the cluster is choosing a leader; send the same request again")
            }
            _ => unavailable("it may have been done or not; send the same request again, with the same id"),
        }
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        let title = "The cluster cannot answer now";
        let detail = format!("{error}; ask again, or another replica");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", title, detail).with_retry(1)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "a request failed by a fault of this node");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "fault", "This node has a fault", error.to_string())
    }
}

impl From<tonic::Status> for Problem {
    fn from(status: tonic::Status) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "fault", "This node has a fault", status.message())
    }
}

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
            AccountCode::CurrencyUnknown => {
                (StatusCode::UNPROCESSABLE_ENTITY, "currency_unknown", Some("currency"))
            }
            AccountCode::IdReserved => (StatusCode::BAD_REQUEST, "id_reserved", Some("id")),
            AccountCode::NumberReserved => (StatusCode::BAD_REQUEST, "number_reserved", Some("number")),
            AccountCode::CurrencyMalformed => (StatusCode::BAD_REQUEST, "currency_malformed", None),
            _ => (StatusCode::BAD_REQUEST, "not_allowed", None),
        };
        let problem = Self::new(status, word, "The request was refused", code.to_string());
        Self { field: field.map(str::to_owned), ..problem }
    }
}
