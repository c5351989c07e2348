//! Parquet: each row group is a piece; columns are read as Arrow arrays, batch by batch.
//!
//! Keys are 64- or 32-bit integers. A negative one stands for the unsigned integer with the same bits,
//! because many writers have no unsigned integers. Values are one column of binary or text; or one or several columns
//! of numbers and lists of numbers, which make one vector. Numbers become the nearest f32.
//!
//! A batch has about [`CHUNK_BYTES`], by what the file says of its rows; long values are lent from the file's
//! pages, not copied.
//!
//! Deliberately absent: conversion of other types, and nulls. Both are refused with column and row; a row that deletes its
//! key needs no value.

use super::options::Options;
use super::rows::{CHUNK_BYTES, CHUNK_ROWS, Kind, Rows, Shape, Stop, Take};
use super::text::narrow;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

type Builder = ParquetRecordBatchReaderBuilder<File>;

/// Looks at `file`: its number of row groups, the values' shape (none without rows), and the number of rows.
pub(super) fn open(options: &Options, file: &Path) -> Result<(usize, Option<Shape>, u64), String> {
    let builder = builder(file)?;
    let columns = Columns::find(options, builder.schema())?;
    let metadata = builder.metadata();
    let (groups, rows) = (metadata.num_row_groups(), metadata.file_metadata().num_rows() as u64);
    let shape = if rows == 0 { None } else { shape_of(file, builder.schema(), &columns.values)? };
    Ok((groups, shape, rows))
}

fn builder(file: &Path) -> Result<Builder, String> {
    let handle = File::open(file).map_err(|error| error.to_string())?;
    let says = |error: parquet::errors::ParquetError| error.to_string();
    let metadata = ArrowReaderMetadata::load(&handle, ArrowReaderOptions::new()).map_err(says)?;
    let fields = metadata.schema().fields().iter().map(|field| as_view(field));
    let options = ArrowReaderOptions::new().with_schema(Arc::new(Schema::new(fields.collect::<Vec<_>>())));
    let metadata = ArrowReaderMetadata::try_new(Arc::clone(metadata.metadata()), options).map_err(says)?;
    Ok(Builder::new_with_metadata(handle, metadata))
}

/// The field, read so that a value is not copied for each row that has it: a dictionary's would be.
fn as_view(field: &Field) -> Field {
    let mut data_type = field.data_type();
    if let DataType::Dictionary(_, values) = data_type {
        data_type = values;
    }
    let data_type = match data_type {
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        other => other.clone(),
    };
    Field::new(field.name(), data_type, field.is_nullable())
}

/// The columns to read, by their positions in the file.
struct Columns {
    key: usize,
    operation: Option<usize>,
    values: Vec<usize>,
}

impl Columns {
    fn find(options: &Options, schema: &Schema) -> Result<Self, String> {
        let place = |name: &String| {
            let names =
                || schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ");
            schema
                .index_of(name)
                .map_err(|_| format!("there is no column {name:?}; the columns are {}", names()))
        };
        let key = place(&options.key)?;
        let operation = options.operation.as_ref().map(place).transpose()?;
        let values = if options.values.is_empty() {
            (0..schema.fields().len()).filter(|&column| column != key && Some(column) != operation).collect()
        } else {
            options.values.iter().map(place).collect::<Result<Vec<_>, _>>()?
        };
        if values.is_empty() {
            return Err("there is no column for the values".into());
        }
        Ok(Self { key, operation, values })
    }
}

/// The shape of values in these columns; none if each list that there is is null.
fn shape_of(file: &Path, schema: &Schema, columns: &[usize]) -> Result<Option<Shape>, String> {
    use DataType::{BinaryView, FixedSizeBinary, FixedSizeList, LargeList, List, Utf8View};
    let mut dimension = 0;
    for &column in columns {
        dimension += match schema.field(column).data_type() {
            BinaryView | FixedSizeBinary(_) | Utf8View if columns.len() == 1 => {
                return Ok(Some(Shape::Bytes));
            }
            FixedSizeList(_, length) => *length as u32,
            // The type does not tell the length of the lists.
            List(_) | LargeList(_) => match first_length(file, column)? {
                Some(length) => length,
                None => return Ok(None),
            },
            number if number.is_numeric() => 1,
            _ if columns.len() > 1 => {
                let name = schema.field(column).name();
                return Err(format!("column {name:?}: {SEVERAL}"));
            }
            other => {
                return Err(format!(
                    "values of type {other} are not supported: use binary, text, numbers or lists of numbers"
                ));
            }
        };
    }
    Ok(Some(Shape::Vector { dimension }))
}

const SEVERAL: &str = "several columns make a vector only if all are numbers or lists of numbers";

