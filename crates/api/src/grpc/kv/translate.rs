//! Operations into commands, and replies into results.
//!
//! A write without conditions is core's own put or deletion. With conditions it is a transaction: the write
//! if they hold, else a read of the key, so that a refusal can say why in the same step.

use crate::auth;
use crate::commands::{check_key_length, check_space_for};
use crate::error::{Error, Known};
use bytes::Bytes;
use quoin_core::kv::txn_operation::Step;
use quoin_core::kv::{
    self, CompareResult, CompareTarget, MetadataAt, Operation, Response, Ttl, TxnOperation,
};
use quoin_core::{Command, Revision, Stamp};
use quoin_engine::{Engine, Limits};
use quoin_proto::quoin::kv::v1 as pb;
use quoin_proto::quoin::kv::v1::condition::What;
use quoin_proto::quoin::kv::v1::put_request;
use tonic::Status;

/// A write, ready for the log.
pub(super) struct Write {
    pub(super) command: Command,
    pub(super) kind: Kind,
}

/// Which write a reply is to.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Put,
    Delete,
}

/// # Errors
/// The key, the time to live or a condition is invalid, or there is no space.
pub(super) fn put(engine: &Engine, request: pb::PutRequest) -> Result<Write, Error> {
    let operation = put_operation(engine.limits(), request)?;
    check_space_for(engine, &operation)?;
    auth::check_here(engine, &operation)?;
    Ok(Write { command: operation.into_command(), kind: Kind::Put })
}

/// # Errors
/// The key or a condition is invalid.
pub(super) fn delete(engine: &Engine, request: pb::DeleteRequest) -> Result<Write, Error> {
    let operation = delete_operation(engine.limits(), request)?;
    auth::check_here(engine, &operation)?;
    Ok(Write { command: operation.into_command(), kind: Kind::Delete })
}

fn put_operation(limits: &Limits, request: pb::PutRequest) -> Result<Operation, Error> {
    check_key(&request.key, limits)?;
    if request.keep_metadata && !request.metadata.is_empty() {
        return Err(Error::invalid("keep_metadata goes without metadata; give one of the two"));
    }
    let count = request.metadata.len();
    if count > kv::METADATA_MAX {
        return Err(kv::Refusal::TooMuchMetadata { count }.into());
    }
    let compare = conditions(limits, &request.key, &request.conditions, &request.metadata)?;
    let put = kv::Put {
        key: request.key,
        value: request.value,
        lease: request.lease,
        prev_kv: request.return_previous,
        ttl: request.ttl.map(ttl).transpose()?.flatten(),
        metadata: request.metadata,
        keep_metadata: request.keep_metadata,
        ..kv::Put::default()
    };
    Ok(if compare.is_empty() {
        Operation::Put(put)
    } else {
        let key = put.key.clone();
        guarded(compare, Step::Put(put), key)
    })
}

fn delete_operation(limits: &Limits, request: pb::DeleteRequest) -> Result<Operation, Error> {
    check_key(&request.key, limits)?;
    let compare = conditions(limits, &request.key, &request.conditions, &[])?;
    let key = request.key;
    let delete = kv::Delete { key: key.clone(), range_end: Bytes::new(), prev_kv: request.return_deleted };
    Ok(if compare.is_empty() {
        Operation::Delete(delete)
    } else {
        guarded(compare, Step::Delete(delete), key)
    })
}

fn guarded(compare: Vec<kv::Compare>, write: Step, key: Bytes) -> Operation {
    let look = kv::Range { key, keys_only: true, ..kv::Range::default() };
    Operation::Txn(kv::Txn {
        compare,
        success: vec![TxnOperation { step: Some(write) }],
        failure: vec![TxnOperation { step: Some(Step::Range(look)) }],
    })
}

fn check_key(key: &Bytes, limits: &Limits) -> Result<(), Error> {
    if key.is_empty() {
        return Err(Known::EmptyKey.into());
    }
    check_key_length(key.len(), limits)
}

fn ttl(ttl: put_request::Ttl) -> Result<Option<Ttl>, Error> {
    Ok(match ttl {
        put_request::Ttl::TtlMs(0) => return Err(Error::invalid("ttl_ms is 0; leave it out for none")),
        put_request::Ttl::ExpireAtMs(0) => {
            return Err(Error::invalid("expire_at_ms is 0; leave it out for none"));
        }
        put_request::Ttl::TtlMs(milliseconds) => Some(Ttl::Milliseconds(milliseconds)),
        put_request::Ttl::ExpireAtMs(moment) => Some(Ttl::At(moment)),
        put_request::Ttl::KeepTtl(keep) => keep.then_some(Ttl::Keep(true)),
        put_request::Ttl::RestartTtl(restart) => restart.then_some(Ttl::Restart(true)),
    })
}

fn conditions(
    limits: &Limits,
    key: &Bytes,
    conditions: &[pb::Condition],
    metadata: &[i64],
) -> Result<Vec<kv::Compare>, Error> {
    let (count, max) = (conditions.len(), limits.txn_operations_max);
    if count > max {
        return Err(Error::invalid(format_args!(
            "{count} conditions are too many, at most {max} are allowed"
        )));
    }
    conditions.iter().map(|condition| compare(key, condition, metadata)).collect()
}

