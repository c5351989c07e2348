//! etcd's messages into core's commands, and core's responses back. Byte strings are moved, not copied.

use super::header::signed;
use crate::error::{Error, Known};
use quoin_core::{Revision, kv};
use quoin_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quoin_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
    RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse, request_op, response_op,
};
use quoin_proto::mvccpb;

pub(super) fn range(request: RangeRequest) -> kv::Range {
    kv::Range {
        key: request.key,
        range_end: request.range_end,
        limit: request.limit,
        revision: request.revision,
        sort_order: request.sort_order,
        sort_target: request.sort_target,
        keys_only: request.keys_only,
        count_only: request.count_only,
        min_mod_revision: request.min_mod_revision,
        max_mod_revision: request.max_mod_revision,
        min_create_revision: request.min_create_revision,
        max_create_revision: request.max_create_revision,
    }
}

pub(super) fn put(request: PutRequest) -> kv::Put {
    kv::Put {
        key: request.key,
        value: request.value,
        lease: request.lease,
        prev_kv: request.prev_kv,
        ignore_value: request.ignore_value,
        ignore_lease: request.ignore_lease,
        ..kv::Put::default()
    }
}

pub(super) fn delete(request: DeleteRangeRequest) -> kv::Delete {
    kv::Delete { key: request.key, range_end: request.range_end, prev_kv: request.prev_kv }
}

/// # Errors
/// An unknown comparison, or an empty operation.
pub(super) fn txn(request: TxnRequest) -> Result<kv::Txn, Error> {
    Ok(kv::Txn {
        compare: request.compare.into_iter().map(compare).collect::<Result<_, _>>()?,
        success: request.success.into_iter().map(step).collect::<Result<_, _>>()?,
        failure: request.failure.into_iter().map(step).collect::<Result<_, _>>()?,
    })
}

fn step(operation: RequestOp) -> Result<kv::TxnOperation, Error> {
    use kv::txn_operation::Step;
    let step = match operation.request {
        Some(request_op::Request::RequestRange(request)) => Step::Range(range(request)),
        Some(request_op::Request::RequestPut(request)) => Step::Put(put(request)),
        Some(request_op::Request::RequestDeleteRange(request)) => Step::Delete(delete(request)),
        Some(request_op::Request::RequestTxn(request)) => Step::Txn(txn(request)?),
        None => return Err(Known::KeyNotFound.into()),
    };
    Ok(kv::TxnOperation { step: Some(step) })
}

/// As in etcd, a comparison whose value is of another kind than its target compares with 0 or the empty
/// string.
fn compare(request: Compare) -> Result<kv::Compare, Error> {
    let target = CompareTarget::try_from(request.target);
    let target = match target.map_err(|_| unknown("target", request.target))? {
        CompareTarget::Version => kv::CompareTarget::Version(match request.target_union {
            Some(TargetUnion::Version(version)) => version,
            _ => 0,
        }),
        CompareTarget::Create => kv::CompareTarget::CreateRevision(match request.target_union {
            Some(TargetUnion::CreateRevision(revision)) => revision,
            _ => 0,
        }),
        CompareTarget::Mod => kv::CompareTarget::ModRevision(match request.target_union {
            Some(TargetUnion::ModRevision(revision)) => revision,
            _ => 0,
        }),
        CompareTarget::Value => kv::CompareTarget::Value(match request.target_union {
            Some(TargetUnion::Value(value)) => value,
            _ => Default::default(),
        }),
        CompareTarget::Lease => kv::CompareTarget::Lease(match request.target_union {
            Some(TargetUnion::Lease(lease)) => lease,
            _ => 0,
        }),
    };
    let result = match CompareResult::try_from(request.result) {
        Ok(CompareResult::Equal) => kv::CompareResult::Equal,
        Ok(CompareResult::Greater) => kv::CompareResult::Greater,
        Ok(CompareResult::Less) => kv::CompareResult::Less,
        Ok(CompareResult::NotEqual) => kv::CompareResult::NotEqual,
        Err(_) => return Err(unknown("result", request.result)),
    };
    Ok(kv::Compare {
        result: result.into(),
        key: request.key,
        range_end: request.range_end,
        target: Some(target),
        absent_passes: false,
    })
}

fn unknown(what: &str, number: i32) -> Error {
    Error::invalid(format_args!("compare {what} {number} is not one of etcd's"))
}

pub(super) fn key_value(kv: kv::KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: kv.key,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        value: kv.value,
        lease: kv.lease,
    }
}

pub(super) fn key_values(kvs: Vec<kv::KeyValue>) -> Vec<mvccpb::KeyValue> {
    kvs.into_iter().map(key_value).collect()
}

pub(super) fn range_response(header: ResponseHeader, reply: kv::RangeReply) -> RangeResponse {
    RangeResponse { header: Some(header), kvs: key_values(reply.kvs), more: reply.more, count: reply.count }
}

