//! The compactor's thread: merges tables, drops what nobody may read any more, and deletes replaced files. No
//! other thread compacts.

use crate::damage::EngineFault;
use crate::layers::Sealed;
use crate::shared::Shared;
use lsm_tree::compaction::{CompactionStrategy, Leveled};
use std::io::ErrorKind::StorageFull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

type Strategy = Arc<dyn CompactionStrategy>;

/// Runs until the store is closed.
pub(crate) fn run(shared: &Shared) -> Result<(), EngineFault> {
    let mut full = false;
    while shared.signals.wait_for_compaction() {
        match attempt(shared) {
            Ok(()) => full = false,
            Err(_) if shared.signals.stopping() => break,
            Err(error) if is_full(&error) => {
                if !std::mem::replace(&mut full, true) {
                    tracing::error!("the disk is full: merging tables waits until there is space");
                }
                shared.signals.pause();
                shared.signals.wake_compactor();
            }
            Err(error) => return Err(EngineFault::explain(error, shared.layers.load().tables.iter())),
        }
    }
    Ok(())
}

/// Merges and drops what is due, if anybody asked for it.
pub(crate) fn turn(shared: &Shared) -> Result<(), EngineFault> {
    if !shared.signals.is_compaction_wanted() {
        return Ok(());
    }
    match attempt(shared) {
        Err(error) if is_full(&error) => shared.signals.wake_compactor(),
        Err(error) => return Err(EngineFault::explain(error, shared.layers.load().tables.iter())),
        Ok(()) => {}
    }
    Ok(())
}

fn attempt(shared: &Shared) -> lsm_tree::Result<()> {
    let strategy: Strategy = Arc::new(Leveled::default().with_table_target_size(shared.options.table_bytes));
    let done = round(shared, &strategy);
    shared.layers.drop_retired();
    done
}

/// Whether the engine found the disk full.
pub(crate) fn is_full(error: &lsm_tree::Error) -> bool {
    matches!(error, lsm_tree::Error::Io(error) if error.kind() == StorageFull)
}

fn round(shared: &Shared, strategy: &Strategy) -> lsm_tree::Result<()> {
    // First what takes no space.
    drop_dead_tables(shared)?;
    reclaim(shared)?;
    while step(shared, || shared.tree.compact(strategy.clone()))? {}
    Ok(())
}

/// Merges all tables into the last level, if somebody waits for that.
fn reclaim(shared: &Shared) -> lsm_tree::Result<()> {
    let waits =
        |until: &Arc<Sealed>| shared.layers.load().sealed.iter().any(|other| Arc::ptr_eq(other, until));
    let Some(number) = shared.reclaim.due(waits) else { return Ok(()) };
    let done = step(shared, || shared.tree.compact_fully(shared.options.table_bytes));
    let failure = match &done {
        Ok(_) => None,
        Err(error) if is_full(error) => Some(format!(
            "the disk has no room to merge the store: that takes as much as will be left of its {} bytes",
            shared.layers.load().tables.bytes
        )),
        Err(error) => Some(error.to_string()),
    };
    shared.reclaim.finish(number, failure);
    match done {
        // Whoever asked decides whether to ask again.
        Err(error) if !is_full(&error) => Err(error),
        _ => Ok(()),
    }
}

/// One step of compaction; whether it changed the tables. If it fails, what it has written is removed: the
/// engine leaves that behind, and each attempt on a full disk would take more of it.
fn step(shared: &Shared, work: impl FnOnce() -> lsm_tree::Result<()>) -> lsm_tree::Result<bool> {
    let (before, first) = (shared.tree.version(), shared.tree.next_table());
    if let Err(error) = work() {
        shared.tree.sweep(first);
        return Err(error);
    }
    Ok(publish_since(shared, before))
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
