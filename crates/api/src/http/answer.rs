//! Answers with a location.

use axum::Json;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

/// An answer with what was created and where it is.
pub(super) fn created(status: StatusCode, location: &str, body: &impl serde::Serialize) -> Response {
    let mut response = (status, Json(body)).into_response();
    if let Ok(location) = HeaderValue::from_str(location) {
        response.headers_mut().insert("location", location);
    }
    response
}