/// A transaction's answer, nested ones included.
pub(super) fn txn_response(
    header: ResponseHeader,
    revision: Revision,
    succeeded: bool,
    responses: Vec<kv::Response>,
) -> Result<TxnResponse, Error> {
    let responses = responses.into_iter().map(|response| response_op(revision, response));
    Ok(TxnResponse { header: Some(header), succeeded, responses: responses.collect::<Result<_, _>>()? })
}

fn response_op(revision: Revision, response: kv::Response) -> Result<ResponseOp, Error> {
    use response_op::Response;
    // As in etcd, inner headers have only the revision.
    let header = ResponseHeader { revision: signed(revision.0), ..ResponseHeader::default() };
    let response = match response {
        kv::Response::Range(reply) => Response::ResponseRange(range_response(header, reply)),
        kv::Response::Put(previous) => {
            Response::ResponsePut(PutResponse { header: Some(header), prev_kv: previous.map(key_value) })
        }
        kv::Response::Delete { deleted, prev_kvs } => Response::ResponseDeleteRange(DeleteRangeResponse {
            header: Some(header),
            deleted,
            prev_kvs: key_values(prev_kvs),
        }),
        kv::Response::Txn { succeeded, responses } => {
            // And that of a transaction within one has nothing.
            Response::ResponseTxn(txn_response(ResponseHeader::default(), revision, succeeded, responses)?)
        }
        other => return Err(Error::unexpected_reply("kv", &other)),
    };
    Ok(ResponseOp { response: Some(response) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_keeps_its_shape_both_ways() {
        let get = RangeRequest { key: "k".into(), range_end: "l".into(), limit: 3, ..Default::default() };
        let inner = TxnRequest {
            success: vec![RequestOp { request: Some(request_op::Request::RequestRange(get)) }],
            ..Default::default()
        };
        let request = TxnRequest {
            compare: vec![Compare {
                result: CompareResult::Less.into(),
                target: CompareTarget::Mod.into(),
                key: "k".into(),
                target_union: Some(TargetUnion::ModRevision(7)),
                range_end: "z".into(),
            }],
            success: vec![RequestOp { request: Some(request_op::Request::RequestTxn(inner)) }],
            failure: vec![RequestOp {
                request: Some(request_op::Request::RequestPut(PutRequest {
                    key: "k".into(),
                    value: "v".into(),
                    lease: 9,
                    ..Default::default()
                })),
            }],
        };
        let translated = txn(request).expect("etcd's own comparisons");
        let compare = &translated.compare[0];
        assert_eq!(compare.result(), kv::CompareResult::Less);
        assert_eq!(compare.target, Some(kv::CompareTarget::ModRevision(7)));
        assert_eq!(
            (&compare.key[..], &compare.range_end[..], compare.absent_passes),
            (&b"k"[..], &b"z"[..], false)
        );
        let Some(kv::txn_operation::Step::Txn(inner)) = &translated.success[0].step else { panic!("no txn") };
        let Some(kv::txn_operation::Step::Range(get)) = &inner.success[0].step else { panic!("no range") };
        assert_eq!((get.limit, &get.range_end[..]), (3, &b"l"[..]));
        let Some(kv::txn_operation::Step::Put(put)) = &translated.failure[0].step else { panic!("no put") };
        assert_eq!((&put.value[..], put.lease, put.ttl), (&b"v"[..], 9, None));

        let found =
            kv::KeyValue { key: "k".into(), value: "v".into(), mod_revision: 5, ..Default::default() };
        let reply = kv::RangeReply { kvs: vec![found], more: true, count: 4 };
        let responses =
            vec![kv::Response::Txn { succeeded: true, responses: vec![kv::Response::Range(reply)] }];
        let answer =
            txn_response(ResponseHeader::default(), Revision(5), true, responses).expect("all of kinds");
        let Some(response_op::Response::ResponseTxn(inner)) = &answer.responses[0].response else {
            panic!("no txn")
        };
        let Some(response_op::Response::ResponseRange(range)) = &inner.responses[0].response else {
            panic!("no range")
        };
        assert_eq!((range.more, range.count, range.kvs[0].mod_revision), (true, 4, 5));
        assert_eq!(range.header.as_ref().map(|header| header.revision), Some(5));
    }

    #[test]
    fn a_comparison_without_its_value_compares_with_nothing() {
        let request = Compare {
            target: CompareTarget::Version.into(),
            target_union: Some(TargetUnion::Lease(3)),
            ..Default::default()
        };
        assert_eq!(compare(request).expect("known").target, Some(kv::CompareTarget::Version(0)));
        assert!(compare(Compare { target: 5, ..Default::default() }).is_err());
        assert!(compare(Compare { result: 4, ..Default::default() }).is_err());
    }
}
