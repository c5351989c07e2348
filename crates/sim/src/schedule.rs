//! What happens when: simulated time goes from one event to the next, so time in which nothing is due costs nothing.

use std::collections::BTreeMap;

/// Microseconds in a millisecond.
pub(crate) const MS: u64 = 1000;
/// Microseconds in a second.
pub(crate) const S: u64 = 1000 * MS;

/// Events by time, in microseconds. Those of one moment come in the order in which they were added.
pub(crate) struct Schedule<E> {
    now: u64,
    next: u64,
    events: BTreeMap<(u64, u64), E>,
}

impl<E> Default for Schedule<E> {
    fn default() -> Self {
        Self { now: 0, next: 0, events: BTreeMap::new() }
    }
}

impl<E> Schedule<E> {
    /// The simulated time.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Adds an event `after` microseconds from now.
    pub(crate) fn after(&mut self, after: u64, event: E) {
        self.at(self.now + after, event);
    }

    /// Adds an event at `time`, or now if that is past.
    pub(crate) fn at(&mut self, time: u64, event: E) {
        self.next += 1;
        self.events.insert((time.max(self.now), self.next), event);
    }

    /// Goes on to the next event.
    pub(crate) fn next(&mut self) -> Option<E> {
        let ((time, _), event) = self.events.pop_first()?;
        self.now = time;
        Some(event)
    }
}
