//! The inputs of a build, split into pieces. One thread reads a piece from front to back; pieces are numbered
//! in the order of the inputs.

use super::error::BuildError;
use super::options::Options;
use super::rows::{Kind, Rows, Shape, Stop};
use super::{csv, json, parquet};
use std::path::{Path, PathBuf};

/// What one thread reads at a time.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) number: u32,
    file: PathBuf,
    format: Format,
}

#[derive(Clone, Copy, Debug)]
enum Format {
    /// One row group.
    Parquet(usize),
    Csv,
    JsonLines,
}

/// All inputs, with what a look at their first rows shows.
pub(super) struct Inputs {
    pub(super) pieces: Vec<Piece>,
    /// None if no row with a value was seen.
    pub(super) shape: Option<Shape>,
    /// Exact for Parquet, estimated for text.
    pub(super) rows_expected: u64,
    pub(super) bytes_total: u64,
}

/// Looks at all inputs: their pieces, and the shape of the first row.
pub(super) fn open(options: &Options) -> Result<Inputs, BuildError> {
    if options.inputs.is_empty() {
        return Err(BuildError::Options("there is no input file".into()));
    }
    let mut inputs = Inputs { pieces: Vec::new(), shape: None, rows_expected: 0, bytes_total: 0 };
    for file in &options.inputs {
        let refuse = |what: String| BuildError::Input { file: file.clone(), what };
        let length = std::fs::metadata(file).map_err(|error| refuse(error.to_string()))?.len();
        let (formats, (shape, rows)) = look(options, file, length).map_err(refuse)?;
        for format in formats {
            let number = inputs.pieces.len() as u32;
            inputs.pieces.push(Piece { number, file: file.clone(), format });
        }
        match (inputs.shape, shape) {
            (Some(first), Some(shape)) if first != shape => {
                return Err(refuse(format!("its values are {shape}, but those of earlier inputs {first}")));
            }
            (first, shape) => inputs.shape = first.or(shape),
        }
        inputs.rows_expected += rows;
        inputs.bytes_total += length;
    }
    Ok(inputs)
}

/// What the first rows show: the values' shape, and the number of rows.
pub(super) type Seen = (Option<Shape>, u64);

/// The pieces of `file`, its shape (none without rows), and its number of rows.
fn look(options: &Options, file: &Path, length: u64) -> Result<(Vec<Format>, Seen), String> {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("parquet") => {
            let (groups, shape, rows) = parquet::open(options, file)?;
            Ok(((0..groups).map(Format::Parquet).collect(), (shape, rows)))
        }
        // Writers in parts leave an empty file where a part has no rows.
        Some("csv" | "jsonl" | "ndjson") if length == 0 => Ok((Vec::new(), (None, 0))),
        Some("csv") => Ok((vec![Format::Csv], csv::open(options, file, length)?)),
        Some("jsonl" | "ndjson") => Ok((vec![Format::JsonLines], json::open(options, file, length)?)),
        _ => Err("unknown format: .parquet, .csv, .jsonl and .ndjson are supported".into()),
    }
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
        Format::Csv => csv::read(options, &piece.file, kind, &mut take),
        Format::JsonLines => json::read(options, &piece.file, kind, &mut take),
    };
    match (failed, read) {
        (Some(error), _) => Err(error),
        (None, Err(Stop::Refused(what))) => Err(BuildError::Input { file: piece.file.clone(), what }),
        (None, Ok(()) | Err(Stop::Told)) => Ok(()),
    }
}
