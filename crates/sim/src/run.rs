//! One run: a storm, then calm, then all must be well.

use crate::faults::LATE_MAX;
use crate::schedule::{MS, S};
use crate::world::World;
use anyhow::{Result, ensure};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How long the cluster may take to recover once the faults have ended: the longest wait between two snapshots to
/// one replica is half a minute, as long as a stream waits for a silent end.
const RECOVERY: u64 = 90 * S;

/// What to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Every random choice is drawn from it.
    pub seed: u64,
    /// Simulated milliseconds with faults; then everything heals and the final state is checked.
    pub duration_ms: u64,
}

/// How often what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Acknowledged writes.
    pub writes: u64,
    /// Writes that certainly did not happen.
    pub not_done: u64,
    /// Writes with an unknown outcome.
    pub unknown: u64,
    /// Answered linearizable reads.
    pub reads: u64,
    /// Answered reads of one replica's state within a bound.
    pub local_reads: u64,
    /// Answered transfers of the ledger, those that were asked again included.
    pub transfers: u64,
    /// Answered chains of accounts.
    pub chains: u64,
    /// Batches of streams that were refused, for one before them was lost.
    pub fenced: u64,
    /// Writes that were proposed to take turns.
    pub paced: u64,
    /// Answered transactions over several keys.
    pub transactions: u64,
    /// Answered changes of hashes.
    pub hashes: u64,
    /// Answered changes of rules.
    pub rules: u64,
    /// Answered changes of lookup tables, refusals left out.
    pub tables: u64,
    /// Events that watchers were told of.
    pub watched: u64,
    /// Processes started.
    pub starts: u64,
    /// Processes killed, and machines that lost power.
    pub crashes: u64,
    /// Network partitions.
    pub partitions: u64,
    /// Wall clocks that were made wrong.
    pub clocks_moved: u64,
    /// Snapshots that were streamed, or begun.
    pub snapshots: u64,
    /// Disks that were lost.
    pub disks_lost: u64,
    /// Bits of logs that rotted.
    pub bits_rotted: u64,
    /// Members that were added or removed for good.
    pub members_resized: u64,
    /// Members that were replaced.
    pub members_replaced: u64,
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// How often what happened.
    pub counts: Counts,
    /// The newest applied entry.
    pub last_index: u64,
    /// The newest revision.
    pub revision: u64,
    /// Simulated milliseconds, recovery included.
    pub simulated_ms: u64,
    /// A hash over all states, replies and events: the same seed gives the same value.
    pub fingerprint: u64,
}

/// A check that failed.
#[derive(Debug)]
pub struct Failure {
    /// What is wrong.
    pub error: anyhow::Error,
    /// The simulated time of it, in milliseconds.
    pub at_ms: u64,
    /// The faults of the run.
    pub faults: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} simulated ms: {:#}\nfaults: {}", self.at_ms, self.error, self.faults)
    }
}

impl std::error::Error for Failure {}

/// Runs one simulation.
///
/// # Errors
/// A check failed: the text says which, and the same settings reproduce it.
pub fn run(settings: Settings) -> Result<Report, Failure> {
    let world = World::new(settings);
    let mut world = world.map_err(|error| Failure { error, at_ms: 0, faults: String::new() })?;
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run(settings.duration_ms * MS)));
    match outcome.unwrap_or_else(|panic| Err(panicked(&*panic))) {
        Ok(()) => Ok(world.report()),
        Err(error) => {
            let at_ms = world.schedule.now() / MS;
            Err(Failure { error, at_ms, faults: world.faults.to_string() })
        }
    }
}

fn panicked(panic: &dyn std::any::Any) -> anyhow::Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    anyhow::anyhow!("a replica panics: {}", text.unwrap_or("no text"))
}

/// The shortest storm that makes the same seed fail, in milliseconds, as far as halving finds it.
pub fn shortest(settings: Settings, failed_at_ms: u64) -> u64 {
    let (mut passes, mut fails) = (0, failed_at_ms.min(settings.duration_ms));
    while fails - passes > 100 {
        let middle = passes.midpoint(fails);
        match run(Settings { duration_ms: middle, ..settings }) {
            Ok(_) => passes = middle,
            Err(failure) => fails = middle.min(failure.at_ms),
        }
        passes = passes.min(fails);
    }
    fails
}

impl World {
    fn run(&mut self, storm: u64) -> Result<()> {
        self.go_on_until(storm)?;
        self.calm()?;
        self.settle()?;
        // What was sent in the storm may hold up what is sent after it: a leader that hears of nobody for so long steps down.
        self.go_on_until(storm + 2 * LATE_MAX)?;
        if let Some(leader) = self.cut_follower() {
            self.go_on_until(leader.until)?;
            self.check_leader(&leader)?;
        }
        self.settle()?;
        self.check_end()
    }

    fn go_on_until(&mut self, until: u64) -> Result<()> {
        while self.schedule.now() < until {
            self.step()?;
        }
        Ok(())
    }

    /// Goes on until all is well.
    fn settle(&mut self) -> Result<()> {
        let recovered_by = self.schedule.now() + RECOVERY;
        while !self.has_settled() {
            ensure!(
                self.schedule.now() < recovered_by,
                "the cluster has not recovered {} s after the last fault: {}",
                RECOVERY / S,
                self.unsettled()
            );
            self.step()?;
        }
        Ok(())
    }

    fn report(&self) -> Report {
        let record = self.record.lock();
        Report {
            counts: self.counts,
            last_index: record.last_index(),
            revision: record.newest(),
            simulated_ms: self.schedule.now() / MS,
            fingerprint: record.fingerprint(),
        }
    }
}
