//! Writing, reading and deleting rules.

use super::model::{
    AllOf, BatchDone, Deleted, LookupAnswers, Lookups, RoutingKey, RoutingRule, RoutingTarget, RuleAt,
    RuleBatch, RuleCondition, signed, unsigned,
};
use crate::commands::{check_space, long_read, pinned, read};
use crate::error::{Error, Kind};
use crate::grpc::route::lookup::LOOKUPS_PER_HOLD;
use crate::grpc::route::translate::quoted;
use crate::grpc::route::write::{self, deleted, operation};
use crate::grpc::route::{Route, batch, translate};
use crate::http::extract::{self, Body, NoParams, Params, Unconditional};
use crate::http::problem::Problem;
use axum::Json;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use quoin_core::Revision;
use quoin_core::route::{
    self, Condition, Operation, Rule, RuleKey, Write, pack_condition, pack_keys, pack_rule,
};
use quoin_engine::ReadView;
use quoin_proto::quoin::route::v1 as pb;

/// The network and the address in the path.
pub(super) struct Address(RuleKey);

impl<S: Send + Sync> FromRequestParts<S> for Address {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<(String, String)>::from_request_parts(parts, state).await;
        let refused = |detail: String| {
            Problem::new(StatusCode::BAD_REQUEST, "invalid_path", "The path is wrong", detail)
        };
        let Path((vni, ip)) = path.map_err(|rejection| refused(rejection.body_text()))?;
        let number = vni.parse();
        let vni = number.map_err(|_| Problem::field("vni", format!("{} is not a number", quoted(&vni))))?;
        Ok(Self(translate::rule_key(vni, &ip).map_err(|text| Problem::wrong(&text))?))
    }
}

/// Look up a rule
///
/// Its revision is its ETag; with it in If-None-Match the answer is 304 while the rule is the same.
#[utoipa::path(get, path = "/v1/rules/{vni}/{ip}", operation_id = "get_rule", tag = "rules",
    params(("vni" = u32, Path, maximum = 16_777_215), ("ip" = String, Path, description = "IPv4 or IPv6"), RuleAt,
        ("If-None-Match" = Option<String>, Header, description = "The ETag of the rule that the client has")),
    responses((status = 200, body = RoutingRule), (status = 304), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(
    State(route): State<Route>,
    Address(key): Address,
    Params(at): Params<RuleAt>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let consistency = extract::consistency(at.local, at.lag_entries_max, at.lag_ms_max)?;
    let view = read(route.engine(), consistency).await?;
    let found = match at.at_revision {
        None | Some(0) => view.memory().routes.look().get(&key)?.map(|rule| translate::shown(&rule)),
        Some(revision) => past(view, key, Revision(revision)).await?,
    };
    let rule = found.ok_or_else(|| {
        let (vni, ip) = (key.vni, key.ip);
        Problem::not_found("rule_unknown", format!("network {vni} has no rule for {ip}"))
    })?;
    let tag = etag(unsigned(rule.revision));
    if is_known(&headers, &tag) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    Ok(tagged(tag, RoutingRule::of(rule)))
}

/// Whether the client has what this ETag is of (RFC 9110, 13.1.2). A proxy that compresses answers makes tags weak.
fn is_known(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let values = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut known = values.flat_map(|value| value.split(',')).map(str::trim);
    known.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

async fn past(view: ReadView, key: RuleKey, revision: Revision) -> Result<Option<pb::Rule>, Problem> {
    signed(revision.0, "at_revision")?;
    let found = long_read(move || {
        let (_pin, sequence) = match pinned(&view, revision)? {
            Ok(pinned) => pinned,
            Err(unavailable) => return Ok(Err(unavailable)),
        };
        route::rule(view.view().at(sequence), key).map(Ok)
    });
    let found = found.await?.map_err(|unavailable| {
        Problem::of_request(translate::unavailable("at_revision", revision, &unavailable))
    });
    Ok(found?.map(|rule| translate::shown(&rule.as_ref())))
}

fn etag(revision: u64) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{revision}\"")).expect("digits in quotes are a header")
}

fn tagged(tag: HeaderValue, rule: RoutingRule) -> Response {
    ([(header::ETAG, tag)], Json(rule)).into_response()
}

