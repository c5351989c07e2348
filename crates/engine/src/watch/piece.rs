//! What a watcher reads at a time.
//!
//! **Invariant: Bounded.** A piece holds at most [`BATCH_EVENTS_MAX`] events and about [`BATCH_BYTES_MAX`]
//! bytes, and is found by examining at most [`EXAMINED_MAX`] revisions. The watcher reads on from where it
//! ends.

use quoin_core::{Change, Event};
use std::sync::Arc;

/// Maximum events that a watcher takes at once.
pub const BATCH_EVENTS_MAX: usize = 1024;
/// Bytes after which a watcher takes no more events at once. The last one may exceed it.
pub const BATCH_BYTES_MAX: usize = 1 << 20;
/// Maximum revisions that are examined at once, of interest or not.
const EXAMINED_MAX: u64 = 16 * 1024;

/// Events of interest, and how far they were looked for.
pub(super) struct Piece {
    pub(super) events: Vec<Arc<Event>>,
    /// The last revision that was examined.
    pub(super) examined_to: u64,
}

impl Piece {
    /// Gathers from `events`: each revision with what of its event is of interest, in revision order from
    /// `from` to `newest`.
    pub(super) fn gather<E>(
        from: u64,
        newest: u64,
        events: impl Iterator<Item = Result<(u64, Option<Arc<Event>>), E>>,
    ) -> Result<Self, E> {
        let (mut gathered, mut bytes) = (Vec::new(), 0);
        for event in events {
            let (revision, event) = event?;
            if let Some(event) = event {
                bytes += event_bytes(&event);
                gathered.push(event);
            }
            let full = gathered.len() >= BATCH_EVENTS_MAX || bytes >= BATCH_BYTES_MAX;
            if full || revision - from >= EXAMINED_MAX {
                return Ok(Self { events: gathered, examined_to: revision });
            }
        }
        Ok(Self { events: gathered, examined_to: newest })
    }
}

/// About how much memory an event takes.
pub(super) fn event_bytes(event: &Event) -> usize {
    let change = |change: &Change| change.key.len() + change.value.as_ref().map_or(0, bytes::Bytes::len) + 64;
    event.changes.iter().map(change).sum::<usize>() + 64
}
