//! The versions that are mapped on this replica, and lookups in them.
//!
//! **Invariant: One version.** A lookup takes the active version and the changes over it at one moment, and
//! keeps the version's files mapped until its answer is written. Whatever is switched meanwhile, the answer
//! is from one version, and names it. Files are unmapped when the last lookup ends.

use super::metrics::{Meter, Metrics};
use super::settings::TableConfig;
use parking_lot::{Mutex, RwLock};
use quoin_core::table::{Live, TableState, Version};
use quoin_table::answer::{AnswerTooLarge, answer_width, gather};
use quoin_table::{Answer, Form, Stack};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A mapped version.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub(super) id: String,
    pub(super) stack: Arc<Stack>,
    pub(super) meter: Arc<Meter>,
}

/// The versions that are mapped on this replica.
pub struct Library {
    settings: TableConfig,
    /// By table and number. The numbers of a dropped table may come again, so readers compare the id too.
    pub(super) loaded: RwLock<HashMap<String, BTreeMap<u64, Loaded>>>,
    /// Layers that were found to be damaged on the disk, for the keeper.
    pub(super) damaged: Mutex<BTreeSet<String>>,
    pub(super) metrics: Metrics,
}

/// Why a lookup has no answer. An absent key is not an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// No table has this name.
    #[error("there is no table {0:?}: publish one, see `quoin table publish`")]
    NoTable(String),
    /// No version of the table was activated.
    #[error("table {0:?} has no active version yet: activate one, see `quoin table activate`")]
    NotActive(String),
    /// This replica is still fetching or checking the files.
    #[error("version {version} of table {name:?} is not loaded on this replica yet: ask another, or again")]
    NotLoaded {
        /// The table.
        name: String,
        /// The active version.
        version: u64,
    },
    /// The files here are broken. They are fetched again.
    #[error(
        "version {version} of table {name:?} cannot be read on this replica: a file was cut, or its disk failed; it is \
         fetched again: ask another"
    )]
    Unreadable {
        /// The table.
        name: String,
        /// The active version.
        version: u64,
    },
    /// The values have too many bytes.
    #[error(transparent)]
    TooLarge(#[from] AnswerTooLarge),
}

/// An answer, and the version that it is from.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The version that answered.
    pub version: u64,
    /// Bytes per value; 0 if they vary.
    pub width: u32,
    /// The values.
    pub answer: Answer,
}

impl Library {
    /// An empty library.
    pub fn new(settings: TableConfig) -> Self {
        Self { settings, loaded: RwLock::default(), damaged: Mutex::default(), metrics: Metrics::default() }
    }

    /// How tables are fetched and held.
    pub fn settings(&self) -> &TableConfig {
        &self.settings
    }

