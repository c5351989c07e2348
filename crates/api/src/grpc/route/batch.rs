//! `Write`: rules that are written and deleted at one revision, if conditions hold.
//!
//! **Invariant: Bounded.** Rules and conditions of a request, bytes of a command (`limits.request_bytes_max`).

use super::translate::{self, signed};
use super::write::{RULES_MAX, header_now, operation};
use crate::commands::check_space;
use crate::error::Error;
use quoin_core::route::{
    Condition, Operation, Response, RuleKey, Write, pack_condition, pack_keys, pack_rule,
};
use quoin_engine::Engine;
use quoin_proto::quoin::route::v1 as pb;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Writes and deletes the rules of one request.
///
/// # Errors
/// An invalid rule, key or condition, a key that is named twice, too many of them, no space on the disk, or a
/// condition that does not hold: nothing was done. Otherwise as every write.
pub(crate) async fn write(engine: &Engine, request: pb::WriteRequest) -> Result<pb::WriteResponse, Error> {
    check_counts(&request)?;
    if !request.puts.is_empty() {
        check_space(engine)?;
    }
    let command =
        packed(request).map_err(|problem| Error::invalid(format!("{problem}; nothing was done")))?;
    match operation(engine, Operation::Write(command)).await? {
        (newest, Response::Wrote { written, deleted }) => {
            let revision = if written + deleted == 0 { 0 } else { signed(newest.0) };
            Ok(pb::WriteResponse { header: header_now(engine, newest), revision, written, deleted })
        }
        (_, other) => Err(Error::unexpected_reply("route", &other)),
    }
}

fn check_counts(request: &pb::WriteRequest) -> Result<(), Error> {
    let (rules, conditions) = (request.puts.len() + request.deletes.len(), request.conditions.len());
    if rules + conditions == 0 {
        return Err(Error::invalid("nothing to do: give puts, deletes or conditions"));
    }
    for (what, count) in [("rules", rules), ("conditions", conditions)] {
        if count > RULES_MAX {
            return Err(Error::invalid(format_args!(
                "{count} {what} in one request are too many, at most {RULES_MAX}"
            )));
        }
    }
    Ok(())
}

fn packed(request: pb::WriteRequest) -> Result<Write, String> {
    let (mut puts, mut scratch) = (Vec::with_capacity(request.puts.len() * 48), Vec::new());
    let mut keys = Places::default();
    for (place, rule) in request.puts.into_iter().enumerate() {
        let rule = translate::rule(rule).map_err(|problem| format!("puts[{place}].{problem}"))?;
        keys.add(rule.key, "puts", place)?;
        pack_rule(&mut puts, &rule, &mut scratch);
    }
    let mut deletes = Vec::with_capacity(request.deletes.len());
    for (place, key) in request.deletes.iter().enumerate() {
        let key = translate::rule_key(key.vni, &key.ip);
        let key = key.map_err(|problem| format!("deletes[{place}].{problem}"))?;
        keys.add(key, "deletes", place)?;
        deletes.push(key);
    }
    let (mut conditions, mut conditioned) = (Vec::new(), Places::default());
    for (place, wanted) in request.conditions.iter().enumerate() {
        let condition = condition(wanted).map_err(|problem| format!("conditions[{place}].{problem}"))?;
        conditioned.add(condition.key, "conditions", place)?;
        pack_condition(&mut conditions, &condition, &mut scratch);
    }
    Ok(Write { puts: puts.into(), deletes: pack_keys(&deletes), conditions: conditions.into() })
}

fn condition(condition: &pb::Condition) -> Result<Condition, String> {
    let key = condition.key.as_ref().ok_or("key: is missing")?;
    let key = translate::rule_key(key.vni, &key.ip).map_err(|problem| format!("key.{problem}"))?;
    let revision = translate::revision("revision", condition.revision).map_err(|error| error.to_string())?;
    Ok(Condition { key, revision })
}

