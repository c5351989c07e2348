//! Patches over a base: the newest layer that sets or deletes a key decides.
//!
//! A patch is only ever put over the layer that it was built over, and every layer has the base's shard
//! count, width and codec.
//!
//! Deliberately absent: changes that arrive one by one. The server keeps those above the stack.

use crate::error::{FileError, TableError};
use crate::manifest::Manifest;
use crate::recheck::check_foreign;
use crate::schema::Schema;
use crate::shard::Options;
use crate::table::Table;
use std::path::Path;
use std::sync::Arc;

/// One folder (a base or a patch), opened and checked.
pub struct Layer {
    manifest: Manifest,
    values: Table,
    deletes: Option<Table>,
}

impl Layer {
    /// Opens and checks `folder`, which reads all of its files.
    ///
    /// # Errors
    /// The manifest or a file is refused.
    pub fn open(folder: &Path, options: Options) -> Result<Self, TableError> {
        let manifest = Manifest::read(folder)?;
        let values = Table::open(folder, &manifest, &manifest.files, options)?;
        if values.schema() != &manifest.schema {
            return Err(TableError::Other {
                file: folder.into(),
                what: format!(
                    "the files have {}, but the manifest says {}, or the default rows differ",
                    values.schema().describe(),
                    manifest.schema.describe()
                ),
            });
        }
        let deletes = if manifest.deletes.is_empty() {
            None
        } else {
            Some(Table::open(folder, &manifest, &manifest.deletes, options)?)
        };
        Ok(Self { manifest, values, deletes })
    }

    /// Opens a folder whose files come from somebody else: checks their digests too, which nobody can give to
    /// other files. Those of format 1 have none.
    ///
    /// # Errors
    /// The manifest or a file is refused.
    pub fn open_foreign(folder: &Path, options: Options) -> Result<Self, TableError> {
        let layer = Self::open(folder, options)?;
        layer.manifest.all_files().try_for_each(|entry| check_foreign(&folder.join(&entry.name), entry))?;
        Ok(layer)
    }

    /// As [`Table::check_read`].
    ///
    /// # Errors
    /// A file was cut, or its disk failed, while it was mapped.
    #[inline]
    pub fn check_read(&self) -> Result<(), FileError> {
        self.values.check_read()?;
        self.deletes.as_ref().map_or(Ok(()), Table::check_read)
    }

    /// The folder's manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The keys that have a value.
    pub fn values(&self) -> &Table {
        &self.values
    }

    /// The keys that a patch deletes; `None` if it deletes none.
    pub fn deletes(&self) -> Option<&Table> {
        self.deletes.as_ref()
    }
}

/// A base with the patches over it. Layers are shared: a version and its patched successor use the same base.
#[derive(Clone)]
pub struct Stack {
    /// From the base up.
    layers: Vec<Arc<Layer>>,
}

impl Stack {
    /// A stack of one base.
    ///
    /// # Errors
    /// The layer is a patch.
    pub fn base(layer: Arc<Layer>) -> Result<Self, TableError> {
        if let Some(over) = &layer.manifest.over {
            return Err(TableError::WrongBase {
                patch: layer.manifest.id.clone(),
                expected: over.clone(),
                found: "nothing".into(),
            });
        }
        Ok(Self { layers: vec![layer] })
    }

    /// This stack with `patch` on top.
    ///
    /// # Errors
    /// See [`check_patch`].
    pub fn with(&self, patch: Arc<Layer>) -> Result<Self, TableError> {
        check_patch(self.top(), &patch.manifest)?;
        let mut layers = self.layers.clone();
        layers.push(patch);
        Ok(Self { layers })
    }

    /// The top layer's manifest. Its id is also the stack's.
    pub fn top(&self) -> &Manifest {
        &self.layers.last().expect("a stack has a base").manifest
    }

    /// All layers, from the base up.
    pub fn layers(&self) -> &[Arc<Layer>] {
        &self.layers
    }

    /// What the values are. The default row is the top layer's.
    pub fn schema(&self) -> &Schema {
        &self.top().schema
    }

    /// Calls `found` with the position and the stored value of each key that the stack has. The calls follow
    /// the order of `keys` only if there are no patches.
    pub fn locate<'a>(&'a self, keys: &[u64], mut found: impl FnMut(usize, &'a [u8])) {
        let (base, patches) = self.layers.split_first().expect("a stack has a base");
        if patches.is_empty() {
            return base.values.locate(keys, found);
        }
        // The keys that no layer has decided yet, and their positions in `keys`.
        let mut open: Vec<u64> = keys.to_vec();
        let mut positions: Vec<u32> = (0..keys.len() as u32).collect();
        for layer in patches.iter().rev() {
            let mut decided = vec![false; open.len()];
            layer.values.locate(&open, |at, value| {
                decided[at] = true;
                found(positions[at] as usize, value);
            });
            if let Some(deletes) = &layer.deletes {
                deletes.locate(&open, |at, _| decided[at] = true);
            }
            let mut kept = decided.iter().map(|decided| !decided);
            open.retain(|_| kept.next().expect("one per key"));
            let mut kept = decided.iter().map(|decided| !decided);
            positions.retain(|_| kept.next().expect("one per key"));
        }
        base.values.locate(&open, |at, value| found(positions[at] as usize, value));
    }
}

/// Checks that `patch` was built over `below` and has its shard count, width and codec.
///
/// # Errors
/// [`TableError::WrongBase`] or [`TableError::WrongShape`].
pub fn check_patch(below: &Manifest, patch: &Manifest) -> Result<(), TableError> {
    let over = patch.over.as_deref().unwrap_or("nothing, it is a base");
    if over != below.id {
        return Err(TableError::WrongBase {
            patch: patch.id.clone(),
            expected: over.into(),
            found: below.id.clone(),
        });
    }
    let shape = |manifest: &Manifest| format!("{} shards of {}", manifest.shards, manifest.schema.describe());
    if patch.shards != below.shards || !patch.schema.answers_like(&below.schema) {
        return Err(TableError::WrongShape {
            patch: patch.id.clone(),
            expected: shape(below),
            found: shape(patch),
        });
    }
    Ok(())
}
