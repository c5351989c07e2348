//! The auth face's commands, and grants.
//!
//! They are Protocol Buffers messages: fields are only ever added. A grant is never narrowed by a new field, which an
//! earlier version would skip and so grant more: what is narrower gets a new kind of [`Scope`], which an earlier
//! version refuses.

use crate::charge::{Costs, Part as Cost};
use crate::codec::CommandMessage;
use bytes::Bytes;
use prost::Message;
use std::fmt;

/// One command, as it stands in the log.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Command {
    /// Which operation.
    #[prost(oneof = "Operation", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11")]
    pub(super) operation: Option<Operation>,
}

/// The operations of [`Command`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Operation {
    /// From now on every request needs a right. There must be a user `root` with the role `root`.
    #[prost(message, tag = "1")]
    Enable(Enable),
    /// From now on no request needs a right.
    #[prost(bool, tag = "2")]
    Disable(bool),
    /// Add a user without roles.
    #[prost(message, tag = "3")]
    AddUser(AddUser),
    /// Delete the user of this name.
    #[prost(string, tag = "4")]
    DeleteUser(String),
    /// Replace a user's password.
    #[prost(message, tag = "5")]
    SetPassword(SetPassword),
    /// Give a user a role.
    #[prost(message, tag = "6")]
    GrantRole(UserRole),
    /// Take a role from a user.
    #[prost(message, tag = "7")]
    RevokeRole(UserRole),
    /// Add a role that grants nothing.
    #[prost(string, tag = "8")]
    AddRole(String),
    /// Delete the role of this name, and take it from all users.
    #[prost(string, tag = "9")]
    DeleteRole(String),
    /// Let a role grant something; a grant of the same scope is replaced.
    #[prost(message, tag = "10")]
    Grant(RoleGrant),
    /// Take a grant from a role, whatever rights it has.
    #[prost(message, tag = "11")]
    Revoke(RoleGrant),
}

static ROLE_GRANT: Costs = Costs(&[(2, Cost::Message(0, &Costs(&[])))]);
static COMMAND: Costs = Costs(&[(10, Cost::Message(0, &ROLE_GRANT)), (11, Cost::Message(0, &ROLE_GRANT))]);

impl CommandMessage for Command {
    const COSTS: &'static Costs = &COMMAND;
}

impl Operation {
    pub(crate) fn into_bytes(self) -> Bytes {
        Command { operation: Some(self) }.encode_to_vec().into()
    }
}

/// See [`Operation::Enable`].
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct Enable {
    /// Signs tokens from now on, unless authentication is on already. Random.
    #[prost(bytes = "bytes", tag = "1")]
    pub secret: Bytes,
}

/// See [`Operation::AddUser`].
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct AddUser {
    /// Not empty.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The password's hash; empty if the user has none, and so is known by a certificate alone.
    #[prost(string, tag = "2")]
    pub hash: String,
}

/// See [`Operation::SetPassword`].
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct SetPassword {
    /// The user.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The password's hash. A user who was added without a password stays without.
    #[prost(string, tag = "2")]
    pub hash: String,
}

impl fmt::Debug for Enable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enable").finish_non_exhaustive()
    }
}

impl fmt::Debug for AddUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddUser").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for SetPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetPassword").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A user and a role.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct UserRole {
    /// The user.
    #[prost(string, tag = "1")]
    pub user: String,
    /// The role.
    #[prost(string, tag = "2")]
    pub role: String,
}

/// A role and what it grants.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RoleGrant {
    /// The role.
    #[prost(string, tag = "1")]
    pub role: String,
    /// The grant.
    #[prost(message, optional, tag = "2")]
    pub grant: Option<Grant>,
}

/// What a role lets its users do.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Grant {
    /// With what.
    #[prost(oneof = "Scope", tags = "1, 2, 3")]
    pub scope: Option<Scope>,
}

/// With what a [`Grant`] lets something be done.
#[derive(Clone, PartialEq, Eq, Hash, prost::Oneof)]
pub enum Scope {
    /// Keys of the kv face.
    #[prost(message, tag = "1")]
    Keys(KeyRange),
    /// All of another part of the node.
    #[prost(message, tag = "2")]
    Part(FaceGrant),
    /// Some of the lookup tables.
    #[prost(message, tag = "3")]
    Tables(TableGrant),
}

/// A range of keys, and what may be done with them.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct KeyRange {
    /// A [`KeyRights`].
    #[prost(enumeration = "KeyRights", tag = "1")]
    pub rights: i32,
    /// The first key. Not empty.
    #[prost(bytes = "bytes", tag = "2")]
    pub key: Bytes,
    /// Where the range ends: empty for the one key, a zero byte for no end.
    #[prost(bytes = "bytes", tag = "3")]
    pub range_end: Bytes,
}

/// What may be done with a range of keys. The numbers are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum KeyRights {
    /// Read and watch.
    Read = 0,
    /// Write and delete.
    Write = 1,
    /// Both.
    ReadWrite = 2,
}

/// Rights in a part of the node other than the kv face.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct FaceGrant {
    /// A [`Part`].
    #[prost(enumeration = "Part", tag = "1")]
    pub part: i32,
    /// A sum of what [`rights`] has for the part. Not 0.
    #[prost(uint32, tag = "2")]
    pub rights: u32,
}

