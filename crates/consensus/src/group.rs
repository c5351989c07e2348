//! Which log a message or record belongs to.

/// A group: one log with its machines. A node may host several; this version hosts one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

/// The one group of this version.
pub const GROUP: GroupId = GroupId(1);
