//! One machine: what survives a crash of its process, and the process. The process is the engine's: see
//! [`quoin_engine::stepped`].

use quoin_consensus::greeting::{Greeting, Purpose, Who};
use quoin_consensus::log::SimDisk;
use quoin_engine::stepped::Stepped;
use quoin_engine::{
    Founding, HistoryConfig, LedgerConfig, Limits, LogConfig, OpenError, Opened, Owner, RaftConfig,
    ScrubConfig, Settings,
};
use quoin_engine::{StoreConfig, Surroundings};
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The cluster's id.
pub(crate) const CLUSTER: u64 = 7;
/// What right wall clocks show when the world begins, in milliseconds.
pub(crate) const FIRST_MS: u64 = 1_000_000_000;

/// What `identity.json` holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity {
    /// 0 until a node that joins has been told.
    pub(crate) id: u64,
    pub(crate) founder: bool,
    pub(crate) disk: u64,
    pub(crate) settled: bool,
    pub(crate) founders: BTreeMap<u64, u64>,
    pub(crate) peers: BTreeMap<u64, String>,
}

/// One machine.
pub(crate) struct Node {
    identity: Arc<Mutex<Identity>>,
    pub(crate) address: String,
    pub(crate) disk: Arc<SimDisk>,
    folder: PathBuf,
    pub(crate) process: Option<Process>,
    /// How often a process was started here: tells events of one from those of another.
    pub(crate) life: u64,
    /// How far its wall clock is ahead of the world's, in milliseconds.
    pub(crate) clock_ahead_ms: i64,
    /// How much its clocks run too fast, in parts of a million.
    pub(crate) drift_ppm: i64,
    /// Until when its process stands still, and its disk takes nothing.
    pub(crate) paused_until: u64,
    pub(crate) hangs_until: u64,
    /// It has lost its disk since its member was heard of: it must not take part as that member again.
    pub(crate) lost: bool,
    /// A part of its log has rotted: it must say so, and take part no more, once it reads that.
    pub(crate) rotten: bool,
    /// It is no member: not yet, or not any more.
    pub(crate) gone: bool,
    /// The newest entry after which its state was compared.
    pub(crate) compared: u64,
    /// A failure was injected that may end the process.
    pub(crate) sync_failed: bool,
    /// Its disk has no room.
    pub(crate) full: bool,
}

/// A running process.
pub(crate) struct Process {
    pub(crate) stepped: Stepped,
    pub(crate) surroundings: Arc<Surroundings>,
    pub(crate) incarnation: u64,
    started: u64,
    /// Whom it dials.
    pub(crate) peers: BTreeSet<u64>,
    /// A step of the raft thread, of the apply thread, is on the schedule.
    pub(crate) raft_due: bool,
    pub(crate) apply_due: bool,
    /// How often the log thread has written.
    pub(crate) writes: u64,
    /// It may keep as much of its log for those that are sent a snapshot as a run can write.
    pub(crate) keeps_for_streams: bool,
}

impl Node {
    /// A machine with an empty disk, whose node is a founder if it has an `id`.
    pub(crate) fn new(place: usize, id: u64, folder: PathBuf, disk: u64) -> Self {
        let identity = Identity { id, founder: id > 0, disk, ..Identity::default() };
        Self {
            identity: Arc::new(Mutex::new(identity)),
            address: format!("machine-{place}:1"),
            disk: Arc::new(SimDisk::new()),
            folder,
            process: None,
            life: 0,
            clock_ahead_ms: 0,
            drift_ppm: 0,
            paused_until: 0,
            hangs_until: 0,
            lost: false,
            rotten: false,
            gone: false,
            compared: 0,
            sync_failed: false,
            full: false,
        }
    }

