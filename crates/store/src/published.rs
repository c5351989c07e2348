//! The layers that readers see now, replaced as a whole, and the replaced ones that some reader still uses.
//!
//! A table's file is deleted when the last layers that list it are dropped. The compactor drops replaced
//! layers ([`Published::drop_retired`]), so that no reader pays for deleting files.

use crate::layers::{Layers, Sealed};
use crate::memtable::Memtable;
use crate::tree::Tree;
use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use quoin_core::Index;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// The current layers. One writer seals memtables; the background threads install tables.
pub(crate) struct Published {
    current: ArcSwap<Layers>,
    memtable_ids: AtomicU64,
    memtable_bytes: u64,
    /// Replaced layers. Locked while new tables are read from the tree and published, so that an older list
    /// never replaces a newer one.
    retired: Mutex<Vec<Arc<Layers>>>,
}

impl Published {
    /// The tree's tables below an empty memtable; memtables are to grow to about `memtable_bytes`.
    pub(crate) fn new(tree: &Tree, memtable_bytes: u64) -> Self {
        let active = Arc::new(Memtable::new(0, memtable_bytes));
        Self {
            current: ArcSwap::from_pointee(Layers::new(active, tree.tables())),
            memtable_ids: 1.into(),
            memtable_bytes,
            retired: Mutex::default(),
        }
    }

    /// The current layers, for a short use.
    pub(crate) fn load(&self) -> Guard<Arc<Layers>> {
        self.current.load()
    }

    /// The current layers, for as long as the caller keeps them.
    pub(crate) fn load_full(&self) -> Arc<Layers> {
        self.current.load_full()
    }

    /// Seals the active memtable, which holds the effects of the log entries up to `index`, and begins a new
    /// one.
    pub(crate) fn seal(&self, index: Index) {
        let fresh = Arc::new(Memtable::new(self.memtable_ids.fetch_add(1, Relaxed), self.memtable_bytes));
        self.current.rcu(|layers| {
            let mut next = Layers::clone(layers);
            next.sealed.push(Arc::new(Sealed { memtable: layers.active.clone(), index }));
            next.active = fresh.clone();
            next.since = Instant::now();
            next
        });
    }

    /// Publishes the tree's newest tables, and removes the memtable that was `flushed` to one of them.
    pub(crate) fn install(&self, tree: &Tree, flushed: Option<&Arc<Sealed>>) {
        let mut retired = self.retired.lock();
        let tables = Arc::new(tree.tables());
        let old = self.current.rcu(|layers| {
            let mut next = Layers::clone(layers);
            next.tables = tables.clone();
            if let Some(flushed) = flushed {
                next.sealed.retain(|sealed| !Arc::ptr_eq(sealed, flushed));
            }
            next
        });
        retired.push(old);
    }

    /// Drops the replaced layers that no reader uses any more. This deletes the files that only they listed.
    pub(crate) fn drop_retired(&self) {
        let unused = {
            let mut retired = self.retired.lock();
            // Nobody can take a new reference to replaced layers, so a count of one stays one.
            let (unused, used) =
                retired.drain(..).partition::<Vec<_>, _>(|layers| Arc::strong_count(layers) == 1);
            *retired = used;
            unused
        };
        // Unlocked: this may delete files.
        drop(unused);
    }
}
