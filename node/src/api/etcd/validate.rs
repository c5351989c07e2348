//! etcd's rules for requests, with etcd's errors, before anything reaches the log.
//!
//! Two puts of one key, or a put and a deletion of it, may not meet in one run of a transaction. The two branches of a
//! nested transaction exclude each other, so the same key may stand in both.

use crate::api::error::{self, Known};
use crate::config::Limits;
use bytes::Bytes;
use quoin_proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, range_request, request_op,
};
use std::collections::BTreeSet;
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
    writes(&request.success)?;
    writes(&request.failure)?;
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

/// What one run of a list of operations may write.
#[derive(Default)]
struct Writes<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletions: Vec<(&'a [u8], &'a [u8])>,
}

impl<'a> Writes<'a> {
    fn deletes(&self, key: &[u8]) -> bool {
        self.deletions.iter().any(|(from, end)| covers(from, end, key))
    }

    fn add_put(&mut self, key: &'a [u8]) -> Result<(), Known> {
        if self.deletes(key) || !self.puts.insert(key) { Err(error::DUPLICATE_KEY) } else { Ok(()) }
    }

    /// Takes in what a nested transaction may write, which must not meet what is written beside it.
    fn add_nested(&mut self, success: Self, failure: Self) -> Result<(), Known> {
        for key in &success.puts {
            self.add_put(key)?;
        }
        for key in failure.puts.difference(&success.puts) {
            self.add_put(key)?;
        }
        self.deletions.extend(success.deletions);
        self.deletions.extend(failure.deletions);
        Ok(())
    }
}

fn covers(from: &[u8], end: &[u8], key: &[u8]) -> bool {
    match end {
        [] => key == from,
        [0] => key >= from,
        end => (from..end).contains(&key),
    }
}

fn writes(operations: &[RequestOp]) -> Result<Writes<'_>, Known> {
    let mut found = Writes::default();
    let requests = || operations.iter().filter_map(|operation| operation.request.as_ref());
    for request in requests() {
        if let request_op::Request::RequestDeleteRange(request) = request {
            found.deletions.push((&request.key, &request.range_end));
        }
    }
    for request in requests() {
        if let request_op::Request::RequestTxn(request) = request {
            found.add_nested(writes(&request.success)?, writes(&request.failure)?)?;
        }
    }
    for request in requests() {
        if let request_op::Request::RequestPut(request) = request {
            found.add_put(&request.key)?;
        }
    }
    Ok(found)
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
    use quoin_proto::etcdserverpb::Compare;
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

    fn duplicate() -> Result<(), (Code, String)> {
        Err((Code::InvalidArgument, "etcdserver: duplicate key given in txn request".into()))
    }

    #[test]
    fn no_key_is_written_twice() {
        assert_eq!(check(vec![put_of("a"), put_of("b")]), Ok(()));
        assert_eq!(check(vec![put_of("a"), put_of("a")]), duplicate());
        assert_eq!(check(vec![put_of("a"), deletion("a", b"")]), duplicate());
        assert_eq!(check(vec![put_of("b"), deletion("a", b"c")]), duplicate());
        assert_eq!(check(vec![put_of("c"), deletion("a", b"c")]), Ok(()));
        assert_eq!(check(vec![put_of("z"), deletion("a", b"\0")]), duplicate());
        assert_eq!(check(vec![deletion("a", b"c"), deletion("b", b"d")]), Ok(()));
    }

    #[test]
    fn branches_of_a_nested_transaction_exclude_each_other_and_nothing_beside_it() {
        assert_eq!(check(vec![nested(vec![put_of("a")], vec![put_of("a")])]), Ok(()));
        assert_eq!(check(vec![put_of("a"), nested(vec![], vec![put_of("a")])]), duplicate());
        assert_eq!(check(vec![deletion("a", b""), nested(vec![put_of("a")], vec![])]), duplicate());
        assert_eq!(check(vec![put_of("a"), nested(vec![deletion("a", b"")], vec![])]), duplicate());
        let twice = vec![nested(vec![put_of("a")], vec![]), nested(vec![], vec![put_of("a")])];
        assert_eq!(check(twice), duplicate());
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
