//! Reading the files of mapped versions again. A layer that turns out to be damaged is no longer looked up in, and
//! is fetched again, as after a start: nobody has to do anything.

use super::shelf::Library;
use quoin_table::{Manifest, recheck};
use std::collections::BTreeMap;
use std::path::Path;

impl Library {
    /// Reads the files of all mapped versions, which are in the folder `tables`, again. Returns how many are damaged.
    pub(super) fn scrub(&self, tables: &Path, pace: &mut dyn FnMut(u64) -> bool) -> u64 {
        let mut damaged = 0;
        for (id, manifest) in self.manifests() {
            for entry in manifest.all_files() {
                let file = tables.join(&id).join(&entry.name);
                let Err(error) = recheck(&file, entry, pace) else { continue };
                // Dropped meanwhile: its files are gone.
                if self.manifests().contains_key(&id) {
                    tracing::error!(%error, table = manifest.name, "a table's file is damaged here: fetching it again");
                    self.damaged.lock().insert(id.clone());
                    damaged += 1;
                }
                break;
            }
        }
        damaged
    }

    /// The manifests of the layers of all mapped versions, by id.
    fn manifests(&self) -> BTreeMap<String, Manifest> {
        let loaded = self.loaded.read();
        let stacks = loaded.values().flat_map(BTreeMap::values).map(|loaded| &loaded.stack);
        let manifests = stacks.flat_map(|stack| stack.layers()).map(|layer| layer.manifest());
        manifests.map(|manifest| (manifest.id.clone(), manifest.clone())).collect()
    }
}
