//! The kv face's commands.
//!
//! They are Protocol Buffers messages, so that each version can read the logs of earlier ones: fields are
//! only ever added. Reads within transactions use the same [`Range`] as reads outside the log.

use crate::charge::{Costs, Part};
use crate::codec::CommandMessage;
use bytes::Bytes;
use prost::Message;

/// One command, as it stands in the log.
#[derive(Clone, PartialEq, Message)]
pub struct Command {
    /// Which operation.
    #[prost(oneof = "Operation", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub operation: Option<Operation>,
}

/// The operations of [`Command`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Operation {
    /// Write one key.
    #[prost(message, tag = "1")]
    Put(Put),
    /// Delete a key or a range.
    #[prost(message, tag = "2")]
    Delete(Delete),
    /// Compare, then run one of two lists of steps.
    #[prost(message, tag = "3")]
    Txn(Txn),
    /// Grant a lease.
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
    /// Change fields of a hash.
    #[prost(message, tag = "8")]
    WriteFields(WriteFields),
}

static PUT: Costs = Costs(&[(11, Part::Varints(size_of::<i64>()))]);
static FIELDS: Costs = Costs(&[(2, Part::Message(size_of::<FieldChange>(), &NOTHING))]);
static STEP: Costs =
    Costs(&[(2, Part::Message(0, &PUT)), (4, Part::Message(0, &TXN)), (6, Part::Message(0, &FIELDS))]);
static NOTHING: Costs = Costs(&[]);
static TXN: Costs = Costs(&[
    (1, Part::Message(size_of::<Compare>(), &NOTHING)),
    (2, Part::Message(size_of::<TxnOperation>(), &STEP)),
    (3, Part::Message(size_of::<TxnOperation>(), &STEP)),
]);
static COMMAND: Costs =
    Costs(&[(1, Part::Message(0, &PUT)), (3, Part::Message(0, &TXN)), (8, Part::Message(0, &FIELDS))]);
const _: () = assert!(TXN.is_sound() && STEP.is_sound() && FIELDS.is_sound());

impl CommandMessage for Command {
    const COSTS: &'static Costs = &COMMAND;
}

impl Operation {
    pub(crate) fn into_bytes(self) -> Bytes {
        Command { operation: Some(self) }.encode_to_vec().into()
    }
}

/// Adds to the decimal number in a key's value; an absent key counts as 0. Lease, time to live and metadata
/// stay.
#[derive(Clone, PartialEq, Message)]
pub struct Increment {
    /// Not empty.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The addend.
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
    /// The lease to attach the key to, 0 for none.
    #[prost(int64, tag = "3")]
    pub lease: i64,
    /// Answer with the previous record.
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
    /// Numbers stored beside the value.
    #[prost(sint64, repeated, tag = "11")]
    pub metadata: Vec<i64>,
    /// Keep the present metadata, if the key exists.
    #[prost(bool, tag = "12")]
    pub keep_metadata: bool,
}

impl Put {
    /// Writes a number as text and keeps all else of the record, if the key exists.
    pub(super) fn of_number(key: Bytes, number: i64, exists: bool) -> Self {
        Self {
            key,
            value: number.to_string().into(),
            ignore_lease: exists,
            ttl: Some(Ttl::Keep(true)),
            keep_metadata: exists,
            ..Self::default()
        }
    }
}

/// A key's own time to live, judged by batch stamps. A put without one clears it.
#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub enum Ttl {
    /// Expire this many milliseconds after the batch's stamp.
    #[prost(uint64, tag = "7")]
    Milliseconds(u64),
    /// Keep the present deadline (Redis's KEEPTTL).
    #[prost(bool, tag = "8")]
    Keep(bool),
    /// Start the key's last given time to live again.
    #[prost(bool, tag = "9")]
    Restart(bool),
    /// Expire at this stamp, milliseconds since the Unix epoch.
    #[prost(uint64, tag = "10")]
    At(u64),
}

/// Changes fields of the hash at a key; the key is made where it is absent, and deleted with its last field. Lease
/// and metadata of a hash that is there stay.
#[derive(Clone, PartialEq, Message)]
pub struct WriteFields {
    /// Not empty.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// No field twice.
    #[prost(message, repeated, tag = "2")]
    pub changes: Vec<FieldChange>,
    /// Begin with an empty hash, whatever the key holds.
    #[prost(bool, tag = "3")]
    pub anew: bool,
    /// The key loses its time to live.
    #[prost(bool, tag = "4")]
    pub persist: bool,
    /// Not empty: the key whose hash this one becomes, with all its fields, and which is deleted. Its lease, metadata and
    /// time to live go with it, and with what this key has held.
    #[prost(bytes = "bytes", tag = "5")]
    pub from: Bytes,
    /// The key's time to live. Without one that of a hash which is there stays.
    #[prost(oneof = "Ttl", tags = "7, 8, 9, 10")]
    pub ttl: Option<Ttl>,
}

/// What happens to one field.
#[derive(Clone, PartialEq, Message)]
pub struct FieldChange {
    /// Its name; may be empty.
    #[prost(bytes = "bytes", tag = "1")]
    pub field: Bytes,
    /// The change.
    #[prost(oneof = "FieldAction", tags = "2, 3, 4, 5, 6")]
    pub action: Option<FieldAction>,
    /// The field's own time to live, judged by batch stamps. Without one a written field has none, and one that is
    /// added to keeps its own.
    #[prost(oneof = "Ttl", tags = "7, 8, 9, 10")]
    pub ttl: Option<Ttl>,
}

