//! Building a table folder from files: rows are read, divided over the parts in a temporary file, and laid
//! out part by part.
//!
//! **Invariant: Whole when named.** The manifest is written last, so an interrupted build leaves no table.
//!
//! Memory is bounded by [`Options::memory_bytes`] (buffers) plus one part per thread, whatever the size of
//! the input. The same inputs in the same order give the same files.
//!
//! Deliberately absent: more than one machine, and updating a table in place. A patch is built like a base,
//! over a base's id.
//!
//! Reading order: `options`, `rows` (what every input becomes), `inputs` with `parquet`, `csv` and `json`
//! (the readers), `schema` (what the table will be), `spill` (dividing), `fold` (laying out and writing);
//! `merge` takes its rows from layers and `patch` from a server instead.

mod counters;
mod csv;
mod error;
mod fold;
mod inputs;
mod json;
mod merge;
mod options;
mod parquet;
mod patch;
mod rows;
mod schema;
mod spill;
mod text;
mod threads;

pub use counters::Progress;
pub use error::BuildError;
pub use fold::Built;
pub use merge::merge;
pub use options::{CodecName, DefaultRow, Duplicates, Options, TextForm};
pub use patch::{Change, patch};

use counters::Counters;
use inputs::Inputs;
use rows::{Kind, Rows};
use spill::Spill;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Builds a base, or a patch if [`Options::over`] is given. Any thread may call `progress` at any time.
///
/// # Errors
/// See [`BuildError`].
pub fn build(options: &Options, progress: &(dyn Fn(Progress) + Sync)) -> Result<Built, BuildError> {
    options.prepare()?;
    let inputs = inputs::open(options)?;
    let plan = options.plan(inputs.rows_expected);
    let kind = schema::kind(options, inputs.shape)?;
    let spill = Spill::create(&options.scratch(), plan, options.memory_bytes / options.threads())?;
    let counters = Counters::new(inputs.bytes_total);
    read_all(options, &inputs, kind, &spill, &counters, progress)?;

    let schema = schema::schema(options, kind, &counters)?;
    fold::write(options, schema, plan, &spill.into_divided(), counters.rows(), progress)
}

/// Reads every piece of every input, as many at once as there are threads.
fn read_all(
    options: &Options,
    inputs: &Inputs,
    kind: Kind,
    spill: &Spill,
    counters: &Counters,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<(), BuildError> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), BuildError> {
        let mut divider = spill.divider(kind);
        while let Some(piece) = inputs.pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            divider.begin(piece.number);
            let mut take = |rows: &Rows| {
                counters.add(rows);
                divider.take(rows)?;
                progress(counters.progress());
                Ok(())
            };
            inputs::read(options, piece, kind, &mut take)?;
            divider.flush()?;
        }
        Ok(())
    };
    threads::in_threads(options.threads().min(inputs.pieces.len()), work, &|| {
        next.store(inputs.pieces.len(), Ordering::Relaxed);
    })
}
