//! Errors as etcd's gateway answers them.
//!
//! Its versions differ: until 3.5 the text is in `error`, from 3.6 on in `message`, and within a stream the numbers
//! have other names. Answers have the fields of all of them, so clients of any version find theirs.

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use tonic::{Code, Status};

/// The HTTP status for a code, as in grpc-gateway.
pub(super) fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::Cancelled => StatusCode::REQUEST_TIMEOUT,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The answer to a call that failed.
pub(super) fn failed(status: &Status) -> Response {
    error(http_status(status.code()), status.code(), status.message())
}

/// The last line of a stream that failed.
pub(super) fn failed_line(status: &Status) -> Value {
    let (code, http) = (status.code() as i32, http_status(status.code()));
    json!({ "error": {
        "grpc_code": code,
        "http_code": http.as_u16(),
        "message": status.message(),
        "http_status": http.canonical_reason().unwrap_or_default(),
        "code": code,
        "details": [],
    }})
}

pub(super) fn not_found() -> Response {
    error(StatusCode::NOT_FOUND, Code::NotFound, "Not Found")
}

pub(super) fn wrong_method() -> Response {
    error(StatusCode::METHOD_NOT_ALLOWED, Code::Unimplemented, "Method Not Allowed: send POST")
}

pub(super) fn foreign() -> Response {
    let text = "quoin: requests from web pages of other origins are refused";
    error(StatusCode::FORBIDDEN, Code::PermissionDenied, text)
}

fn error(http: StatusCode, code: Code, text: &str) -> Response {
    let body = json!({ "error": text, "code": code as i32, "message": text, "details": [] });
    super::json(http, body.to_string())
}
