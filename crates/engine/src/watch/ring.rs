//! The newest events, in memory.

use super::interest::Interest;
use super::piece::{Piece, event_bytes};
use quoin_core::Event;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Ring {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
}

impl Ring {
    /// Adds the next event, and drops the oldest ones beyond the bounds.
    pub(super) fn push(&mut self, event: Event, events_max: usize, bytes_max: usize) {
        self.bytes += event_bytes(&event);
        self.events.push_back(Arc::new(event));
        while self.events.len() > events_max || self.bytes > bytes_max {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= event_bytes(&oldest);
        }
    }

    /// What is of `interest` from `from` to `newest`. `None` if the ring does not reach back to `from`.
    pub(super) fn read(&self, interest: &Interest, from: u64, newest: u64) -> Option<Piece> {
        let events = self.from(from)?.take_while(|event| event.revision.0 <= newest);
        let events = events.map(|event| Ok::<_, Infallible>((event.revision.0, interest.restrict(event))));
        let Ok(piece) = Piece::gather(from, newest, events);
        Some(piece)
    }

    /// Whether it reaches back to `from`.
    pub(super) fn reaches(&self, from: u64) -> bool {
        self.events.front().is_some_and(|first| first.revision.0 <= from)
    }

    /// The events from `from` on. Revisions have no gaps, so the first one tells where that is.
    fn from(&self, from: u64) -> Option<impl Iterator<Item = &Arc<Event>>> {
        let skip = from.checked_sub(self.events.front()?.revision.0)?;
        Some(self.events.range((skip as usize).min(self.events.len())..))
    }
}
