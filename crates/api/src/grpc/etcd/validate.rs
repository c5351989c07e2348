//! etcd's rules for requests, with etcd's errors, checked before anything reaches the log. Whether a
//! transaction writes a key twice is checked by [`quoin_core::kv::check_txn`], as in apply.

use crate::commands::check_key_length;
use crate::error::{Error, Known};
use bytes::Bytes;
use quoin_engine::Limits;
use quoin_proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest, range_request, request_op,
};

pub(super) fn range(request: &RangeRequest) -> Result<(), Known> {
    if request.key.is_empty() {
        return Err(Known::EmptyKey);
    }
    let order = range_request::SortOrder::try_from(request.sort_order);
    let target = range_request::SortTarget::try_from(request.sort_target);
    if order.is_err() || target.is_err() {
        return Err(Known::InvalidSort);
    }
    Ok(())
}

pub(super) fn put(request: &PutRequest) -> Result<(), Known> {
    if request.key.is_empty() {
        return Err(Known::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(Known::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Known::LeaseProvided);
    }
    Ok(())
}

pub(super) fn delete(request: &DeleteRangeRequest) -> Result<(), Known> {
    if request.key.is_empty() { Err(Known::EmptyKey) } else { Ok(()) }
}

/// Checks a transaction, nested ones included.
pub(super) fn txn(request: &TxnRequest, limits: &Limits) -> Result<(), Error> {
    shape(request, limits.txn_operations_max)?;
    let mut keys = KeyLengths { longest: 0 };
    keys.txn(request);
    check_key_length(keys.longest, limits)
}

fn shape(request: &TxnRequest, operations_max: usize) -> Result<(), Known> {
    let largest = request.compare.len().max(request.success.len()).max(request.failure.len());
    // Inner levels have what this one leaves, so that nesting is bounded too.
    let Some(left) = operations_max.checked_sub(largest) else {
        return Err(Known::TooManyOperations);
    };
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Known::EmptyKey);
    }
    for operation in request.success.iter().chain(&request.failure) {
        match &operation.request {
            Some(request_op::Request::RequestRange(request)) => range(request)?,
            Some(request_op::Request::RequestPut(request)) => put(request)?,
            Some(request_op::Request::RequestDeleteRange(request)) => delete(request)?,
            Some(request_op::Request::RequestTxn(request)) => shape(request, left)?,
            None => return Err(Known::KeyNotFound),
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
        txn(&request, &Limits::default()).map_err(|error| {
            let status = tonic::Status::from(error);
            (status.code(), status.message().to_owned())
        })
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
        assert_eq!(range(&RangeRequest::default()), Err(Known::EmptyKey));
        assert_eq!(range(&sorted(2, 4)), Ok(()));
        assert_eq!(range(&sorted(3, 0)), Err(Known::InvalidSort));
        assert_eq!(range(&sorted(0, 5)), Err(Known::InvalidSort));
        assert_eq!(delete(&DeleteRangeRequest::default()), Err(Known::EmptyKey));
        let request =
            PutRequest { key: "k".into(), ignore_value: true, value: "v".into(), ..Default::default() };
        assert_eq!(put(&request), Err(Known::ValueProvided));
        let request = PutRequest { key: "k".into(), ignore_lease: true, lease: 1, ..Default::default() };
        assert_eq!(put(&request), Err(Known::LeaseProvided));
        let empty = Err((Code::InvalidArgument, "etcdserver: key not found".into()));
        assert_eq!(check(vec![RequestOp { request: None }]), empty);
        let request = TxnRequest { compare: vec![Compare::default()], ..Default::default() };
        let status = txn(&request, &Limits::default()).expect_err("a comparison without a key");
        assert_eq!(status.to_string(), "etcdserver: key is not provided");
    }

    #[test]
    fn a_key_may_be_only_so_long_however_deep_it_stands() {
        let long: &'static str = "x".repeat(Limits::default().key_bytes_max + 1).leak();
        let (code, text) = check(vec![nested(vec![], vec![put_of(long)])]).expect_err("too long");
        assert_eq!(code, Code::InvalidArgument);
        assert!(text.contains("32769 bytes"), "{text}");
    }
}
