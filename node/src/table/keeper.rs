//! The thread that keeps a replica's tables as the log says: has new versions fetched, says when they are ready or why they are
//! not, and lets go of those that were dropped. `attempts.rs` fetches beside it.
//!
//! **Invariant (ready).** A replica says that a version is ready only after every byte of it was checked here, is on its disk, and is mapped.
//!
//! **Invariant (nothing removed early).** Until a replica that was started has applied what was committed meanwhile, it removes and fetches
//! nothing: what its store knows of tables may be older than its own files.
//!
//! What is deliberately absent: any part in a switch. The log switches; what answers was ready before.

use super::Loaded;
use super::attempts::{Attempts, State};
use super::fetch::{self, Job};
use crate::engine::{Engine, Shared};
use parking_lot::{Condvar, Mutex};
use quoin_core::table::{Failed, Live, Operation, Ready, TableState, Version};
use quoin_table::{Layer, Options, Place, Stack};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it looks whether something has changed.
const PERIOD: Duration = Duration::from_millis(50);
/// After how long it tells the log again what the log did not take.
const TELL_AGAIN: Duration = Duration::from_secs(2);

/// The running thread.
pub(crate) struct Keeper {
    stop: Arc<(Mutex<bool>, Condvar)>,
    handle: JoinHandle<()>,
}

impl Keeper {
    pub(crate) fn start(shared: Arc<Shared>, runtime: tokio::runtime::Handle) -> io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopping = Arc::clone(&stop);
        let handle = std::thread::Builder::new().name("tables".into()).spawn(move || {
            let mut rounds = Rounds::new(shared, runtime);
            let (stopped, changed) = &*stopping;
            let mut guard = stopped.lock();
            while !*guard {
                parking_lot::MutexGuard::unlocked(&mut guard, || rounds.look());
                if !*guard {
                    changed.wait_for(&mut guard, PERIOD);
                }
            }
        })?;
        Ok(Self { stop, handle })
    }

    pub(crate) fn stop(self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if self.handle.join().is_err() {
            tracing::error!("the keeper of tables panicked");
        }
    }
}

struct Rounds {
    shared: Arc<Shared>,
    runtime: tokio::runtime::Handle,
    folder: PathBuf,
    options: Options,
    /// Layers that some version has mapped, so that versions share them.
    layers: HashMap<String, Weak<Layer>>,
    /// Layers that are being fetched.
    attempts: Attempts,
    /// The state that was looked at last.
    seen: Option<(Arc<Live>, u64)>,
    /// All that was committed when this replica was started has been applied.
    caught_up: bool,
    /// When the log is told again, if it did not take something.
    tell_again: Option<Instant>,
}

type Wanted = BTreeMap<(String, u64), Arc<Version>>;

/// Why a version is not ready here.
enum NotReady {
    /// It is on its way.
    Fetching,
    /// It cannot be had, for now.
    Failed { reason: String, transient: bool },
}

impl Rounds {
    fn new(shared: Arc<Shared>, runtime: tokio::runtime::Handle) -> Self {
        let config = &shared.config.table;
        let place = if config.huge_pages { Place::Huge } else { Place::Mapped };
        let options = Options { place, lock: config.lock };
        let folder = shared.config.data_dir.join("tables");
        let attempts = Attempts::new(runtime.clone());
        Self {
            shared,
            runtime,
            folder,
            options,
            layers: HashMap::new(),
            attempts,
            seen: None,
            caught_up: false,
            tell_again: None,
        }
    }

    /// Does what is to be done, if anything has changed, has been fetched, or is to be tried again.
    fn look(&mut self) {
        let live = Arc::clone(&self.shared.published.load().tables);
        // After a snapshot it is another object, whose numbers begin anew.
        let generation = live.generation();
        let same =
            self.seen.as_ref().is_some_and(|(seen, then)| Arc::ptr_eq(seen, &live) && *then == generation);
        let moved = self.attempts.have_moved(Instant::now());
        let again = self.tell_again.is_some_and(|at| at <= Instant::now());
        let caught_up = !self.caught_up && has_caught_up(&self.shared);
        self.caught_up |= caught_up;
        if same && !moved && !again && !caught_up {
            return;
        }
        (self.seen, self.tell_again) = (Some((Arc::clone(&live), generation)), None);
        let (wanted, order) = wanted(&live);
        self.let_go(&wanted);
        for key in &order {
            self.keep(&key.0, &wanted[key], &wanted);
        }
    }

    fn let_go(&mut self, wanted: &Wanted) {
        let library = &self.shared.library;
        library.loaded.write().retain(|name, versions| {
            versions.retain(|number, loaded| {
                wanted.get(&(name.clone(), *number)).is_some_and(|version| version.id == loaded.id)
            });
            !versions.is_empty()
        });
        let needed: BTreeSet<String> = wanted.values().map(|version| version.id.clone()).collect();
        self.attempts.retain(&needed);
        if self.caught_up {
            fetch::forget_others(&self.folder, &needed);
        }
        self.layers.retain(|_, layer| layer.strong_count() > 0);
    }

