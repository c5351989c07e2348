//! The route face: rules by (VNI, IP), each in a group, and the objects around them.
//!
//! `rule.rs` is a rule and its bytes, `command.rs` what may be asked, `machine.rs` what it does, `table.rs` the
//! newest rules in memory, `query.rs` how older ones, groups and objects are read, `record.rs` the keys in the store.
//!
//! **Invariant (one rule, two names).** A rule stands in the store once, under its (VNI, IP); its changes are told under
//! that name and under its group's, so that both can be watched. The newest rules of a group are found in memory.

mod command;
mod machine;
mod query;
mod record;
mod rule;
#[cfg(test)]
mod script;
mod table;

pub use command::{
    Command, DeleteMany, DeleteObject, Heartbeat, Operation, PutObject, Refusal, Reply, Response, pack_keys,
    pack_rule,
};
pub use machine::Machine;
pub use query::{
    Changed, Node, Object, ObjectKind, Scope, changed, node_statuses, object, objects, rule, rules,
};
pub use rule::{GROUP_BYTES_MAX, Mac, Rule, RuleKey, RuleRef, VNI_MAX};
pub use table::{Lookup, Members, Table};
