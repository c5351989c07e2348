//! Writes of rules. Invalid rules are refused here, with their index and field; valid ones become one
//! command.
//!
//! **Invariant: Bounded.** Rules of a request, bytes of a command (`limits.request_bytes_max`), and messages
//! of a bulk load in flight.

use super::translate;
use crate::auth;
use crate::commands::{check_space, read};
use crate::error::{Error, Kind};
use crate::grpc::kv::header;
use bytes::Bytes;
use quoin_core::Revision;
use quoin_core::route::{
    DeleteMany, Operation, Refusal, Reply, Response, Rule, RuleKey, pack_keys, pack_rule,
};
use quoin_engine::{Consistency, Engine, ProposeError};
use quoin_proto::quoin::kv::v1::Header;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::delete_request::AllOf;
use std::collections::{HashMap, VecDeque};
use tokio::task::JoinHandle;
use tonic::{Code, Status, Streaming};

/// Maximum rules in a request.
pub(crate) const RULES_MAX: usize = 20_000;
/// Maximum messages of a bulk load in flight.
const MESSAGES_IN_FLIGHT_MAX: usize = 16;
/// Maximum rules that one step of a long deletion deletes, so that no step holds up others for long.
const DELETED_PER_STEP: u32 = 2_000;

/// Applies a route operation. Returns its response and the newest revision after it.
///
/// # Errors
/// A refusal, or see [`Engine::propose`].
pub(crate) async fn operation(engine: &Engine, operation: Operation) -> Result<(Revision, Response), Error> {
    let command = operation.into_command();
    let (bytes, max) = (command.bytes.len(), engine.limits().request_bytes_max);
    if bytes > max {
        return Err(Error::invalid(format_args!(
            "the request takes {bytes} bytes in the log, at most {max} (setting limits.request_bytes_max): send it in \
             parts; nothing was done"
        )));
    }
    route_reply(engine.propose(command).await?)
}

fn route_reply(reply: quoin_core::Reply) -> Result<(Revision, Response), Error> {
    match reply {
        quoin_core::Reply::Route(Reply { revision, result }) => Ok((revision, result?)),
        other => Err(Error::unexpected_reply("route", &other)),
    }
}

/// The only place where refusals of the route face become errors.
impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NameTooLong { .. } => Self::invalid(refusal),
            Refusal::UnknownNode => Self::not_found(refusal),
            Refusal::NetworkTaken { .. } => Self::Refused(Kind::AlreadyExists, format!("vpc.vni: {refusal}")),
            Refusal::Condition { place, key, wanted, found } => Self::detailed(
                Kind::Aborted,
                format_args!("conditions[{place}]: {refusal}"),
                &pb::ConditionFailed {
                    index: u32::try_from(place).unwrap_or(u32::MAX),
                    key: Some(translate::shown_key(&key)),
                    wanted_revision: translate::signed(wanted),
                    revision: translate::signed(found),
                },
            ),
            other => Self::fault(other),
        }
    }
}

/// The header of an answer to a write, after which `revision` was the newest.
pub(super) fn header_now(engine: &Engine, revision: Revision) -> Option<Header> {
    Some(header(engine, revision, engine.raft().term))
}

/// Writes the rules of one request.
///
/// # Errors
/// As [`write`].
pub(super) async fn put(engine: &Engine, request: pb::PutRequest) -> Result<pb::PutResponse, Error> {
    let Written { revision, statuses, .. } = write(engine, request).await?;
    let newest = if revision == 0 { engine.latest().progress().revision } else { Revision(revision) };
    let revision = translate::signed(revision);
    Ok(pb::PutResponse { header: header_now(engine, newest), revision, statuses })
}

/// The result of writing a request's rules.
struct Written {
    /// 0 if no rule was written.
    revision: u64,
    rules: u64,
    statuses: Vec<pb::RuleStatus>,
}

/// Writes the rules of one request.
///
/// # Errors
/// As [`check`] and as every write.
async fn write(engine: &Engine, request: pb::PutRequest) -> Result<Written, Error> {
    let checked = check(engine, request)?;
    checked.write(engine).await
}