fn compare(key: &Bytes, condition: &pb::Condition, metadata: &[i64]) -> Result<kv::Compare, Error> {
    let (result, target, absent_passes) = match &condition.what {
        Some(What::Absent(true)) => (CompareResult::Equal, CompareTarget::CreateRevision(0), false),
        Some(What::Absent(false)) => (CompareResult::NotEqual, CompareTarget::CreateRevision(0), false),
        Some(What::Version(version)) => (CompareResult::Equal, CompareTarget::Version(*version), false),
        Some(What::ModRevision(revision)) => {
            (CompareResult::Equal, CompareTarget::ModRevision(*revision), false)
        }
        Some(What::Metadata(guard)) => {
            let (result, target) = compare_metadata(guard, metadata)?;
            (result, target, true)
        }
        None => return Err(Error::invalid("the condition is empty, or of a later version of the API")),
    };
    Ok(kv::Compare {
        result: result.into(),
        key: key.clone(),
        range_end: Bytes::new(),
        target: Some(target),
        absent_passes,
    })
}

/// The wire compares the given number with the stored one, core the stored one with the given.
fn compare_metadata(
    guard: &pb::MetadataGuard,
    metadata: &[i64],
) -> Result<(CompareResult, CompareTarget), Error> {
    let result = match pb::Relation::try_from(guard.relation) {
        Ok(pb::Relation::Equal) => CompareResult::Equal,
        Ok(pb::Relation::NotEqual) => CompareResult::NotEqual,
        Ok(pb::Relation::Greater) => CompareResult::Less,
        Ok(pb::Relation::Less) => CompareResult::Greater,
        Ok(pb::Relation::Unspecified) | Err(_) => {
            let number = guard.relation;
            return Err(Error::invalid(format_args!("metadata guard: there is no relation {number}")));
        }
    };
    let position = guard.position;
    let own = || metadata.get(position as usize).copied();
    let Some(value) = guard.value.or_else(own) else {
        return Err(Error::invalid(format_args!(
            "metadata guard: no value is given, and the write has no metadata at position {position}"
        )));
    };
    Ok((result, CompareTarget::Metadata(MetadataAt { position, value })))
}

/// The result of a put, with the newest revision after it.
///
/// # Errors
/// The reply is another command's.
pub(super) fn put_response(
    engine: &Engine,
    (revision, response): (Revision, Response),
) -> Result<pb::PutResponse, Error> {
    Ok(match outcome(response)? {
        Outcome::Done(Response::Put(previous)) => pb::PutResponse {
            outcome: pb::Outcome::Done.into(),
            mod_revision: i64::try_from(revision.0).expect("revisions stay below 2^63"),
            previous: previous.map(|previous| newest_record(engine, previous)),
            ..pb::PutResponse::default()
        },
        Outcome::Refused(current) => pb::PutResponse {
            outcome: pb::Outcome::Refused.into(),
            current: current.map(|current| newest_record(engine, current)),
            ..pb::PutResponse::default()
        },
        Outcome::Done(other) => return Err(Error::unexpected_reply("kv", &other)),
    })
}

/// The result of a deletion.
///
/// # Errors
/// The reply is another command's.
pub(super) fn delete_response(engine: &Engine, response: Response) -> Result<pb::DeleteResponse, Error> {
    Ok(match outcome(response)? {
        Outcome::Done(Response::Delete { deleted, mut prev_kvs }) => pb::DeleteResponse {
            outcome: pb::Outcome::Done.into(),
            existed: deleted > 0,
            deleted: prev_kvs.pop().map(|deleted| newest_record(engine, deleted)),
            ..pb::DeleteResponse::default()
        },
        Outcome::Refused(current) => pb::DeleteResponse {
            outcome: pb::Outcome::Refused.into(),
            existed: current.is_some(),
            current: current.map(|current| newest_record(engine, current)),
            ..pb::DeleteResponse::default()
        },
        Outcome::Done(other) => return Err(Error::unexpected_reply("kv", &other)),
    })
}

/// What a write did, guarded or not.
enum Outcome {
    Done(Response),
    Refused(Option<kv::KeyValue>),
}

fn outcome(response: Response) -> Result<Outcome, Error> {
    let Response::Txn { succeeded, mut responses } = response else { return Ok(Outcome::Done(response)) };
    match (succeeded, responses.pop()) {
        (true, Some(done)) => Ok(Outcome::Done(done)),
        (false, Some(Response::Range(mut found))) => Ok(Outcome::Refused(found.kvs.pop())),
        (_, other) => Err(Error::unexpected_reply("kv", &other)),
    }
}

fn newest_record(engine: &Engine, kv: kv::KeyValue) -> pb::Record {
    record(kv, engine.latest().now())
}

