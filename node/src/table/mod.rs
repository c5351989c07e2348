//! Lookup tables on a replica: the versions' files, fetched, checked and mapped, and lookups over them.
//!
//! `source.rs` is where files come from, `fetch.rs` brings them into the data folder, `attempts.rs` does so in the background and again,
//! `keeper.rs` is the thread that does what the log says, and tells the log.
//!
//! **Invariant (one version).** A lookup takes the active version and the changes over it under one hold, and keeps the version's files
//! mapped until its answer is written: whatever is switched meanwhile, the answer is of one version, and names it. Files are
//! unmapped when the last lookup is done.
//!
//! What is deliberately absent: waiting. A version that is not mapped here yet (after a restart) is an error that says so.

mod attempts;
mod fetch;
mod keeper;
mod source;

pub(crate) use keeper::Keeper;
pub(crate) use source::{Source, SourceError};

use parking_lot::RwLock;
use quoin_core::table::{Live, TableState, Version};
use quoin_table::stack::{AnswerTooLarge, gather};
use quoin_table::{Answer, Form, Stack};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A version, mapped.
#[derive(Clone)]
pub(crate) struct Loaded {
    id: String,
    stack: Arc<Stack>,
}

/// All versions that are mapped here.
#[derive(Default)]
pub struct Library {
    /// By table and number. A dropped table's numbers may come again, so the id is compared too.
    loaded: RwLock<HashMap<String, BTreeMap<u64, Loaded>>>,
}

/// Why a lookup has no answer. Absent keys are no error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// No such table.
    #[error("there is no table {0:?}: publish one, see `quoin table publish`")]
    NoTable(String),
    /// Published, never activated.
    #[error("table {0:?} has no active version yet: activate one, see `quoin table activate`")]
    NotActive(String),
    /// This replica is still fetching or checking the files.
    #[error("version {version} of table {name:?} is not loaded on this replica yet: ask another, or again")]
    NotLoaded {
        /// The table.
        name: String,
        /// Its version.
        version: u64,
    },
    /// The values are too many bytes.
    #[error(transparent)]
    TooLarge(#[from] AnswerTooLarge),
}

/// An answer and what it is of.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The version that answered.
    pub version: u64,
    /// Bytes per value; 0 where widths vary.
    pub width: u32,
    /// The values.
    pub answer: Answer,
}

impl Library {
    /// The values of `keys`, at most `bytes_max` bytes of them, into `found`, whose buffers are used again.
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
        let (version, stack, changes) = {
            let look = live.look();
            let state = look.table(table).ok_or_else(|| LookupError::NoTable(table.into()))?;
            let (version, record) = active(table, state)?;
            let stack = self.get(table, record);
            let stack = stack.ok_or_else(|| LookupError::NotLoaded { name: table.into(), version })?;
            // Copied, so that reading files, perhaps from the disk, holds up nobody who changes the tables.
            (version, stack, Changes::of(state, keys))
        };
        let schema = stack.schema();
        found.version = version;
        found.width = quoin_table::stack::answer_width(schema, form).unwrap_or(0) as u32;
        gather(schema, form, keys, bytes_max, &mut found.answer, |keys, found| {
            if changes.0.is_empty() {
                stack.locate(keys, found);
            } else {
                changes.locate(&stack, keys, found);
            }
        })?;
        Ok(())
    }

    /// The files of a version, if they are mapped.
    pub fn get(&self, table: &str, version: &Version) -> Option<Arc<Stack>> {
        let loaded = self.loaded.read();
        let loaded = loaded.get(table)?.get(&version.number)?;
        (loaded.id == version.id).then(|| Arc::clone(&loaded.stack))
    }
}

/// The version that answers.
///
/// # Errors
/// There is none.
pub fn active<'a>(name: &str, state: &'a TableState) -> Result<(u64, &'a Version), LookupError> {
    let number = state.table.active;
    match state.versions.get(&number) {
        Some(version) => Ok((number, version)),
        None => Err(LookupError::NotActive(name.into())),
    }
}

/// What lies over the files for some of a lookup's keys, by their positions: a value, or nothing where the key was deleted.
struct Changes(Vec<(usize, Option<Box<[u8]>>)>);

impl Changes {
    fn of(state: &TableState, keys: &[u64]) -> Self {
        if state.changed() == 0 {
            return Self(Vec::new());
        }
        let change = |(position, key): (usize, &u64)| Some((position, state.change(*key)?.map(Into::into)));
        Self(keys.iter().enumerate().filter_map(change).collect())
    }

    /// Changed keys are answered from here, the others from the files.
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