/// The length of the first list that is not null.
fn first_length(file: &Path, column: usize) -> Result<Option<u32>, String> {
    let builder = builder(file)?;
    let mask = ProjectionMask::roots(builder.parquet_schema(), [column]);
    let batches =
        builder.with_projection(mask).with_batch_size(64).build().map_err(|error| error.to_string())?;
    for batch in batches {
        let batch = batch.map_err(|error| error.to_string())?;
        let lists = batch.column(0);
        let Some(row) = (0..lists.len()).find(|&row| lists.is_valid(row)) else { continue };
        return Ok(Some(match lists.data_type() {
            DataType::List(_) => lists.as_list::<i32>().value_length(row) as u32,
            _ => lists.as_list::<i64>().value_length(row) as u32,
        }));
    }
    Ok(None)
}

/// How many rows of a row group have about [`CHUNK_BYTES`] in the columns with these roots.
fn rows_at_once(builder: &Builder, group: usize, roots: &[usize], kind: Kind) -> usize {
    let (schema, group) = (builder.parquet_schema(), builder.metadata().row_group(group));
    let read = (0..group.num_columns()).filter(|leaf| roots.contains(&schema.get_column_root_idx(*leaf)));
    let bytes: u64 = read.map(|leaf| group.column(leaf).uncompressed_size().max(0) as u64).sum();
    // Numbers that are often the same take fewer bytes in the file than in memory.
    let vector = 4 * u64::from(kind.codec.dimension().unwrap_or(0));
    let per_row = (bytes / group.num_rows().max(1) as u64).max(vector).max(1);
    (CHUNK_BYTES as u64 / per_row).clamp(1, CHUNK_ROWS as u64) as usize
}

/// Reads one row group.
pub(super) fn read(
    options: &Options,
    file: &Path,
    group: usize,
    kind: Kind,
    take: &mut Take<'_>,
) -> Result<(), Stop> {
    let builder = builder(file)?;
    let columns = Columns::find(options, builder.schema())?;
    let group_bytes = builder.metadata().row_group(group).compressed_size().max(0) as u64;
    let group_rows = builder.metadata().row_group(group).num_rows().max(1) as u64;
    let roots: Vec<usize> =
        columns.values.iter().copied().chain([columns.key]).chain(columns.operation).collect();
    let at_once = rows_at_once(&builder, group, &roots, kind);
    let mask = ProjectionMask::roots(builder.parquet_schema(), roots);
    let names: Vec<String> =
        columns.values.iter().map(|&column| builder.schema().field(column).name().clone()).collect();
    let reader = builder
        .with_projection(mask)
        .with_row_groups(vec![group])
        .with_batch_size(at_once)
        .build()
        .map_err(|error| error.to_string())?;
    let (mut rows, mut first_row) = (Rows::default(), 0);
    for batch in reader {
        let batch = batch.map_err(|error| error.to_string())?;
        let at = |what: String| format!("row group {group}, rows from {first_row}: {what}");
        rows.clear();
        convert(options, &batch, &names, kind, &mut rows, take).map_err(|stop| match stop {
            Stop::Refused(what) => Stop::Refused(at(what)),
            Stop::Told => Stop::Told,
        })?;
        rows.source_bytes = group_bytes * batch.num_rows() as u64 / group_rows;
        take(&rows)?;
        first_row += batch.num_rows();
    }
    Ok(())
}

/// Appends a batch's rows; passes full chunks on.
fn convert(
    options: &Options,
    batch: &RecordBatch,
    names: &[String],
    kind: Kind,
    rows: &mut Rows,
    take: &mut Take<'_>,
) -> Result<(), Stop> {
    let column = |name: &str| -> Result<&ArrayRef, String> {
        let array = batch.column_by_name(name).ok_or_else(|| format!("there is no column {name:?}"))?;
        if array.null_count() > 0 {
            let row = (0..array.len()).find(|&row| array.is_null(row)).unwrap_or(0);
            return Err(format!("column {name:?} is null in row {row}: a table cannot hold nulls"));
        }
        Ok(array)
    };
    let keys = keys(column(&options.key)?)?;
    let operations = options.operation.as_ref().map(|name| column(name)).transpose()?;
    let arrays = names
        .iter()
        .map(|name| column_of_values(column, operations, batch, name))
        .collect::<Result<Vec<_>, _>>()?;
    let mut source = Source::new(names, &arrays)?;
    for (row, &key) in keys.iter().enumerate() {
        let delete = match operations {
            Some(operations) => rows.push_operation(text(operations, row)?)?,
            None => false,
        };
        if !delete {
            source.append(row, kind, rows).map_err(|what| format!("row {row}, key {key}: {what}"))?;
        }
        rows.end_row(key);
        if rows.is_full() && row + 1 < keys.len() {
            take(rows)?;
            rows.clear();
        }
    }
    Ok(())
}

