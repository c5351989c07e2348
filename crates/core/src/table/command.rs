//! The table face's commands.
//!
//! They are Protocol Buffers messages: fields are only ever added.

use crate::charge::{Costs, Part};
use crate::codec::{CommandMessage, decode_command};
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
    /// Add a version, not yet active.
    #[prost(message, tag = "1")]
    Publish(Publish),
    /// Report that a member has a version's files, verified.
    #[prost(message, tag = "2")]
    Ready(Ready),
    /// Report that a member cannot get a version's files.
    #[prost(message, tag = "3")]
    Failed(Failed),
    /// Make a version active.
    #[prost(message, tag = "4")]
    Activate(Activate),
    /// Make the previously active version active again.
    #[prost(message, tag = "5")]
    Rollback(Rollback),
    /// Delete a version or a table.
    #[prost(message, tag = "6")]
    Drop(Drop),
    /// Change keys over the active version.
    #[prost(message, tag = "7")]
    Write(Write),
    /// Delete more of the changes that no version shows any more.
    #[prost(message, tag = "8")]
    Forget(Forget),
}

/// Whether a command is a member's report on its files, or a step of its upkeep, which no client sends.
pub(crate) fn is_report(bytes: Bytes) -> bool {
    let command = decode_command::<Command>(bytes).and_then(|command| command.operation);
    matches!(command, Some(Operation::Ready(_) | Operation::Failed(_) | Operation::Forget(_)))
}

/// What the versions of a table have in common.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Shape {
    /// Files per version.
    #[prost(uint32, tag = "1")]
    pub shards: u32,
    /// Bytes per value, plus 1; 0 if widths vary.
    #[prost(uint32, tag = "2")]
    pub width_plus_1: u32,
    /// The meaning of values: `raw`, or a codec and its dimension.
    #[prost(string, tag = "3")]
    pub codec: String,
}

/// See [`Operation::Publish`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Publish {
    /// The table.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Digest of the content.
    #[prost(string, tag = "2")]
    pub id: String,
    /// The id of the version that this patch was built over; empty for a base.
    #[prost(string, tag = "3")]
    pub over: String,
    /// Where the files are.
    #[prost(string, tag = "4")]
    pub location: String,
    /// The manifest, for members that fetch the files.
    #[prost(bytes = "bytes", tag = "5")]
    pub manifest: Bytes,
    /// Must be that of the version below, or of the active one.
    #[prost(message, optional, tag = "6")]
    pub shape: Option<Shape>,
    /// Streamed changes up to this revision are in the files; 0 if none are.
    #[prost(uint64, tag = "7")]
    pub folds: u64,
    /// The base gives the table another shape, and hides all streamed changes once it is active.
    #[prost(bool, tag = "8")]
    pub new_shape: bool,
    /// How many versions to keep besides the active one; 0 keeps the present setting.
    #[prost(uint32, tag = "9")]
    pub keep: u32,
}

/// See [`Operation::Ready`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Ready {
    /// The table.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version.
    #[prost(uint64, tag = "2")]
    pub version: u64,
    /// The member's id.
    #[prost(fixed64, tag = "3")]
    pub member: u64,
    /// Digest of the content that it has; empty from members of earlier versions.
    #[prost(string, tag = "4")]
    pub id: String,
}

/// See [`Operation::Failed`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Failed {
    /// The table.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version.
    #[prost(uint64, tag = "2")]
    pub version: u64,
    /// The member's id.
    #[prost(fixed64, tag = "3")]
    pub member: u64,
    /// The reason.
    #[prost(string, tag = "4")]
    pub reason: String,
    /// The member expects a retry to help.
    #[prost(bool, tag = "5")]
    pub transient: bool,
    /// Digest of the content that it wants; empty from members of earlier versions.
    #[prost(string, tag = "6")]
    pub id: String,
}

/// See [`Operation::Activate`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Activate {
    /// The table.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version.
    #[prost(uint64, tag = "2")]
    pub version: u64,
    /// Do so even if only a majority of the voting members have the files; the others answer nothing until
    /// they do.
    #[prost(bool, tag = "3")]
    pub without_waiting: bool,
}

/// See [`Operation::Rollback`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Rollback {
    /// The table.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// See [`Operation::Drop`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Drop {
    /// The table.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version; 0 for the whole table.
    #[prost(uint64, tag = "2")]
    pub version: u64,
}

/// See [`Operation::Forget`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Forget {
    /// The table.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// See [`Operation::Write`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Write {
    /// The table.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Keys and their new values.
    #[prost(message, repeated, tag = "2")]
    pub upserts: Vec<Upsert>,
    /// Keys to delete.
    #[prost(fixed64, repeated, tag = "3")]
    pub deletes: Vec<u64>,
}

/// One key's new value.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Upsert {
    /// The key.
    #[prost(fixed64, tag = "1")]
    pub key: u64,
    /// The value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

static UPSERT: Costs = Costs(&[]);
static WRITE: Costs = Costs(&[(2, Part::Message(size_of::<Upsert>(), &UPSERT)), (3, Part::Fixed)]);
static COMMAND: Costs = Costs(&[(7, Part::Message(0, &WRITE))]);

impl CommandMessage for Command {
    const COSTS: &'static Costs = &COMMAND;
}

impl Operation {
    pub(crate) fn into_bytes(self) -> Bytes {
        Command { operation: Some(self) }.encode_to_vec().into()
    }
}
