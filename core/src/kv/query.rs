//! How the kv face is read, and the shapes of its answers.

use super::command::Range;
use crate::history::{Change, Unavailable};
use crate::store::{StoreError, View};
use crate::types::{Progress, Revision, Stamp};
use bytes::Bytes;

/// One key as clients see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value; empty where only keys were asked for.
    pub value: Bytes,
    /// Revision of the write that created it.
    pub create_revision: i64,
    /// Revision of its last write.
    pub mod_revision: i64,
    /// Number of writes since creation.
    pub version: i64,
    /// The lease, 0 for none.
    pub lease: i64,
    /// Its own deadline, if it has a time to live.
    pub expires: Option<Stamp>,
    /// When it was last written.
    pub updated: Stamp,
    /// Numbers stored beside the value.
    pub metadata: Vec<i64>,
}

/// The answer to a [`Range`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeReply {
    /// In the order asked for.
    pub kvs: Vec<KeyValue>,
    /// There are more than the limit let through.
    pub more: bool,
    /// How many keys are in the range, whatever the limit.
    pub count: i64,
}

/// The answer to one operation that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// To a read within a transaction.
    Range(RangeReply),
    /// To a write: what was there before, if asked.
    Put(Option<KeyValue>),
    /// To a deletion.
    Delete {
        /// How many keys were deleted.
        deleted: i64,
        /// What was deleted, if asked.
        prev_kvs: Vec<KeyValue>,
    },
    /// To a transaction.
    Txn {
        /// All comparisons held.
        succeeded: bool,
        /// One per step done.
        responses: Vec<Response>,
    },
    /// To a grant or a keep-alive.
    Lease {
        /// The lease.
        id: i64,
        /// Seconds granted.
        ttl_s: i64,
    },
    /// To a revocation.
    Revoked,
}

/// What a kv command is answered: done, or refused for a reason on which all replicas agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The newest revision after the command.
    pub revision: Revision,
    /// What came of it.
    pub result: Result<Response, Refusal>,
}

/// Why a kv command or read was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A key was empty.
    #[error("key is not provided")]
    EmptyKey,
    /// `ignore_value` or `ignore_lease` on a key that does not exist.
    #[error("key not found")]
    KeyNotFound,
    /// The same key written twice in one transaction.
    #[error("duplicate key given in txn request")]
    DuplicateKey,
    /// No such lease.
    #[error("requested lease not found")]
    LeaseNotFound,
    /// The lease id is taken.
    #[error("lease already exists")]
    LeaseExists,
    /// The time to live is out of bounds.
    #[error("too large lease TTL")]
    LeaseTtlTooLarge,
    /// The revision is compacted or in the future.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The bytes are no command of this version.
    #[error("malformed command")]
    Malformed,
}

/// A lease and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// Its id.
    pub id: i64,
    /// Seconds granted.
    pub granted_ttl_s: i64,
    /// When it ends, if it is not kept alive.
    pub deadline: Stamp,
}

/// Reads a key or a range.
pub fn range(
    _view: View<'_>,
    _progress: &Progress,
    _request: &Range,
) -> Result<Result<RangeReply, Refusal>, StoreError> {
    unimplemented!()
}

/// One lease, with its keys if asked.
pub fn lease(
    _view: View<'_>,
    _id: i64,
    _with_keys: bool,
) -> Result<Option<(LeaseInfo, Vec<Bytes>)>, StoreError> {
    unimplemented!()
}

/// All leases, by id.
pub fn leases(_view: View<'_>) -> Result<Vec<LeaseInfo>, StoreError> {
    unimplemented!()
}

/// A change of the kv face as clients see it; `None` for another keyspace's change. A deletion is a key value
/// with nothing but its key and `mod_revision`.
pub fn change_to_key_value(_change: &Change, _revision: Revision) -> Result<Option<KeyValue>, StoreError> {
    unimplemented!()
}
