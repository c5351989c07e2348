//! The engine's tree, used without its journal.
//!
//! The engine numbers its manifests from a counter of its own, which must stay below the sequence numbers of
//! our entries ([`SEQNO_BASE`]). So the counter goes back to 0 after everything that writes a manifest.

use crate::layers::Tables;
use crate::open::version_in;
use crate::record::SEQNO_BASE;
use lsm_tree::compaction::CompactionStrategy;
use lsm_tree::{AbstractTree, AnyTree, InternalValue, SequenceNumberCounter, Slice};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The tree. Its calls may wait for the disk, so readers and the writer use [`crate::published::Published`]
/// instead.
pub(crate) struct Tree {
    tree: AnyTree,
    manifest_seqno: SequenceNumberCounter,
}

impl Tree {
    /// `manifest_seqno` is the counter that the tree was opened with.
    pub(crate) fn new(tree: AnyTree, manifest_seqno: SequenceNumberCounter) -> Self {
        Self { tree, manifest_seqno }
    }

    /// The tables of the newest version.
    pub(crate) fn tables(&self) -> Tables {
        Tables::of(&self.tree)
    }

    /// Changes with the set of tables.
    pub(crate) fn version(&self) -> u64 {
        self.tree.current_version().id()
    }

    /// Writes `entries`, in the engine's order, to tables of the first level, all or none.
    pub(crate) fn flush(
        &self,
        entries: impl Iterator<Item = lsm_tree::Result<InternalValue>>,
    ) -> lsm_tree::Result<()> {
        let mut entries = entries.peekable();
        if entries.peek().is_none() {
            return Ok(());
        }
        let _engine = self.tree.get_flush_lock();
        if let Some((tables, blobs)) = self.tree.flush_to_tables(entries)? {
            self.tree.register_tables(&tables, blobs.as_deref(), None, &[], SEQNO_BASE)?;
        }
        self.manifest_seqno.set(0);
        Ok(())
    }

    /// One step of compaction, if `strategy` finds one to be due.
    pub(crate) fn compact(&self, strategy: Arc<dyn CompactionStrategy>) -> lsm_tree::Result<()> {
        self.tree.compact(strategy, SEQNO_BASE)?;
        self.manifest_seqno.set(0);
        Ok(())
    }

    /// Merges all tables into the last level.
    pub(crate) fn compact_fully(&self, table_bytes: u64) -> lsm_tree::Result<()> {
        self.tree.major_compact(table_bytes, SEQNO_BASE)?;
        self.manifest_seqno.set(0);
        Ok(())
    }

    /// The number of the next table file.
    pub(crate) fn next_table(&self) -> u64 {
        self.tree.next_table_id()
    }

    /// Removes the table files from number `first` on that no version lists: what a compaction left that began
    /// when `first` was next, and failed. Tables that it replaced are older.
    ///
    /// Nothing is removed if a start would find another version than the newest one here: the compaction failed
    /// after it had put its own in place, which needs these tables.
    pub(crate) fn sweep(&self, first: u64) {
        // No flush is writing one meanwhile.
        let _engine = self.tree.get_flush_lock();
        let version = self.tree.current_version();
        if version_in(&self.tree.tree_config().path) != Some(version.id()) {
            return;
        }
        let listed: BTreeSet<u64> = version.iter_tables().map(|table| table.id()).collect();
        for entry in
            std::fs::read_dir(self.tree.tree_config().path.join("tables")).into_iter().flatten().flatten()
        {
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if number.is_some_and(|number| number >= first && !listed.contains(&number)) {
                // An error: the next start removes it.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Drops the tables that lie entirely in `from..to`.
    pub(crate) fn drop_range(&self, from: Slice, to: Slice) -> lsm_tree::Result<()> {
        self.tree.drop_range(from..to)?;
        self.manifest_seqno.set(0);
        Ok(())
    }
}
