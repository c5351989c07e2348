//! What may be asked of tables. Protocol Buffers messages: the numbers are on disk.

use bytes::Bytes;
use prost::Message;

/// One command.
#[derive(Clone, PartialEq, Message)]
pub struct Command {
    /// Which.
    #[prost(oneof = "Operation", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub operation: Option<Operation>,
}

/// The operations of [`Command`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Operation {
    /// A new version, not yet active.
    #[prost(message, tag = "1")]
    Publish(Publish),
    /// A replica has a version's files, checked.
    #[prost(message, tag = "2")]
    Ready(Ready),
    /// A replica cannot get a version's files.
    #[prost(message, tag = "3")]
    Failed(Failed),
    /// From here on this version answers.
    #[prost(message, tag = "4")]
    Activate(Activate),
    /// Back to the version that was active before.
    #[prost(message, tag = "5")]
    Rollback(Rollback),
    /// Forget a version, or a table.
    #[prost(message, tag = "6")]
    Drop(Drop),
    /// Changes over whatever version is active.
    #[prost(message, tag = "7")]
    Write(Write),
}

/// What versions of one table must have in common.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Shape {
    /// Files of each version.
    #[prost(uint32, tag = "1")]
    pub shards: u32,
    /// Bytes per value and 1; 0 where widths vary.
    #[prost(uint32, tag = "2")]
    pub width_plus_1: u32,
    /// What values mean: `raw`, or a codec and its dimension.
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
    /// A patch: the id over which it was built; empty for a base.
    #[prost(string, tag = "3")]
    pub over: String,
    /// Where the files are.
    #[prost(string, tag = "4")]
    pub location: String,
    /// The manifest, for those who fetch.
    #[prost(bytes = "bytes", tag = "5")]
    pub manifest: Bytes,
    /// Checked against the version below, or the active one.
    #[prost(message, optional, tag = "6")]
    pub shape: Option<Shape>,
    /// Streamed changes up to this revision are in the files; 0: none are.
    #[prost(uint64, tag = "7")]
    pub folds: u64,
    /// The table takes another shape with this base: streamed changes must be folded.
    #[prost(bool, tag = "8")]
    pub new_shape: bool,
    /// How many versions are kept besides the active one; 0: as before.
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
    /// The replica.
    #[prost(fixed64, tag = "3")]
    pub member: u64,
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
    /// The replica.
    #[prost(fixed64, tag = "3")]
    pub member: u64,
    /// Why.
    #[prost(string, tag = "4")]
    pub reason: String,
    /// The replica expects that trying again helps.
    #[prost(bool, tag = "5")]
    pub transient: bool,
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
    /// Even if only a majority of the voting members have the files; the others answer nothing until they have.
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
    /// Its version; 0: the whole table.
    #[prost(uint64, tag = "2")]
    pub version: u64,
}

/// See [`Operation::Write`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Write {
    /// The table.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Keys that get a value, as it is stored.
    #[prost(message, repeated, tag = "2")]
    pub upserts: Vec<Upsert>,
    /// Keys that go.
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

impl Operation {
    /// The command, encoded for a batch.
    pub fn into_command(self) -> crate::Command {
        let bytes = Command { operation: Some(self) }.encode_to_vec().into();
        crate::Command { face: crate::Face::Table, bytes }
    }
}
