//! The route face: rules by (VNI, IP), each in a group, and the objects around them.
//!
//! `command.rs` and `reply.rs` are what clients ask and are answered, `machine.rs` is what a command does,
//! `write.rs` what it does to rules, `table.rs` the newest rules in memory, `vpcs.rs` which VPC has which network, `query.rs`
//! how the store is read, `rule.rs` a rule and its bytes,
//! `record.rs` all other bytes in the store.
//!
//! **Invariant: Names of a change.** A rule is stored once, under its (VNI, IP); its changes carry
//! that name and its group's, so that both can be watched. The newest rules of a group are found in memory.

mod command;
mod machine;
mod query;
mod record;
mod reply;
mod row;
mod rule;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod script;
mod table;
mod vpcs;
mod write;

pub use command::{
    Command, Condition, DeleteMany, DeleteObject, Heartbeat, ObjectKind, Operation, PutObject, Write,
    pack_condition, pack_keys, pack_rule,
};
pub use machine::Machine;
pub use query::{
    Scope, all_rules, changed, group_revision, node_status, node_statuses, object, objects, rule, rules,
};
pub(crate) use record::FACE;
pub use record::NAME_BYTES_MAX;
pub use reply::{Changed, Node, Object, Refusal, Reply, Response};
pub use rule::{GROUP_BYTES_MAX, Mac, Rule, RuleKey, RuleRef, VNI_MAX};
pub use table::{Lookup, Members, Table};
pub use vpcs::Vpcs;
