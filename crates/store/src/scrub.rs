//! Reading a store's files again while it is in use: a disk forgets without telling.
//!
//! Each table's file is read whole and compared with the checksum that the manifest has of it. Tables are
//! taken in the order of their numbers, one at a time, so that no replaced file is kept for long.

use crate::damage::{TableError, check_slowly};
use crate::store::LsmStore;

/// A table that was read again.
pub struct ScrubbedTable {
    /// Its number: the next one is asked for with this.
    pub number: u64,
    /// What is wrong with it.
    pub outcome: Result<(), TableError>,
}

impl LsmStore {
    /// The number that the next table will have: those below it were there.
    pub fn next_table(&self) -> u64 {
        self.shared.tree.next_table()
    }

    /// Reads the first table whose number is in `from..until`; `None` if there is none. `pace` is told the
    /// bytes of each step, and says whether to go on; what it stops counts as whole.
    pub fn scrub(&self, from: u64, until: u64, pace: &mut dyn FnMut(u64) -> bool) -> Option<ScrubbedTable> {
        let table = {
            let layers = self.shared.layers.load();
            let due = layers.tables.iter().filter(|table| (from..until).contains(&table.id()));
            due.min_by_key(|table| table.id())?.clone()
        };
        Some(ScrubbedTable { number: table.id(), outcome: check_slowly(&table, pace) })
    }
}
