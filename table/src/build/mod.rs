//! Building a table folder from files: rows are read, divided over parts on the disk, and each part is laid out alone.
//!
//! **Invariant.** Memory is bounded by [`Options::memory_bytes`] (buffers) and one part per thread, whatever the input's size; the
//! same inputs in the same order give the same files. The manifest comes last: a build that was stopped leaves no table.
//!
//! What is deliberately absent: more than one machine, and updating a table in place. A patch is built like a base, over its id.
//!
//! Reading order: `rows` (what all inputs become), `parquet` and `text` (the inputs), `spill` (the division), `fold` (the parts); `merge` and
//! `stored` take their rows from layers and from a server instead.

mod fold;
mod merge;
mod parquet;
mod rows;
mod spill;
mod stored;
mod text;

pub use merge::merge;
pub use rows::TextForm;
pub use stored::{Change, patch};

use crate::codec::Codec;
use crate::error::{FileError, TableError};
use crate::format::{Layout, Schema, WIDTH_MAX};
use crate::manifest::{Manifest, check_name};
use crate::writer::{LayoutError, Plan};
use rows::{Counters, Kind, Shape};
use spill::Spill;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is to be built.
#[derive(Clone, Debug)]
pub struct Options {
    /// The table's name.
    pub name: String,
    /// Files ending in `.parquet`, `.csv`, `.jsonl` or `.ndjson`; later ones win over earlier ones where the last wins.
    pub inputs: Vec<PathBuf>,
    /// The folder to make; it must not have a manifest yet.
    pub output: PathBuf,
    /// Files of the table. A patch has its base's.
    pub shards: u32,
    /// The column (or field) of the keys.
    pub key: String,
    /// The columns of the values; empty: all but the key and the operation.
    pub values: Vec<String>,
    /// How values are stored; `None`: as the input suggests.
    pub codec: Option<CodecName>,
    /// How plain bytes are written in text.
    pub text: TextForm,
    /// Store plain bytes of one width as if widths varied, so that patches may bring others.
    pub variable: bool,
    /// What is done with a key that is there more than once.
    pub duplicates: Duplicates,
    /// A patch: the manifest that lies below it.
    pub over: Option<Manifest>,
    /// A patch: the column that says `delete` (or `d`) for keys that go.
    pub operation: Option<String>,
    /// What a lookup gives for an absent key: a vector, or bytes.
    pub default_row: Option<DefaultRow>,
    /// Free.
    pub metadata: BTreeMap<String, String>,
    /// Where rows are divided; the output folder's parent if `None`.
    pub scratch: Option<PathBuf>,
    /// Bytes of buffers.
    pub memory_bytes: usize,
    /// Threads; 0: one per processor.
    pub threads: usize,
}

impl Options {
    /// The defaults for a table of this name.
    pub fn new(name: &str, inputs: Vec<PathBuf>, output: PathBuf) -> Self {
        Self {
            name: name.into(),
            inputs,
            output,
            shards: 1,
            key: "key".into(),
            values: Vec::new(),
            codec: None,
            text: TextForm::Text,
            variable: false,
            duplicates: Duplicates::Last,
            over: None,
            operation: None,
            default_row: None,
            metadata: BTreeMap::new(),
            scratch: None,
            memory_bytes: 256 << 20,
            threads: 0,
        }
    }

    fn threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }
}

/// A codec whose dimension the input will say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecName {
    /// Plain bytes.
    Raw,
    /// Vectors of f32.
    F32,
    /// Vectors of f16.
    F16,
    /// Row-quantized vectors.
    Q8,
}

impl CodecName {
    fn with(self, dimension: u32) -> Codec {
        match self {
            Self::Raw => Codec::Raw,
            Self::F32 => Codec::F32 { dimension },
            Self::F16 => Codec::F16 { dimension },
            Self::Q8 => Codec::Q8 { dimension },
        }
    }
}

/// A default row as a person gives it.
#[derive(Clone, Debug, PartialEq)]
pub enum DefaultRow {
    /// As it is stored.
    Bytes(Vec<u8>),
    /// To be encoded by the table's codec.
    Vector(Vec<f32>),
}

