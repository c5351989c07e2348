//! Writes of rules: what is wrong is refused here, with its index and field; what is right becomes one command.
//!
//! **Bounds.** Rules of a request; bytes of a command (`limits.request_bytes_max`); messages of a bulk load that are
//! under way at once.

use super::translate;
use crate::api::commands::{check_size, check_space};
use crate::api::error;
use crate::engine::Engine;
use bytes::Bytes;
use quoin_core::route::{
    DeleteMany, Operation, Refusal, Reply, Response, Rule, RuleKey, pack_keys, pack_rule,
};
use quoin_core::{Command, Revision};
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::delete_request::AllOf;
use std::collections::{HashMap, VecDeque};
use tokio::task::JoinHandle;
use tonic::{Code, Status, Streaming};

/// Rules in one request at most.
const RULES_MAX: usize = 20_000;
/// Messages of a bulk load under way at most.
const MESSAGES_UNDER_WAY_MAX: usize = 16;
/// Rules that one step of a deletion of many deletes at most, so that no step holds up others for long.
const DELETED_PER_STEP: u32 = 2_000;

/// Has a route operation done. What it was refused for is a status here.
///
/// # Errors
/// See [`error`].
pub(super) async fn operation(engine: &Engine, operation: Operation) -> Result<(Revision, Response), Status> {
    propose(engine, operation.into_command()).await
}

async fn propose(engine: &Engine, command: Command) -> Result<(Revision, Response), Status> {
    check_size(engine, &command)?;
    match engine.propose(command).await? {
        quoin_core::Reply::Route(Reply { revision, result }) => {
            result.map(|response| (revision, response)).map_err(refused)
        }
        other => Err(error::unexpected_reply("route", &other)),
    }
}

fn refused(refusal: Refusal) -> Status {
    match refusal {
        Refusal::UnknownNode => Status::not_found(format!("quoin: {refusal}")),
        other => Status::internal(format!("quoin: {other}")),
    }
}

/// What came of a `Put`.
pub(super) struct Written {
    /// 0 where no rule was written.
    pub(super) revision: u64,
    pub(super) rules: u64,
    pub(super) statuses: Vec<pb::RuleStatus>,
}

/// Writes the rules of one request.
///
/// # Errors
/// A rule that is wrong, where all or none are to be written; too many; otherwise as every write.
pub(super) async fn put(engine: &Engine, request: pb::PutRequest) -> Result<Written, Status> {
    check_space(engine)?;
    let count = request.rules.len();
    if count > RULES_MAX {
        return Err(error::invalid(format_args!(
            "{count} rules in one request are too many, at most {RULES_MAX}; send more requests, or PutStream"
        )));
    }
    let each_for_itself = request.each_for_itself;
    let Checked { packed, rules, statuses } = check(request)?;
    let revision = if rules == 0 { 0 } else { operation(engine, Operation::Put(packed)).await?.0.0 };
    Ok(Written { revision, rules, statuses: if each_for_itself { statuses } else { Vec::new() } })
}

/// A request's rules, packed; without those that are wrong.
struct Checked {
    packed: Bytes,
    rules: u64,
    statuses: Vec<pb::RuleStatus>,
}

fn check(request: pb::PutRequest) -> Result<Checked, Status> {
    let count = request.rules.len();
    let (mut packed, mut scratch) = (Vec::with_capacity(count * 48), Vec::new());
    let mut places: HashMap<RuleKey, usize> = HashMap::with_capacity(if count > 1 { count } else { 0 });
    let mut statuses = Vec::with_capacity(if request.each_for_itself { count } else { 0 });
    let mut rules = 0;
    for (place, rule) in request.rules.into_iter().enumerate() {
        let checked = translate::rule(rule).and_then(|rule| check_once(&mut places, count, place, rule));
        match checked {
            Ok(rule) => {
                pack_rule(&mut packed, &rule, &mut scratch);
                rules += 1;
            }
            Err(problem) if !request.each_for_itself => {
                return Err(error::invalid(format_args!("rules[{place}].{problem}; nothing was written")));
            }
            Err(message) => {
                statuses.push(pb::RuleStatus { code: Code::InvalidArgument.into(), message });
                continue;
            }
        }
        if request.each_for_itself {
            statuses.push(pb::RuleStatus::default());
        }
    }
    Ok(Checked { packed: packed.into(), rules, statuses })
}

