//! Problem details (RFC 9457), with a stable `type` and the field that is wrong: the only place where errors
//! become HTTP statuses.
//!
//! A 4xx is a problem of the request, and nothing was done. With 503 and 429 the same request, with the same
//! id, may be sent again; the detail of a 503 says whether it was done. 507: nothing was done. 500 is a fault
//! of this node.

use super::ledger::Transfer;
use crate::error::{Error, Kind, Known};
use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use quoin_core::StoreError;
use quoin_engine::{ProposeError, ReadError};
use serde::Serialize;
use utoipa::ToSchema;

/// Why a request was not done (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// The kind of problem: `urn:quoin:problem:` and a stable word.
    #[serde(rename = "type")]
    #[schema(example = "urn:quoin:problem:insufficient_funds")]
    kind: String,
    /// The kind of problem, for people.
    title: String,
    /// The HTTP status.
    status: u16,
    /// What is wrong, and what to do.
    detail: String,
    /// The field of the request that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// A refused transfer, as it is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer: Option<Box<Transfer>>,
    #[serde(skip)]
    retry_after_s: Option<u32>,
}

impl Problem {
    /// The stable word of its kind.
    pub(super) fn word(&self) -> &str {
        self.kind.rsplit(':').next().unwrap_or_default()
    }

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

    pub(super) fn status(&self) -> u16 {
        self.status
    }

    /// The same with another status.
    pub(super) fn with_status(self, status: StatusCode) -> Self {
        Self { status: status.as_u16(), ..self }
    }

    /// A field is wrong.
    pub(super) fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        let problem =
            Self::new(StatusCode::BAD_REQUEST, "invalid_field", "A field of the request is wrong", detail);
        problem.named(field)
    }

    /// The request is wrong; a text like `vni: 16777216 does not fit` names the field.
    pub(super) fn wrong(text: &str) -> Self {
        match with_field(text) {
            Some((field, detail)) => Self::field(field, detail),
            None => of_kind(Kind::InvalidArgument, text),
        }
    }

    /// An error of a request that was made of this one, and has its fields.
    pub(super) fn of_request(error: Error) -> Self {
        match error {
            Error::Refused(Kind::InvalidArgument, text) => Self::wrong(&text),
            Error::Refused(kind @ Kind::OutOfRange, text) => match with_field(&text) {
                Some((field, detail)) => of_kind(kind, detail).named(field),
                None => of_kind(kind, &text),
            },
            error => error.into(),
        }
    }

    /// With the field that is wrong.
    pub(super) fn named(self, field: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..self }
    }

    /// With the name that a field has in this request, if it is `other`.
    pub(super) fn renamed(self, other: &str, name: &str) -> Self {
        if self.field.as_deref() == Some(other) { self.named(name) } else { self }
    }

    /// With its field as that of a part of the request.
    pub(super) fn within(self, prefix: &str) -> Self {
        Self { field: self.field.map(|field| format!("{prefix}{field}")), ..self }
    }

    /// With another detail.
    pub(super) fn saying(self, detail: String) -> Self {
        Self { detail, ..self }
    }

    /// The subject does not exist.
    pub(super) fn not_found(word: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, word, "Not found", detail)
    }

    /// With the transfer that was refused.
    pub(super) fn about(self, transfer: Option<Transfer>) -> Self {
        Self { transfer: transfer.map(Box::new), ..self }
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
        if status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Basic realm=\"quoin\", Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        if let Some(retry) = retry {
            response.headers_mut().insert(HeaderName::from_static("retry-after"), retry);
        }
        response
    }
}

/// The renderer of [`Error`] for HTTP.
impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Propose(error) => propose(error),
            Error::Read(ReadError::Busy) => too_many_requests(),
            Error::Read(error) => unavailable(format!("{error}; ask again, or another replica")),
            Error::Etcd(Known::NoSpace) => no_space(),
            Error::Etcd(Known::TooManyRequests) => too_many_requests(),
            Error::Etcd(Known::UserEmpty) => of_kind(
                Kind::Unauthenticated,
                "send Authorization: Bearer with a token, or Basic with a user's name and password",
            ),
            Error::Etcd(known @ (Known::AuthFailed | Known::NoPasswordUser)) => {
                of_kind(Kind::Unauthenticated, known.text())
            }
            Error::Etcd(known) => of_kind(known.kind(), known.text()),
            Error::Refused(kind, text) => of_kind(kind, &text),
            Error::Detailed(refusal) => of_kind(refusal.kind, &refusal.text),
            Error::Fault(text) => fault(&text),
            Error::ClientStream(status) => of_kind(Kind::Cancelled, status.message()),
        }
    }
}

fn propose(error: ProposeError) -> Problem {
    match error {
        ProposeError::Busy => too_many_requests(),
        ProposeError::NoSpace => no_space(),
        ProposeError::TooLarge { bytes, max } => Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            "The request is too large",
            format!("it takes {bytes} bytes in the log, at most {max}: send it in parts"),
        ),
        ProposeError::NoLeader | ProposeError::LeaderChanged => {
            unavailable("nothing was done: the cluster is choosing a leader; send the same request again")
        }
        ProposeError::Unknown | ProposeError::Stopped => unavailable(
            "it may or may not have been done; send the same request again, with the same id if it has one",
        ),
        ProposeError::OldRevision => unavailable(error.to_string()),
        // Only changes of members are refused.
        ProposeError::Refused => of_kind(Kind::Aborted, &error.to_string()),
    }
}