/// A column of values. If there are operations, nulls are allowed in rows that delete.
fn column_of_values<'a>(
    column: impl Fn(&str) -> Result<&'a ArrayRef, String>,
    operations: Option<&ArrayRef>,
    batch: &'a RecordBatch,
    name: &str,
) -> Result<&'a ArrayRef, String> {
    match operations {
        None => column(name),
        Some(_) => batch.column_by_name(name).ok_or_else(|| format!("there is no column {name:?}")),
    }
}

fn keys(array: &ArrayRef) -> Result<Vec<u64>, String> {
    match array.data_type() {
        DataType::UInt64 => Ok(array.as_primitive::<UInt64Type>().values().to_vec()),
        DataType::Int64 => {
            Ok(array.as_primitive::<Int64Type>().values().iter().map(|&key| key as u64).collect())
        }
        DataType::UInt32 => {
            Ok(array.as_primitive::<UInt32Type>().values().iter().map(|&key| key.into()).collect())
        }
        DataType::Int32 => {
            Ok(array.as_primitive::<Int32Type>().values().iter().map(|&key| i64::from(key) as u64).collect())
        }
        other => Err(format!("keys of type {other} are not supported: use 64-bit or 32-bit integers")),
    }
}

fn text(array: &ArrayRef, row: usize) -> Result<&str, String> {
    match array.data_type() {
        DataType::Utf8View => Ok(array.as_string_view().value(row)),
        other => Err(format!("operations of type {other} are not supported: use text")),
    }
}

/// The value columns of one batch, and a buffer for one vector.
struct Source<'a> {
    columns: Vec<(&'a str, &'a ArrayRef, Values<'a>)>,
    vector: Vec<f32>,
}

