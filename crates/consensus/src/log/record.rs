//! What the log stores.

use crate::group::GroupId;
use bytes::Bytes;

/// One entry of a group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Position in the group's log. The first entry has index 1.
    pub index: u64,
    /// Term of the leader that proposed it.
    pub term: u64,
    /// Batch or configuration change.
    pub kind: EntryKind,
    /// The description of a configuration change; empty for a batch.
    pub context: Bytes,
    /// The payload: a batch, or the library's encoding of a configuration change.
    pub data: Bytes,
}

/// Kind of an entry. The numbers are on disk and on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// A batch of commands.
    Normal = 0,
    /// A configuration change of one member.
    ConfChange = 1,
    /// A configuration change of any number of members.
    ConfChangeV2 = 2,
}

impl EntryKind {
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        [Self::Normal, Self::ConfChange, Self::ConfChangeV2].into_iter().find(|kind| *kind as u8 == number)
    }
}

/// What a replica must remember besides entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardState {
    /// The newest term seen.
    pub term: u64,
    /// The member that this replica voted for in that term, 0 for none.
    pub vote: u64,
    /// Index of an entry known to be committed.
    pub commit: u64,
}

/// The entry before the first one in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Its index; 0 if the log begins with the first entry.
    pub index: u64,
    /// Its term.
    pub term: u64,
}

/// What can be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An entry. It replaces what the log has from its index on.
    Entry(GroupId, Entry),
    /// A hard state. It replaces the last.
    HardState(GroupId, HardState),
    /// A snapshot was installed: the log restarts behind this entry, and forgets all others.
    Base(GroupId, Base),
}