    /// Looks up `keys` in the active version of `table`. The values, at most `bytes_max` bytes, replace those
    /// in `found`, whose buffers are reused.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub fn lookup(
        &self,
        live: &Live,
        table: &str,
        keys: &[u64],
        form: Form,
        bytes_max: usize,
        found: &mut Found,
    ) -> Result<(), LookupError> {
        let (version, (stack, meter), changes) = {
            let look = live.look();
            let state = look.table(table).ok_or_else(|| LookupError::NoTable(table.into()))?;
            let (version, record) = active(table, state)?;
            let loaded = self.loaded(table, record).ok_or_else(|| {
                self.metrics.meter(table).failed();
                LookupError::NotLoaded { name: table.into(), version }
            })?;
            // Taken out, so that a read of the files, perhaps from disk, does not hold up whoever changes
            // tables.
            (version, loaded, Changes::of(state, keys))
        };
        let began = meter.begin();
        let schema = stack.schema();
        found.version = version;
        found.width = answer_width(schema, form).unwrap_or(0) as u32;
        gather(schema, form, keys, bytes_max, &mut found.answer, |keys, found| {
            if changes.0.is_empty() {
                stack.locate(keys, found);
            } else {
                changes.locate(&stack, keys, found);
            }
        })
        .inspect_err(|_| meter.failed())?;
        // Invariant: No answer of zeros.
        if stack.layers().iter().all(|layer| layer.check_read().is_ok()) {
            meter.answered(began, keys.len(), found.answer.count);
            return Ok(());
        }
        meter.failed();
        self.report_broken(&stack);
        Err(LookupError::Unreadable { name: table.into(), version })
    }

    /// Has the layers that cannot be read any more fetched again.
    #[cold]
    fn report_broken(&self, stack: &Stack) {
        let broken = stack.layers().iter().filter(|layer| layer.check_read().is_err());
        self.damaged.lock().extend(broken.map(|layer| layer.manifest().id.clone()));
    }

    /// The tables whose active version is not mapped here, with its number: lookups in them are refused.
    pub fn not_loaded(&self, live: &Live) -> Vec<(String, u64)> {
        let look = live.look();
        let missing = look.tables().filter_map(|(name, state)| {
            let (number, version) = active(name, state).ok()?;
            self.get(name, version).is_none().then(|| (name.to_string(), number))
        });
        missing.collect()
    }

    /// Lets go of all versions but those that `keep` keeps. They are unmapped, which takes long where they are large,
    /// once lookups have the lock again.
    pub(super) fn keep_only(&self, keep: impl Fn(&str, u64, &Loaded) -> bool) -> Vec<Loaded> {
        let mut gone = Vec::new();
        self.loaded.write().retain(|name, versions| {
            gone.extend(versions.extract_if(.., |number, loaded| !keep(name, *number, loaded)));
            !versions.is_empty()
        });
        gone.into_iter().map(|(_, loaded)| loaded).collect()
    }

    /// The files of a version, if they are mapped.
    pub fn get(&self, table: &str, version: &Version) -> Option<Arc<Stack>> {
        self.loaded(table, version).map(|(stack, _)| stack)
    }

    fn loaded(&self, table: &str, version: &Version) -> Option<(Arc<Stack>, Arc<Meter>)> {
        let loaded = self.loaded.read();
        let loaded = loaded.get(table)?.get(&version.number)?;
        (loaded.id == version.id).then(|| (Arc::clone(&loaded.stack), Arc::clone(&loaded.meter)))
    }
}

/// The active version of a table, by number and record.
///
/// # Errors
/// No version is active.
pub fn active<'a>(name: &str, state: &'a TableState) -> Result<(u64, &'a Version), LookupError> {
    let number = state.table.active;
    match state.versions.get(&number) {
        Some(version) => Ok((number, version)),
        None => Err(LookupError::NotActive(name.into())),
    }
}

/// The changes over the files that concern a lookup, by the positions of its keys: a value, or `None` for a
/// deleted key. Values are shared: a request that names a key many times takes no more memory than its places.
struct Changes(Vec<(usize, Option<Arc<[u8]>>)>);

impl Changes {
    fn of(state: &TableState, keys: &[u64]) -> Self {
        if state.changed() == 0 {
            return Self(Vec::new());
        }
        let change =
            |(position, key): (usize, &u64)| Some((position, state.shared_change(*key)?.map(Arc::clone)));
        Self(keys.iter().enumerate().filter_map(change).collect())
    }

    /// Answers changed keys from here, the others from the files.
    fn locate<'a>(&'a self, stack: &'a Stack, keys: &[u64], found: &mut dyn FnMut(usize, &'a [u8])) {
        let (mut rest, mut positions) = (Vec::with_capacity(keys.len()), Vec::with_capacity(keys.len()));
        let mut changes = self.0.iter().peekable();
        for (position, &key) in keys.iter().enumerate() {
            match changes.next_if(|(changed, _)| *changed == position) {
                Some((_, Some(value))) => found(position, value),
                Some((_, None)) => {}
                None => {
                    rest.push(key);
                    positions.push(position);
                }
            }
        }
        stack.locate(&rest, |at, value| found(positions[at], value));
    }
}