fn check_once(
    places: &mut HashMap<RuleKey, usize>,
    count: usize,
    place: usize,
    rule: Rule,
) -> Result<Rule, String> {
    if count == 1 {
        return Ok(rule);
    }
    match places.insert(rule.key, place) {
        None => Ok(rule),
        Some(first) => Err(format!(
            "ip: ({}, {}) is in rules[{first}] already; give each rule once",
            rule.key.vni, rule.key.ip
        )),
    }
}

/// Writes what arrives, message by message, several under way.
///
/// # Errors
/// The first that any message meets; it says how many were written before it.
pub(super) async fn put_stream(
    engine: &Engine,
    mut requests: Streaming<pb::PutRequest>,
) -> Result<pb::PutStreamResponse, Status> {
    let mut under_way = VecDeque::<JoinHandle<Result<Written, Status>>>::new();
    let mut done = pb::PutStreamResponse::default();
    while let Some(request) = requests.message().await? {
        if request.each_for_itself {
            return Err(error::invalid(format_args!(
                "messages[{}].each_for_itself: PutStream has no status for each rule; use Put",
                done.messages + under_way.len() as u64
            )));
        }
        if under_way.len() >= MESSAGES_UNDER_WAY_MAX {
            finish(under_way.pop_front(), &mut done).await?;
        }
        let engine = engine.clone();
        under_way.push_back(tokio::spawn(async move { put(&engine, request).await }));
    }
    while !under_way.is_empty() {
        finish(under_way.pop_front(), &mut done).await?;
    }
    Ok(done)
}

async fn finish(
    put: Option<JoinHandle<Result<Written, Status>>>,
    done: &mut pb::PutStreamResponse,
) -> Result<(), Status> {
    let Some(put) = put else { return Ok(()) };
    let written = put.await.map_err(|error| error::fault(&error))?.map_err(|status| {
        let (messages, rules) = (done.messages, done.rules);
        let text = format!(
            "{} (messages[{messages}]; {rules} rules of the messages before it are written)",
            status.message()
        );
        Status::new(status.code(), text)
    })?;
    done.messages += 1;
    done.rules += written.rules;
    done.revision = done.revision.max(translate::signed(written.revision));
    Ok(())
}

/// Deletes rules.
///
/// # Errors
/// A key that is none; nothing to delete; otherwise as every write.
pub(super) async fn delete(engine: &Engine, request: pb::DeleteRequest) -> Result<(Revision, u64), Status> {
    let mut keys = Vec::with_capacity(request.keys.len());
    for (place, key) in request.keys.iter().enumerate() {
        let key = translate::rule_key(key.vni, &key.ip);
        keys.push(key.map_err(|problem| error::invalid(format_args!("keys[{place}].{problem}")))?);
    }
    let many = match request.all_of {
        None if keys.is_empty() => {
            return Err(error::invalid("nothing to delete: give keys, a group or a vni"));
        }
        None => None,
        Some(_) if !keys.is_empty() => {
            return Err(error::invalid("give either keys or all of a group or a vni, not both"));
        }
        Some(AllOf::Group(group)) => Some((Some(Bytes::from(group)), 0)),
        Some(AllOf::Vni(vni)) => Some((None, vni)),
    };
    match many {
        None => deleted(operation(engine, Operation::Delete(pack_keys(&keys))).await?)
            .map(|(at, count, _)| (at, count)),
        Some((group, vni)) => delete_many(engine, group, vni).await,
    }
}

async fn delete_many(engine: &Engine, group: Option<Bytes>, vni: u32) -> Result<(Revision, u64), Status> {
    let scope = pb::WatchRequest {
        groups: group.iter().map(|group| translate::lossy(group)).collect(),
        vnis: if group.is_none() { vec![vni] } else { Vec::new() },
        ..pb::WatchRequest::default()
    };
    translate::scopes(&scope)?;
    let now = engine.read(crate::engine::Consistency::Linearizable).await?.progress().revision;
    let step = DeleteMany { group, vni, limit: DELETED_PER_STEP, not_after: now.0 };
    let mut total = 0;
    loop {
        let (revision, count, more) = deleted(operation(engine, Operation::DeleteMany(step.clone())).await?)?;
        total += count;
        if !more {
            return Ok((revision, total));
        }
    }
}

/// What a deletion deleted, and whether there is more.
pub(super) fn deleted((revision, response): (Revision, Response)) -> Result<(Revision, u64, bool), Status> {
    match response {
        Response::Deleted { count, more } => Ok((revision, count, more)),
        other => Err(error::fault(&format_args!("a deletion was answered by {other:?}"))),
    }
}
