//! Charges requests with their bodies, see [`crate::budget`].

use super::extract::BODY_BYTES_MAX;
use super::problem::too_many_requests;
use crate::budget::Budget;
use crate::stall::Patient;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Answers a request while its body is charged. One that does not say its length is charged with the longest
/// that is accepted.
pub(super) async fn charge(State(budget): State<Budget>, request: Request, next: Next) -> Response {
    let size = request.body().size_hint();
    let longest = BODY_BYTES_MAX;
    let bytes = size
        .upper()
        .map_or(longest, |upper| usize::try_from(upper).map_or(longest, |upper| upper.min(longest)));
    if bytes == 0 {
        return next.run(request).await;
    }
    let share = budget.share();
    if !share.hold(bytes) {
        return too_many_requests().into_response();
    }
    // Invariant: Bounded. A client that sends nothing more does not keep its share.
    next.run(request.map(|body| Body::new(Patient::new(body)))).await
}