/// Write a rule
///
/// Creates it, or replaces it as a whole. The same request again writes the same rule. With If-Match it is written only if
/// it still has this ETag, with If-None-Match: * only if there is none: else 412, and nothing is done.
#[utoipa::path(put, path = "/v1/rules/{vni}/{ip}", operation_id = "put_rule", tag = "rules", request_body = RoutingTarget,
    params(("vni" = u32, Path, maximum = 16_777_215), ("ip" = String, Path, description = "IPv4 or IPv6"),
        ("If-Match" = Option<String>, Header, description = "The rule's ETag"),
        ("If-None-Match" = Option<String>, Header, description = "*: the rule must not exist")),
    responses((status = 200, body = RoutingRule), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put(
    State(route): State<Route>,
    Address(key): Address,
    _: NoParams,
    headers: HeaderMap,
    Body(target): Body<RoutingTarget>,
) -> Result<Response, Problem> {
    check_space(route.engine())?;
    let wanted = condition(&headers)?;
    let rule = target.into_rule(key.vni, key.ip.to_string())?;
    let rule = translate::rule(rule).map_err(|text| Problem::wrong(&text))?;
    let mut packed = Vec::new();
    pack_rule(&mut packed, &rule, &mut Vec::new());
    let done = match wanted {
        None => operation(route.engine(), Operation::Put(packed.into())).await,
        Some((_, revision)) => {
            let write = Write { puts: packed.into(), ..conditioned(key, revision) };
            operation(route.engine(), Operation::Write(write)).await
        }
    };
    let (Revision(revision), _) = done.map_err(|error| refused(error, wanted.map(|(header, _)| header)))?;
    let rule = translate::shown(&Rule { revision, ..rule }.as_ref());
    Ok(tagged(etag(revision), RoutingRule::of(rule)))
}

/// What a request's headers ask of the rule: the header, and the revision at which it must be, 0 if it must not exist.
fn condition(headers: &HeaderMap) -> Result<Option<(&'static str, u64)>, Problem> {
    let wrong = |field: &str, what: &str| Err(Problem::field(field, format!("{what}; nothing was done")));
    match (headers.get(header::IF_MATCH), headers.get(header::IF_NONE_MATCH)) {
        (None, None) => Ok(None),
        (None, Some(value)) if value == "*" => Ok(Some(("If-None-Match", 0))),
        (None, Some(_)) => wrong("If-None-Match", "only * is taken: the rule must not exist"),
        (Some(_), Some(_)) => wrong("If-Match", "give either If-Match or If-None-Match"),
        (Some(value), None) => {
            let tag = value.to_str().ok().and_then(|tag| tag.strip_prefix('"')?.strip_suffix('"'));
            match tag.and_then(|tag| tag.parse::<i64>().ok()) {
                Some(revision @ 1..) => Ok(Some(("If-Match", revision.unsigned_abs()))),
                _ => wrong("If-Match", &format!("{value:?} is not the ETag of a rule, as \"17\"")),
            }
        }
    }
}

/// A write of nothing, if the rule is at this revision.
fn conditioned(key: RuleKey, revision: u64) -> Write {
    let mut conditions = Vec::new();
    pack_condition(&mut conditions, &Condition { key, revision }, &mut Vec::new());
    Write { conditions: conditions.into(), ..Write::default() }
}

/// An error of a write with conditions; `header` is that which named the only one.
fn refused(error: Error, header: Option<&str>) -> Problem {
    match error {
        Error::Detailed(refusal) if refusal.kind == Kind::Aborted => {
            let (place, detail) = refusal.text.split_once(": ").unwrap_or(("conditions", &refusal.text));
            let title = "The rule is not at the revision at which it must be";
            let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "changed", title, detail);
            problem.named(header.unwrap_or(place))
        }
        error => Problem::of_request(error),
    }
}

