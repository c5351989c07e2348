//! What may be asked of the kv face.
//!
//! Commands are Protocol Buffers messages, so that a log written by one version can be read by the next:
//! fields are only ever added. Reads inside transactions use the same [`Range`] as reads outside the log.

use bytes::Bytes;
use prost::Message;

/// One command of the kv face, as it stands in the log.
#[derive(Clone, PartialEq, Message)]
pub struct Command {
    /// Which operation.
    #[prost(oneof = "Operation", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub operation: Option<Operation>,
}

/// The operations of the kv face.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Operation {
    /// Write one key.
    #[prost(message, tag = "1")]
    Put(Put),
    /// Delete a key or a range.
    #[prost(message, tag = "2")]
    Delete(Delete),
    /// Compare, then do one of two lists.
    #[prost(message, tag = "3")]
    Txn(Txn),
    /// Make a lease.
    #[prost(message, tag = "4")]
    LeaseGrant(LeaseGrant),
    /// End a lease and delete its keys.
    #[prost(int64, tag = "5")]
    LeaseRevoke(i64),
    /// Restart a lease's time.
    #[prost(int64, tag = "6")]
    LeaseKeepAlive(i64),
    /// Add to a number.
    #[prost(message, tag = "7")]
    Increment(Increment),
}

impl Operation {
    /// The command, encoded for a batch.
    pub fn into_command(self) -> crate::Command {
        let bytes = Command { operation: Some(self) }.encode_to_vec().into();
        crate::Command { face: crate::Face::Kv, bytes }
    }
}

/// Adds to the number that stands in a key's value as decimal text; an absent key counts as 0. Lease, time to live and
/// metadata stay as they are.
#[derive(Clone, PartialEq, Message)]
pub struct Increment {
    /// Not empty.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// What is added.
    #[prost(sint64, tag = "2")]
    pub by: i64,
}

/// Writes one key.
#[derive(Clone, PartialEq, Message)]
pub struct Put {
    /// Not empty.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Any bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    /// The lease to attach to, 0 for none.
    #[prost(int64, tag = "3")]
    pub lease: i64,
    /// Answer with the record that was there before.
    #[prost(bool, tag = "4")]
    pub prev_kv: bool,
    /// Keep the present value; the key must exist.
    #[prost(bool, tag = "5")]
    pub ignore_value: bool,
    /// Keep the present lease; the key must exist.
    #[prost(bool, tag = "6")]
    pub ignore_lease: bool,
    /// The key's own time to live.
    #[prost(oneof = "Ttl", tags = "7, 8, 9, 10")]
    pub ttl: Option<Ttl>,
    /// Numbers stored beside the value. Written as given; empty with `keep_metadata` keeps what is there.
    #[prost(sint64, repeated, tag = "11")]
    pub metadata: Vec<i64>,
    /// Keep the present metadata.
    #[prost(bool, tag = "12")]
    pub keep_metadata: bool,
}

impl Put {
    /// Writes a number as text, and keeps what stands beside it, if the key exists.
    pub(super) fn of_number(key: Bytes, number: i64, exists: bool) -> Self {
        Self {
            key,
            value: number.to_string().into(),
            ignore_lease: exists,
            ttl: Some(Ttl::Keep(true)),
            keep_metadata: true,
            ..Self::default()
        }
    }
}

/// A key's own time to live, judged by batch stamps. Without one, a put clears it.
#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub enum Ttl {
    /// Expire this many milliseconds after the batch's stamp.
    #[prost(uint64, tag = "7")]
    Milliseconds(u64),
    /// Keep the present deadline (Redis's KEEPTTL).
    #[prost(bool, tag = "8")]
    Keep(bool),
    /// Take the last time to live given for this key and start it again.
    #[prost(bool, tag = "9")]
    Restart(bool),
    /// Expire at this stamp, milliseconds since the Unix epoch.
    #[prost(uint64, tag = "10")]
    At(u64),
}

/// Deletes a key or a range.
#[derive(Clone, PartialEq, Message)]
pub struct Delete {
    /// First key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Empty: only `key`. One zero byte: all keys from `key` on. Else the end, exclusive.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// Answer with what was deleted.
    #[prost(bool, tag = "3")]
    pub prev_kv: bool,
}

