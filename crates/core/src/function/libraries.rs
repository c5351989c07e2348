//! Libraries as readers see them: one state, replaced as a whole by each change.

use super::record::{self, Function, Library};
use crate::store::{Order, StoreError, View};
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;

/// All libraries, and in which of them each function is.
#[derive(Clone, Debug, Default)]
pub struct Libraries {
    pub(super) by_name: BTreeMap<String, Arc<Library>>,
    /// The library of each function, by its name in lower case.
    pub(super) functions: BTreeMap<String, Arc<Library>>,
    /// Bytes of all records.
    pub(super) bytes: usize,
}

impl Libraries {
    pub(super) fn open(view: View<'_>) -> Result<Self, StoreError> {
        let mut libraries = Self::default();
        for pair in view.scan_prefix(record::LIBRARIES, Order::Ascending) {
            let (_, value) = pair?;
            let library =
                Library::decode(value).map_err(|error| StoreError::new("decode a library", error))?;
            libraries.add(Arc::new(library));
        }
        Ok(libraries)
    }

    /// All of them, in the order of their names.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Library>> {
        self.by_name.values()
    }

    /// How many libraries, and functions, there are.
    pub fn count(&self) -> (usize, usize) {
        (self.by_name.len(), self.functions.len())
    }

    /// A function, by its name in any case, with its library.
    pub fn find(&self, name: &str) -> Option<(&Arc<Library>, &Function)> {
        let library = self.functions.get(&name.to_ascii_lowercase())?;
        let is_it = |function: &&Function| function.name.eq_ignore_ascii_case(name);
        Some((library, library.functions.iter().find(is_it)?))
    }

    pub(super) fn add(&mut self, library: Arc<Library>) {
        self.bytes += size(&library);
        for function in &library.functions {
            self.functions.insert(function.name.to_ascii_lowercase(), Arc::clone(&library));
        }
        self.by_name.insert(library.name.clone(), library);
    }

    pub(super) fn remove(&mut self, name: &str) -> bool {
        let Some(library) = self.by_name.remove(name) else { return false };
        self.bytes -= size(&library);
        for function in &library.functions {
            self.functions.remove(&function.name.to_ascii_lowercase());
        }
        true
    }
}

/// Bytes of a library's record.
fn size(library: &Library) -> usize {
    record::LIBRARIES.len() + library.name.len() + library.encoded_len()
}