/// A key as clients see it, with the time it has left from `now` on.
pub(super) fn record(kv: kv::KeyValue, now: Stamp) -> pb::Record {
    pb::Record {
        key: kv.key,
        value: kv.value,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        lease: kv.lease,
        metadata: kv.metadata,
        updated_at_ms: kv.updated.0,
        expires_at_ms: kv.expires.map(|deadline| deadline.0),
        ttl_ms: kv.expires.map(|deadline| deadline.0.saturating_sub(now.0)),
    }
}

/// An error as the result of an operation.
pub(super) fn status(error: Error) -> pb::result::Result {
    let status = Status::from(error);
    pb::result::Result::Status(pb::Status {
        code: status.code().into(),
        message: status.message().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(relation: pb::Relation, value: Option<i64>) -> pb::Condition {
        let guard = pb::MetadataGuard { position: 1, relation: relation.into(), value };
        pb::Condition { what: Some(What::Metadata(guard)) }
    }

    fn compiled(request: pb::PutRequest) -> Result<Operation, String> {
        put_operation(&Limits::default(), request).map_err(|error| Status::from(error).message().to_owned())
    }

    fn request(conditions: Vec<pb::Condition>) -> pb::PutRequest {
        pb::PutRequest { key: "k".into(), metadata: vec![3, -4], conditions, ..Default::default() }
    }

    #[test]
    fn greater_than_stored_means_that_the_stored_one_is_less() {
        for (relation, result) in [
            (pb::Relation::Greater, CompareResult::Less),
            (pb::Relation::Less, CompareResult::Greater),
            (pb::Relation::Equal, CompareResult::Equal),
            (pb::Relation::NotEqual, CompareResult::NotEqual),
        ] {
            let Ok(Operation::Txn(txn)) = compiled(request(vec![guard(relation, None)])) else {
                panic!("{relation:?} makes no transaction")
            };
            assert_eq!(txn.compare[0].result(), result);
            assert!(txn.compare[0].absent_passes);
            let target = CompareTarget::Metadata(MetadataAt { position: 1, value: -4 });
            assert_eq!(txn.compare[0].target, Some(target), "the put's own number is compared");
        }
        let Ok(Operation::Txn(txn)) = compiled(request(vec![guard(pb::Relation::Less, Some(9))])) else {
            panic!("no transaction")
        };
        let target = CompareTarget::Metadata(MetadataAt { position: 1, value: 9 });
        assert_eq!(txn.compare[0].target, Some(target));
    }

    #[test]
    fn a_put_without_conditions_is_no_transaction() {
        let ttl = Some(put_request::Ttl::TtlMs(1500));
        let Ok(Operation::Put(put)) = compiled(pb::PutRequest { ttl, ..request(Vec::new()) }) else {
            panic!("no put")
        };
        assert_eq!((put.ttl, put.metadata), (Some(Ttl::Milliseconds(1500)), vec![3, -4]));
    }

    #[test]
    fn a_write_that_cannot_be_says_why() {
        let refused = |request: pb::PutRequest| compiled(request).expect_err("cannot be");
        assert_eq!(refused(pb::PutRequest::default()), "etcdserver: key is not provided");
        let request_with = |ttl| pb::PutRequest { ttl: Some(ttl), ..request(Vec::new()) };
        assert!(refused(request_with(put_request::Ttl::TtlMs(0))).contains("ttl_ms is 0"));
        assert!(refused(request_with(put_request::Ttl::ExpireAtMs(0))).contains("expire_at_ms is 0"));
        let both = pb::PutRequest { keep_metadata: true, ..request(Vec::new()) };
        assert!(refused(both).contains("keep_metadata"));
        assert!(refused(request(vec![pb::Condition::default()])).contains("condition"));
        let unspecified = guard(pb::Relation::Unspecified, None);
        assert!(refused(request(vec![unspecified])).contains("relation 0"));
        let short = pb::PutRequest { metadata: vec![1], ..request(vec![guard(pb::Relation::Less, None)]) };
        assert!(refused(short).contains("position 1"));
        let many = (0..129).map(|_| pb::Condition { what: Some(What::Version(1)) }).collect();
        assert!(refused(request(many)).contains("129 conditions"));
        let metadata = vec![1; kv::METADATA_MAX + 1];
        let many = pb::PutRequest { metadata, ..request(Vec::new()) };
        assert!(refused(many).contains("4097 numbers of metadata are too many, at most 4096"));
    }

    #[test]
    fn a_guarded_deletion_looks_at_the_key_where_it_is_refused() {
        let request = pb::DeleteRequest {
            key: "k".into(),
            conditions: vec![pb::Condition { what: Some(What::Version(3)) }],
            return_deleted: true,
        };
        let Ok(Operation::Txn(txn)) = delete_operation(&Limits::default(), request) else { panic!("no txn") };
        assert_eq!(txn.compare[0].target, Some(CompareTarget::Version(3)));
        assert!(!txn.compare[0].absent_passes);
        let Some(Step::Delete(delete)) = &txn.success[0].step else { panic!("no deletion") };
        assert!(delete.prev_kv && delete.range_end.is_empty());
        let Some(Step::Range(look)) = &txn.failure[0].step else { panic!("no look") };
        assert!(look.keys_only && look.key == "k");
    }
}
