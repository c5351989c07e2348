//! The thread that makes a replica's tables follow the log: it has new versions fetched, tells the log when
//! they are ready or why not, and lets go of dropped ones. `attempts.rs` fetches beside it.
//!
//! **Invariant: Ready.** A replica says that a version is ready only after every byte of it was checked here,
//! is on its disk, and is mapped.
//!
//! **Invariant: Nothing removed early.** Until a restarted replica has applied what was committed meanwhile,
//! it removes and fetches no table files: what its store knows of tables may be older than its own files.
//!
//! What is deliberately absent: any part in a switch. The log switches, to versions that were ready before.

use super::attempts::{AfterFailure, Attempts, State};
use super::fetch::{self, Job};
use super::lending::{self, Lenders};
use super::shelf::{Library, Loaded};
use quoin_core::table::{Failed, Forget, Live, Operation, Ready, TableState, Version};
use quoin_engine::Engine;
use quoin_table::{Layer, Options, Place, Stack};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it looks for changes. A look costs less than being woken by each applied entry would.
const PERIOD: Duration = Duration::from_millis(50);
/// The pause after a failure to tell the log.
const TELL_AGAIN: Duration = Duration::from_secs(2);

/// The running thread.
pub struct Keeper {
    /// Dropped to stop the thread.
    alive: mpsc::Sender<()>,
    handle: JoinHandle<()>,
}

