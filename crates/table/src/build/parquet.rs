//! Parquet: each row group is a piece; columns are read as Arrow arrays, batch by batch.
//!
//! Keys are 64- or 32-bit integers. A negative one stands for the unsigned integer with the same bits,
//! because many writers have no unsigned integers. Values are one column of binary, text, or lists of floats;
//! or several columns of floats, which make one vector.
//!
//! Deliberately absent: conversion of other types, and nulls. Both are refused with column and row.

use super::options::Options;
use super::rows::{CHUNK_ROWS, Kind, Rows, Shape, Stop, Take};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int32Type, Int64Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::fs::File;
use std::path::Path;

type Builder = ParquetRecordBatchReaderBuilder<File>;

/// Looks at `file`: its number of row groups, the values' shape, and the number of rows.
pub(super) fn open(options: &Options, file: &Path) -> Result<(usize, Shape, u64), String> {
    let builder = builder(file)?;
    let columns = Columns::find(options, builder.schema())?;
    let shape = match columns.values.as_slice() {
        [only] => shape_of(builder.schema().field(*only).data_type()),
        several => Ok(Some(Shape::Vector { dimension: several.len() as u32 })),
    };
    let shape = match shape? {
        Some(shape) => shape,
        // The type does not tell the length of the lists.
        None => Shape::Vector { dimension: first_length(file, columns.values[0])? },
    };
    let metadata = builder.metadata();
    Ok((metadata.num_row_groups(), shape, metadata.file_metadata().num_rows() as u64))
}

fn builder(file: &Path) -> Result<Builder, String> {
    let handle = File::open(file).map_err(|error| error.to_string())?;
    Builder::try_new(handle).map_err(|error| error.to_string())
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

fn shape_of(data_type: &DataType) -> Result<Option<Shape>, String> {
    use DataType::{Binary, FixedSizeBinary, FixedSizeList, LargeBinary, LargeList, LargeUtf8, List, Utf8};
    match data_type {
        Binary | LargeBinary | FixedSizeBinary(_) | Utf8 | LargeUtf8 => Ok(Some(Shape::Bytes)),
        DataType::Float32 | DataType::Float64 => Ok(Some(Shape::Vector { dimension: 1 })),
        FixedSizeList(_, length) => Ok(Some(Shape::Vector { dimension: *length as u32 })),
        List(_) | LargeList(_) => Ok(None),
        other => Err(format!(
            "values of type {other} are not supported: use binary, text, floats or lists of floats"
        )),
    }
}

fn first_length(file: &Path, column: usize) -> Result<u32, String> {
    let builder = builder(file)?;
    let mask = ProjectionMask::roots(builder.parquet_schema(), [column]);
    let mut reader =
        builder.with_projection(mask).with_batch_size(1).build().map_err(|error| error.to_string())?;
    let Some(batch) = reader.next().transpose().map_err(|error| error.to_string())? else { return Ok(0) };
    match batch.column(0).data_type() {
        DataType::List(_) => Ok(batch.column(0).as_list::<i32>().value_length(0) as u32),
        _ => Ok(batch.column(0).as_list::<i64>().value_length(0) as u32),
    }
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
    let roots = columns.values.iter().copied().chain([columns.key]).chain(columns.operation);
    let mask = ProjectionMask::roots(builder.parquet_schema(), roots);
    let names: Vec<String> =
        columns.values.iter().map(|&column| builder.schema().field(column).name().clone()).collect();
    let reader = builder
        .with_projection(mask)
        .with_row_groups(vec![group])
        .with_batch_size(CHUNK_ROWS)
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
    let mut source = Source::new(&arrays)?;
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

/// A column of values. If there are operations, nulls are allowed: they belong to deletes.
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
        DataType::Utf8 => Ok(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Ok(array.as_string::<i64>().value(row)),
        other => Err(format!("operations of type {other} are not supported: use text")),
    }
}

/// The value columns of one batch, and a buffer for one vector.
struct Source<'a> {
    arrays: Vec<Values<'a>>,
    vector: Vec<f32>,
}

