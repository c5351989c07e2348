//! The compactor's thread: merges tables, drops what nobody may read any more, and deletes replaced files.

use crate::damage::EngineFault;
use crate::shared::Shared;
use lsm_tree::compaction::{CompactionStrategy, Leveled};
use quoin_core::StoreError;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Runs until the store is closed.
pub(crate) fn run(shared: &Shared) -> Result<(), EngineFault> {
    let strategy: Arc<dyn CompactionStrategy> =
        Arc::new(Leveled::default().with_table_target_size(shared.options.table_bytes));
    while shared.signals.wait_for_compaction() {
        loop {
            let before = shared.tree.version();
            let compact = || shared.tree.compact(strategy.clone());
            let done = shared.signals.retry_while_disk_full("compacting", compact);
            if shared.signals.stopping() {
                return Ok(());
            }
            done.map_err(|error| explain(shared, error))?;
            if !publish_since(shared, before) {
                break;
            }
        }
        drop_dead_tables(shared).map_err(|error| explain(shared, error))?;
        shared.layers.drop_retired();
    }
    Ok(())
}

/// Merges all tables into the last level, on the caller's thread.
pub(crate) fn compact_fully(shared: &Shared) -> Result<(), StoreError> {
    let before = shared.tree.version();
    shared
        .tree
        .compact_fully(shared.options.table_bytes)
        .map_err(|error| StoreError::new("compact", explain(shared, error)))?;
    publish_since(shared, before);
    Ok(())
}

/// Publishes the tree's tables if they have changed since `version`.
fn publish_since(shared: &Shared, version: u64) -> bool {
    if shared.tree.version() == version {
        return false;
    }
    shared.counters.compactions.fetch_add(1, Relaxed);
    shared.layers.install(&shared.tree, None);
    shared.signals.wake_writer();
    shared.layers.drop_retired();
    true
}

/// Dead keys ascend and are never written again, so compaction never touches a table that holds nothing else.
fn drop_dead_tables(shared: &Shared) -> lsm_tree::Result<()> {
    let (from, to) = shared.retentions.effective().dead;
    if from < to && shared.layers.load().tables.any_within(&from, &to) {
        let before = shared.tree.version();
        shared.tree.drop_range(from, to)?;
        publish_since(shared, before);
    }
    Ok(())
}

fn explain(shared: &Shared, error: lsm_tree::Error) -> EngineFault {
    EngineFault::explain(error, shared.layers.load().tables.iter())
}