/// What is done with a key that is there more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplicates {
    /// The last row counts, in the order of the inputs.
    #[default]
    Last,
    /// The first row counts.
    First,
    /// The build ends.
    Error,
}

/// Why nothing was built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// An input cannot be used.
    #[error("{}: {what}", file.display())]
    Input {
        /// Which.
        file: PathBuf,
        /// What is wrong, with the row and the value.
        what: String,
    },
    /// What was asked for contradicts itself.
    #[error("{0}")]
    Options(String),
    /// A key is there twice, which was to be an error.
    #[error("key {0} is there more than once: clean the input, or choose which row wins (last, first)")]
    Duplicate(u64),
    /// Rows cannot be divided on the disk.
    #[error("{}: {source}", file.display())]
    Scratch {
        /// Where.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A shard cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The manifest cannot be written, or a folder to merge is refused.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Changes that were to become a patch are not to be had, or not to be stored.
    #[error("{0}")]
    Changes(String),
    /// Keys cannot be laid out.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// How far a build is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Rows are read and divided.
    Reading {
        /// So far.
        rows: u64,
        /// Of the input's bytes, so far.
        bytes: u64,
        /// All of them.
        bytes_total: u64,
    },
    /// Parts are laid out.
    Writing {
        /// So far.
        parts: u64,
        /// All of them.
        parts_total: u64,
        /// Rows that were read.
        rows: u64,
    },
}

/// What was built.
#[derive(Clone, Debug)]
pub struct Built {
    /// The manifest, as written.
    pub manifest: Manifest,
    /// Rows read.
    pub rows: u64,
}

/// Builds a base, or a patch where [`Options::over`] is there. `progress` is called from time to time, from any thread.
///
/// # Errors
/// See [`BuildError`]. The output folder then has no manifest.
pub fn build(options: &Options, progress: &(dyn Fn(Progress) + Sync)) -> Result<Built, BuildError> {
    check(options)?;
    std::fs::create_dir_all(&options.output).map_err(|source| scratch_error(&options.output, source))?;
    let inputs = rows::open(options)?;
    let plan = plan(options, inputs.rows_expected);
    let kind = kind(options, inputs.shape)?;
    let scratch = options.scratch.clone().unwrap_or_else(|| options.output.clone());
    let spill = Spill::create(&scratch, plan, options.memory_bytes / options.threads())?;
    let counters = Counters::new(inputs.bytes_total);
    read_all(options, &inputs, kind, &spill, &counters, progress)?;

    let schema = schema(options, kind, &counters)?;
    let divided = spill.into_divided();
    let rows = counters.rows();
    let (files, deletes) = fold::write(options, &schema, plan, &divided, rows, progress)?;
    let over = options.over.as_ref().map(|below| below.id.clone());
    let manifest = Manifest::new(&options.name, over, schema, files, deletes, options.metadata.clone());
    manifest.write(&options.output)?;
    Ok(Built { manifest, rows })
}

fn scratch_error(file: &Path, source: std::io::Error) -> BuildError {
    BuildError::Scratch { file: file.into(), source }
}

fn check(options: &Options) -> Result<(), BuildError> {
    check_name(&options.name).map_err(BuildError::Options)?;
    if options.inputs.is_empty() {
        return Err(BuildError::Options("there is no input file".into()));
    }
    if options.output.join(crate::manifest::MANIFEST).exists() {
        let output = options.output.display();
        return Err(BuildError::Options(format!("{output} has a table already: choose another folder")));
    }
    if options.operation.is_some() && options.over.is_none() {
        return Err(BuildError::Options("only a patch has operations: say over which table".into()));
    }
    if !(1..=crate::format::SHARDS_MAX).contains(&options.shards) {
        return Err(BuildError::Options(format!("{} shards: 1 to 65536", options.shards)));
    }
    Ok(())
}

fn plan(options: &Options, rows_expected: u64) -> Plan {
    Plan::new(rows_expected, options.over.as_ref().map_or(options.shards, |below| below.shards))
}