/// One column of values.
enum Values<'a> {
    Bytes(Box<dyn Fn(usize) -> &'a [u8] + 'a>),
    Floats(&'a [f32]),
    Doubles(&'a [f64]),
    /// Lists: the range of each row's numbers, and all numbers.
    Lists(Box<dyn Fn(usize) -> std::ops::Range<usize> + 'a>, Box<Values<'a>>),
}

impl<'a> Source<'a> {
    fn new(arrays: &[&'a ArrayRef]) -> Result<Self, String> {
        let arrays = arrays.iter().map(|array| Values::new(array)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { arrays, vector: Vec::new() })
    }

    fn append(&mut self, row: usize, kind: Kind, rows: &mut Rows) -> Result<(), String> {
        if let [Values::Bytes(value)] = self.arrays.as_slice() {
            return rows.push_bytes(value(row));
        }
        self.vector.clear();
        for values in &self.arrays {
            values.numbers(row..row + 1, &mut self.vector)?;
        }
        kind.codec.encode(&self.vector, &mut rows.values).map_err(|error| error.to_string())
    }
}

impl<'a> Values<'a> {
    fn new(array: &'a ArrayRef) -> Result<Self, String> {
        Ok(match array.data_type() {
            DataType::Binary => {
                let array = array.as_binary::<i32>();
                Self::Bytes(Box::new(move |row| array.value(row)))
            }
            DataType::LargeBinary => {
                let array = array.as_binary::<i64>();
                Self::Bytes(Box::new(move |row| array.value(row)))
            }
            DataType::FixedSizeBinary(_) => {
                let array = array.as_fixed_size_binary();
                Self::Bytes(Box::new(move |row| array.value(row)))
            }
            DataType::Utf8 => {
                let array = array.as_string::<i32>();
                Self::Bytes(Box::new(move |row| array.value(row).as_bytes()))
            }
            DataType::LargeUtf8 => {
                let array = array.as_string::<i64>();
                Self::Bytes(Box::new(move |row| array.value(row).as_bytes()))
            }
            DataType::Float32 => Self::Floats(array.as_primitive::<Float32Type>().values()),
            DataType::Float64 => Self::Doubles(array.as_primitive::<Float64Type>().values()),
            DataType::List(_) => {
                let lists = array.as_list::<i32>();
                let ends = lists.value_offsets();
                let range = move |row: usize| ends[row] as usize..ends[row + 1] as usize;
                Self::Lists(Box::new(range), Box::new(Self::inner(lists.values())?))
            }
            DataType::LargeList(_) => {
                let lists = array.as_list::<i64>();
                let ends = lists.value_offsets();
                let range = move |row: usize| ends[row] as usize..ends[row + 1] as usize;
                Self::Lists(Box::new(range), Box::new(Self::inner(lists.values())?))
            }
            DataType::FixedSizeList(_, length) => {
                let (lists, length) = (array.as_fixed_size_list(), *length as usize);
                let first = lists.value_offset_at(0);
                let range = move |row: usize| first + row * length..first + (row + 1) * length;
                Self::Lists(Box::new(range), Box::new(Self::inner(lists.values())?))
            }
            other => return Err(format!("values of type {other} are not supported")),
        })
    }

    fn inner(array: &'a ArrayRef) -> Result<Self, String> {
        if array.null_count() > 0 {
            return Err("a list contains a null: a vector cannot hold nulls".into());
        }
        match array.data_type() {
            DataType::Float32 | DataType::Float64 => Self::new(array),
            other => Err(format!("lists of {other} are not supported: use lists of floats")),
        }
    }

    fn numbers(&self, rows: std::ops::Range<usize>, out: &mut Vec<f32>) -> Result<(), String> {
        match self {
            Self::Floats(floats) => out.extend_from_slice(&floats[rows]),
            Self::Doubles(doubles) => out.extend(doubles[rows].iter().map(|&number| number as f32)),
            Self::Lists(range, numbers) => numbers.numbers(range(rows.start), out)?,
            Self::Bytes(_) => return Err("several columns make a vector only if all are numbers".into()),
        }
        Ok(())
    }
}