/// The valid rules of a request, packed.
struct Checked {
    packed: Bytes,
    /// The key of the only rule of the request.
    only: Option<RuleKey>,
    /// The place of each, if there are several.
    places: HashMap<RuleKey, usize>,
    rules: u64,
    /// One per rule of the request, if each was for itself.
    statuses: Vec<pb::RuleStatus>,
}

impl Checked {
    fn keys(&self) -> impl Iterator<Item = &RuleKey> {
        self.only.iter().chain(self.places.keys())
    }

    async fn write(self, engine: &Engine) -> Result<Written, Error> {
        let Self { packed, rules, statuses, .. } = self;
        let revision = if rules == 0 { 0 } else { operation(engine, Operation::Put(packed)).await?.0.0 };
        Ok(Written { revision, rules, statuses })
    }
}

/// # Errors
/// An invalid rule, if all or none are to be written; too many rules; no space on the disk.
fn check(engine: &Engine, request: pb::PutRequest) -> Result<Checked, Error> {
    check_space(engine)?;
    let count = request.rules.len();
    if count > RULES_MAX {
        return Err(Error::invalid(format_args!(
            "{count} rules in one request are too many, at most {RULES_MAX}; send more requests, or PutStream"
        )));
    }
    let (mut packed, mut scratch) = (Vec::with_capacity(count * 48), Vec::new());
    let mut only = None;
    let mut places: HashMap<RuleKey, usize> = HashMap::with_capacity(if count > 1 { count } else { 0 });
    let mut statuses = Vec::with_capacity(if request.each_for_itself { count } else { 0 });
    let mut rules = 0;
    for (place, rule) in request.rules.into_iter().enumerate() {
        let checked = translate::rule(rule).and_then(|rule| {
            if count == 1 {
                only = Some(rule.key);
                return Ok(rule);
            }
            check_once(&mut places, place, rule)
        });
        match checked {
            Ok(rule) => {
                pack_rule(&mut packed, &rule, &mut scratch);
                rules += 1;
            }
            Err(problem) if !request.each_for_itself => {
                return Err(Error::invalid(format_args!("rules[{place}].{problem}; nothing was written")));
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
    Ok(Checked { packed: packed.into(), only, places, rules, statuses })
}

fn check_once(places: &mut HashMap<RuleKey, usize>, place: usize, rule: Rule) -> Result<Rule, String> {
    match places.insert(rule.key, place) {
        None => Ok(rule),
        Some(first) => Err(format!(
            "ip: ({}, {}) is in rules[{first}] already; give each rule once",
            rule.key.vni, rule.key.ip
        )),
    }
}

/// Writes messages as they arrive, several at a time.
///
/// # Errors
/// The first of any message; it says how many rules were written before.
pub(super) async fn put_stream(
    engine: &Engine,
    mut requests: Streaming<pb::PutRequest>,
) -> Result<pb::PutStreamResponse, Status> {
    let mut load = Load::default();
    while let Some(request) = requests.message().await? {
        let checked = if request.each_for_itself {
            Err(Error::invalid("each_for_itself: PutStream has no status for each rule; use Put"))
        } else {
            check(engine, request)
        };
        match checked {
            Ok(checked) => load.begin(engine, checked).await?,
            Err(error) => {
                load.finish_all().await?;
                return Err(load.failed(error));
            }
        }
    }
    load.finish_all().await?;
    let header = header_now(engine, engine.latest().progress().revision);
    Ok(pb::PutStreamResponse { header, ..load.done })
}

/// A bulk load.
///
/// **Invariant: Order of a rule.** A message is proposed once those before it that write one of its rules are written.
#[derive(Default)]
struct Load {
    in_flight: VecDeque<Message>,
    /// The newest message in flight that writes a rule, by its number in the stream.
    writers: HashMap<RuleKey, u64>,
    done: pb::PutStreamResponse,
}

/// A message of a bulk load that is being written.
struct Message {
    keys: Vec<RuleKey>,
    written: JoinHandle<Result<Written, Error>>,
}

impl Load {
    async fn begin(&mut self, engine: &Engine, checked: Checked) -> Result<(), Status> {
        let before = checked.keys().filter_map(|key| self.writers.get(key)).max().copied();
        while self.in_flight.len() >= MESSAGES_IN_FLIGHT_MAX
            || before.is_some_and(|before| self.done.messages <= before)
        {
            self.finish_first().await?;
        }
        let number = self.done.messages + self.in_flight.len() as u64;
        let keys: Vec<RuleKey> = checked.keys().copied().collect();
        self.writers.extend(keys.iter().map(|key| (*key, number)));
        let engine = engine.clone();
        let written = tokio::spawn(auth::carried(async move { checked.write(&engine).await }));
        self.in_flight.push_back(Message { keys, written });
        Ok(())
    }

    async fn finish_all(&mut self) -> Result<(), Status> {
        while !self.in_flight.is_empty() {
            self.finish_first().await?;
        }
        Ok(())
    }

    async fn finish_first(&mut self) -> Result<(), Status> {
        let Some(Message { keys, written }) = self.in_flight.pop_front() else { return Ok(()) };
        let written = written.await.map_err(Error::fault)?.map_err(|error| self.failed(error))?;
        for key in keys {
            if self.writers.get(&key) == Some(&self.done.messages) {
                self.writers.remove(&key);
            }
        }
        self.done.messages += 1;
        self.done.rules += written.rules;
        self.done.revision = self.done.revision.max(translate::signed(written.revision));
        Ok(())
    }

    /// The error of the first message that is not done.
    fn failed(&self, error: Error) -> Status {
        let (status, messages, rules) = (Status::from(error), self.done.messages, self.done.rules);
        let text = status.message();
        let text =
            format!("{text} (messages[{messages}]; {rules} rules of the messages before it are written)");
        Status::new(status.code(), text)
    }
}

/// Deletes rules by their keys, or all of a group or network.
///
/// # Errors
/// An invalid key, or nothing to delete; otherwise as every write.
pub(crate) async fn delete(engine: &Engine, request: pb::DeleteRequest) -> Result<pb::DeleteResponse, Error> {
    let mut keys = Vec::with_capacity(request.keys.len());
    for (place, key) in request.keys.iter().enumerate() {
        let key = translate::rule_key(key.vni, &key.ip);
        keys.push(key.map_err(|problem| Error::invalid(format_args!("keys[{place}].{problem}")))?);
    }
    let many = match request.all_of {
        None if keys.is_empty() => {
            return Err(Error::invalid("nothing to delete: give keys, a group or a vni"));
        }
        None => None,
        Some(_) if !keys.is_empty() => {
            return Err(Error::invalid("give either keys or all of a group or a vni, not both"));
        }
        Some(AllOf::Group(group)) => {
            translate::check_group("group", &group).map_err(Error::invalid)?;
            Some((Some(Bytes::from(group)), 0))
        }
        Some(AllOf::Vni(vni)) => {
            translate::check_vni("vni", vni).map_err(Error::invalid)?;
            Some((None, vni))
        }
    };
    let (revision, deleted) = match many {
        None => {
            let (revision, count, _) =
                deleted(operation(engine, Operation::Delete(pack_keys(&keys))).await?)?;
            (revision, count)
        }
        Some((group, vni)) => delete_many(engine, group, vni).await?,
    };
    Ok(pb::DeleteResponse { header: header_now(engine, revision), deleted })
}

async fn delete_many(engine: &Engine, group: Option<Bytes>, vni: u32) -> Result<(Revision, u64), Error> {
    let now = read(engine, Consistency::Linearizable).await?.progress().revision;
    let step = Operation::DeleteMany(DeleteMany { group, vni, limit: DELETED_PER_STEP, not_after: now.0 });
    let (mut revision, mut total, mut more) = deleted(operation(engine, step.clone()).await?)?;
    while more {
        // The steps of several such deletions take turns, and others go in between.
        let reply = engine.propose_paced(step.clone().into_command()).await;
        let next = deleted(route_reply(reply.map_err(|error| partly(total, &error))?)?)?;
        (revision, total, more) = (next.0, total + next.1, next.2);
    }
    Ok((revision, total))
}

/// The error of a deletion of which `deleted` rules are done: whatever became of the last step, not nothing was.
fn partly(deleted: u64, error: &ProposeError) -> Error {
    Error::unavailable(format_args!(
        "{deleted} rules were deleted, and the others may still be there: {error}; send the same request again"
    ))
}

/// How much a deletion deleted, and whether there is more.
pub(crate) fn deleted((revision, response): (Revision, Response)) -> Result<(Revision, u64, bool), Error> {
    match response {
        Response::Deleted { count, more } => Ok((revision, count, more)),
        other => Err(Error::unexpected_reply("route", &other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// The client was told that nothing was done, of thousands of rules that were gone.
    #[test]
    fn a_deletion_that_ends_halfway_says_how_much_is_done() {
        for error in
            [ProposeError::NoLeader, ProposeError::Busy, ProposeError::NoSpace, ProposeError::Unknown]
        {
            let status = Status::from(partly(2_000, &error));
            assert_eq!(status.code(), Code::Unavailable, "{status:?}");
            assert!(status.message().contains("2000 rules were deleted"), "{status:?}");
            assert!(!status.message().contains("nothing was done"), "{status:?}");
        }
    }

    /// Sixteen messages were written at once, in any order: of two that wrote one rule, either could be the last.
    #[test]
    fn messages_of_a_bulk_load_that_write_one_rule_are_written_in_their_order() {
        let message = |ips: &[&str]| {
            let rule = |ip: &&str| pb::Rule { vni: 1, ip: (*ip).to_owned(), ..pb::Rule::default() };
            pb::PutRequest { rules: ips.iter().map(rule).collect(), each_for_itself: false }
        };
        crate::testing::alone(|engine| async move {
            let mut load = Load::default();
            // What a message writes, and which messages are done before it is proposed.
            let steps: [(&[&str], u64); 6] = [
                (&["10.0.0.1"], 0),
                (&["10.0.0.2", "10.0.0.3"], 0),
                (&["10.0.0.4"], 0),
                (&["10.0.0.3", "10.0.0.4"], 3),
                (&["10.0.0.1"], 3),
                (&["::ffff:10.0.0.1"], 5),
            ];
            for (ips, done) in steps {
                load.begin(&engine, check(&engine, message(ips)).unwrap()).await.unwrap();
                assert_eq!(load.done.messages, done, "{ips:?}");
            }
            load.finish_all().await.unwrap();
            assert_eq!((load.done.messages, load.done.rules, load.writers.len()), (6, 8, 0));
        });
    }

    /// They spoke of `groups[0]` and `vnis[0]`, which such a request does not have, and of no size.
    #[test]
    fn what_is_wrong_is_named_as_the_request_has_it() {
        crate::testing::alone(|engine| async move {
            for (all_of, problem) in [
                (AllOf::Group("g".repeat(256)), "group: 256 bytes"),
                (AllOf::Vni(1 << 24), "vni: 16777216 does"),
            ] {
                let request = pb::DeleteRequest { all_of: Some(all_of), ..Default::default() };
                let told = delete(&engine, request).await.unwrap_err().to_string();
                assert!(told.starts_with(problem), "{told}");
            }
            let bytes = engine.limits().request_bytes_max + 1;
            let told =
                operation(&engine, Operation::Put(vec![0; bytes].into())).await.unwrap_err().to_string();
            let at_most = format!("at most {}", bytes - 1);
            assert!(told.contains(&at_most) && told.contains("nothing was done"), "{told}");
        });
    }

    /// The steps of several long deletions followed each other in the log, and a put waited behind all of them.
    #[test]
    fn the_steps_of_a_long_deletion_take_turns() {
        const RULES: u32 = 2 * DELETED_PER_STEP + 500;
        crate::testing::alone(|engine| async move {
            let (mut packed, mut scratch) = (Vec::new(), Vec::new());
            for number in 0..RULES {
                let key = RuleKey { vni: 7, ip: Ipv4Addr::from_bits(number).into() };
                let (mac, host_ip, host_mac, group) = (None, None, None, Bytes::new());
                let (revision, user_data) = (0, Bytes::new());
                let rule = Rule { key, mac, host_ip, host_mac, group, revision, user_data };
                pack_rule(&mut packed, &rule, &mut scratch);
            }
            operation(&engine, Operation::Put(packed.into())).await.unwrap();
            let all_of = Some(AllOf::Vni(7));
            let done = delete(&engine, pb::DeleteRequest { all_of, ..Default::default() }).await.unwrap();
            assert_eq!(done.deleted, u64::from(RULES));
            assert_eq!(engine.metrics().commands_paced.get(), 2);
        });
    }
}