impl Keeper {
    /// Makes `library` follow the log of `engine`'s replica, with its files in `folder`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        engine: Engine,
        library: Arc<Library>,
        folder: PathBuf,
        runtime: tokio::runtime::Handle,
    ) -> io::Result<Self> {
        let (alive, stopped) = mpsc::channel();
        let own = engine.clone();
        let (scrubbed, tables) = (Arc::clone(&library), folder.clone());
        let lent = folder.clone();
        engine.lend_files(move |name| lending::open(&lent, name));
        engine.scrub_also(move |pace| scrubbed.scrub(&tables, pace));
        let handle = engine.spawn("tables", move || {
            let mut rounds = Rounds::new(own, library, folder, runtime);
            loop {
                rounds.look();
                if stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Self { alive, handle })
    }

    /// Stops the thread and waits until it has ended.
    pub fn stop(self) {
        drop(self.alive);
        // A panic ended the node when it happened: it was caught then.
        let _ = self.handle.join();
    }
}

struct Rounds {
    engine: Engine,
    library: Arc<Library>,
    runtime: tokio::runtime::Handle,
    folder: PathBuf,
    options: Options,
    /// Layers that a version has mapped, by id, so that versions share them.
    layers: HashMap<String, Weak<Layer>>,
    /// Layers that are being fetched.
    attempts: Attempts,
    /// The state at the last look, and its generation.
    seen: Option<(Arc<Live>, u64)>,
    /// Whether everything that was committed when this replica started has been applied.
    caught_up: bool,
    /// When to look again because the log could not be told something.
    tell_again: Option<Instant>,
    /// Whether there are changes to be deleted that no version shows any more.
    forgetting: bool,
}

/// Versions by table and number.
type Wanted = BTreeMap<(String, u64), Arc<Version>>;

/// Why a version is not ready here.
enum NotReady {
    /// It is being fetched.
    Fetching,
    /// The last attempt failed.
    Failed { reason: String, transient: bool },
}

impl Rounds {
    fn new(engine: Engine, library: Arc<Library>, folder: PathBuf, runtime: tokio::runtime::Handle) -> Self {
        let config = library.settings();
        let place = if config.huge_pages { Place::Huge } else { Place::Mapped };
        let options = Options { place, lock: config.lock };
        let attempts = Attempts::new(runtime.clone());
        Self {
            engine,
            library,
            runtime,
            folder,
            options,
            layers: HashMap::new(),
            attempts,
            seen: None,
            caught_up: false,
            tell_again: None,
            forgetting: false,
        }
    }

    /// Brings the library up to date if the tables have changed, a fetch has ended, or something is due to be
    /// tried again.
    fn look(&mut self) {
        let live = Arc::clone(&self.engine.latest().memory().tables);
        // A snapshot replaces the object, and its generations begin anew.
        let generation = live.generation();
        let same =
            self.seen.as_ref().is_some_and(|(seen, then)| Arc::ptr_eq(seen, &live) && *then == generation);
        let moved = self.attempts.have_moved(Instant::now());
        let again = self.tell_again.is_some_and(|at| at <= Instant::now());
        let caught_up = !self.caught_up && self.engine.is_caught_up();
        self.caught_up |= caught_up;
        let damaged = std::mem::take(&mut *self.library.damaged.lock());
        self.give_up(&damaged);
        self.forget(&live, !same);
        if same && !moved && !again && !caught_up && damaged.is_empty() {
            return;
        }
        (self.seen, self.tell_again) = (Some((Arc::clone(&live), generation)), None);
        let (wanted, order) = wanted(&live);
        self.let_go(&wanted);
        for key in &order {
            self.keep(&key.0, &wanted[key], &wanted);
        }
    }

    /// Has changes deleted that no version shows any more, some at each look. The leader's keeper does it.
    fn forget(&mut self, live: &Live, changed: bool) {
        if !changed && !self.forgetting {
            return;
        }
        let doomed = |(name, state): (&str, &TableState)| (state.doomed() > 0).then(|| name.to_owned());
        let names: Vec<String> = live.look().tables().filter_map(doomed).collect();
        self.forgetting = !names.is_empty();
        if self.caught_up && self.engine.status().raft.is_leader {
            for name in names {
                self.propose(Operation::Forget(Forget { name }));
            }
        }
    }

    /// No longer looks up in versions with these layers: they are fetched again, as what is in the folder fails
    /// the check.
    fn give_up(&mut self, damaged: &BTreeSet<String>) {
        if damaged.is_empty() {
            return;
        }
        let is_whole = |loaded: &Loaded| {
            loaded.stack.layers().iter().all(|layer| !damaged.contains(&layer.manifest().id))
        };
        drop(self.library.keep_only(|_, _, loaded| is_whole(loaded)));
        damaged.iter().for_each(|id| drop(self.layers.remove(id)));
    }

    fn let_go(&mut self, wanted: &Wanted) {
        drop(self.library.keep_only(|name, number, loaded| {
            wanted.get(&(name.to_owned(), number)).is_some_and(|version| version.id == loaded.id)
        }));
        self.library.metrics.keep_only(&wanted.keys().map(|(name, _)| &name[..]).collect());
        let needed: BTreeSet<String> = wanted.values().map(|version| version.id.clone()).collect();
        self.attempts.retain(&needed);
        if self.caught_up {
            fetch::forget_others(&self.folder, &needed);
        }
        self.layers.retain(|_, layer| layer.strong_count() > 0);
    }

    fn keep(&mut self, name: &str, version: &Version, wanted: &Wanted) {
        let me = self.engine.id();
        let loaded = match self.library.get(name, version) {
            Some(_) => Ok(()),
            None => self.load(name, version, wanted),
        };
        match loaded {
            Ok(()) if version.ready.contains(&me) => {}
            Ok(()) => {
                tracing::info!(table = name, version = version.number, "a table's version is ready here");
                let id = version.id.clone();
                let ready = Ready { name: name.into(), version: version.number, member: me, id };
                self.propose(Operation::Ready(ready));
            }
            Err(NotReady::Fetching) => {}
            Err(NotReady::Failed { reason, transient }) => {
                let said = version.failed.iter().find(|failure| failure.member == me);
                let said = said.map(|failure| &failure.reason[..]);
                if self.attempts.after_failure(&version.id, said, &reason, Instant::now())
                    == AfterFailure::Tell
                {
                    tracing::warn!(
                        table = name,
                        version = version.number,
                        reason,
                        "a table's version is not ready here"
                    );
                    let (name, id, number) = (name.into(), version.id.clone(), version.number);
                    let failed = Failed { name, version: number, member: me, reason, transient, id };
                    if self.propose(Operation::Failed(failed)) {
                        self.attempts.told(&version.id);
                    }
                }
            }
        }
    }

    fn load(&mut self, name: &str, version: &Version, wanted: &Wanted) -> Result<(), NotReady> {
        let layer = self.layer(version)?;
        let refused = |reason: String| NotReady::Failed { reason, transient: false };
        let stack = match wanted.get(&(name.to_string(), version.below)) {
            Some(below) => match self.library.get(name, below) {
                Some(below) => below.with(layer),
                None => {
                    let reason = format!("version {} below it is not ready", version.below);
                    return Err(NotReady::Failed { reason, transient: true });
                }
            },
            None => Stack::base(layer),
        };
        let stack = Arc::new(stack.map_err(|error| refused(error.to_string()))?);
        let meter = self.library.metrics.meter(name);
        let loaded = Loaded { id: version.id.clone(), stack, meter };
        self.library.loaded.write().entry(name.into()).or_default().insert(version.number, loaded);
        self.attempts.done(&version.id);
        Ok(())
    }

    /// The version's own layer. If it is not mapped yet, it is being fetched from now on.
    fn layer(&mut self, version: &Version) -> Result<Arc<Layer>, NotReady> {
        if let Some(layer) = self.layers.get(&version.id).and_then(Weak::upgrade) {
            return Ok(layer);
        }
        if !self.caught_up && !self.folder.join(&version.id).exists() {
            return Err(NotReady::Fetching);
        }
        let lenders = self.lenders(version);
        let job = || Job {
            tables: self.folder.clone(),
            manifest: version.manifest.clone(),
            location: version.location.clone(),
            options: self.options,
            settings: self.library.settings().clone(),
            reserve_bytes: self.engine.settings().store.reserve_bytes,
            lenders: lenders.clone(),
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

    /// The members that have said that they have the version.
    fn lenders(&self, version: &Version) -> Lenders {
        let me = self.engine.id();
        Lenders {
            engine: self.engine.clone(),
            members: version.ready.iter().copied().filter(|member| *member != me).collect(),
            bytes_per_second: self.library.settings().peer_bytes_per_second,
        }
    }

    /// Whether the log was told.
    fn propose(&mut self, operation: Operation) -> bool {
        // Waits for the answer, so that proposals do not pile up on a slow cluster.
        let told = self.runtime.block_on(self.engine.propose(operation.into_command()));
        if let Err(error) = &told {
            tracing::debug!(%error, "telling the log of a table's version");
            self.tell_again = Some(Instant::now() + TELL_AGAIN);
        }
        told.is_ok()
    }
}

/// All versions, and the order in which to keep them: first active ones and those below them, and bases
/// before patches.
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
