//! The kv face: versioned keys with etcd v3's semantics, and what etcd cannot say.
//!
//! `command.rs` is what may be asked, `machine.rs` what it does, `query.rs` how it is read, `record.rs` the
//! bytes in the store.

mod command;
mod machine;
#[cfg(any(test, feature = "testing"))]
pub mod model;
mod query;
mod recent;
mod record;
#[cfg(any(test, feature = "testing"))]
pub mod script;
mod txn;

pub use command::{
    Command, Compare, CompareResult, CompareTarget, Delete, Increment, LeaseGrant, MetadataAt, Operation,
    Put, Range, SortOrder, SortTarget, Ttl, Txn, TxnOperation, txn_operation,
};
pub use machine::{EXPIRIES_PER_BATCH_MAX, LEASE_TTL_S_MAX, Machine, REPLY_BYTES_MAX};
pub use query::{
    Floor, KeyValue, LeaseInfo, RangeReply, Refusal, Reply, Response, change_to_key_value, floor, get, lease,
    leases, page, range, range_bounded, watch_bounds,
};
pub use txn::check as check_txn;
