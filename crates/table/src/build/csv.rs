//! CSV with a header line: one piece per file, read from front to back.
//!
//! A vector is several number columns, or one column of numbers separated by commas, semicolons or spaces,
//! with or without brackets.
//!
//! Deliberately absent: more than one thread per file. Large data is in several files, or in Parquet.

use super::inputs::Seen;
use super::options::Options;
use super::rows::{Kind, Rows, Shape, Stop, Take};
use super::text::{self, Sample};
use std::fs::File;
use std::path::Path;

struct Columns {
    key: usize,
    operation: Option<usize>,
    values: Vec<usize>,
}

fn reader(options: &Options, file: &Path) -> Result<(csv::Reader<File>, Columns), String> {
    let mut reader = csv::Reader::from_path(file).map_err(|error| error.to_string())?;
    let names = reader.byte_headers().map_err(|error| error.to_string())?.clone();
    let place = |name: &String| {
        let found = names.iter().position(|column| column == name.as_bytes());
        found.ok_or_else(|| {
            let names: Vec<_> = names.iter().map(String::from_utf8_lossy).collect();
            format!("there is no column {name:?}; the columns are {}", names.join(", "))
        })
    };
    let key = place(&options.key)?;
    let operation = options.operation.as_ref().map(place).transpose()?;
    let values = if options.values.is_empty() {
        (0..names.len()).filter(|&column| column != key && Some(column) != operation).collect()
    } else {
        options.values.iter().map(place).collect::<Result<Vec<_>, _>>()?
    };
    if values.is_empty() {
        return Err("there is no column for the values".into());
    }
    Ok((reader, Columns { key, operation, values }))
}

/// Looks at the first rows: the values' shape, and an estimate of the number of rows.
pub(super) fn open(options: &Options, file: &Path, length: u64) -> Result<Seen, String> {
    let mut sample = Sample::default();
    let (mut reader, columns) = reader(options, file)?;
    let begin = reader.position().byte();
    let mut record = csv::ByteRecord::new();
    for _ in 0..text::SAMPLE {
        if !reader.read_byte_record(&mut record).map_err(|error| error.to_string())? {
            break;
        }
        sample.rows += 1;
        if sample.shape.is_none() && !text::deletes(columns.operation.and_then(|column| record.get(column))) {
            sample.shape = Some(shape(options, &columns, &record)?);
        }
    }
    sample.bytes = reader.position().byte() - begin;
    Ok(sample.extrapolate(length))
}

fn shape(options: &Options, columns: &Columns, record: &csv::ByteRecord) -> Result<Shape, String> {
    Ok(match columns.values.as_slice() {
        [only] if text::wants_vectors(options) => {
            let mut vector = Vec::new();
            text::push_numbers(record.get(*only).unwrap_or_default(), &mut vector)?;
            Shape::Vector { dimension: vector.len() as u32 }
        }
        [_] => Shape::Bytes,
        several => Shape::Vector { dimension: several.len() as u32 },
    })
}

/// Reads the file chunk by chunk.
pub(super) fn read(options: &Options, file: &Path, kind: Kind, take: &mut Take<'_>) -> Result<(), Stop> {
    let (mut reader, columns) = reader(options, file)?;
    let (mut rows, mut record) = (Rows::default(), csv::ByteRecord::new());
    let (mut vector, mut position) = (Vec::new(), 0);
    while reader.read_byte_record(&mut record).map_err(|error| error.to_string())? {
        let line = record.position().map_or(0, csv::Position::line);
        push_row(options, &columns, &record, kind, &mut vector, &mut rows)
            .map_err(|what| format!("line {line}: {what}"))?;
        if rows.is_full() {
            rows.source_bytes = reader.position().byte() - position;
            position = reader.position().byte();
            take(&rows)?;
            rows.clear();
        }
    }
    rows.source_bytes = reader.position().byte() - position;
    Ok(take(&rows)?)
}

fn push_row(
    options: &Options,
    columns: &Columns,
    record: &csv::ByteRecord,
    kind: Kind,
    vector: &mut Vec<f32>,
    rows: &mut Rows,
) -> Result<(), String> {
    let field = |column: usize| record.get(column).ok_or_else(|| format!("column {column} is missing"));
    let key = text::key(field(columns.key)?)?;
    let delete = match columns.operation {
        Some(column) => rows.push_operation(&String::from_utf8_lossy(field(column)?))?,
        None => false,
    };
    if !delete {
        if kind.codec.dimension().is_none() {
            text::push_bytes(options.text, field(columns.values[0])?, rows)?;
        } else {
            vector.clear();
            for &column in &columns.values {
                text::push_numbers(field(column)?, vector)?;
            }
            kind.codec.encode(vector, &mut rows.values).map_err(|error| format!("key {key}: {error}"))?;
        }
    }
    rows.end_row(key);
    Ok(())
}
