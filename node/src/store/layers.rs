//! What readers see: the memtables and the tables of one moment, swapped as a whole.
//!
//! The engine keeps the same under a lock that it holds while it syncs its manifest, which would make every
//! read and write wait for the disk. So readers and the writer use this copy, and only the two background
//! threads ever meet the engine's lock.
//!
//! **Invariant (order).** For any key, layers come newest first: the active memtable, sealed memtables from the
//! newest, then the engine's runs in its own order. A point read ends at the first layer that knows the key at
//! or below its sequence.

use super::scan::{Layer, MemtableLayer, Merge, RunLayer};
use lsm_tree::table::filter::standard_bloom::Builder as Bloom;
use lsm_tree::{AbstractTree, AnyTree, Memtable, Slice, Table, ValueType};
use quoin_core::store::Order;
use quoin_core::{Index, StoreError};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Tables whose key ranges do not overlap, by key.
pub(super) type Run = Arc<[Table]>;

/// A memtable that takes no more writes and waits for the flusher.
pub(super) struct Sealed {
    pub(super) memtable: Arc<Memtable>,
    /// The last log entry whose effects it holds.
    pub(super) index: Index,
}

/// All layers, as of one moment.
#[derive(Clone)]
pub(super) struct Layers {
    pub(super) active: Arc<Memtable>,
    /// When `active` took its first write of an entry; for flushing by age.
    pub(super) since: Instant,
    /// Oldest first.
    pub(super) sealed: Vec<Arc<Sealed>>,
    pub(super) tables: Arc<Tables>,
}

/// The tree's tables.
pub(super) struct Tables {
    /// Newest first.
    runs: Vec<Run>,
    /// How many of them are in the first level, where each flush adds one.
    pub(super) first_level_runs: usize,
    /// Bytes of all table files.
    pub(super) bytes: u64,
}

/// A fault met in a table's file.
#[derive(Debug, thiserror::Error)]
#[error("table file {}: {source}", path.display())]
pub struct TableError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    #[source]
    pub source: lsm_tree::Error,
}

impl Layers {
    pub(super) fn new(active: Arc<Memtable>, tables: Tables) -> Self {
        Self { active, since: Instant::now(), sealed: Vec::new(), tables: Arc::new(tables) }
    }

    /// What is stored of `key` below `limit`, its header included.
    pub(super) fn find(&self, key: &Slice, limit: u64) -> Result<Option<Slice>, StoreError> {
        let sealed = self.sealed.iter().rev().map(|sealed| &sealed.memtable);
        let found = std::iter::once(&self.active)
            .chain(sealed)
            .find_map(|memtable| memtable_get(memtable, key, limit));
        match found {
            Some(stored) => Ok(Some(stored)),
            None => self.tables.get(key, limit).map_err(|error| StoreError::new("read", error)),
        }
    }

    /// All versions below `limit` of keys in `from..to` (`None` = no bound), merged.
    pub(super) fn merge(&self, from: &Slice, to: Option<&Slice>, limit: u64, order: Order) -> Merge {
        let sealed = self.sealed.iter().rev().map(|sealed| &sealed.memtable);
        let memtables = std::iter::once(&self.active).chain(sealed).map(|memtable| {
            Box::new(MemtableLayer::new(memtable.clone(), from.clone(), to.cloned(), limit, order)) as Layer
        });
        let runs = self.tables.runs.iter().filter_map(|run| {
            let tables = overlapping(run, from, to);
            (!tables.is_empty()).then(|| {
                Box::new(RunLayer::new(tables.to_vec(), from.clone(), to.cloned(), limit, order)) as Layer
            })
        });
        Merge::new(memtables.chain(runs).collect(), order)
    }
}

impl Tables {
    /// The tables of the tree's newest version.
    pub(super) fn of(tree: &AnyTree) -> Self {
        let version = tree.current_version();
        let runs =
            version.iter_levels().flat_map(|level| level.iter()).map(|run| run.iter().cloned().collect());
        Self {
            runs: runs.collect(),
            first_level_runs: version.l0().run_count(),
            bytes: version.iter_tables().map(|table| table.metadata.file_size).sum(),
        }
    }

    fn get(&self, key: &Slice, limit: u64) -> Result<Option<Slice>, TableError> {
        let hash = Bloom::get_hash(key);
        for run in &self.runs {
            let at = run.partition_point(|table| table.metadata.key_range.max() < key);
            let Some(table) = run.get(at).filter(|table| table.metadata.key_range.min() <= key) else {
                continue;
            };
            let found = table.get(key, limit, hash).map_err(|source| table_error(table, source))?;
            if let Some(found) = found {
                return Ok(Some(found.value));
            }
        }
        Ok(None)
    }

    /// Whether some table lies in `from..to` as a whole.
    pub(super) fn any_within(&self, from: &Slice, to: &Slice) -> bool {
        self.iter().any(|table| from <= table.metadata.key_range.min() && table.metadata.key_range.max() < to)
    }

    /// All tables.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Table> {
        self.runs.iter().flat_map(|run| run.iter())
    }
}

pub(super) fn table_error(table: &Table, source: lsm_tree::Error) -> TableError {
    TableError { path: table.path.to_path_buf(), source }
}

/// A run's tables that may hold keys in `from..to`.
fn overlapping<'a>(run: &'a Run, from: &Slice, to: Option<&Slice>) -> &'a [Table] {
    let first = run.partition_point(|table| table.metadata.key_range.max() < from);
    let end = match to {
        Some(to) => run.partition_point(|table| table.metadata.key_range.min() < to),
        None => run.len(),
    };
    run.get(first..end).unwrap_or_default()
}

fn memtable_get(memtable: &Memtable, key: &Slice, limit: u64) -> Option<Slice> {
    // Versions of a key are ordered newest first, so the first one from here on is the one asked for.
    let newest =
        lsm_tree::InternalValue::from_components(key.clone(), Slice::empty(), limit - 1, ValueType::Value)
            .key;
    let entry = memtable.items.range(newest..).next()?;
    (entry.key().user_key == *key).then(|| entry.value().clone())
}
