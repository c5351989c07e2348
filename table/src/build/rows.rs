//! What every input becomes: chunks of keys with their values as they are stored.
//!
//! **Invariant.** A chunk has at most [`CHUNK_ROWS`] rows, and about [`CHUNK_BYTES`] bytes plus one row. A piece is read by one thread from
//! front to back; pieces are numbered in the order of the inputs.
//!
//! What is deliberately absent: guessing. A row that does not fit the first row's shape is an error with its place.

use super::{BuildError, Options, Progress, parquet, text};
use crate::codec::Codec;
use crate::format::VALUE_BYTES_MAX;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) const CHUNK_ROWS: usize = 8 << 10;
pub(super) const CHUNK_BYTES: usize = 4 << 20;
/// Lengths up to this are counted one by one, to choose the inline capacity.
const LENGTHS: usize = 256;

/// How plain bytes are written in CSV and JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextForm {
    /// As they are, UTF-8.
    #[default]
    Text,
    /// Two hexadecimal digits per byte.
    Hex,
}

/// What the values of an input are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Bytes,
    Vector { dimension: u32 },
}

/// What each row's value becomes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) codec: Codec,
    pub(super) patch: bool,
}

/// A chunk of rows.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) keys: Vec<u64>,
    /// Patches: the rows that delete their key. Otherwise empty.
    pub(super) deletes: Vec<bool>,
    pub(super) values: Vec<u8>,
    /// Where each value ends in `values`.
    pub(super) ends: Vec<u32>,
    /// Bytes of the input that these rows took, about.
    pub(super) source_bytes: u64,
}

impl Rows {
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.deletes.clear();
        self.values.clear();
        self.ends.clear();
        self.source_bytes = 0;
    }

    pub(super) fn is_full(&self) -> bool {
        self.keys.len() >= CHUNK_ROWS || self.values.len() >= CHUNK_BYTES
    }

    /// Ends the row whose value was appended to `values`.
    pub(super) fn end_row(&mut self, key: u64) {
        self.keys.push(key);
        self.ends.push(self.values.len() as u32);
    }

    pub(super) fn value(&self, row: usize) -> &[u8] {
        let begin = if row == 0 { 0 } else { self.ends[row - 1] as usize };
        &self.values[begin..self.ends[row] as usize]
    }

    /// Appends plain bytes.
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) -> Result<(), String> {
        if bytes.len() > VALUE_BYTES_MAX {
            return Err(format!("a value of {} bytes, above {VALUE_BYTES_MAX}", bytes.len()));
        }
        self.values.extend_from_slice(bytes);
        Ok(())
    }

    /// True if the row is to delete its key, by what its operation column says.
    pub(super) fn push_operation(&mut self, operation: &str) -> Result<bool, String> {
        let delete = match operation.to_ascii_lowercase().as_str() {
            "delete" | "d" => true,
            "upsert" | "u" | "" => false,
            _ => return Err(format!("the operation {operation:?} is neither upsert nor delete")),
        };
        self.deletes.push(delete);
        Ok(delete)
    }
}

/// Where a piece's rows are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Format {
    /// One row group.
    Parquet(usize),
    Csv,
    JsonLines,
}

/// What one thread reads in one go.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) number: u32,
    pub(super) file: PathBuf,
    pub(super) format: Format,
}

/// All inputs, looked at.
pub(super) struct Inputs {
    pub(super) pieces: Vec<Piece>,
    pub(super) shape: Shape,
    /// Known for Parquet, estimated for text.
    pub(super) rows_expected: u64,
    pub(super) bytes_total: u64,
}

/// Looks at all inputs: formats, pieces, the first row's shape.
pub(super) fn open(options: &Options) -> Result<Inputs, BuildError> {
    let mut inputs = Inputs { pieces: Vec::new(), shape: Shape::Bytes, rows_expected: 0, bytes_total: 0 };
    for (number, file) in options.inputs.iter().enumerate() {
        let refuse = |what: String| BuildError::Input { file: file.clone(), what };
        let length = std::fs::metadata(file).map_err(|error| refuse(error.to_string()))?.len();
        let (shape, rows) = match extension(file) {
            Some("parquet") => parquet::open(options, file, &mut inputs.pieces).map_err(refuse)?,
            Some(format @ ("csv" | "jsonl" | "ndjson")) => {
                let format = if format == "csv" { Format::Csv } else { Format::JsonLines };
                inputs.pieces.push(Piece { number: 0, file: file.clone(), format });
                text::open(options, file, format, length).map_err(refuse)?
            }
            _ => return Err(refuse("unknown format: .parquet, .csv, .jsonl and .ndjson are read".into())),
        };
        if number == 0 {
            inputs.shape = shape;
        } else if shape != inputs.shape {
            return Err(refuse(format!("its values are {shape:?}, the first input's {:?}", inputs.shape)));
        }
        inputs.rows_expected += rows;
        inputs.bytes_total += length;
    }
    for (number, piece) in inputs.pieces.iter_mut().enumerate() {
        piece.number = number as u32;
    }
    Ok(inputs)
}