/// Where each key is named.
#[derive(Default)]
struct Places(HashMap<RuleKey, (&'static str, usize)>);

impl Places {
    fn add(&mut self, key: RuleKey, list: &'static str, place: usize) -> Result<(), String> {
        match self.0.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert((list, place));
                Ok(())
            }
            Entry::Occupied(first) => {
                let (first_list, first) = first.get();
                Err(format!("{list}[{place}]: {key} is in {first_list}[{first}] already; name each key once"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use tonic::{Code, Status};

    fn key(last: usize) -> pb::RuleKey {
        pb::RuleKey { vni: 5, ip: format!("10.0.{}.{}", last / 256, last % 256) }
    }

    fn rule(last: usize) -> pb::Rule {
        let pb::RuleKey { vni, ip } = key(last);
        pb::Rule { vni, ip, ..pb::Rule::default() }
    }

    fn at(last: usize, revision: i64) -> pb::Condition {
        pb::Condition { key: Some(key(last)), revision }
    }

    fn request(puts: &[usize], deletes: &[usize], conditions: &[(usize, i64)]) -> pb::WriteRequest {
        pb::WriteRequest {
            puts: puts.iter().map(|last| rule(*last)).collect(),
            deletes: deletes.iter().map(|last| key(*last)).collect(),
            conditions: conditions.iter().map(|(last, revision)| at(*last, *revision)).collect(),
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (request, problem) in [
            (request(&[1, 2, 1], &[], &[]), "puts[2]: 5/10.0.0.1 is in puts[0] already"),
            (request(&[1, 2], &[3, 2], &[]), "deletes[1]: 5/10.0.0.2 is in puts[1] already"),
            (request(&[], &[3, 3], &[]), "deletes[1]: 5/10.0.0.3 is in deletes[0] already"),
            (request(&[1], &[], &[(1, 0), (1, 2)]), "conditions[1]: 5/10.0.0.1 is in conditions[0] already"),
            (request(&[1], &[], &[(1, -2)]), "conditions[0].revision: -2"),
            (
                pb::WriteRequest { conditions: vec![pb::Condition::default()], ..Default::default() },
                "[0].key",
            ),
            (
                pb::WriteRequest { deletes: vec![pb::RuleKey::default()], ..Default::default() },
                "deletes[0].ip",
            ),
        ] {
            let told = packed(request).unwrap_err();
            assert!(told.contains(problem), "{told}");
        }
        // One address under two names is one key.
        let mut twice = request(&[1], &[], &[]);
        twice.deletes.push(pb::RuleKey { vni: 5, ip: "::ffff:10.0.0.1".into() });
        assert!(packed(twice).unwrap_err().contains("deletes[0]"));
        let many: Vec<usize> = (0..=RULES_MAX / 2).collect();
        assert!(check_counts(&request(&many, &many, &[])).is_err());
        assert!(check_counts(&request(&[], &[], &[])).is_err());
    }

    /// What the details of a status say.
    fn failed(status: &Status) -> pb::ConditionFailed {
        // google.rpc.Status: field 3 is a list of Any, whose field 2 is the message.
        #[derive(Clone, PartialEq, Message)]
        struct Details {
            #[prost(message, repeated, tag = "3")]
            details: Vec<prost_types::Any>,
        }
        let details = Details::decode(status.details()).unwrap().details;
        assert_eq!(details.len(), 1);
        assert_eq!(details[0].type_url, "type.googleapis.com/quoin.route.v1.ConditionFailed");
        pb::ConditionFailed::decode(&details[0].value[..]).unwrap()
    }

    #[test]
    fn all_is_done_at_one_revision_or_nothing_and_the_failed_condition_is_told() {
        crate::testing::alone(|engine| async move {
            let first = write(&engine, request(&[1, 2], &[], &[(1, 0), (2, 0)])).await.unwrap();
            assert_eq!((first.written, first.deleted), (2, 0));
            let second = request(&[3], &[1], &[(1, first.revision), (2, first.revision), (9, 0)]);
            let second = write(&engine, second).await.unwrap();
            assert_eq!((second.written, second.deleted), (1, 1));
            assert_eq!(second.revision, second.header.unwrap().revision);
            // Again, as after a lost answer: its own write is in its way.
            let again = request(&[3], &[1], &[(2, first.revision), (1, first.revision)]);
            let status = Status::from(write(&engine, again).await.unwrap_err());
            assert_eq!(status.code(), Code::Aborted);
            assert!(status.message().contains("conditions[1]: 5/10.0.0.1 does not exist"), "{status:?}");
            let (wanted_revision, revision) = (first.revision, 0);
            let told = pb::ConditionFailed { index: 1, key: Some(key(1)), wanted_revision, revision };
            assert_eq!(failed(&status), told);
            // Nothing but conditions; nothing there to be deleted.
            let nothing = write(&engine, request(&[], &[77], &[(3, second.revision)])).await.unwrap();
            assert_eq!((nothing.revision, nothing.written, nothing.deleted), (0, 0, 0));
            // As many as there may be, of which the last does not hold.
            let mut all: Vec<(usize, i64)> = (100..100 + RULES_MAX - 1).map(|last| (last, 0)).collect();
            all.push((3, 0));
            let status = Status::from(write(&engine, request(&[4], &[], &all)).await.unwrap_err());
            let revision = second.revision;
            let index = RULES_MAX as u32 - 1;
            let told = pb::ConditionFailed { index, key: Some(key(3)), wanted_revision: 0, revision };
            assert_eq!(failed(&status), told);
            let count = engine.latest().memory().routes.len();
            assert_eq!(count, 2, "the refused ones wrote nothing");
        });
    }

    /// Of commands that go into one log entry, each sees what those before it have done.
    #[test]
    fn of_writes_under_way_together_one_meets_a_condition() {
        crate::testing::alone(|engine| async move {
            let command = || {
                let command = packed(request(&[1], &[], &[(1, 0)])).unwrap();
                Operation::Write(command).into_command()
            };
            let replies = engine.propose_many((0..20).map(|_| command()).collect()).await;
            let mut done = 0;
            for reply in replies {
                match reply.unwrap() {
                    quoin_core::Reply::Route(reply) => done += u32::from(reply.result.is_ok()),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(done, 1);
        });
    }
}