    pub(crate) fn identity(&self) -> MutexGuard<'_, Identity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn id(&self) -> u64 {
        self.identity().id
    }

    /// Empties the disk. Whoever finds it empty begins as a node with this `identity`.
    pub(crate) fn wipe(&mut self, folder: PathBuf, identity: Identity) {
        self.disk = Arc::new(SimDisk::new());
        // An error: nothing is there.
        let _ = std::fs::remove_dir_all(&self.folder);
        self.folder = folder;
        self.identity = Arc::new(Mutex::new(identity));
    }

    /// Changes a bit of a segment that is not written any more. Whether there is one.
    pub(crate) fn rot(&mut self, rng: &mut impl Rng) -> bool {
        let names: Vec<String> =
            self.disk.names().into_iter().filter(|name| name.ends_with(".log")).collect();
        let Some((_, sealed)) = names.split_last().filter(|(_, sealed)| !sealed.is_empty()) else {
            return false;
        };
        let name = &sealed[rng.random_range(0..sealed.len())];
        let bytes = self.disk.bytes(name).unwrap_or_default();
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let place = rng.random_range(0..used.max(1));
        self.rotten = self.disk.flip(name, place, 1 << rng.random_range(0..8));
        self.rotten
    }

    /// Loses the log, and keeps the rest.
    pub(crate) fn lose_log(&mut self) {
        self.disk = Arc::new(SimDisk::new());
    }

    /// Starts the process, at `now`. `peers` are those that it was told besides the ones in its store.
    pub(crate) fn start(
        &mut self,
        now: u64,
        rng: &mut impl Rng,
        founding: &Founding,
        peers: &BTreeMap<u64, String>,
    ) -> Result<(), OpenError> {
        self.life += 1;
        let identity = self.identity().clone();
        let owner = Owner {
            cluster: CLUSTER,
            id: identity.id,
            disk: identity.disk,
            settled: identity.settled,
            disks: identity.founders.clone(),
        };
        let surroundings = Surroundings::new(rng.random(), self.wall_ms(now));
        let founding = identity.founder.then_some(founding);
        let settings = settings(&self.address, rng);
        let log = &settings.log;
        let keeps_for_streams = log.snapshot_keep_bytes > 1 << 30 && log.keep_entries > 100_000;
        let disk = Arc::clone(&self.disk) as _;
        let mut opened =
            Opened::open_simulated(&surroundings, owner, &self.folder, disk, settings, founding)?;
        if !identity.settled {
            let kept = Arc::clone(&self.identity);
            let settle = move |founders: &BTreeMap<u64, u64>| {
                let mut identity = kept.lock().unwrap_or_else(PoisonError::into_inner);
                identity.settled = true;
                identity.founders.clone_from(founders);
                Ok(())
            };
            opened = opened.settle_with(identity.founder, Box::new(settle)).expect("it does not fail");
        }
        let stepped = opened.step(peers.clone());
        self.process = Some(Process {
            stepped,
            surroundings,
            incarnation: rng.random(),
            started: now,
            peers: BTreeSet::new(),
            raft_due: false,
            apply_due: false,
            writes: 0,
            keeps_for_streams,
        });
        Ok(())
    }

    /// Tells the process what time it is.
    pub(crate) fn set_clocks(&self, now: u64) {
        if let Some(process) = &self.process {
            let monotonic_ms = self.shown(now - process.started) / 1000;
            process.surroundings.set_clocks(monotonic_ms, self.wall_ms(now));
        }
    }

    /// What a clock of this machine makes of so many microseconds.
    fn shown(&self, passed: u64) -> u64 {
        passed.saturating_add_signed(passed as i64 * self.drift_ppm / 1_000_000)
    }

    fn wall_ms(&self, now: u64) -> u64 {
        (FIRST_MS + self.shown(now) / 1000).saturating_add_signed(self.clock_ahead_ms)
    }

    /// Who it is, as it tells those who dial it.
    pub(crate) fn who(&self) -> Option<Who> {
        let incarnation = self.process.as_ref()?.incarnation;
        Some(Who { cluster: CLUSTER, id: self.id(), incarnation })
    }

    /// What it says to `to` when it dials it.
    pub(crate) fn greeting(&self, purpose: Purpose, to: u64) -> Option<Greeting> {
        let incarnation = self.process.as_ref()?.incarnation;
        let (from, disk, address) = (self.id(), self.identity().disk, self.address.clone());
        Some(Greeting { purpose, cluster: CLUSTER, from, to, incarnation, disk, address })
    }
}

/// Settings that differ from start to start, small enough for a short run to reach their bounds.
fn settings(address: &str, rng: &mut impl Rng) -> Settings {
    let mut pick = |choices: &[u64]| choices[rng.random_range(0..choices.len())];
    Settings {
        name: String::new(),
        peer_address: address.into(),
        client_urls: Vec::new(),
        raft: RaftConfig {
            batch_commands_max: pick(&[4, 64, 4096]) as usize,
            batch_bytes_max: pick(&[2 << 10, 1 << 20]) as usize,
            batches_in_flight_max: pick(&[1, 2, 4]) as usize,
            ..RaftConfig::default()
        },
        log: LogConfig {
            segment_bytes: pick(&[16 << 10, 64 << 10]),
            cache_bytes: pick(&[0, 16 << 10, 1 << 20]) as usize,
            keep_bytes: pick(&[0, 64 << 10, 256 << 20]),
            keep_entries: pick(&[0, 50, 1_000_000, 1_000_000]),
            snapshot_keep_bytes: pick(&[0, 256 << 10, 4 << 30, 4 << 30]),
        },
        store: StoreConfig {
            cache_bytes: 256 << 10,
            memtable_bytes: pick(&[8 << 10, 64 << 10, 1 << 20]),
            quota_bytes: 0,
            reserve_bytes: 0,
        },
        ledger: LedgerConfig::default(),
        history: HistoryConfig {
            auto_compaction: pick(&[0, 1]) == 1,
            keep_s: 600,
            keep_revisions: pick(&[40, 500_000]),
        },
        scrub: ScrubConfig::default(),
        limits: Limits::default(),
    }
}
