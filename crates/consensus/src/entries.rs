//! Entries as the log has them, and as the library has them. Both number the kinds of entries alike.

use crate::log::{Entry, EntryKind};
use raft::eraftpb::{self, EntryType};

/// The library's kind of an entry.
pub(crate) fn kind_to_library(kind: EntryKind) -> EntryType {
    match kind {
        EntryKind::Normal => EntryType::EntryNormal,
        EntryKind::ConfChange => EntryType::EntryConfChange,
        EntryKind::ConfChangeV2 => EntryType::EntryConfChangeV2,
    }
}

/// An entry of the log for the library. The payload is shared, not copied.
pub(crate) fn to_library(entry: Entry) -> eraftpb::Entry {
    let mut out = eraftpb::Entry::default();
    out.entry_type = kind_to_library(entry.kind);
    out.index = entry.index;
    out.term = entry.term;
    out.context = entry.context;
    out.data = entry.data;
    out
}

/// An entry of the library for the log. The payload is shared, not copied.
pub(crate) fn from_library(entry: eraftpb::Entry) -> Entry {
    let kind = match entry.get_entry_type() {
        EntryType::EntryNormal => EntryKind::Normal,
        EntryType::EntryConfChange => EntryKind::ConfChange,
        EntryType::EntryConfChangeV2 => EntryKind::ConfChangeV2,
    };
    Entry { index: entry.index, term: entry.term, kind, context: entry.context, data: entry.data }
}