/// Write and delete rules at one revision
///
/// All or nothing, if all conditions hold; they may name other rules too. Where one does not: 412, with its place.
#[utoipa::path(post, path = "/v1/rules/batch", operation_id = "write_rules", tag = "rules", request_body = RuleBatch,
    responses((status = 200, body = BatchDone), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn batch(
    State(route): State<Route>,
    _: (Unconditional, NoParams),
    Body(wanted): Body<RuleBatch>,
) -> Result<Json<BatchDone>, Problem> {
    let mut puts = Vec::with_capacity(wanted.puts.len());
    for (place, rule) in wanted.puts.into_iter().enumerate() {
        puts.push(rule.into_rule().map_err(|problem| problem.within(&format!("puts[{place}].")))?);
    }
    let key = |key: RoutingKey| pb::RuleKey { vni: key.vni, ip: key.ip };
    let deletes = wanted.deletes.into_iter().map(key).collect();
    let mut conditions = Vec::with_capacity(wanted.conditions.len());
    for (place, RuleCondition { vni, ip, revision }) in wanted.conditions.into_iter().enumerate() {
        let revision = signed(revision, &format!("conditions[{place}].revision"))?;
        conditions.push(pb::Condition { key: Some(pb::RuleKey { vni, ip }), revision });
    }
    let request = pb::WriteRequest { puts, deletes, conditions };
    let done = batch::write(route.engine(), request).await.map_err(|error| refused(error, None))?;
    let (written, deleted) = (done.written, done.deleted);
    Ok(Json(BatchDone { revision: unsigned(done.revision), written, deleted }))
}

/// Delete a rule
///
/// Deleting an absent one is no error. With If-Match it is deleted only if it still has this ETag: else 412.
#[utoipa::path(delete, path = "/v1/rules/{vni}/{ip}", operation_id = "delete_rule", tag = "rules",
    params(("vni" = u32, Path, maximum = 16_777_215), ("ip" = String, Path, description = "IPv4 or IPv6"),
        ("If-Match" = Option<String>, Header, description = "The rule's ETag")),
    responses((status = 200, body = Deleted), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn delete(
    State(route): State<Route>,
    Address(key): Address,
    _: NoParams,
    headers: HeaderMap,
) -> Result<Json<Deleted>, Problem> {
    let (wanted, deletes) = (condition(&headers)?, pack_keys(&[key]));
    let operation_of = match wanted {
        None => Operation::Delete(deletes),
        Some((_, revision)) => Operation::Write(Write { deletes, ..conditioned(key, revision) }),
    };
    let done = operation(route.engine(), operation_of).await;
    let (revision, deleted) = match done.map_err(|error| refused(error, wanted.map(|(header, _)| header)))? {
        (revision, route::Response::Wrote { deleted, .. }) => (revision, deleted),
        done => {
            let (revision, deleted, _) = deleted(done)?;
            (revision, deleted)
        }
    };
    Ok(Json(Deleted { deleted, revision: revision.0 }))
}

/// Delete all rules of a group or a network
///
/// Those that existed when the request arrived, in steps of up to 2,000, each with its own revision.
#[utoipa::path(delete, path = "/v1/rules", operation_id = "delete_rules", tag = "rules", params(AllOf),
    responses((status = 200, body = Deleted), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn delete_all(
    State(route): State<Route>,
    _: Unconditional,
    Params(all): Params<AllOf>,
) -> Result<Json<Deleted>, Problem> {
    let all_of = match (all.group, all.vni) {
        (Some(group), None) => pb::delete_request::AllOf::Group(group),
        (None, Some(vni)) => pb::delete_request::AllOf::Vni(vni),
        (None, None) => return Err(Problem::field("group", "give a group or a vni")),
        (Some(_), Some(_)) => return Err(Problem::field("group", "give either a group or a vni, not both")),
    };
    let request = pb::DeleteRequest { keys: Vec::new(), all_of: Some(all_of) };
    let done = write::delete(route.engine(), request).await.map_err(Problem::of_request)?;
    let revision = done.header.map_or(0, |header| unsigned(header.revision));
    Ok(Json(Deleted { deleted: done.deleted, revision }))
}

/// Look up to 10,000 rules up
#[utoipa::path(post, path = "/v1/rules/lookup", operation_id = "look_up_rules", tag = "rules", request_body = Lookups,
    responses((status = 200, body = LookupAnswers), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn lookup(
    State(route): State<Route>,
    _: NoParams,
    Body(wanted): Body<Lookups>,
) -> Result<Json<LookupAnswers>, Problem> {
    let mut keys = Vec::with_capacity(wanted.lookups.len());
    for (place, lookup) in wanted.lookups.iter().enumerate() {
        let key = translate::rule_key(lookup.vni, &lookup.ip);
        keys.push(key.map_err(|text| Problem::wrong(&format!("lookups[{place}].{text}")))?);
    }
    let view = read(route.engine(), quoin_engine::Consistency::Linearizable).await?;
    let bytes_max = route.engine().limits().response_bytes_max;
    let (mut rules, mut bytes) = (Vec::with_capacity(keys.len()), 0);
    for keys in keys.chunks(LOOKUPS_PER_HOLD) {
        let table = view.memory().routes.look();
        for key in keys {
            let found = table.get(key)?;
            bytes += found.map_or(8, |rule| 256 + 2 * rule.user_data.len());
            if bytes > bytes_max {
                return Err(Error::response_too_large(bytes_max).into());
            }
            rules.push(found.map(|rule| RoutingRule::of(translate::shown(&rule))));
        }
    }
    Ok(Json(LookupAnswers { revision: view.progress().revision.0, rules }))
}
