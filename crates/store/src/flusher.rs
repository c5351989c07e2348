//! The flusher's thread: writes sealed memtables to table files, oldest first.

use crate::damage::EngineFault;
use crate::layers::Sealed;
use crate::record;
use crate::retention::Collector;
use crate::shared::Shared;
use lsm_tree::InternalValue;
use std::io::ErrorKind::Interrupted;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Runs until the store is closed.
pub(crate) fn run(shared: &Shared) -> Result<(), EngineFault> {
    while let Some(oldest) = shared.signals.wait_for_flush(|| shared.layers.load().sealed.first().cloned()) {
        write_out(shared, &oldest)?;
    }
    Ok(())
}

/// Writes the oldest sealed memtable to a table file, if there is one.
pub(crate) fn turn(shared: &Shared) -> Result<(), EngineFault> {
    let oldest = shared.layers.load().sealed.first().cloned();
    oldest.map_or(Ok(()), |oldest| write_out(shared, &oldest))
}

fn write_out(shared: &Shared, oldest: &Arc<Sealed>) -> Result<(), EngineFault> {
    let signals = &shared.signals;
    signals
        .retry_while_disk_full(|| flush(shared, oldest))
        .map_err(|error| EngineFault::explain(error, shared.layers.load().tables.iter()))?;
    shared.layers.install(&shared.tree, Some(oldest));
    shared.persisted.store(oldest.index.0, Release);
    shared.counters.flushes.fetch_add(1, Relaxed);
    signals.wake_writer();
    signals.wake_compactor();
    Ok(())
}

fn flush(shared: &Shared, sealed: &Sealed) -> lsm_tree::Result<()> {
    // The engine would leave a part of the file behind, at each attempt.
    shared.room.check(sealed.memtable.size())?;
    let mut collector = Collector::new(shared.retentions.effective(), false);
    shared.tree.flush(sealed.memtable.entries().items.iter().filter_map(|entry| {
        if shared.signals.stopping() {
            return Some(Err(lsm_tree::Error::Io(Interrupted.into())));
        }
        let (sequence, live, _) = record::header(entry.value()).expect("memtables hold what we encoded");
        collector
            .keeps(&entry.key().user_key, sequence, live)
            .then(|| Ok(InternalValue { key: entry.key().clone(), value: entry.value().clone() }))
    }))
}
