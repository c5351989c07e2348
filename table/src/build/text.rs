//! CSV and JSON lines: one piece per file, read from front to back.
//!
//! A vector is several number columns, or one column (field) with numbers between brackets, commas, semicolons or spaces (a JSON array).
//!
//! What is deliberately absent: more than one thread per file. Who has much data has it in several files, or in Parquet.

use super::rows::{Kind, Rows, Shape, Stop, Take, TextForm};
use super::{CodecName, Options, rows::Format};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Bytes of the longest line.
const LINE_MAX: u64 = 64 << 20;
/// Rows that are looked at to estimate how many there are.
const SAMPLE: usize = 1000;

/// Looks at the first rows: what the values are, and about how many rows there will be.
pub(super) fn open(
    options: &Options,
    file: &Path,
    format: Format,
    length: u64,
) -> Result<(Shape, u64), String> {
    let mut sample = Sample::default();
    let read = match format {
        Format::Csv => sample_csv(options, file, &mut sample),
        _ => sample_json(options, file, &mut sample),
    };
    read?;
    let per_row = (sample.bytes / sample.rows.max(1)).max(1);
    Ok((sample.shape.unwrap_or(Shape::Bytes), length / per_row))
}

#[derive(Default)]
struct Sample {
    rows: u64,
    bytes: u64,
    /// Of the first row with a value.
    shape: Option<Shape>,
}

/// Whether a single text column holds vectors: only if a codec for vectors was asked for.
fn wants_vectors(options: &Options) -> bool {
    let below = options.over.as_ref().and_then(|below| below.schema.codec.dimension());
    options.codec.map_or(below.is_some(), |codec| codec != CodecName::Raw)
}

// CSV.

struct Columns {
    key: usize,
    operation: Option<usize>,
    values: Vec<usize>,
}