fn extension(file: &Path) -> Option<&str> {
    file.extension()?.to_str()
}

/// Reads a piece chunk by chunk.
pub(super) fn read(
    options: &Options,
    piece: &Piece,
    kind: Kind,
    take: &mut dyn FnMut(&Rows) -> Result<(), BuildError>,
) -> Result<(), BuildError> {
    let mut failed = None;
    let mut take = |rows: &Rows| take(rows).map_err(|error| failed = Some(error));
    let read = match piece.format {
        Format::Parquet(group) => parquet::read(options, &piece.file, group, kind, &mut take),
        Format::Csv => text::read_csv(options, &piece.file, kind, &mut take),
        Format::JsonLines => text::read_json(options, &piece.file, kind, &mut take),
    };
    match (failed, read) {
        (Some(error), _) => Err(error),
        (None, Err(Stop::Refused(what))) => Err(BuildError::Input { file: piece.file.clone(), what }),
        (None, Ok(()) | Err(Stop::Told)) => Ok(()),
    }
}

/// Why reading ended early.
pub(super) enum Stop {
    /// The input is wrong.
    Refused(String),
    /// Whoever takes the rows wants no more.
    Told,
}

impl From<String> for Stop {
    fn from(what: String) -> Self {
        Self::Refused(what)
    }
}

impl From<()> for Stop {
    fn from((): ()) -> Self {
        Self::Told
    }
}

pub(super) type Take<'a> = dyn FnMut(&Rows) -> Result<(), ()> + 'a;

/// What all threads count together.
pub(super) struct Counters {
    rows: AtomicU64,
    bytes: AtomicU64,
    bytes_total: u64,
    /// How many values have each length; the last stands for all longer ones.
    lengths: Vec<AtomicU64>,
    /// The one width that all values have, plus 1; 0: none yet; `u64::MAX`: several.
    width: AtomicU64,
}

impl Counters {
    pub(super) fn new(bytes_total: u64) -> Self {
        Self {
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            bytes_total,
            lengths: (0..=LENGTHS + 1).map(|_| AtomicU64::new(0)).collect(),
            width: AtomicU64::new(0),
        }
    }

    pub(super) fn add(&self, rows: &Rows) {
        self.rows.fetch_add(rows.keys.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(rows.source_bytes, Ordering::Relaxed);
        let (mut begin, mut same, mut run) = (0, usize::MAX, 0u64);
        for (row, &end) in rows.ends.iter().enumerate() {
            let length = (end - begin) as usize;
            begin = end;
            if rows.deletes.get(row) == Some(&true) {
                continue;
            }
            if length == same {
                run += 1;
                continue;
            }
            self.count(same, run);
            (same, run) = (length, 1);
        }
        self.count(same, run);
    }

    fn count(&self, length: usize, run: u64) {
        if run == 0 {
            return;
        }
        self.lengths[length.min(LENGTHS + 1)].fetch_add(run, Ordering::Relaxed);
        let width = length as u64 + 1;
        let met = self.width.compare_exchange(0, width, Ordering::Relaxed, Ordering::Relaxed);
        if met.is_err_and(|seen| seen != width) {
            self.width.store(u64::MAX, Ordering::Relaxed);
        }
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    pub(super) fn progress(&self) -> Progress {
        let bytes = self.bytes.load(Ordering::Relaxed);
        Progress::Reading { rows: self.rows(), bytes, bytes_total: self.bytes_total }
    }

    /// The width of all values, if it is one.
    pub(super) fn single_width(&self) -> Option<u32> {
        match self.width.load(Ordering::Relaxed) {
            0 | u64::MAX => None,
            width => u32::try_from(width - 1).ok(),
        }
    }

    /// The inline capacity under which entries and heap are smallest, where a value in the heap counts for one more cache line.
    pub(super) fn inline(&self) -> u32 {
        let count = |length: usize| self.lengths[length].load(Ordering::Relaxed);
        let all: u64 = (0..=LENGTHS + 1).map(count).sum();
        let cost = |capacity: usize| {
            let beyond: u64 =
                (capacity + 1..=LENGTHS).map(|length| count(length) * (length as u64 + 64)).sum();
            all * capacity as u64 + beyond
        };
        (8..=LENGTHS).step_by(4).min_by_key(|&capacity| cost(capacity)).unwrap_or(8) as u32
    }
}