/// What [`FieldChange`] does.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum FieldAction {
    /// Write this value.
    #[prost(bytes = "bytes", tag = "2")]
    Put(Bytes),
    /// Write this value if the field is absent.
    #[prost(bytes = "bytes", tag = "3")]
    PutNew(Bytes),
    /// Add to the decimal number; an absent field counts as 0.
    #[prost(sint64, tag = "4")]
    Add(i64),
    /// Delete the field.
    #[prost(bool, tag = "5")]
    Delete(bool),
    /// Change only the time to live of a field that is there.
    #[prost(bool, tag = "6")]
    Expire(bool),
}

/// Says something to whoever listens to a channel.
#[derive(Clone, PartialEq, Message)]
pub struct Publish {
    /// At most as long as a key; may be empty.
    #[prost(bytes = "bytes", tag = "1")]
    pub channel: Bytes,
    /// Any bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub payload: Bytes,
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
    /// Answer with the deleted records.
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
    /// Maximum records; 0 for all.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// As of this revision; 0 or less for the newest.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    /// Order of the answer.
    #[prost(enumeration = "SortOrder", tag = "5")]
    pub sort_order: i32,
    /// The sort key.
    #[prost(enumeration = "SortTarget", tag = "6")]
    pub sort_target: i32,
    /// Omit the values.
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
    /// Return only the count.
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

/// The sort key of a range. The numbers are etcd's.
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

/// Runs `success` if all of `compare` hold, else `failure`; all at one revision.
#[derive(Clone, PartialEq, Message)]
pub struct Txn {
    /// The conditions.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    /// Run in order if all hold.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<TxnOperation>,
    /// Run in order otherwise.
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<TxnOperation>,
}

/// One step of a transaction.
#[derive(Clone, PartialEq, Message)]
pub struct TxnOperation {
    /// The step.
    #[prost(oneof = "txn_operation::Step", tags = "1, 2, 3, 4, 5, 6")]
    pub step: Option<txn_operation::Step>,
}

/// The steps of [`TxnOperation`].
pub mod txn_operation {
    /// One step.
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
        /// A nested transaction.
        #[prost(message, tag = "4")]
        Txn(super::Txn),
        /// A message.
        #[prost(message, tag = "5")]
        Publish(super::Publish),
        /// Changes of a hash's fields.
        #[prost(message, tag = "6")]
        WriteFields(super::WriteFields),
    }
}

/// A condition on one key or on every key of a range.
#[derive(Clone, PartialEq, Message)]
pub struct Compare {
    /// The relation that must hold between the stored value and the given one.
    #[prost(enumeration = "CompareResult", tag = "1")]
    pub result: i32,
    /// The key.
    #[prost(bytes = "bytes", tag = "3")]
    pub key: Bytes,
    /// As in [`Delete::range_end`]: every key in the range must pass.
    #[prost(bytes = "bytes", tag = "64")]
    pub range_end: Bytes,
    /// What to compare, and the given value.
    #[prost(oneof = "CompareTarget", tags = "4, 5, 6, 7, 8, 9, 10")]
    pub target: Option<CompareTarget>,
    /// An absent key, or metadata without this position, passes instead of counting as zero.
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

/// What a comparison reads. All numbers of an absent key are zero; comparing an absent key's value fails.
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
    /// The batch's stamp; the key counts for nothing.
    #[prost(uint64, tag = "10")]
    Stamp(u64),
}

/// A number in a key's metadata vector.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct MetadataAt {
    /// Its index, from 0.
    #[prost(uint32, tag = "1")]
    pub position: u32,
    /// The number to compare it with.
    #[prost(sint64, tag = "2")]
    pub value: i64,
}

/// Grants a lease.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseGrant {
    /// Its id, chosen before the log; not 0.
    #[prost(int64, tag = "1")]
    pub id: i64,
    /// Seconds to live; at least 1 is granted.
    #[prost(int64, tag = "2")]
    pub ttl_s: i64,
}

#[cfg(test)]
mod tests {
    use super::txn_operation::Step;
    use super::*;
    use crate::codec::{decode_command, put_varint};

    fn command(txn: Txn) -> Bytes {
        Operation::Txn(txn).into_bytes()
    }

    /// 780,000 empty steps took a gigabyte on every replica.
    #[test]
    fn a_transaction_of_empty_steps_is_refused_before_it_is_decoded() {
        let steps = |count: usize| {
            let mut out = vec![3 << 3 | 2];
            put_varint(&mut out, 2 * count as u64);
            out.extend([2 << 3 | 2, 0].repeat(count));
            Bytes::from(out)
        };
        assert!(decode_command::<Command>(steps(2000)).is_some());
        assert!(decode_command::<Command>(steps(780_000)).is_none());
        let mut numbers = vec![1 << 3 | 2];
        put_varint(&mut numbers, 10_000_004);
        numbers.push(11 << 3 | 2);
        put_varint(&mut numbers, 9_999_999);
        numbers.resize(numbers.len() + 9_999_999, 1);
        assert!(decode_command::<Command>(numbers.into()).is_none());
    }

    /// What a Redis client's DEL of many short keys becomes.
    #[test]
    fn the_densest_honest_transaction_is_decoded() {
        let key = |number: u32| Bytes::copy_from_slice(&number.to_be_bytes()[2..]);
        let compare = |number| Compare {
            key: key(number),
            target: Some(CompareTarget::ModRevision(1)),
            ..Compare::default()
        };
        let delete = |number| TxnOperation {
            step: Some(Step::Delete(Delete { key: key(number), ..Delete::default() })),
        };
        let all = 0..65_536;
        let txn = Txn {
            compare: all.clone().map(compare).collect(),
            success: all.map(delete).collect(),
            failure: Vec::new(),
        };
        assert!(decode_command::<Command>(command(txn)).is_some());
        assert!(size_of::<TxnOperation>() <= 7 * 32 && size_of::<Compare>() <= 7 * 32);
    }
}
