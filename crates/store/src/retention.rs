//! Which versions may be dropped, and the filter that drops them.
//!
//! **Invariant: History.** At every sequence from [`Retention::before`] on, a read finds the same after
//! garbage collection as before it. A pin keeps that bound from rising for as long as it is held.
//!
//! A compaction sees only some of a key's versions, newest first: newer ones may be in tables above it, older
//! ones in tables below. It may drop every version that a kept one hides from all permitted readers. It may
//! drop a deletion only in the last level, where there is nothing below for it to hide.

use crate::record;
use crate::room::Room;
use lsm_tree::Slice;
use lsm_tree::compaction::{CompactionFilter, Factory, ItemAccessor, Verdict, filter::Context};
use parking_lot::Mutex;
use quoin_core::Sequence;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// A compaction looks for free disk once in so many bytes of values.
const ROOM_CHECK_BYTES: usize = 4 << 20;

/// What readers may still read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Retention {
    /// Nobody reads at a sequence below this one.
    pub(crate) before: Sequence,
    /// Nobody reads the tree keys in `dead.0..dead.1` at any sequence.
    pub(crate) dead: (Slice, Slice),
}

/// The retention that the machines requested, and the pins that hold it back.
#[derive(Default)]
pub(crate) struct Retentions {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    requested: Retention,
    pins: BTreeMap<u64, Retention>,
    next_pin: u64,
}

/// The requested sequence is compacted: versions visible at it may be gone already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("sequence {at} is compacted; the oldest readable one is {before}")]
pub struct Forgotten {
    /// The requested sequence.
    pub at: Sequence,
    /// The oldest readable sequence.
    pub before: Sequence,
}

/// Keeps everything that was readable when it was taken, for as long as it lives.
pub struct Pin {
    retentions: Arc<Retentions>,
    id: u64,
    before: Sequence,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.retentions.state.lock().pins.remove(&self.id);
    }
}

impl Retentions {
    /// Raises the bound. A lower one than before changes nothing.
    pub(crate) fn raise(&self, to: Retention) {
        let mut state = self.state.lock();
        state.requested.before = state.requested.before.max(to.before);
        if to.dead.1 > state.requested.dead.1 {
            state.requested.dead = to.dead;
        }
    }

    /// Pins the bound for a reader at `at`.
    pub(crate) fn pin(self: &Arc<Self>, at: Sequence) -> Result<Pin, Forgotten> {
        let pin = self.pin_now();
        let before = pin.before;
        if at < before { Err(Forgotten { at, before }) } else { Ok(pin) }
    }

    /// Pins the bound where it is: the reader may read at any sequence that is readable now.
    pub(crate) fn pin_now(self: &Arc<Self>) -> Pin {
        let mut state = self.state.lock();
        let id = state.next_pin;
        state.next_pin += 1;
        let held = state.requested.clone();
        let before = held.before;
        state.pins.insert(id, held);
        Pin { retentions: self.clone(), id, before }
    }

    /// The retention that garbage collection must respect now.
    pub(crate) fn effective(&self) -> Retention {
        let state = self.state.lock();
        let mut effective = state.requested.clone();
        for pin in state.pins.values() {
            effective.before = effective.before.min(pin.before);
            if pin.dead.1 < effective.dead.1 {
                effective.dead = pin.dead.clone();
            }
        }
        effective
    }
}

/// Decides version by version, in the engine's order: keys ascending, versions of a key newest first.
pub(crate) struct Collector {
    retention: Retention,
    last_level: bool,
    key: Slice,
    /// A version of `key` at or below the bound was seen: it hides all that follow.
    settled: bool,
}

impl Collector {
    pub(crate) fn new(retention: Retention, last_level: bool) -> Self {
        Self { retention, last_level, key: Slice::empty(), settled: false }
    }

    /// Whether this version must be kept.
    pub(crate) fn keeps(&mut self, key: &Slice, sequence: Sequence, live: bool) -> bool {
        if self.retention.dead.0 <= *key && *key < self.retention.dead.1 {
            return false;
        }
        if *key != self.key {
            self.key = key.clone();
            self.settled = false;
        } else if self.settled {
            return false;
        }
        self.settled = sequence <= self.retention.before;
        !(self.settled && self.last_level && !live)
    }
}

