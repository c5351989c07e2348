//! What readers search: the memtables and tables of one moment.
//!
//! The engine has such a list too, but under a lock that it holds while it syncs its manifest, so every read
//! and write would wait for the disk. Readers and the writer therefore use this copy, and only flushing and
//! compaction take the engine's lock.
//!
//! **Invariant: Layer order.** For any key, layers come newest first: the active memtable, the sealed ones
//! from newest to oldest, then the engine's runs in its own order. A point read ends at the first layer that
//! has a version of the key at or below its sequence.

use crate::damage::TableError;
use crate::memtable::{self, Memtable};
use crate::scan::{Layer, MemtableLayer, Merge, RunLayer};
use lsm_tree::{AbstractTree, AnyTree, Slice, Table};
use quoin_core::store::Order;
use quoin_core::{Index, StoreError};
use std::sync::Arc;
use std::time::Instant;

/// Tables whose key ranges do not overlap, in key order.
pub(crate) type Run = Arc<[Table]>;

/// A memtable that takes no more writes and waits to be flushed.
pub(crate) struct Sealed {
    pub(crate) memtable: Arc<Memtable>,
    /// The last log entry whose effects the memtable holds.
    pub(crate) index: Index,
}

/// All layers at one moment.
#[derive(Clone)]
pub(crate) struct Layers {
    pub(crate) active: Arc<Memtable>,
    /// When `active` was created; for flushing by age.
    pub(crate) since: Instant,
    /// Oldest first.
    pub(crate) sealed: Vec<Arc<Sealed>>,
    pub(crate) tables: Arc<Tables>,
}

/// The tree's tables at one moment.
pub(crate) struct Tables {
    /// Newest first.
    runs: Vec<Run>,
    /// How many of the runs are in the first level, where each flush adds one.
    pub(crate) first_level_runs: usize,
    /// Bytes of all table files.
    pub(crate) bytes: u64,
}

impl Layers {
    pub(crate) fn new(active: Arc<Memtable>, tables: Tables) -> Self {
        Self { active, since: Instant::now(), sealed: Vec::new(), tables: Arc::new(tables) }
    }

    /// The newest stored value of `key` below `limit`, header included.
    pub(crate) fn find(&self, key: &Slice, limit: u64) -> Result<Option<Slice>, StoreError> {
        let hashed = memtable::hash(key);
        let sealed = self.sealed.iter().rev().map(|sealed| &sealed.memtable);
        let found =
            std::iter::once(&self.active).chain(sealed).find_map(|memtable| memtable.get(key, hashed, limit));
        match found {
            Some(stored) => Ok(Some(stored)),
            None => self.tables.get(key, hashed, limit).map_err(|error| StoreError::new("read", error)),
        }
    }

    /// All versions below `limit` of the keys in `from..to` (`None` = no bound), merged.
    pub(crate) fn merge(&self, from: &Slice, to: Option<&Slice>, limit: u64, order: Order) -> Merge {
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
    pub(crate) fn of(tree: &AnyTree) -> Self {
        let version = tree.current_version();
        let runs =
            version.iter_levels().flat_map(|level| level.iter()).map(|run| run.iter().cloned().collect());
        Self {
            runs: runs.collect(),
            first_level_runs: version.l0().run_count(),
            bytes: version.iter_tables().map(|table| table.metadata.file_size).sum(),
        }
    }

    fn get(&self, key: &Slice, hashed: u64, limit: u64) -> Result<Option<Slice>, TableError> {
        for run in &self.runs {
            let at = run.partition_point(|table| table.metadata.key_range.max() < key);
            let Some(table) = run.get(at).filter(|table| table.metadata.key_range.min() <= key) else {
                continue;
            };
            let found = table.get(key, limit, hashed).map_err(|source| TableError::refused(table, source))?;
            if let Some(found) = found {
                return Ok(Some(found.value));
            }
        }
        Ok(None)
    }

    /// Whether some table lies entirely in `from..to`.
    pub(crate) fn any_within(&self, from: &Slice, to: &Slice) -> bool {
        self.iter().any(|table| from <= table.metadata.key_range.min() && table.metadata.key_range.max() < to)
    }

    /// All tables, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Table> {
        self.runs.iter().flat_map(|run| run.iter())
    }
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
