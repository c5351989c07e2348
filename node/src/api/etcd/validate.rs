//! etcd's rules for requests, with etcd's errors, before anything reaches the log. That no key is written twice in one
//! transaction is core's to check ([`quoin_core::kv::check_txn`]): apply checks it too.

use crate::api::error::{self, Known};
use crate::config::Limits;
use bytes::Bytes;
use quoin_proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest, range_request, request_op,
};
use tonic::Status;

pub(super) fn range(request: &RangeRequest) -> Result<(), Known> {
    if request.key.is_empty() {
        return Err(error::EMPTY_KEY);
    }
    let order = range_request::SortOrder::try_from(request.sort_order);
    let target = range_request::SortTarget::try_from(request.sort_target);
    if order.is_err() || target.is_err() {
        return Err(error::INVALID_SORT);
    }
    Ok(())
}

pub(super) fn put(request: &PutRequest) -> Result<(), Known> {
    if request.key.is_empty() {
        return Err(error::EMPTY_KEY);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(error::VALUE_PROVIDED);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(error::LEASE_PROVIDED);
    }
    Ok(())
}

pub(super) fn delete(request: &DeleteRangeRequest) -> Result<(), Known> {
    if request.key.is_empty() { Err(error::EMPTY_KEY) } else { Ok(()) }
}

/// Checks a transaction with all that is nested in it.
pub(super) fn txn(request: &TxnRequest, limits: &Limits) -> Result<(), Status> {
    shape(request, limits.txn_operations_max)?;
    let mut keys = KeyLengths { longest: 0 };
    keys.txn(request);
    key_length(keys.longest, limits)
}

/// A rule of ours: the length of a key is bounded apart from the request's.
pub(crate) fn key_length(bytes: usize, limits: &Limits) -> Result<(), Status> {
    let max = limits.key_bytes_max;
    if bytes > max {
        return Err(error::invalid(format_args!(
            "a key of {bytes} bytes is too long, at most {max} are allowed (setting limits.key_bytes_max)"
        )));
    }
    Ok(())
}

fn shape(request: &TxnRequest, operations_max: usize) -> Result<(), Known> {
    let largest = request.compare.len().max(request.success.len()).max(request.failure.len());
    // What this level uses is not there for those within, so nesting is bounded too.
    let Some(left) = operations_max.checked_sub(largest) else {
        return Err(error::TOO_MANY_OPERATIONS);
    };
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(error::EMPTY_KEY);
    }
    for operation in request.success.iter().chain(&request.failure) {
        match &operation.request {
            Some(request_op::Request::RequestRange(request)) => range(request)?,
            Some(request_op::Request::RequestPut(request)) => put(request)?,
            Some(request_op::Request::RequestDeleteRange(request)) => delete(request)?,
            Some(request_op::Request::RequestTxn(request)) => shape(request, left)?,
            None => return Err(error::KEY_NOT_FOUND),
        }
    }
    Ok(())
}

/// Finds the longest key of a transaction.
struct KeyLengths {
    longest: usize,
}

impl KeyLengths {
    fn key(&mut self, key: &Bytes) {
        self.longest = self.longest.max(key.len());
    }

    fn txn(&mut self, request: &TxnRequest) {
        request.compare.iter().for_each(|compare| self.key(&compare.key));
        for operation in request.success.iter().chain(&request.failure) {
            match &operation.request {
                Some(request_op::Request::RequestRange(request)) => self.key(&request.key),
                Some(request_op::Request::RequestPut(request)) => self.key(&request.key),
                Some(request_op::Request::RequestDeleteRange(request)) => self.key(&request.key),
                Some(request_op::Request::RequestTxn(request)) => self.txn(request),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quoin_proto::etcdserverpb::{Compare, RequestOp};
    use request_op::Request;
    use tonic::Code;

    fn operation(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    fn put_of(key: &'static str) -> RequestOp {
        operation(Request::RequestPut(PutRequest { key: key.into(), ..Default::default() }))
    }

    fn deletion(key: &'static str, end: &'static [u8]) -> RequestOp {
        operation(Request::RequestDeleteRange(DeleteRangeRequest {
            key: key.into(),
            range_end: Bytes::from_static(end),
            prev_kv: false,
        }))
    }

    fn nested(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        operation(Request::RequestTxn(TxnRequest { compare: Vec::new(), success, failure }))
    }

    fn check(success: Vec<RequestOp>) -> Result<(), (Code, String)> {
        let request = TxnRequest { success, ..Default::default() };
        txn(&request, &Limits::default()).map_err(|status| (status.code(), status.message().to_owned()))
    }

    #[test]
    fn operations_are_counted_through_all_levels() {
        let many = |count: usize| (0..count).map(|_| deletion("k", b"")).collect::<Vec<_>>();
        let too_many = Err((Code::InvalidArgument, "etcdserver: too many operations in txn request".into()));
        assert_eq!(check(many(128)), Ok(()));
        assert_eq!(check(many(129)), too_many);
        assert_eq!(check(vec![nested(many(127), vec![])]), Ok(()));
        assert_eq!(check(vec![nested(many(128), vec![])]), too_many);
    }

    #[test]
    fn malformed_requests_get_etcds_answers() {
        let sorted = |sort_order, sort_target| RangeRequest {
            key: "k".into(),
            sort_order,
            sort_target,
            ..Default::default()
        };
        assert_eq!(range(&RangeRequest::default()), Err(error::EMPTY_KEY));
        assert_eq!(range(&sorted(2, 4)), Ok(()));
        assert_eq!(range(&sorted(3, 0)), Err(error::INVALID_SORT));
        assert_eq!(range(&sorted(0, 5)), Err(error::INVALID_SORT));
        assert_eq!(delete(&DeleteRangeRequest::default()), Err(error::EMPTY_KEY));
        let request =
            PutRequest { key: "k".into(), ignore_value: true, value: "v".into(), ..Default::default() };
        assert_eq!(put(&request), Err(error::VALUE_PROVIDED));
        let request = PutRequest { key: "k".into(), ignore_lease: true, lease: 1, ..Default::default() };
        assert_eq!(put(&request), Err(error::LEASE_PROVIDED));
        let empty = Err((Code::InvalidArgument, "etcdserver: key not found".into()));
        assert_eq!(check(vec![RequestOp { request: None }]), empty);
        let request = TxnRequest { compare: vec![Compare::default()], ..Default::default() };
        let status = txn(&request, &Limits::default()).expect_err("a comparison without a key");
        assert_eq!(status.message(), "etcdserver: key is not provided");
    }

    #[test]
    fn a_key_may_be_only_so_long_however_deep_it_stands() {
        let long: &'static str = "x".repeat(Limits::default().key_bytes_max + 1).leak();
        let (code, text) = check(vec![nested(vec![], vec![put_of(long)])]).expect_err("too long");
        assert_eq!(code, Code::InvalidArgument);
        assert!(text.contains("32769 bytes"), "{text}");
    }
}
