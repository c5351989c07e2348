//! A patch made of changes that a server collected over a table.
//!
//! Deliberately absent: conversion. Values arrive in the table's codec.

use super::counters::{Counters, Progress};
use super::error::BuildError;
use super::fold::{self, Built};
use super::options::{Duplicates, Options};
use super::rows::{Kind, Rows};
use super::schema::schema;
use super::spill::Spill;

/// A key with its value in stored form, or `None` if the key is deleted; or why the changes end early.
pub type Change<V> = Result<(u64, Option<V>), String>;

/// Writes a patch of `changes`, about `expected` of them, over [`Options::over`] to the output folder of
/// `options`, whose inputs and columns are ignored. The last change of a key wins.
///
/// # Errors
/// There is no table below, the changes end with an error, a value's width differs from the table's, or as
/// for [`super::build`].
pub fn patch<V: AsRef<[u8]>>(
    options: &Options,
    expected: u64,
    changes: impl IntoIterator<Item = Change<V>>,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Built, BuildError> {
    let below = options.over.as_ref();
    let below = below.ok_or_else(|| {
        BuildError::Options("a patch needs a table below it: say which one it is over".into())
    })?;
    let options = Options { duplicates: Duplicates::Last, ..options.clone() };
    options.prepare()?;
    let plan = options.plan(expected);
    let kind = Kind { codec: below.schema.codec, patch: true };
    let spill = Spill::create(&options.scratch(), plan, options.memory_bytes)?;
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
    let schema = schema(&options, kind, &counters)?;
    fold::write(&options, schema, plan, &spill.into_divided(), counters.rows(), progress)
}