/// One column of values.
enum Values<'a> {
    Bytes(Box<dyn Fn(usize) -> &'a [u8] + 'a>),
    Floats(&'a [f32]),
    Doubles(&'a [f64]),
    /// Other numbers, which fit f32 after rounding.
    Numbers(Box<dyn Fn(usize) -> f32 + 'a>),
    Lists(Lists<'a>),
}

struct Lists<'a> {
    /// The range of a row's numbers in all of them.
    range: Box<dyn Fn(usize) -> Range<usize> + 'a>,
    array: &'a ArrayRef,
    numbers: Box<Values<'a>>,
}

impl<'a> Source<'a> {
    fn new(names: &'a [String], arrays: &[&'a ArrayRef]) -> Result<Self, String> {
        let columns =
            names.iter().zip(arrays).map(|(name, array)| Ok((&**name, *array, Values::new(array)?)));
        Ok(Self { columns: columns.collect::<Result<_, String>>()?, vector: Vec::new() })
    }

    fn append(&mut self, row: usize, kind: Kind, rows: &mut Rows) -> Result<(), String> {
        if let Some((name, ..)) = self.columns.iter().find(|(_, array, _)| array.is_null(row)) {
            return Err(format!("column {name:?} is null: only a row that deletes its key needs no value"));
        }
        if let [(_, _, Values::Bytes(value))] = self.columns.as_slice() {
            return rows.push_bytes(value(row));
        }
        self.vector.clear();
        for (name, _, values) in &self.columns {
            let took = values.numbers(row..row + 1, &mut self.vector);
            took.map_err(|what| format!("column {name:?}: {what}"))?;
        }
        kind.codec.encode(&self.vector, &mut rows.values).map_err(|error| error.to_string())
    }
}

impl<'a> Values<'a> {
    fn new(array: &'a ArrayRef) -> Result<Self, String> {
        Ok(match array.data_type() {
            DataType::BinaryView => {
                let array = array.as_binary_view();
                Self::Bytes(Box::new(move |row| array.value(row)))
            }
            DataType::FixedSizeBinary(_) => {
                let array = array.as_fixed_size_binary();
                Self::Bytes(Box::new(move |row| array.value(row)))
            }
            DataType::Utf8View => {
                let array = array.as_string_view();
                Self::Bytes(Box::new(move |row| array.value(row).as_bytes()))
            }
            DataType::List(_) => {
                let lists = array.as_list::<i32>();
                let ends = lists.value_offsets();
                Self::lists(lists.values(), move |row| ends[row] as usize..ends[row + 1] as usize)?
            }
            DataType::LargeList(_) => {
                let lists = array.as_list::<i64>();
                let ends = lists.value_offsets();
                Self::lists(lists.values(), move |row| ends[row] as usize..ends[row + 1] as usize)?
            }
            DataType::FixedSizeList(_, length) => {
                let (lists, length) = (array.as_fixed_size_list(), *length as usize);
                let first = lists.value_offset_at(0);
                Self::lists(lists.values(), move |row| first + row * length..first + (row + 1) * length)?
            }
            _ => Self::of_numbers(array)?,
        })
    }

    fn of_numbers(array: &'a ArrayRef) -> Result<Self, String> {
        Ok(match array.data_type() {
            DataType::Float16 => Self::converted::<Float16Type>(array, f32::from),
            DataType::Float32 => Self::Floats(array.as_primitive::<Float32Type>().values()),
            DataType::Float64 => Self::Doubles(array.as_primitive::<Float64Type>().values()),
            DataType::Int8 => Self::converted::<Int8Type>(array, f32::from),
            DataType::Int16 => Self::converted::<Int16Type>(array, f32::from),
            DataType::Int32 => Self::converted::<Int32Type>(array, |number| number as f32),
            DataType::Int64 => Self::converted::<Int64Type>(array, |number| number as f32),
            DataType::UInt8 => Self::converted::<UInt8Type>(array, f32::from),
            DataType::UInt16 => Self::converted::<UInt16Type>(array, f32::from),
            DataType::UInt32 => Self::converted::<UInt32Type>(array, |number| number as f32),
            DataType::UInt64 => Self::converted::<UInt64Type>(array, |number| number as f32),
            other => {
                return Err(format!("numbers of type {other} are not supported: use integers or floats"));
            }
        })
    }

    fn converted<T: ArrowPrimitiveType>(array: &'a ArrayRef, convert: fn(T::Native) -> f32) -> Self {
        let values = array.as_primitive::<T>().values();
        Self::Numbers(Box::new(move |row| convert(values[row])))
    }

    fn lists(array: &'a ArrayRef, range: impl Fn(usize) -> Range<usize> + 'a) -> Result<Self, String> {
        let numbers = Box::new(Self::of_numbers(array)?);
        Ok(Self::Lists(Lists { range: Box::new(range), array, numbers }))
    }

    fn numbers(&self, rows: Range<usize>, out: &mut Vec<f32>) -> Result<(), String> {
        match self {
            Self::Floats(floats) => out.extend_from_slice(&floats[rows]),
            Self::Doubles(doubles) => {
                for &number in &doubles[rows] {
                    out.push(narrow(number)?);
                }
            }
            Self::Numbers(number) => out.extend(rows.map(number)),
            Self::Lists(Lists { range, array, numbers }) => {
                let range = range(rows.start);
                if array.null_count() > 0 && range.clone().any(|at| array.is_null(at)) {
                    return Err("a list contains a null: a vector cannot hold nulls".into());
                }
                numbers.numbers(range, out)?;
            }
            Self::Bytes(_) => return Err(SEVERAL.into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use arrow_array::{BinaryArray, UInt64Array};
    use parquet::arrow::ArrowWriter;

    /// A batch had 8,192 rows, whatever their bytes: gigabytes, and more than 2 GiB failed.
    #[test]
    fn a_batch_of_long_values_has_few_rows() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("in.parquet");
        let values: Vec<Vec<u8>> = (0..64).map(|n| vec![n; 300_000]).collect();
        let batch = RecordBatch::try_from_iter([
            ("key", Arc::new(UInt64Array::from_iter_values(0..64)) as ArrayRef),
            ("value", Arc::new(BinaryArray::from_iter_values(values)) as ArrayRef),
        ])
        .expect("columns of one length");
        let handle = File::create(&file).expect("the folder is ours");
        let mut writer = ArrowWriter::try_new(handle, batch.schema(), None).expect("a schema");
        writer.write(&batch).expect("there is room");
        writer.close().expect("there is room");

        let kind = |codec| Kind { codec, patch: false };
        let builder = builder(&file).expect("just written");
        let rows = |roots: &[usize], codec| rows_at_once(&builder, 0, roots, kind(codec));
        assert_eq!(rows(&[0, 1], Codec::Raw), CHUNK_BYTES / 300_008);
        assert_eq!(rows(&[0], Codec::Raw), CHUNK_ROWS);
        assert_eq!(rows(&[0], Codec::F16 { dimension: 1 << 16 }), 16);
        let mut seen = 0;
        let options = Options::new("t", vec![file.clone()], folder.path().into());
        let mut take = |rows: &Rows| {
            seen += rows.keys.len();
            assert!(rows.values.len() <= CHUNK_BYTES + 300_000);
            assert!(rows.source_bytes <= CHUNK_BYTES as u64 + 300_000, "of one batch: {}", rows.source_bytes);
            Ok(())
        };
        assert!(read(&options, &file, 0, kind(Codec::Raw), &mut take).is_ok());
        assert_eq!(seen, 64);
    }
}