pub(super) fn too_many_requests() -> Problem {
    let title = "Too many requests are in flight";
    let detail = "nothing was done; send it again later";
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", title, detail).with_retry(1)
}

fn no_space() -> Problem {
    let detail = "nothing was done; an operator must make room";
    Problem::new(StatusCode::INSUFFICIENT_STORAGE, "no_space", "Disk or quota is used up", detail)
}

fn unavailable(detail: impl Into<String>) -> Problem {
    let title = "The cluster cannot answer now";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", title, detail).with_retry(1)
}

fn fault(detail: &str) -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "fault", "This node has a fault", detail)
}

/// The field that a text like `vni: 16777216 does not fit` names, and what it says of it.
fn with_field(text: &str) -> Option<(&str, &str)> {
    let in_names = |byte: u8| byte.is_ascii_alphanumeric() || b"_.[]".contains(&byte);
    text.split_once(": ").filter(|(field, _)| field.bytes().all(in_names))
}

/// What no handler says more precisely.
fn of_kind(kind: Kind, detail: &str) -> Problem {
    let (status, word, title) = match kind {
        Kind::InvalidArgument => (StatusCode::BAD_REQUEST, "invalid", "The request is wrong"),
        Kind::OutOfRange => (StatusCode::BAD_REQUEST, "out_of_range", "The revision is not available"),
        Kind::NotFound => (StatusCode::NOT_FOUND, "not_found", "Not found"),
        Kind::AlreadyExists => (StatusCode::CONFLICT, "already_exists", "It exists already"),
        Kind::Aborted => (StatusCode::CONFLICT, "aborted", "A concurrent change came first"),
        Kind::FailedPrecondition | Kind::WrongType => {
            (StatusCode::UNPROCESSABLE_ENTITY, "precondition", "The state does not allow it")
        }
        Kind::ResourceExhausted => (StatusCode::PAYLOAD_TOO_LARGE, "too_large", "The answer is too large"),
        Kind::TooMany => {
            (StatusCode::TOO_MANY_REQUESTS, "too_many_requests", "This much is not let in at a time")
        }
        Kind::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated", "Who asks is not known"),
        Kind::PermissionDenied => (StatusCode::FORBIDDEN, "permission_denied", "Not allowed"),
        Kind::Unavailable => return unavailable(detail),
        Kind::Cancelled | Kind::Unknown => return fault(detail),
    };
    Problem::new(status, word, title, detail)
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Error::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(error: impl Into<Error>) -> (u16, String, Option<u32>) {
        let problem = Problem::from(error.into());
        (problem.status, problem.kind.replace("urn:quoin:problem:", ""), problem.retry_after_s)
    }

    #[test]
    fn a_command_without_a_reply_says_whether_and_when_to_send_it_again() {
        for (error, status, word, retry_after_s) in [
            (ProposeError::Busy, 429, "too_many_requests", Some(1)),
            (ProposeError::NoSpace, 507, "no_space", None),
            (ProposeError::TooLarge { bytes: 2, max: 1 }, 413, "too_large", None),
            (ProposeError::NoLeader, 503, "unavailable", Some(1)),
            (ProposeError::LeaderChanged, 503, "unavailable", Some(1)),
            (ProposeError::Unknown, 503, "unavailable", Some(1)),
            (ProposeError::Stopped, 503, "unavailable", Some(1)),
        ] {
            assert_eq!(rendered(error), (status, word.to_owned(), retry_after_s), "{error:?}");
        }
    }

    #[test]
    fn a_503_says_whether_the_request_was_done() {
        let detail = |error: ProposeError| Problem::from(Error::from(error)).detail;
        for error in [ProposeError::NoLeader, ProposeError::LeaderChanged] {
            assert!(detail(error).starts_with("nothing was done"), "{error:?}");
        }
        for error in [ProposeError::Unknown, ProposeError::Stopped] {
            assert!(detail(error).starts_with("it may or may not have been done"), "{error:?}");
        }
    }

    #[test]
    fn only_faults_of_this_node_are_5xx_beyond_503() {
        assert_eq!(rendered(Error::Fault("disk".into())), (500, "fault".to_owned(), None));
        assert_eq!(rendered(Error::invalid("why")), (400, "invalid".to_owned(), None));
        assert_eq!(rendered(Error::not_found("why")), (404, "not_found".to_owned(), None));
        assert_eq!(rendered(Error::precondition("why")), (422, "precondition".to_owned(), None));
        assert_eq!(rendered(Error::unavailable("why")), (503, "unavailable".to_owned(), Some(1)));
        assert_eq!(rendered(Known::Compacted), (400, "out_of_range".to_owned(), None));
        assert_eq!(rendered(Known::NoSpace), (507, "no_space".to_owned(), None));
        let lagging = ReadError::Lagging { lag_entries: Some(7), lag_ms: Some(1500) };
        assert_eq!(rendered(lagging), (503, "unavailable".to_owned(), Some(1)));
    }
}
