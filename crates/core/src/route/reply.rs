//! What the route face answers.

use super::command::ObjectKind;
use super::record::NAME_BYTES_MAX;
use super::rule::{Rule, RuleKey};
use crate::types::{Revision, Stamp};
use bytes::Bytes;

/// The answer to a route command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The newest revision after the command.
    pub revision: Revision,
    /// The response, or a refusal on which all replicas agree.
    pub result: Result<Response, Refusal>,
}

/// The response to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// How many rules were written.
    Written(u64),
    /// Rules or objects were deleted.
    Deleted {
        /// How many.
        count: u64,
        /// The limit was reached: there are more to delete.
        more: bool,
    },
    /// Rules were written and deleted at one revision.
    Wrote {
        /// How many were written.
        written: u64,
        /// How many were deleted.
        deleted: u64,
    },
    /// Done.
    Done,
}

/// Why a route command was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A heartbeat of a node that nobody has put.
    #[error("no such node: put it before its first heartbeat")]
    UnknownNode,
    /// A name that the store cannot hold.
    #[error("a name of {bytes} bytes is too long, at most {max} can be stored", max = NAME_BYTES_MAX)]
    NameTooLong {
        /// Bytes of the name.
        bytes: usize,
    },
    /// A rule is not at the revision at which it must be.
    #[error("{key} {}, and must {}; nothing was done", is_at(*found), be_at(*wanted))]
    Condition {
        /// The place of the first condition that does not hold, of those in the command.
        place: usize,
        /// The rule.
        key: RuleKey,
        /// The revision at which it must be; 0 if it must not exist.
        wanted: u64,
        /// The revision at which it is; 0 if it does not exist.
        found: u64,
    },
    /// Another VPC has the network.
    #[error(
        "{vni} is the network of the VPC {:?} already, and each has one; nothing was done",
        String::from_utf8_lossy(.holder)
    )]
    NetworkTaken {
        /// The network.
        vni: u32,
        /// The name of the VPC that has it.
        holder: Bytes,
    },
    /// The bytes are not a command of this version.
    #[error("malformed command")]
    Malformed,
}

fn is_at(revision: u64) -> String {
    if revision == 0 { "does not exist".to_owned() } else { format!("is at revision {revision}") }
}

fn be_at(revision: u64) -> String {
    if revision == 0 { "not exist".to_owned() } else { format!("be at revision {revision}") }
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name.
    pub name: Bytes,
    /// Revision of its last write.
    pub revision: u64,
    /// Its message, opaque here.
    pub body: Bytes,
}

/// A node's liveness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Bytes,
    /// Whether its last heartbeat still counts.
    pub alive: bool,
    /// Since when.
    pub since: Stamp,
    /// Its last heartbeat, if it ever sent one.
    pub last_heartbeat: Option<Stamp>,
    /// The newest revision that it reported as applied.
    pub applied_revision: u64,
}

/// What a change in the store means to watchers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// A rule was written.
    Put(Rule),
    /// A rule was deleted, or left the named group.
    Deleted {
        /// Its key.
        key: RuleKey,
        /// The group that it was in, if this is a change of a group.
        group: Option<Bytes>,
    },
    /// An object was written.
    PutObject(Object),
    /// An object was deleted.
    DeletedObject(ObjectKind, Bytes),
    /// A node came alive or died, and when; `None` if it was deleted.
    Status(Bytes, Option<(bool, Stamp)>),
}