fn csv_reader(options: &Options, file: &Path) -> Result<(csv::Reader<File>, Columns), String> {
    let mut reader = csv::Reader::from_path(file).map_err(|error| error.to_string())?;
    let names = reader.byte_headers().map_err(|error| error.to_string())?.clone();
    let place = |name: &String| {
        let found = names.iter().position(|column| column == name.as_bytes());
        found.ok_or_else(|| {
            let names: Vec<_> = names.iter().map(String::from_utf8_lossy).collect();
            format!("there is no column {name:?}; there are {}", names.join(", "))
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

fn sample_csv(options: &Options, file: &Path, sample: &mut Sample) -> Result<(), String> {
    let (mut reader, columns) = csv_reader(options, file)?;
    let begin = reader.position().byte();
    let mut record = csv::ByteRecord::new();
    for _ in 0..SAMPLE {
        if !reader.read_byte_record(&mut record).map_err(|error| error.to_string())? {
            break;
        }
        sample.rows += 1;
        if sample.shape.is_none() && !deletes(columns.operation.and_then(|column| record.get(column))) {
            sample.shape = Some(match columns.values.as_slice() {
                [only] if wants_vectors(options) => {
                    let mut vector = Vec::new();
                    numbers(record.get(*only).unwrap_or_default(), &mut vector)?;
                    Shape::Vector { dimension: vector.len() as u32 }
                }
                [_] => Shape::Bytes,
                several => Shape::Vector { dimension: several.len() as u32 },
            });
        }
    }
    sample.bytes = reader.position().byte() - begin;
    Ok(())
}

fn deletes(operation: Option<&[u8]>) -> bool {
    operation.is_some_and(|text| text.eq_ignore_ascii_case(b"delete") || text.eq_ignore_ascii_case(b"d"))
}

pub(super) fn read_csv(options: &Options, file: &Path, kind: Kind, take: &mut Take<'_>) -> Result<(), Stop> {
    let (mut reader, columns) = csv_reader(options, file)?;
    let (mut rows, mut record) = (Rows::default(), csv::ByteRecord::new());
    let (mut vector, mut position) = (Vec::new(), 0);
    while reader.read_byte_record(&mut record).map_err(|error| error.to_string())? {
        let line = record.position().map_or(0, csv::Position::line);
        csv_row(options, &columns, &record, kind, &mut vector, &mut rows)
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

fn csv_row(
    options: &Options,
    columns: &Columns,
    record: &csv::ByteRecord,
    kind: Kind,
    vector: &mut Vec<f32>,
    rows: &mut Rows,
) -> Result<(), String> {
    let field = |column: usize| record.get(column).ok_or_else(|| format!("column {column} is missing"));
    let key = key_of(field(columns.key)?)?;
    let delete = match columns.operation {
        Some(column) => rows.push_operation(&String::from_utf8_lossy(field(column)?))?,
        None => false,
    };
    if !delete {
        if kind.codec.dimension().is_none() {
            push_text(options.text, field(columns.values[0])?, rows)?;
        } else {
            vector.clear();
            for &column in &columns.values {
                numbers(field(column)?, vector)?;
            }
            kind.codec.encode(vector, &mut rows.values).map_err(|error| format!("key {key}: {error}"))?;
        }
    }
    rows.end_row(key);
    Ok(())
}

/// A key in decimal digits; negative ones by their bits, as 64-bit signed integers.
fn key_of(text: &[u8]) -> Result<u64, String> {
    let text = String::from_utf8_lossy(text);
    let text = text.trim();
    text.parse::<u64>()
        .or_else(|_| text.parse::<i64>().map(|key| key as u64))
        .map_err(|_| format!("the key {text:?} is no integer of 64 bits"))
}

fn push_text(form: TextForm, text: &[u8], rows: &mut Rows) -> Result<(), String> {
    match form {
        TextForm::Text => rows.push_bytes(text),
        TextForm::Hex => {
            let text = String::from_utf8_lossy(text);
            let bytes = crate::hex::decode(&text).ok_or_else(|| format!("{text:?} is not hexadecimal"))?;
            rows.push_bytes(&bytes)
        }
    }
}

fn numbers(text: &[u8], out: &mut Vec<f32>) -> Result<(), String> {
    let text = String::from_utf8_lossy(text);
    let separator = |c: char| matches!(c, '[' | ']' | ',' | ';') || c.is_whitespace();
    for word in text.split(separator).filter(|word| !word.is_empty()) {
        out.push(word.parse().map_err(|_| format!("{word:?} is no number"))?);
    }
    Ok(())
}

// JSON lines.

struct Lines {
    input: BufReader<File>,
    line: String,
    number: u64,
}

impl Lines {
    fn open(file: &Path) -> Result<Self, String> {
        let file = File::open(file).map_err(|error| error.to_string())?;
        Ok(Self { input: BufReader::with_capacity(1 << 20, file), line: String::new(), number: 0 })
    }

    /// The next line that is not empty, decoded, and the bytes it took.
    fn next(&mut self) -> Result<Option<(Value, u64)>, String> {
        let mut bytes = 0;
        loop {
            self.line.clear();
            self.number += 1;
            let read = (&mut self.input).take(LINE_MAX).read_line(&mut self.line);
            let length = read.map_err(|error| format!("line {}: {error}", self.number))? as u64;
            bytes += length;
            match length {
                0 => return Ok(None),
                LINE_MAX => return Err(format!("line {}: longer than {LINE_MAX} bytes", self.number)),
                _ if self.line.trim().is_empty() => {}
                _ => {
                    let value = serde_json::from_str(&self.line);
                    return Ok(Some((
                        value.map_err(|error| format!("line {}: {error}", self.number))?,
                        bytes,
                    )));
                }
            }
        }
    }
}

fn sample_json(options: &Options, file: &Path, sample: &mut Sample) -> Result<(), String> {
    let mut lines = Lines::open(file)?;
    for _ in 0..SAMPLE {
        let Some((row, bytes)) = lines.next()? else { break };
        sample.rows += 1;
        sample.bytes += bytes;
        let operation = options.operation.as_ref().and_then(|name| row.get(name)).and_then(Value::as_str);
        if sample.shape.is_none() && !deletes(operation.map(str::as_bytes)) {
            let mut values = values_of(options, &row)?;
            sample.shape = Some(match (values.next(), values.next()) {
                (Some(Value::Array(numbers)), None) => Shape::Vector { dimension: numbers.len() as u32 },
                (Some(Value::String(_)), None) => Shape::Bytes,
                (Some(_), rest) => {
                    Shape::Vector { dimension: 1 + u32::from(rest.is_some()) + values.count() as u32 }
                }
                (None, _) => return Err("line 1: there is no field for the value".into()),
            });
        }
    }
    Ok(())
}

/// The fields of the values, in the order asked for, else in the order of their names.
fn values_of<'a>(
    options: &'a Options,
    row: &'a Value,
) -> Result<Box<dyn Iterator<Item = &'a Value> + 'a>, String> {
    let Value::Object(fields) = row else { return Err("the line is no JSON object".into()) };
    if options.values.is_empty() {
        let other = |name: &String| name != &options.key && Some(name) != options.operation.as_ref();
        return Ok(Box::new(fields.iter().filter(move |(name, _)| other(name)).map(|(_, value)| value)));
    }
    if let Some(missing) = options.values.iter().find(|name| !fields.contains_key(*name)) {
        return Err(format!("there is no field {missing:?}"));
    }
    Ok(Box::new(options.values.iter().filter_map(|name| fields.get(name))))
}

pub(super) fn read_json(options: &Options, file: &Path, kind: Kind, take: &mut Take<'_>) -> Result<(), Stop> {
    let mut lines = Lines::open(file)?;
    let (mut rows, mut vector) = (Rows::default(), Vec::new());
    while let Some((row, bytes)) = lines.next()? {
        json_row(options, &row, kind, &mut vector, &mut rows)
            .map_err(|what| format!("line {}: {what}", lines.number))?;
        rows.source_bytes += bytes;
        if rows.is_full() {
            take(&rows)?;
            rows.clear();
        }
    }
    Ok(take(&rows)?)
}

fn json_row(
    options: &Options,
    row: &Value,
    kind: Kind,
    vector: &mut Vec<f32>,
    rows: &mut Rows,
) -> Result<(), String> {
    let key = match row.get(&options.key) {
        Some(Value::Number(number)) => number
            .as_u64()
            .or_else(|| number.as_i64().map(|key| key as u64))
            .ok_or_else(|| format!("the key {number} is no integer of 64 bits"))?,
        Some(Value::String(text)) => key_of(text.as_bytes())?,
        Some(other) => return Err(format!("the key {other} is no integer")),
        None => return Err(format!("there is no field {:?}", options.key)),
    };
    let delete = match &options.operation {
        Some(name) => rows.push_operation(row.get(name).and_then(Value::as_str).unwrap_or_default())?,
        None => false,
    };
    if !delete {
        json_value(options, row, kind, vector, rows).map_err(|what| format!("key {key}: {what}"))?;
    }
    rows.end_row(key);
    Ok(())
}

fn json_value(
    options: &Options,
    row: &Value,
    kind: Kind,
    vector: &mut Vec<f32>,
    rows: &mut Rows,
) -> Result<(), String> {
    vector.clear();
    for value in values_of(options, row)? {
        match value {
            Value::String(text) if kind.codec.dimension().is_none() => {
                return push_text(options.text, text.as_bytes(), rows);
            }
            Value::Array(numbers) => {
                for number in numbers {
                    vector.push(number_of(number)?);
                }
            }
            number => vector.push(number_of(number)?),
        }
    }
    kind.codec.encode(vector, &mut rows.values).map_err(|error| error.to_string())
}

fn number_of(value: &Value) -> Result<f32, String> {
    value.as_f64().map(|number| number as f32).ok_or_else(|| format!("{value} is no number"))
}