/// Reads a key or a range: etcd's RangeRequest with the numbers named.
#[derive(Clone, PartialEq, Message)]
pub struct Range {
    /// First key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// As in [`Delete::range_end`].
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// At most this many records; 0 for all.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// As of this revision; 0 or less for the newest.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    /// Order of the answer.
    #[prost(enumeration = "SortOrder", tag = "5")]
    pub sort_order: i32,
    /// What is ordered by.
    #[prost(enumeration = "SortTarget", tag = "6")]
    pub sort_target: i32,
    /// Leave values out.
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
    /// Only the count.
    #[prost(bool, tag = "9")]
    pub count_only: bool,
    /// Bounds on the records' revisions, 0 for none.
    #[prost(int64, tag = "10")]
    pub min_mod_revision: i64,
    /// See `min_mod_revision`.
    #[prost(int64, tag = "11")]
    pub max_mod_revision: i64,
    /// See `min_mod_revision`.
    #[prost(int64, tag = "12")]
    pub min_create_revision: i64,
    /// See `min_mod_revision`.
    #[prost(int64, tag = "13")]
    pub max_create_revision: i64,
}

/// Order of a range. The numbers are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum SortOrder {
    /// By key, as stored.
    None = 0,
    /// Smallest first.
    Ascend = 1,
    /// Largest first.
    Descend = 2,
}

/// What a range is ordered by. The numbers are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum SortTarget {
    /// The key.
    Key = 0,
    /// Number of writes since creation.
    Version = 1,
    /// Creation.
    Create = 2,
    /// Last write.
    Mod = 3,
    /// The value's bytes.
    Value = 4,
}

/// If all of `compare` hold, does `success`, else `failure`; all in one revision.
#[derive(Clone, PartialEq, Message)]
pub struct Txn {
    /// The conditions.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    /// Done in order where all hold.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<TxnOperation>,
    /// Done in order where one does not.
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<TxnOperation>,
}

/// One step of a transaction.
#[derive(Clone, PartialEq, Message)]
pub struct TxnOperation {
    /// Which.
    #[prost(oneof = "txn_operation::Step", tags = "1, 2, 3, 4")]
    pub step: Option<txn_operation::Step>,
}

/// The steps of [`TxnOperation`].
pub mod txn_operation {
    /// One of the four.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Step {
        /// Read.
        #[prost(message, tag = "1")]
        Range(super::Range),
        /// Write.
        #[prost(message, tag = "2")]
        Put(super::Put),
        /// Delete.
        #[prost(message, tag = "3")]
        Delete(super::Delete),
        /// A transaction within.
        #[prost(message, tag = "4")]
        Txn(super::Txn),
    }
}

/// A condition on one key or on every key of a range.
#[derive(Clone, PartialEq, Message)]
pub struct Compare {
    /// How the stored value must stand to the given one.
    #[prost(enumeration = "CompareResult", tag = "1")]
    pub result: i32,
    /// The key.
    #[prost(bytes = "bytes", tag = "3")]
    pub key: Bytes,
    /// As in [`Delete::range_end`]: every key in the range must pass.
    #[prost(bytes = "bytes", tag = "64")]
    pub range_end: Bytes,
    /// What is compared, and with what.
    #[prost(oneof = "CompareTarget", tags = "4, 5, 6, 7, 8, 9")]
    pub target: Option<CompareTarget>,
    /// An absent key (or absent metadata at the position) passes, instead of counting as zero.
    #[prost(bool, tag = "65")]
    pub absent_passes: bool,
}

/// The comparison. The numbers are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum CompareResult {
    /// Stored = given.
    Equal = 0,
    /// Stored > given.
    Greater = 1,
    /// Stored < given.
    Less = 2,
    /// Stored != given.
    NotEqual = 3,
}

/// What a comparison looks at. An absent key counts as all zeros; comparing an absent key's value fails.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum CompareTarget {
    /// Number of writes since creation.
    #[prost(int64, tag = "4")]
    Version(i64),
    /// Creation.
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    /// Last write.
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    /// The value's bytes.
    #[prost(bytes = "bytes", tag = "7")]
    Value(Bytes),
    /// The lease.
    #[prost(int64, tag = "8")]
    Lease(i64),
    /// A number of the metadata.
    #[prost(message, tag = "9")]
    Metadata(MetadataAt),
}

/// A number in a key's metadata vector.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct MetadataAt {
    /// Its place, from 0.
    #[prost(uint32, tag = "1")]
    pub position: u32,
    /// What it is compared with.
    #[prost(sint64, tag = "2")]
    pub value: i64,
}

/// Makes a lease.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseGrant {
    /// Its id, chosen before the log; not 0.
    #[prost(int64, tag = "1")]
    pub id: i64,
    /// Seconds to live.
    #[prost(int64, tag = "2")]
    pub ttl_s: i64,
}
