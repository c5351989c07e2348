//! What goes wrong in a run, drawn from its seed. Each fault is on or off by itself, so that some runs have one fault
//! often and others all of them: one fault may hide what another one would find.

use crate::schedule::{MS, S};
use rand::Rng;
use std::collections::BTreeMap;
use std::fmt;

/// How late a message may be, at most.
pub(crate) const LATE_MAX: u64 = 1500 * MS;

/// Something that happens now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A process dies; what it wrote stays in the page cache.
    Kill,
    /// A machine loses power: of what was not synced, any part has reached the disk.
    PowerOff,
    /// A process stands still for a while.
    Pause,
    /// Some links carry nothing for a while, in one direction or both.
    Cut,
    /// The leader is cut off while clients write through it.
    Strand,
    /// A follower dies and is back while the leader's disk hangs: what it forwarded is answered to the next process.
    Bounce,
    /// A connection breaks.
    Break,
    /// A disk takes seconds for its next write.
    DiskHangs,
    /// The next sync fails.
    SyncFails,
    /// A disk has no room for a while.
    DiskFills,
    /// A wall clock jumps.
    ClockJumps,
    /// A store writes its memtable out.
    Flush,
    /// A store merges its tables.
    Merge,
    /// Leadership is handed over.
    HandOver,
    /// History is compacted.
    Compact,
    /// A bit of a log rots. Its member is replaced once it notices.
    Rot,
    /// A member is added or removed.
    Resize,
    /// A machine's disk is lost, in whole or in part. Its member is replaced.
    Wipe,
}

/// Each fault, and how long it is between two of them on average, in milliseconds.
const USUAL: &[(Fault, u64)] = &[
    (Fault::Kill, 3_000),
    (Fault::PowerOff, 3_000),
    (Fault::Pause, 4_000),
    (Fault::Cut, 3_000),
    (Fault::Strand, 6_000),
    (Fault::Bounce, 6_000),
    (Fault::Break, 2_000),
    (Fault::DiskHangs, 5_000),
    (Fault::SyncFails, 8_000),
    (Fault::DiskFills, 8_000),
    (Fault::ClockJumps, 1_500),
    (Fault::Flush, 300),
    (Fault::Merge, 600),
    (Fault::HandOver, 4_000),
    (Fault::Compact, 2_000),
    (Fault::Wipe, 12_000),
    (Fault::Rot, 8_000),
    (Fault::Resize, 6_000),
];

/// The faults of a run.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    /// Microseconds between two of a kind, on average.
    every: BTreeMap<Fault, u64>,
    pub(crate) network: Network,
    pub(crate) disk: Disk,
}

/// What happens to messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    /// Odds that a message is lost.
    pub(crate) lost: f64,
    /// Odds that it is late, by up to `late_us_max`.
    pub(crate) late: f64,
    pub(crate) late_us_max: u64,
    /// Odds that it comes twice.
    pub(crate) doubled: f64,
    /// Odds that a bit of it is wrong.
    pub(crate) corrupted: f64,
    /// Whether later messages may overtake it.
    pub(crate) reorders: bool,
    /// The usual time on the way, at most.
    pub(crate) usual_us_max: u64,
}

/// What happens to syncs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disk {
    /// Odds that a sync is slow, by up to `slow_us_max`.
    pub(crate) slow: f64,
    pub(crate) slow_us_max: u64,
    /// The usual time of a sync, at most.
    pub(crate) usual_us_max: u64,
    /// Odds that a process dies about when it has installed a snapshot.
    pub(crate) dies_installing: f64,
    /// Odds that the stream of a snapshot fails, chunk by chunk, and that a chunk takes up to two seconds.
    pub(crate) stream_fails: f64,
    pub(crate) stream_slow: f64,
}

impl Faults {
    pub(crate) fn draw(rng: &mut impl Rng) -> Self {
        let mut every = BTreeMap::new();
        for (fault, usual_ms) in USUAL {
            let often = rng.random_range(0.4..2.5);
            if rng.random_bool(0.6) {
                every.insert(*fault, (*usual_ms as f64 * often) as u64 * MS);
            }
        }
        let mut odds = |usual: f64| if rng.random_bool(0.5) { rng.random_range(0.0..usual) } else { 0.0 };
        let (lost, late, doubled, corrupted) = (odds(0.03), odds(0.05), odds(0.03), odds(0.002));
        let (slow, dies_installing, stream_fails, stream_slow) = (odds(0.1), odds(0.6), odds(0.3), odds(0.5));
        let late_us_max = rng.random_range(20 * MS..LATE_MAX);
        let (reorders, usual_us_max) = (rng.random_bool(0.5), rng.random_range(300..8 * MS));
        let network = Network { lost, late, late_us_max, doubled, corrupted, reorders, usual_us_max };
        let (slow_us_max, usual_us_max) =
            (rng.random_range(20 * MS..600 * MS), rng.random_range(200..10 * MS));
        let disk = Disk { slow, slow_us_max, usual_us_max, dies_installing, stream_fails, stream_slow };
        Self { every, network, disk }
    }

    /// Which kinds there are.
    pub(crate) fn kinds(&self) -> Vec<Fault> {
        self.every.keys().copied().collect()
    }

    /// How long it is until the next one of a kind.
    pub(crate) fn wait(&self, fault: Fault, rng: &mut impl Rng) -> u64 {
        let every = self.every.get(&fault).copied().unwrap_or(S);
        rng.random_range(1..2 * every)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (fault, every) in &self.every {
            write!(f, "{fault:?} every {} ms, ", every / MS)?;
        }
        write!(f, "{:?}, {:?}", self.network, self.disk)
    }
}
