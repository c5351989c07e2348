//! JSON lines: one object per line, one piece per file, read from front to back. Empty lines are skipped.
//!
//! A vector is several number fields, or one array of numbers.
//!
//! Deliberately absent: more than one thread per file. Large data is in several files, or in Parquet.

use super::inputs::Seen;
use super::options::Options;
use super::rows::{Kind, Rows, Shape, Stop, Take};
use super::text::{self, Sample};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// A line of this many bytes or more is refused.
const LINE_MAX: u64 = 64 << 20;

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

    /// The next line that is not empty, parsed, and the number of bytes read.
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
                LINE_MAX => return Err(format!("line {}: {LINE_MAX} bytes or longer", self.number)),
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

/// Looks at the first rows: the values' shape, and an estimate of the number of rows.
pub(super) fn open(options: &Options, file: &Path, length: u64) -> Result<Seen, String> {
    let mut sample = Sample::default();
    let mut lines = Lines::open(file)?;
    for _ in 0..text::SAMPLE {
        let Some((row, bytes)) = lines.next()? else { break };
        sample.rows += 1;
        sample.bytes += bytes;
        let operation = options.operation.as_ref().and_then(|name| row.get(name)).and_then(Value::as_str);
        if sample.shape.is_none() && !text::deletes(operation.map(str::as_bytes)) {
            sample.shape =
                Some(shape(options, &row).map_err(|what| format!("line {}: {what}", lines.number))?);
        }
    }
    Ok(sample.extrapolate(length))
}

fn shape(options: &Options, row: &Value) -> Result<Shape, String> {
    let mut values = values_of(options, row)?;
    match (values.next(), values.next()) {
        (Some(Value::Array(numbers)), None) => Ok(Shape::Vector { dimension: numbers.len() as u32 }),
        (Some(Value::String(_)), None) => Ok(Shape::Bytes),
        (Some(_), rest) => {
            Ok(Shape::Vector { dimension: 1 + u32::from(rest.is_some()) + values.count() as u32 })
        }
        (None, _) => Err("there is no field for the value".into()),
    }
}

/// The value fields in the requested order, or else in the order of their names.
fn values_of<'a>(
    options: &'a Options,
    row: &'a Value,
) -> Result<Box<dyn Iterator<Item = &'a Value> + 'a>, String> {
    let Value::Object(fields) = row else { return Err("the line is not a JSON object".into()) };
    if options.values.is_empty() {
        let other = |name: &String| name != &options.key && Some(name) != options.operation.as_ref();
        return Ok(Box::new(fields.iter().filter(move |(name, _)| other(name)).map(|(_, value)| value)));
    }
    if let Some(missing) = options.values.iter().find(|name| !fields.contains_key(*name)) {
        return Err(format!("there is no field {missing:?}"));
    }
    Ok(Box::new(options.values.iter().filter_map(|name| fields.get(name))))
}

/// Reads the file chunk by chunk.
pub(super) fn read(options: &Options, file: &Path, kind: Kind, take: &mut Take<'_>) -> Result<(), Stop> {
    let mut lines = Lines::open(file)?;
    let (mut rows, mut vector) = (Rows::default(), Vec::new());
    while let Some((row, bytes)) = lines.next()? {
        push_row(options, &row, kind, &mut vector, &mut rows)
            .map_err(|what| format!("line {}: {what}", lines.number))?;
        rows.source_bytes += bytes;
        if rows.is_full() {
            take(&rows)?;
            rows.clear();
        }
    }
    Ok(take(&rows)?)
}

fn push_row(
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
            .ok_or_else(|| format!("the key {number} is not a 64-bit integer"))?,
        Some(Value::String(text)) => text::key(text.as_bytes())?,
        Some(other) => return Err(format!("the key {other} is not an integer")),
        None => return Err(format!("there is no field {:?}", options.key)),
    };
    let delete = match &options.operation {
        Some(name) => rows.push_operation(row.get(name).and_then(Value::as_str).unwrap_or_default())?,
        None => false,
    };
    if !delete {
        push_value(options, row, kind, vector, rows).map_err(|what| format!("key {key}: {what}"))?;
    }
    rows.end_row(key);
    Ok(())
}

fn push_value(
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
                return text::push_bytes(options.text, text.as_bytes(), rows);
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
    text::narrow(value.as_f64().ok_or_else(|| format!("{value} is not a number"))?)
}
