//! What the kv face answers.

use super::check::METADATA_MAX;
use super::record::{FIELD_BYTES_MAX, KEY_BYTES_MAX, Kind};
use super::work::{DELETED_BYTES_MAX, EXAMINED_BYTES_MAX, RECORD_OVERHEAD};
use crate::history::Unavailable;
use crate::limits::REQUEST_BYTES_MAX;
use crate::store::StoreError;
use crate::types::{Revision, Stamp};
use bytes::Bytes;

/// The answer to a kv command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The newest revision after the command.
    pub revision: Revision,
    /// The response, or a refusal on which all replicas agree.
    pub result: Result<Response, Refusal>,
}

/// The response to one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// To a read within a transaction.
    Range(RangeReply),
    /// To a write: the previous record, if asked for.
    Put(Option<KeyValue>),
    /// To a deletion.
    Delete {
        /// How many keys were deleted.
        deleted: i64,
        /// The deleted records, if asked for.
        prev_kvs: Vec<KeyValue>,
    },
    /// To a transaction.
    Txn {
        /// All comparisons held.
        succeeded: bool,
        /// One per step of the chosen branch.
        responses: Vec<Response>,
    },
    /// To a grant or a keep-alive.
    Lease {
        /// The lease's id.
        id: i64,
        /// Seconds granted.
        ttl_s: i64,
    },
    /// To a revocation.
    Revoked {
        /// Keys of the lease are left: the lease has ended, and its keys are deleted in the entries that follow,
        /// or by the same command again.
        more: bool,
    },
    /// To an increment: the new number.
    Number(i64),
    /// To a message.
    Published,
    /// To changes of a hash's fields.
    Fields(FieldsReply),
}

/// What became of a hash's fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldsReply {
    /// Fields that were absent before.
    pub added: i64,
    /// Fields that were deleted.
    pub removed: i64,
    /// The number after the last addition.
    pub number: i64,
}

/// The answer to a [`super::Range`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeReply {
    /// In the requested order.
    pub kvs: Vec<KeyValue>,
    /// The limit cut records off.
    pub more: bool,
    /// How many keys are in the range, whatever the limit.
    pub count: i64,
}

/// One key as clients see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value; empty if only keys were asked for.
    pub value: Bytes,
    /// Revision of the write that created the key.
    pub create_revision: i64,
    /// Revision of its last write.
    pub mod_revision: i64,
    /// Number of writes since its creation.
    pub version: i64,
    /// Its lease, 0 for none.
    pub lease: i64,
    /// Its own deadline, if it has a time to live.
    pub expires: Option<Stamp>,
    /// When it was last written.
    pub updated: Stamp,
    /// Numbers stored beside the value.
    pub metadata: Vec<i64>,
    /// What the key holds; of a hash `value` is a text about it.
    pub kind: Kind,
}

/// A lease and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// Its id.
    pub id: i64,
    /// Seconds granted.
    pub granted_ttl_s: i64,
    /// When it ends unless it is kept alive.
    pub deadline: Stamp,
}

/// Why a kv command or read was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A key is empty.
    #[error("key is not provided")]
    EmptyKey,
    /// A key that the store cannot hold.
    #[error("a key of {bytes} bytes is too long, at most {max} can be stored", max = KEY_BYTES_MAX)]
    KeyTooLong {
        /// Bytes of the key.
        bytes: usize,
    },
    /// More numbers than a record may have.
    #[error("{count} numbers of metadata are too many, at most {max} can be stored", max = METADATA_MAX)]
    TooMuchMetadata {
        /// How many there are.
        count: usize,
    },
    /// `ignore_value` or `ignore_lease` on an absent key.
    #[error("key not found")]
    KeyNotFound,
    /// A transaction writes a key twice.
    #[error("duplicate key given in txn request")]
    DuplicateKey,
    /// No such lease.
    #[error("requested lease not found")]
    LeaseNotFound,
    /// The lease id is taken.
    #[error("lease already exists")]
    LeaseExists,
    /// The lease's time to live is out of bounds.
    #[error("too large lease TTL")]
    LeaseTtlTooLarge,
    /// The answer exceeds the bound on answers; pages with `limit` stay below it.
    #[error("response is too large, read it in pages with a limit")]
    ResponseTooLarge,
    /// The ranges of a command hold more than one command may look at.
    #[error(
        "the ranges hold more than {max} bytes ({each} are added for each key), more than one command may look at; use \
         smaller ranges",
        max = EXAMINED_BYTES_MAX,
        each = RECORD_OVERHEAD
    )]
    RangeTooLarge,
    /// The ranges to delete hold more keys than one command may delete.
    #[error(
        "the keys to delete take more than {max} bytes ({each} are added for each), more than one command may delete; \
         delete smaller ranges",
        max = DELETED_BYTES_MAX,
        each = RECORD_OVERHEAD
    )]
    DeletesTooMuch,
    /// The fields whose time to live is changed have larger values than one command may write.
    #[error(
        "the fields whose time to live is changed hold more than {max} bytes, more than one command may write again; name \
         fewer fields",
        max = REQUEST_BYTES_MAX
    )]
    RewritesTooMuch,
    /// Other commands of the same log entry have used up what an entry may do. Another entry has room.
    #[error("too much is read and deleted by ranges at this moment; try again")]
    Crowded,
    /// The revision is compacted or in the future.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The value to increment is not a 64-bit integer.
    #[error("value is not an integer or out of range")]
    NoInteger,
    /// The sum does not fit into 64 bits.
    #[error("increment or decrement would overflow")]
    Overflow,
    /// The key holds another kind of value.
    #[error("Operation against a key holding the wrong kind of value")]
    WrongType,
    /// The field to add to is not a 64-bit integer.
    #[error("hash value is not an integer")]
    FieldNoInteger,
    /// A field that the store cannot hold.
    #[error("a field of {bytes} bytes is too long, at most {max} can be stored", max = FIELD_BYTES_MAX)]
    FieldTooLong {
        /// Bytes of its name.
        bytes: usize,
    },
    /// The bytes are not a command of this version.
    #[error("malformed command")]
    Malformed,
}

/// A fault of the store, a refusal, or a result.
pub(super) type Done<T> = Result<Result<T, Refusal>, StoreError>;

/// The result, or returns the refusal.
macro_rules! done {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(refusal) => return Ok(Err(refusal)),
        }
    };
}
pub(super) use done;