/// A [`Collector`] in a compaction, which it breaks off when the store is closed.
struct Filter {
    collector: Collector,
    stop: Arc<AtomicBool>,
    room: Room,
    /// Bytes of values since the disk was asked for its room.
    passed: usize,
}

impl CompactionFilter for Filter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> lsm_tree::Result<Verdict> {
        if self.stop.load(Relaxed) {
            return Err(lsm_tree::Error::Io(std::io::ErrorKind::Interrupted.into()));
        }
        let value = item.value()?;
        self.passed = self.passed.saturating_add(value.len());
        if self.passed >= ROOM_CHECK_BYTES {
            self.passed = 0;
            self.room.check_merge()?;
        }
        let (sequence, live, _) = record::header(&value).map_err(|error| {
            lsm_tree::Error::Io(std::io::Error::new(std::io::ErrorKind::InvalidData, error))
        })?;
        Ok(if self.collector.keeps(item.key(), sequence, live) { Verdict::Keep } else { Verdict::Destroy })
    }
}

/// Gives each compaction a filter with the retention of that moment.
pub(crate) struct Collectors {
    room: Room,
    retentions: AssertUnwindSafe<Arc<Retentions>>,
    stop: Arc<AtomicBool>,
}

impl Collectors {
    pub(crate) fn new(retentions: &Arc<Retentions>, stop: &Arc<AtomicBool>, room: Room) -> Self {
        Self { room, retentions: AssertUnwindSafe(retentions.clone()), stop: stop.clone() }
    }
}

impl Factory for Collectors {
    fn name(&self) -> &str {
        "history"
    }

    fn make_filter(&self, context: &Context) -> Box<dyn CompactionFilter> {
        let collector = Collector::new(self.retentions.effective(), context.is_last_level);
        // The first value asks for room.
        let passed = ROOM_CHECK_BYTES;
        Box::new(Filter { collector, stop: self.stop.clone(), room: self.room.clone(), passed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(before: u64, last_level: bool, versions: &[(&str, u64, bool)]) -> Vec<(String, u64)> {
        let dead = (Slice::from("dead/"), Slice::from("dead/5"));
        let mut collector = Collector::new(Retention { before: Sequence(before), dead }, last_level);
        let mut keep = |&(key, at, live): &(&str, u64, bool)| {
            collector.keeps(&Slice::from(key), Sequence(at), live).then(|| (key.to_owned(), at))
        };
        versions.iter().filter_map(&mut keep).collect()
    }

    #[test]
    fn the_newest_version_at_or_below_the_bound_is_kept() {
        let versions = [("a", 9, true), ("a", 7, true), ("a", 4, true), ("a", 3, true), ("b", 2, true)];
        assert_eq!(
            kept(5, false, &versions),
            [("a".into(), 9), ("a".into(), 7), ("a".into(), 4), ("b".into(), 2)]
        );
    }

    #[test]
    fn a_deletion_is_dropped_only_in_the_last_level_and_below_the_bound() {
        let versions = [("a", 4, false), ("a", 3, true), ("b", 9, false)];
        assert_eq!(kept(5, false, &versions), [("a".into(), 4), ("b".into(), 9)]);
        assert_eq!(kept(5, true, &versions), [("b".into(), 9)]);
    }

    #[test]
    fn dead_keys_are_dropped_at_any_sequence() {
        assert_eq!(kept(0, false, &[("dead/4", 9, true), ("dead/5", 9, true)]), [("dead/5".into(), 9)]);
    }

    #[test]
    fn a_pin_holds_the_bound_until_it_is_dropped() {
        let retentions = Arc::new(Retentions::default());
        let bound = |before| Retention { before: Sequence(before), ..Retention::default() };
        retentions.raise(bound(3));
        let pin = retentions.pin(Sequence(4)).unwrap();
        retentions.raise(bound(9));
        assert_eq!(retentions.effective().before, Sequence(3));
        assert!(retentions.pin(Sequence(4)).is_err());
        drop(pin);
        assert_eq!(retentions.effective().before, Sequence(9));
    }
}
