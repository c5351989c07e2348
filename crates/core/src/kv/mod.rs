//! The kv face: versioned keys with etcd v3's semantics, and what etcd cannot say.
//!
//! `command.rs` and `reply.rs` are what clients ask and are answered, `machine.rs` is what a command does
//! (checked by `txn.rs` and `check.rs`, its conditions by `compare.rs`, bounded by `work.rs` and `own.rs`, expiry by
//! `deadline.rs`, hashes by `fields.rs`, foreseen by `foresight.rs`), `query.rs`, `range.rs` (with `sorted.rs`) and `reading.rs` are how the state is read,
//! `hash.rs` what replicas are compared by, `foreign.rs` how keys come from another system, `record.rs` its bytes in the store, `recent.rs` a cache.

mod check;
mod command;
mod compare;
mod deadline;
mod fields;
mod foreign;
mod foresight;
mod hash;
mod machine;
#[cfg(any(test, feature = "testing"))]
pub mod model;
mod number;
mod own;
mod query;
mod range;
mod reading;
mod recent;
mod record;
mod reply;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod script;
mod sorted;
mod txn;
mod work;

pub use check::{METADATA_MAX, REPLY_BYTES_MAX};
pub use command::{
    Command, Compare, CompareResult, CompareTarget, Delete, FieldAction, FieldChange, Increment, LeaseGrant,
    MetadataAt, Operation, Publish, Put, Range, SortOrder, SortTarget, Ttl, Txn, TxnOperation, WriteFields,
    txn_operation,
};
pub use foreign::{Filled, Filling, ForeignChange, ForeignRefusal, ForeignValue};
pub use foresight::{covers_ranges, takes_long};
pub use hash::hash;
pub use machine::{LEASE_TTL_S_MAX, Machine};
pub use number::integer;
pub use query::{
    Floor, all, change_to_key_value, field, fields, find, floor, get, is_key, largest, lease, leases,
    watch_bounds,
};
pub use range::{Meter, answer_bytes, at_most, page, range, range_bounded, range_metered};
pub use reading::{only_reads, read_txn};
pub(crate) use record::FACE;
pub use record::{Collection, FIELD_BYTES_MAX, Field, KEY_BYTES_MAX, Kind};
pub use reply::{FieldsReply, KeyValue, LeaseInfo, RangeReply, Refusal, Reply, Response};
pub use txn::check as check_txn;
pub use work::{DELETED_BYTES_MAX, EXAMINED_BYTES_MAX, LEASE_KEYS_MAX, RECORD_OVERHEAD};
