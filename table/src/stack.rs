//! Patches over a base: the newest layer that says anything about a key decides.
//!
//! **Invariant.** A patch lies only over what it was built over, and all layers have the base's shards and schema.
//!
//! What is deliberately absent: changes that arrive one by one. Those are the server's, above the stack.

use crate::codec::{Codec, Form};
use crate::error::TableError;
use crate::format::Schema;
use crate::manifest::Manifest;
use crate::shard::Options;
use crate::table::Table;
use std::path::Path;
use std::sync::Arc;

/// One folder, opened.
pub struct Layer {
    manifest: Manifest,
    values: Table,
    deletes: Option<Table>,
}

impl Layer {
    /// Opens and checks the folder.
    ///
    /// # Errors
    /// Its manifest or a file is refused.
    pub fn open(folder: &Path, options: Options) -> Result<Self, TableError> {
        let manifest = Manifest::read(folder)?;
        let values = Table::open(folder, &manifest, &manifest.files, options)?;
        if values.schema() != &manifest.schema {
            return Err(TableError::Other {
                file: folder.into(),
                what: format!(
                    "the files have {:?}, the manifest says {:?}",
                    values.schema(),
                    manifest.schema
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

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Its keys with values.
    pub fn values(&self) -> &Table {
        &self.values
    }

    /// Its deleted keys.
    pub fn deletes(&self) -> Option<&Table> {
        self.deletes.as_ref()
    }
}

/// A base with the patches over it. Layers are shared: a version and the patched version after it have the same base.
#[derive(Clone)]
pub struct Stack {
    /// The base first.
    layers: Vec<Arc<Layer>>,
}

impl Stack {
    /// A base without patches.
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

    /// This with one more patch on top.
    ///
    /// # Errors
    /// See [`check_patch`].
    pub fn with(&self, patch: Arc<Layer>) -> Result<Self, TableError> {
        check_patch(self.top(), &patch.manifest)?;
        let mut layers = self.layers.clone();
        layers.push(patch);
        Ok(Self { layers })
    }

    /// The manifest on top, whose id is the stack's.
    pub fn top(&self) -> &Manifest {
        &self.layers.last().expect("a stack has a base").manifest
    }

    /// The base first.
    pub fn layers(&self) -> &[Arc<Layer>] {
        &self.layers
    }

    /// What its values are. The default row is the top layer's.
    pub fn schema(&self) -> &Schema {
        &self.top().schema
    }

    /// Calls `found` with the position in `keys` and the stored value of each key that is there; in the order of `keys` where
    /// there are no patches.
    pub fn locate<'a>(&'a self, keys: &[u64], mut found: impl FnMut(usize, &'a [u8])) {
        let (base, patches) = self.layers.split_first().expect("a stack has a base");
        if patches.is_empty() {
            return base.values.locate(keys, found);
        }
        // The keys that no layer has decided yet, and their positions.
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

/// Checks that `patch` was built over `below` and has its shape.
///
/// # Errors
/// It was built over something else, or has another schema or shard count.
pub fn check_patch(below: &Manifest, patch: &Manifest) -> Result<(), TableError> {
    let over = patch.over.as_deref().unwrap_or("nothing, it is a base");
    if over != below.id {
        return Err(TableError::WrongBase {
            patch: patch.id.clone(),
            expected: over.into(),
            found: below.id.clone(),
        });
    }
    let shape = |manifest: &Manifest| format!("{} shards of {:?}", manifest.shards, manifest.schema);
    if patch.shards != below.shards || !patch.schema.answers_like(&below.schema) {
        return Err(TableError::WrongShape {
            patch: patch.id.clone(),
            expected: shape(below),
            found: shape(patch),
        });
    }
    Ok(())
}

/// Bytes of each value in an answer; `None` where widths vary.
pub fn answer_width(schema: &Schema, form: Form) -> Option<usize> {
    match (form, schema.codec.dimension()) {
        (Form::F32, Some(dimension)) => Some(dimension as usize * 4),
        (Form::Stored, _) | (Form::F32, None) => schema.width().map(|width| width as usize),
    }
}

/// Writes a stored value in the form asked for; `out` has room for exactly that.
#[inline]
pub fn write_value(codec: Codec, form: Form, stored: &[u8], out: &mut [u8]) {
    match (form, codec) {
        (Form::Stored, _) | (Form::F32, Codec::Raw) => out.copy_from_slice(stored),
        (Form::F32, codec) => codec.decode(stored, out),
    }
}

/// The values of a batch of keys, as they go into an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// One bit per key, the first key's is the lowest of the first byte; set if it was found.
    pub found: Vec<u8>,
    /// Fixed widths: one value per key, absent ones are the default row or zeros. Others: the values behind each other.
    pub values: Vec<u8>,
    /// Where widths vary: where each value begins in `values`, and the end of the last. Otherwise empty.
    pub offsets: Vec<u32>,
    /// How many were found.
    pub count: u32,
}

/// An answer would be larger than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the values have {bytes} bytes, above the limit of {limit}: ask for fewer keys at once")]
pub struct AnswerTooLarge {
    /// What it would be.
    pub bytes: usize,
    /// What is allowed.
    pub limit: usize,
}

/// Gathers the values of `keys` in one buffer of at most `limit` bytes, found by `locate` (a table's, a stack's, or what
/// lies above one). No limit allows more than 4 GiB.
///
/// # Errors
/// The values are larger.
pub fn gather<'a>(
    schema: &Schema,
    form: Form,
    keys: &[u64],
    limit: usize,
    answer: &mut Answer,
    locate: impl FnOnce(&[u64], &mut dyn FnMut(usize, &'a [u8])),
) -> Result<(), AnswerTooLarge> {
    let limit = limit.min(u32::MAX as usize);
    answer.found.clear();
    answer.found.resize(keys.len().div_ceil(8), 0);
    answer.values.clear();
    answer.offsets.clear();
    answer.count = 0;
    match answer_width(schema, form) {
        Some(width) => {
            check_size(width.saturating_mul(keys.len()), limit)?;
            gather_fixed(schema, form, width, keys, answer, locate);
            Ok(())
        }
        None => gather_variable(schema, keys, limit, answer, locate),
    }
}

fn check_size(bytes: usize, limit: usize) -> Result<(), AnswerTooLarge> {
    if bytes > limit { Err(AnswerTooLarge { bytes, limit }) } else { Ok(()) }
}

fn gather_fixed<'a>(
    schema: &Schema,
    form: Form,
    width: usize,
    keys: &[u64],
    answer: &mut Answer,
    locate: impl FnOnce(&[u64], &mut dyn FnMut(usize, &'a [u8])),
) {
    let Answer { found, values, count, .. } = answer;
    values.resize(keys.len() * width, 0);
    locate(keys, &mut |at, stored| {
        found[at / 8] |= 1 << (at % 8);
        *count += 1;
        write_value(schema.codec, form, stored, &mut values[at * width..(at + 1) * width]);
    });
    if let Some(row) = schema.default_row.as_ref().filter(|_| *count < keys.len() as u32) {
        for at in (0..keys.len()).filter(|at| found[at / 8] >> (at % 8) & 1 == 0) {
            write_value(schema.codec, form, row, &mut values[at * width..(at + 1) * width]);
        }
    }
}

fn gather_variable<'a>(
    schema: &Schema,
    keys: &[u64],
    limit: usize,
    answer: &mut Answer,
    locate: impl FnOnce(&[u64], &mut dyn FnMut(usize, &'a [u8])),
) -> Result<(), AnswerTooLarge> {
    let Answer { found, values, offsets, count } = answer;
    let mut places: Vec<Option<&[u8]>> = vec![None; keys.len()];
    locate(keys, &mut |at, stored| places[at] = Some(stored));
    let default_row = schema.default_row.as_deref().unwrap_or_default();
    check_size(places.iter().map(|place| place.unwrap_or(default_row).len()).sum(), limit)?;
    offsets.push(0);
    for (at, place) in places.into_iter().enumerate() {
        if place.is_some() {
            found[at / 8] |= 1 << (at % 8);
            *count += 1;
        }
        values.extend_from_slice(place.unwrap_or(default_row));
        offsets.push(values.len() as u32);
    }
    Ok(())
}