    fn keep(&mut self, name: &str, version: &Version, wanted: &Wanted) {
        let me = self.shared.id;
        let loaded = match self.shared.library.get(name, version) {
            Some(_) => Ok(()),
            None => self.load(name, version, wanted),
        };
        match loaded {
            Ok(()) if version.ready.contains(&me) => {}
            Ok(()) => {
                tracing::info!(table = name, version = version.number, "a table's version is ready here");
                let ready = Ready { name: name.into(), version: version.number, member: me };
                self.propose(Operation::Ready(ready));
            }
            Err(NotReady::Fetching) => {}
            Err(NotReady::Failed { reason, transient }) => {
                let said = version.failed.iter().find(|failure| failure.member == me);
                if said.is_none_or(|failure| failure.reason != reason) {
                    tracing::warn!(
                        table = name,
                        version = version.number,
                        reason,
                        "a table's version is not ready here"
                    );
                    let (name, version) = (name.into(), version.number);
                    self.propose(Operation::Failed(Failed { name, version, member: me, reason, transient }));
                }
            }
        }
    }

    fn load(&mut self, name: &str, version: &Version, wanted: &Wanted) -> Result<(), NotReady> {
        let layer = self.layer(version)?;
        let refused = |reason: String| NotReady::Failed { reason, transient: false };
        let stack = match wanted.get(&(name.to_string(), version.below)) {
            Some(below) => match self.shared.library.get(name, below) {
                Some(below) => below.with(layer),
                None => {
                    let reason = format!("version {} below it is not ready", version.below);
                    return Err(NotReady::Failed { reason, transient: true });
                }
            },
            None => Stack::base(layer),
        };
        let stack = Arc::new(stack.map_err(|error| refused(error.to_string()))?);
        let loaded = Loaded { id: version.id.clone(), stack };
        self.shared.library.loaded.write().entry(name.into()).or_default().insert(version.number, loaded);
        self.attempts.done(&version.id);
        Ok(())
    }

    /// The version's own layer, mapped; else it is fetched meanwhile.
    fn layer(&mut self, version: &Version) -> Result<Arc<Layer>, NotReady> {
        if let Some(layer) = self.layers.get(&version.id).and_then(Weak::upgrade) {
            return Ok(layer);
        }
        if !self.caught_up && !self.folder.join(&version.id).exists() {
            return Err(NotReady::Fetching);
        }
        let job = || Job {
            tables: self.folder.clone(),
            manifest: version.manifest.clone(),
            location: version.location.clone(),
            options: self.options,
            settings: self.shared.config.table.clone(),
            reserve_bytes: self.shared.config.store.reserve_bytes,
        };
        match self.attempts.ask(&version.id, Instant::now(), job) {
            State::Fetched(layer) => {
                self.layers.insert(version.id.clone(), Arc::downgrade(&layer));
                Ok(layer)
            }
            State::UnderWay => Err(NotReady::Fetching),
            State::Failed { reason, transient } => Err(NotReady::Failed { reason, transient }),
        }
    }

    fn propose(&mut self, operation: Operation) {
        let engine = Engine::new(Arc::clone(&self.shared));
        // Waiting for the answer keeps a slow cluster from gathering these.
        if let Err(error) = self.runtime.block_on(engine.propose(operation.into_command())) {
            tracing::debug!(%error, "telling the log of a table's version");
            self.tell_again = Some(Instant::now() + TELL_AGAIN);
        }
    }
}

/// This replica has heard from a leader, or is one, and has applied all that it knows to be committed, up to an entry of this term.
fn has_caught_up(shared: &Shared) -> bool {
    let (raft, progress) = (shared.raft.load(), shared.published.load().progress);
    let heard = shared.fresh_at_ms.load(Ordering::Relaxed) > 0;
    heard && raft.leader != 0 && progress.index.0 >= raft.committed && progress.term.0 == raft.term
}

/// All versions there are; and in which order they are seen to: what answers now and what lies below it first, bases before patches.
fn wanted(live: &Live) -> (Wanted, Vec<(String, u64)>) {
    let (mut wanted, mut order) = (Wanted::new(), Vec::new());
    let look = live.look();
    for (name, state) in look.tables() {
        let answering = answering(state);
        for (number, version) in &state.versions {
            let key = (name.to_string(), *number);
            order.push((!answering.contains(number), key.clone()));
            wanted.insert(key, Arc::clone(version));
        }
    }
    order.sort();
    (wanted, order.into_iter().map(|(_, key)| key).collect())
}

/// The active version and those below it.
fn answering(state: &TableState) -> BTreeSet<u64> {
    let mut numbers = BTreeSet::new();
    let mut number = state.table.active;
    while number != 0 && numbers.insert(number) {
        number = state.versions.get(&number).map_or(0, |version| version.below);
    }
    numbers
}
