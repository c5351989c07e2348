//! When the next paced command may be proposed.
//!
//! **Invariant: In turn.** A paced command may take long to apply. It gets an entry of its own. The next one is proposed
//! only after this leader has applied that entry, and after a pause as long as the entry took from its proposal on: so
//! whatever held it up (a sync, a majority, a flush of the store) lengthens the pause, up to a second. Any other
//! command waits behind one of them at most.
//!
//! What this does not do: look at how far followers have applied. They have the same pauses, so one that applies at
//! half this leader's speed keeps up.

/// The longest pause, in milliseconds. What takes longer was most likely held up by an outage, which a pause does not
/// help.
const PAUSE_MS_MAX: u64 = 1000;

#[derive(Default)]
pub(super) struct Pace {
    now_ms: u64,
    /// The index of the paced entry that is not applied yet, and when it was proposed.
    under_way: Option<(u64, u64)>,
    free_from_ms: u64,
}

impl Pace {
    /// The monotonic clock shows `now_ms`.
    pub(super) fn pass(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    pub(super) fn is_free(&self) -> bool {
        self.under_way.is_none() && self.free_from_ms <= self.now_ms
    }

    /// When the pause ends, if it is one.
    pub(super) fn free_later_ms(&self) -> Option<u64> {
        (self.under_way.is_none() && self.free_from_ms > self.now_ms).then_some(self.free_from_ms)
    }

    /// The entry at `index` is under way. A new leader says so of all that was proposed before it.
    pub(super) fn begin(&mut self, index: u64) {
        self.under_way = Some((index, self.now_ms));
    }

    /// Entries up to `index` are applied.
    pub(super) fn applied(&mut self, index: u64) {
        if let Some((_, since)) = self.under_way.take_if(|(waited_for, _)| *waited_for <= index) {
            let took = self.now_ms - since;
            self.free_from_ms = self.now_ms + took.min(PAUSE_MS_MAX);
        }
    }
}
