//! Parsing requests. Whatever is wrong with one becomes a problem document that names the field.

use super::lists::Object;
use super::problem::Problem;
use crate::page::PageSizes;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use quoin_engine::Consistency;
use quoin_proto::quoin::v1 as pb;
use serde::de::DeserializeOwned;
use std::error::Error;

/// Maximum bytes of a request's body.
pub(super) const BODY_BYTES_MAX: usize = 8 << 20;

/// A JSON body.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        parse(&read(request, state).await?).map(Self)
    }
}

/// A JSON body that may be absent, for its fields all may be.
pub(super) struct BodyOrNone<T>(pub(super) T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for BodyOrNone<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = read(request, state).await?;
        if bytes.is_empty() { Ok(Self(T::default())) } else { parse(&bytes).map(Self) }
    }
}

async fn read<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Problem> {
    check_content_type(request.headers())?;
    Bytes::from_request(request, state).await.map_err(unreadable)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let Object(body) = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let field = error.path().to_string();
        let problem = Problem::new(
            StatusCode::BAD_REQUEST,
            "malformed",
            "The body is malformed",
            error.inner().to_string(),
        );
        if field == "." { problem } else { problem.named(field) }
    })?;
    json.end().map_err(|error| {
        let title = "The body is malformed";
        Problem::new(StatusCode::BAD_REQUEST, "malformed", title, error.to_string())
    })?;
    Ok(body)
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let kind = kind.to_str().unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") || essence.ends_with("+json") {
        return Ok(());
    }
    let detail = format!("{kind:?} is not accepted: send application/json");
    Err(Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "media_type",
        "The body has another media type",
        detail,
    ))
}

fn unreadable(rejection: BytesRejection) -> Problem {
    let (status, text) = (rejection.status(), rejection.body_text());
    Problem::new(
        status,
        "unreadable",
        "The body cannot be read",
        format!("{text}; at most {BODY_BYTES_MAX} bytes are accepted"),
    )
}

/// The query's parameters.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = Query::<T>::from_request_parts(parts, state).await;
        let query = parts.uri.query().unwrap_or_default();
        params.map(|Query(params)| Self(params)).map_err(|rejection| wrong_parameter(&rejection, query))
    }
}

/// No query: the call has no parameters. A server that ignored `dry_run` would do what was only to be tried.
pub(super) struct NoParams;

impl<S: Send + Sync> FromRequestParts<S> for NoParams {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct None {}
        Params::<None>::from_request_parts(parts, state).await.map(|_| Self)
    }
}

fn wrong_parameter(rejection: &QueryRejection, query: &str) -> Problem {
    let of = |detail: String| {
        Problem::new(StatusCode::BAD_REQUEST, "invalid_parameter", "A query parameter is wrong", detail)
    };
    // The rejection's cause, and that of the cause.
    let cause = rejection.source().and_then(Error::source);
    match cause.and_then(|cause| cause.downcast_ref::<serde_path_to_error::Error<serde::de::value::Error>>())
    {
        // The path of what is not about one parameter.
        Some(error) if error.path().iter().next().is_none() => of(error.inner().to_string()),
        Some(error) => {
            let name = error.path().to_string();
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let given = pairs.find(|(key, _)| *key == name).map_or("", |(_, value)| value);
            let given: String = given.chars().take(64).collect();
            of(format!("{given:?}: {}", error.inner())).named(name)
        }
        None => of(rejection.body_text()),
    }
}

/// No conditions in the headers: the request is not of one rule, which has an ETag. A server that ignored them would do
/// what its client wanted only if they hold.
pub(super) struct Unconditional;

impl<S: Send + Sync> FromRequestParts<S> for Unconditional {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        for (header, name) in [(header::IF_MATCH, "If-Match"), (header::IF_NONE_MATCH, "If-None-Match")] {
            if parts.headers.contains_key(header) {
                let detail = "only writes of one rule take it; nothing was done";
                return Err(Problem::field(name, detail));
            }
        }
        Ok(Self)
    }
}

/// The variable segment of the path.
pub(super) struct Named(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let name = Path::<String>::from_request_parts(parts, state).await;
        let refused = |rejection: PathRejection| {
            Problem::new(StatusCode::BAD_REQUEST, "invalid_path", "The path is wrong", rejection.body_text())
        };
        name.map(|Path(name)| Self(name)).map_err(refused)
    }
}

/// The answer to an unknown path.
pub(super) async fn nothing_here() -> impl IntoResponse {
    Problem::not_found("no_such_path", "nothing is served at this path; see /docs")
}

/// The answer to an unknown method.
pub(super) async fn no_such_method() -> impl IntoResponse {
    let title = "The path does not have this method";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no_such_method", title, "see /docs")
}

/// How fresh a read is to be, by the parameters of these names.
pub(super) fn consistency(
    local: bool,
    lag_entries_max: Option<u64>,
    lag_ms_max: Option<u64>,
) -> Result<Consistency, Problem> {
    Ok(crate::consistency::of(asked_consistency(local, lag_entries_max, lag_ms_max)?.as_ref()))
}

/// As [`consistency`], as a request of `quoin.*.v1` says it.
pub(super) fn asked_consistency(
    local: bool,
    lag_entries_max: Option<u64>,
    lag_ms_max: Option<u64>,
) -> Result<Option<pb::Consistency>, Problem> {
    if local {
        return Ok(Some(pb::Local { lag_entries_max, lag_ms_max }.into()));
    }
    for (field, bound) in [("lag_entries_max", lag_entries_max), ("lag_ms_max", lag_ms_max)] {
        if bound.is_some() {
            return Err(Problem::field(field, "bounds a local read; give local=true with it"));
        }
    }
    Ok(None)
}

/// The size of a page, by the parameter `limit`.
pub(super) fn page_size(sizes: &PageSizes, limit: Option<u32>) -> Result<usize, Problem> {
    sizes.of(limit).map_err(|problem| Problem::field("limit", problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_over_http_is_linearizable_unless_it_says_local() {
        assert_eq!(consistency(false, None, None).unwrap(), Consistency::Linearizable);
        assert_eq!(consistency(true, None, None).unwrap(), Consistency::ANY);
        let bounded = Consistency::Local { max_lag_entries: Some(3), max_lag_ms: Some(200) };
        assert_eq!(consistency(true, Some(3), Some(200)).unwrap(), bounded);
        let problem = serde_json::to_value(consistency(false, None, Some(200)).unwrap_err()).unwrap();
        assert_eq!((&problem["field"], &problem["status"]), (&"lag_ms_max".into(), &400.into()));
    }
}
