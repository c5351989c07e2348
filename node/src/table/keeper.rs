//! The thread that keeps a replica's tables as the log says: fetches new versions, says when they are ready or why they are
//! not, and lets go of those that were dropped.
//!
//! **Invariant.** A replica says that a version is ready only after every byte of it was checked here and it is mapped.
//!
//! What is deliberately absent: any part in a switch. The log switches; what answers was ready before.

use super::{Loaded, fetch};
use crate::engine::{Engine, Shared};
use parking_lot::{Condvar, Mutex};
use quoin_core::table::{Failed, Live, Operation, Ready, Version};
use quoin_table::{Layer, Options, Place, Stack};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often it looks whether the log has changed something.
const PERIOD: Duration = Duration::from_millis(50);
/// In how many of these periods what failed is tried again.
const RETRY_PERIODS: u32 = 40;

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
    /// The state that was looked at last, and whether all was well then.
    seen: Option<(Arc<Live>, u64)>,
    pending: bool,
    idle: u32,
}

type Wanted = BTreeMap<(String, u64), Arc<Version>>;

impl Rounds {
    fn new(shared: Arc<Shared>, runtime: tokio::runtime::Handle) -> Self {
        let config = &shared.config.table;
        let place = if config.huge_pages { Place::Huge } else { Place::Mapped };
        let options = Options { place, lock: config.lock };
        let folder = shared.config.data_dir.join("tables");
        Self { shared, runtime, folder, options, layers: HashMap::new(), seen: None, pending: false, idle: 0 }
    }

    /// Does what is to be done, if anything has changed or had failed.
    fn look(&mut self) {
        let live = Arc::clone(&self.shared.published.load().tables);
        // After a snapshot it is another object, whose numbers begin anew.
        let generation = live.generation();
        self.idle += 1;
        let same =
            self.seen.as_ref().is_some_and(|(seen, then)| Arc::ptr_eq(seen, &live) && *then == generation);
        if same && !(self.pending && self.idle >= RETRY_PERIODS) {
            return;
        }
        (self.seen, self.idle, self.pending) = (Some((Arc::clone(&live), generation)), 0, false);
        let wanted: Wanted = {
            let look = live.look();
            let versions = |(name, state): (&str, &quoin_core::table::TableState)| -> Vec<_> {
                let name = name.to_string();
                state.versions.values().map(|v| ((name.clone(), v.number), Arc::clone(v))).collect()
            };
            look.tables().flat_map(versions).collect()
        };
        self.let_go(&wanted);
        for ((name, _), version) in &wanted {
            self.keep(name, version, &wanted);
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
        fetch::forget_others(&self.folder, &needed);
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
            Err(reason) => {
                self.pending = true;
                let said = version.failed.iter().find(|failure| failure.member == me);
                if said.is_none_or(|failure| failure.reason != reason) {
                    tracing::warn!(
                        table = name,
                        version = version.number,
                        reason,
                        "a table's version is not ready here"
                    );
                    let failed = Failed { name: name.into(), version: version.number, member: me, reason };
                    self.propose(Operation::Failed(failed));
                }
            }
        }
    }

    fn load(&mut self, name: &str, version: &Version, wanted: &Wanted) -> Result<(), String> {
        let layer = match self.layers.get(&version.id).and_then(Weak::upgrade) {
            Some(layer) => layer,
            None => {
                let fetched = fetch::layer(&self.folder, &version.manifest, &version.location, self.options);
                Arc::new(fetched.map_err(|error| error.to_string())?)
            }
        };
        self.layers.insert(version.id.clone(), Arc::downgrade(&layer));
        let stack = match wanted.get(&(name.to_string(), version.below)) {
            Some(below) => {
                let below = self.shared.library.get(name, below);
                let below =
                    below.ok_or_else(|| format!("version {} below it is not ready", version.below))?;
                below.with(layer)
            }
            None => Stack::base(layer),
        };
        let stack = Arc::new(stack.map_err(|error| error.to_string())?);
        let loaded = Loaded { id: version.id.clone(), stack };
        let mut library = self.shared.library.loaded.write();
        library.entry(name.into()).or_default().insert(version.number, loaded);
        Ok(())
    }

    fn propose(&mut self, operation: Operation) {
        let engine = Engine::new(Arc::clone(&self.shared));
        // Waiting for the answer keeps a slow cluster from gathering these.
        if let Err(error) = self.runtime.block_on(engine.propose(operation.into_command())) {
            tracing::debug!(%error, "telling the log of a table's version");
            self.pending = true;
        }
    }
}
