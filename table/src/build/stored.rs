//! A patch of values as they are stored: changes that a server has gathered over a table, to become files.
//!
//! What is deliberately absent: conversion. The values are of the table's codec already.

use super::rows::{Counters, Kind, Rows};
use super::spill::Spill;
use super::{BuildError, Built, Duplicates, Options, Progress, fold, scratch_error};
use crate::manifest::Manifest;

/// One key with its value as it is stored, or without one where it is deleted; or why no more come.
pub type Change<V> = Result<(u64, Option<V>), String>;

/// Writes a patch of `changes`, about `expected` of them, over [`Options::over`] into the folder of `options` (whose inputs and columns do
/// not matter). Of a key that comes twice, the last counts.
///
/// # Errors
/// There is nothing below, the changes end with an error, a value has another width than the table's, or as for [`super::build`].
pub fn patch<V: AsRef<[u8]>>(
    options: &Options,
    expected: u64,
    changes: impl IntoIterator<Item = Change<V>>,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Built, BuildError> {
    let below = options.over.as_ref();
    let below =
        below.ok_or_else(|| BuildError::Options("a patch lies over a table: say over which".into()))?;
    let options = Options { duplicates: Duplicates::Last, ..options.clone() };
    super::check(&Options { inputs: vec![options.output.clone()], ..options.clone() })?;
    std::fs::create_dir_all(&options.output).map_err(|source| scratch_error(&options.output, source))?;
    let plan = super::plan(&options, expected);
    let kind = Kind { codec: below.schema.codec, patch: true };
    let scratch = options.scratch.clone().unwrap_or_else(|| options.output.clone());
    let spill = Spill::create(&scratch, plan, options.memory_bytes)?;
    let counters = Counters::new(0);
    let mut divider = spill.divider(kind);
    divider.begin(0);
    let mut rows = Rows::default();
    for change in changes {
        let (key, value) = change.map_err(BuildError::Changes)?;
        rows.deletes.push(value.is_none());
        if let Some(value) = value {
            rows.push_bytes(value.as_ref())
                .map_err(|what| BuildError::Changes(format!("key {key}: {what}")))?;
        }
        rows.end_row(key);
        if rows.is_full() {
            counters.add(&rows);
            divider.take(&rows)?;
            progress(counters.progress());
            rows.clear();
        }
    }
    counters.add(&rows);
    divider.take(&rows)?;
    divider.flush()?;
    drop(divider);
    let schema = super::schema(&options, kind, &counters)?;
    let rows = counters.rows();
    let (files, deletes) = fold::write(&options, &schema, plan, &spill.into_divided(), rows, progress)?;
    let over = Some(below.id.clone());
    let manifest = Manifest::new(&options.name, over, schema, files, deletes, options.metadata.clone());
    manifest.write(&options.output)?;
    Ok(Built { manifest, rows })
}
