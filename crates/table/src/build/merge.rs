//! Folding patches into their base: a new base with the newest layer's value of each key.
//!
//! Layers differ in their number of parts, so all entries are divided again, the base first, and the last row
//! of a key wins.

use super::counters::{Counters, Progress};
use super::error::BuildError;
use super::fold::{self, Built};
use super::options::{Duplicates, Options};
use super::rows::{Kind, Rows};
use super::spill::{Divider, Spill};
use crate::manifest::FOLDS;
use crate::schema::Layout;
use crate::shard;
use crate::stack::{Layer, Stack};
use crate::table::Table;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Writes `base` with `patches` over it, the oldest first, as a new base to the output folder of `options`,
/// whose inputs and columns are ignored.
///
/// # Errors
/// A folder is refused, a patch was built over something else, or as for [`super::build`].
pub fn merge(
    options: &Options,
    base: &Path,
    patches: &[PathBuf],
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Built, BuildError> {
    let open = |folder: &Path| Layer::open_foreign(folder, shard::Options::default()).map(Arc::new);
    let mut stack = Stack::base(open(base)?)?;
    for patch in patches {
        stack = stack.with(open(patch)?)?;
    }
    let mut options =
        Options { shards: stack.top().shards, over: None, duplicates: Duplicates::Last, ..options.clone() };
    options.prepare()?;

    let all: u64 = stack.layers().iter().map(|layer| layer.manifest().count + layer.manifest().deleted).sum();
    let plan = options.plan(all);
    let bytes_total = stack.layers().iter().map(|layer| layer.manifest().bytes()).sum();
    let counters = Counters::new(bytes_total);
    let spill = Spill::create(&options.scratch(), plan, options.memory_bytes)?;
    // Divided like a patch, because of the deletes; a base ignores them when it is written.
    let mut divider = spill.divider(Kind { codec: stack.schema().codec, patch: true });
    for (number, layer) in stack.layers().iter().enumerate() {
        divider.begin(number as u32);
        take(layer.values(), false, &mut divider, &counters, progress)?;
        if let Some(deletes) = layer.deletes() {
            take(deletes, true, &mut divider, &counters, progress)?;
        }
        divider.flush()?;
        layer.check_read()?;
    }
    drop(divider);
    let mut schema = stack.schema().clone();
    if schema.width().is_none() {
        schema.layout = Layout::Variable { inline: counters.inline() };
    }
    // The new base contains the changes that the newest layer with such a note contains.
    let folds = stack.layers().iter().rev().find_map(|layer| layer.manifest().metadata.get(FOLDS));
    if let Some(folds) = folds {
        options.metadata.entry(FOLDS.into()).or_insert_with(|| folds.clone());
    }
    fold::write(&options, schema, plan, &spill.into_divided(), counters.rows(), progress)
}

fn take(
    table: &Table,
    delete: bool,
    divider: &mut Divider<'_>,
    counters: &Counters,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<(), BuildError> {
    let mut rows = Rows::default();
    let mut pass_on = |rows: &mut Rows| -> Result<(), BuildError> {
        rows.source_bytes = 16 * rows.keys.len() as u64 + rows.values.len() as u64;
        counters.add(rows);
        divider.take(rows)?;
        progress(counters.progress());
        rows.clear();
        Ok(())
    };
    for shard in table.shards() {
        for (key, value) in (0..shard.parts()).flat_map(|part| shard.entries(part)) {
            rows.values.extend_from_slice(value);
            rows.deletes.push(delete);
            rows.end_row(key);
            if rows.is_full() {
                pass_on(&mut rows)?;
            }
        }
    }
    pass_on(&mut rows)
}