/// Rights in lookup tables, by their names.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct TableGrant {
    /// The name of a table; or how names begin, and `*`. Not empty.
    #[prost(string, tag = "1")]
    pub pattern: String,
    /// A sum of what [`table_rights`] has. Not 0.
    #[prost(uint32, tag = "2")]
    pub rights: u32,
}

impl TableGrant {
    /// Whether it is about the table of this name.
    pub fn is_about(&self, name: &str) -> bool {
        match self.pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == self.pattern,
        }
    }
}

/// The rights in tables, as bits of [`TableGrant::rights`].
pub mod table_rights {
    /// Look up, list, export changes.
    pub const LOOKUP: u32 = 1;
    /// Change keys.
    pub const CHANGE: u32 = 2;
    /// Publish and drop versions.
    pub const PUBLISH: u32 = 4;
    /// Activate versions, and roll back.
    pub const ACTIVATE: u32 = 8;
    /// All of them, with their names.
    pub const ALL: &[(&str, u32)] =
        &[("lookup", LOOKUP), ("change", CHANGE), ("publish", PUBLISH), ("activate", ACTIVATE)];
}

/// A part of the node in which roles grant rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Part {
    /// None.
    None = 0,
    /// Lookup tables.
    Table = 1,
    /// Accounts and transfers.
    Ledger = 2,
    /// Routing rules, VPCs, nodes.
    Route = 3,
    /// Members, compaction, snapshots and upkeep of the cluster.
    Cluster = 4,
    /// The pages with metrics.
    Metrics = 5,
}

/// The rights in parts, as bits of [`FaceGrant::rights`].
pub mod rights {
    use super::Part;

    /// Look up, list, read accounts and transfers, watch.
    pub const READ: u32 = 1;
    /// Change: keys of tables, accounts and transfers, rules.
    pub const WRITE: u32 = 2;
    /// Publish, activate, roll back and drop tables; close and freeze accounts, change currencies; administer.
    pub const ADMIN: u32 = 4;
    /// Of nodes: say that they are there.
    pub const HEARTBEAT: u32 = 8;

    /// All rights of a part, with their names.
    pub fn of(part: Part) -> &'static [(&'static str, u32)] {
        match part {
            Part::None => &[],
            Part::Table | Part::Ledger => &[("read", READ), ("write", WRITE), ("admin", ADMIN)],
            Part::Route => &[("read", READ), ("write", WRITE), ("heartbeat", HEARTBEAT)],
            Part::Cluster => &[("read", READ), ("admin", ADMIN)],
            Part::Metrics => &[("read", READ)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_pinned() {
        let (name, hash) = (|| String::from("ann"), || String::from("$h"));
        let pair = || UserRole { user: "ann".into(), role: "r".into() };
        let keys = KeyRange { rights: 2, key: "a".into(), range_end: "b".into() };
        let part = FaceGrant { part: Part::Ledger as i32, rights: rights::READ | rights::WRITE };
        let grant = |scope| RoleGrant { role: "r".into(), grant: Some(Grant { scope: Some(scope) }) };
        for (operation, golden) in [
            (Operation::Enable(Enable { secret: "s".into() }), &b"\x0a\x03\x0a\x01s"[..]),
            (Operation::Disable(true), b"\x10\x01"),
            (Operation::AddUser(AddUser { name: name(), hash: hash() }), b"\x1a\x09\x0a\x03ann\x12\x02$h"),
            (Operation::DeleteUser(name()), b"\x22\x03ann"),
            (
                Operation::SetPassword(SetPassword { name: name(), hash: hash() }),
                b"\x2a\x09\x0a\x03ann\x12\x02$h",
            ),
            (Operation::GrantRole(pair()), b"\x32\x08\x0a\x03ann\x12\x01r"),
            (Operation::RevokeRole(pair()), b"\x3a\x08\x0a\x03ann\x12\x01r"),
            (Operation::AddRole("r".into()), b"\x42\x01r"),
            (Operation::DeleteRole("r".into()), b"\x4a\x01r"),
            (
                Operation::Grant(grant(Scope::Keys(keys))),
                b"\x52\x0f\x0a\x01r\x12\x0a\x0a\x08\x08\x02\x12\x01a\x1a\x01b",
            ),
            (
                Operation::Revoke(grant(Scope::Part(part))),
                b"\x5a\x0b\x0a\x01r\x12\x06\x12\x04\x08\x02\x10\x03",
            ),
            (
                Operation::Grant(grant(Scope::Tables(TableGrant { pattern: "ads*".into(), rights: 3 }))),
                b"\x52\x0f\x0a\x01r\x12\x0a\x1a\x08\x0a\x04ads*\x10\x03",
            ),
        ] {
            let bytes = operation.clone().into_bytes();
            assert_eq!(bytes.escape_ascii().to_string(), golden.escape_ascii().to_string());
            assert_eq!(crate::codec::decode_command::<Command>(bytes).unwrap().operation, Some(operation));
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let (name, hash) = (|| String::from("ann"), || String::from("planted"));
        let printed = format!(
            "{:?} {:?} {:?}",
            Operation::Enable(Enable { secret: "planted".into() }),
            Operation::AddUser(AddUser { name: name(), hash: hash() }),
            Operation::SetPassword(SetPassword { name: name(), hash: hash() }),
        );
        assert!(printed.contains("ann") && !printed.contains("planted") && !printed.contains("112, 108"));
    }
}
