//! Folding patches into their base: a new base with what the newest layer says of each key.
//!
//! Parts differ between layers, so the layers' entries are divided anew, the base first, and the last row of a key wins.

use super::rows::{Counters, Kind, Rows};
use super::spill::{Divider, Spill};
use super::{BuildError, Built, Duplicates, Options, Progress, fold, scratch_error};
use crate::manifest::{FOLDS, Manifest};
use crate::stack::{Layer, Stack};
use crate::table::Table;
use crate::writer::Plan;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Writes `base` with `patches` over it, in order, as a new base into the folder of `options` (whose inputs and columns do not
/// matter).
///
/// # Errors
/// A folder is refused, a patch lies over something else, or as for [`super::build`].
pub fn merge(
    options: &Options,
    base: &Path,
    patches: &[PathBuf],
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Built, BuildError> {
    let open = |folder: &Path| Layer::open(folder, crate::Options::default()).map(Arc::new);
    let mut stack = Stack::base(open(base)?)?;
    for patch in patches {
        stack = stack.with(open(patch)?)?;
    }
    let options =
        Options { shards: stack.top().shards, over: None, duplicates: Duplicates::Last, ..options.clone() };
    super::check(&Options { inputs: vec![base.into()], ..options.clone() })?;
    std::fs::create_dir_all(&options.output).map_err(|source| scratch_error(&options.output, source))?;

    let all: u64 = stack.layers().iter().map(|layer| layer.manifest().count + layer.manifest().deleted).sum();
    let plan = Plan::new(all, options.shards);
    let bytes_total = stack.layers().iter().map(|layer| layer.manifest().bytes()).sum();
    let counters = Counters::new(bytes_total);
    let scratch = options.scratch.clone().unwrap_or_else(|| options.output.clone());
    let spill = Spill::create(&scratch, plan, options.memory_bytes)?;
    // As if it were a patch, because of the deletes; over a base they leave nothing.
    let mut divider = spill.divider(Kind { codec: stack.schema().codec, patch: true });
    for (number, layer) in stack.layers().iter().enumerate() {
        divider.begin(number as u32);
        take(layer.values(), false, &mut divider, &counters, progress)?;
        if let Some(deletes) = layer.deletes() {
            take(deletes, true, &mut divider, &counters, progress)?;
        }
        divider.flush()?;
    }
    drop(divider);
    let mut schema = stack.schema().clone();
    if schema.width().is_none() {
        schema.layout = crate::Layout::Variable { inline: counters.inline() };
    }
    let (files, deletes) =
        fold::write(&options, &schema, plan, &spill.into_divided(), counters.rows(), progress)?;
    let mut metadata = options.metadata.clone();
    // What the topmost layer says that it folds, the whole does.
    let folds = stack.layers().iter().rev().find_map(|layer| layer.manifest().metadata.get(FOLDS));
    if let Some(folds) = folds {
        metadata.entry(FOLDS.into()).or_insert_with(|| folds.clone());
    }
    let manifest = Manifest::new(&options.name, None, schema, files, deletes, metadata);
    manifest.write(&options.output)?;
    Ok(Built { manifest, rows: counters.rows() })
}

fn take(
    table: &Table,
    delete: bool,
    divider: &mut Divider<'_>,
    counters: &Counters,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<(), BuildError> {
    let mut rows = Rows::default();
    let mut hand_on = |rows: &mut Rows| -> Result<(), BuildError> {
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
                hand_on(&mut rows)?;
            }
        }
    }
    hand_on(&mut rows)
}