/// What each row's value becomes: decided before the first row is read.
fn kind(options: &Options, shape: Shape) -> Result<Kind, BuildError> {
    let below = options.over.as_ref().map(|below| below.schema.codec);
    let named = |codec: Codec| match codec {
        Codec::Raw => CodecName::Raw,
        Codec::F32 { .. } => CodecName::F32,
        Codec::F16 { .. } => CodecName::F16,
        Codec::Q8 { .. } => CodecName::Q8,
    };
    let wanted = options.codec.or(below.map(named));
    let codec = match (wanted, shape) {
        (None | Some(CodecName::Raw), Shape::Bytes) => Codec::Raw,
        (None, Shape::Vector { dimension }) => Codec::F32 { dimension },
        (Some(CodecName::Raw), Shape::Vector { .. }) => {
            return Err(BuildError::Options(
                "the values are vectors of numbers: choose f32, f16 or q8".into(),
            ));
        }
        (Some(_), Shape::Bytes) => {
            return Err(BuildError::Options("the values are not vectors of numbers: choose raw".into()));
        }
        (Some(name), Shape::Vector { dimension }) => name.with(dimension),
    };
    if let Some(below) = below.filter(|&below| below != codec) {
        return Err(BuildError::Options(format!(
            "the input has {codec:?}, the table below the patch {below:?}"
        )));
    }
    Ok(Kind { codec, patch: options.over.is_some() })
}

/// Reads every piece of every input, as many at once as there are threads.
fn read_all(
    options: &Options,
    inputs: &rows::Inputs,
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
            let mut take = |rows: &rows::Rows| {
                counters.add(rows);
                divider.take(rows)?;
                progress(counters.progress());
                Ok(())
            };
            rows::read(options, piece, kind, &mut take)?;
            divider.flush()?;
        }
        Ok(())
    };
    in_threads(options.threads().min(inputs.pieces.len()), work, &|| {
        next.store(inputs.pieces.len(), Ordering::Relaxed);
    })
}

/// Runs `work` in `threads` threads; the first error is returned, after `stop` has told the others.
fn in_threads<E: Send>(
    threads: usize,
    work: impl Fn() -> Result<(), E> + Sync,
    stop: &(dyn Fn() + Sync),
) -> Result<(), E> {
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.max(1))
            .map(|_| {
                scope.spawn(|| {
                    let result = work();
                    if result.is_err() {
                        stop();
                    }
                    result
                })
            })
            .collect();
        let mut outcome = Ok(());
        for handle in handles {
            // All are waited for; the first error is kept.
            outcome = outcome.and(handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        outcome
    })
}

/// The schema, now that all widths are known.
fn schema(options: &Options, kind: Kind, counters: &Counters) -> Result<Schema, BuildError> {
    let below = options.over.as_ref().map(|below| &below.schema);
    let mut schema = match (kind.codec, below.map(|below| below.layout)) {
        (Codec::Raw, Some(Layout::Fixed { width })) => Schema::fixed(Codec::Raw, width),
        (Codec::Raw, Some(Layout::Variable { .. })) => Schema::variable(counters.inline()),
        (Codec::Raw, None) => {
            match counters.single_width().filter(|&width| !options.variable && width <= WIDTH_MAX) {
                Some(width) => Schema::fixed(Codec::Raw, width),
                None => Schema::variable(counters.inline()),
            }
        }
        (codec, _) => Schema::fixed(codec, 0),
    };
    schema.default_row = match &options.default_row {
        None => below.and_then(|below| below.default_row.clone()),
        Some(DefaultRow::Bytes(bytes)) => Some(bytes.clone()),
        Some(DefaultRow::Vector(vector)) => {
            let mut row = Vec::new();
            let encoded = schema.codec.encode(vector, &mut row);
            encoded.map_err(|error| BuildError::Options(format!("the default row: {error}")))?;
            Some(row)
        }
    };
    schema.check().map_err(BuildError::Options)?;
    Ok(schema)
}
