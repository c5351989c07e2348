//! `quoin ledger export`: all transfers with their results, as CSV or Parquet, in the order in which they
//! were recorded.
//!
//! Amounts are decimal text with all places of their currency. Parquet also has them in minor units,
//! DECIMAL(38, 0). `amount` is what was moved or set aside; `requested_amount` and the columns after it are the request, so
//! that the file can be replayed. Columns are only added, at the end.

use super::client::{client, code_name, id_text, join, kind_name};
use super::journal::{Entry, Journal};
use crate::connection::Connection;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use parquet::basic::Compression;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use quoin_core::ledger::format_amount;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Transfers per row group of Parquet.
const ROWS_PER_GROUP: usize = 128 * 1024;
/// The largest number of minor units that DECIMAL(38, 0) holds.
const DECIMAL_MAX: u128 = 10u128.pow(38) - 1;

/// An export.
#[derive(Args)]
pub(crate) struct Export {
    /// Format of the file
    #[arg(long, value_enum, default_value_t = Format::Csv)]
    format: Format,
    /// File to write, replaced if it exists [default for CSV: standard output]
    #[arg(long, short, value_name = "FILE", required_if_eq("format", "parquet"))]
    output: Option<PathBuf>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Csv,
    Parquet,
}

const TEXTS: [&str; 9] = [
    "id",
    "kind",
    "result",
    "debit_account",
    "credit_account",
    "amount",
    "released",
    "currency",
    "reference",
];

/// Columns that came later: in Parquet they follow the amount in minor units.
const MORE: [&str; 21] = [
    "debit_number",
    "credit_number",
    "requested_amount",
    "pending_id",
    "reverted_id",
    "code",
    "user_data",
    "user_data_128",
    "user_data_64",
    "user_data_32",
    "metadata",
    "timeout_ms",
    "linked",
    "balancing",
    "closing",
    "client_time_ms",
    "settle_time_ms",
    "imported",
    "requested_currency",
    "requested_debit_account",
    "requested_credit_account",
];

/// A transfer as it is written.
struct Row {
    revision: i64,
    position: i32,
    time_ms: i64,
    /// In the order of [`TEXTS`].
    texts: [String; 9],
    /// In the order of [`MORE`]; what is 0 or absent is empty, metadata is a JSON object.
    more: [String; 21],
    /// The amount in minor units; `None` if the currency is unknown or the amount too large.
    minor: Option<u128>,
}

/// Reads the journal and writes the file.
pub(super) async fn run(export: Export) -> Result<ExitCode> {
    let mut client = client(&export.connection.unbounded()).await?;
    let mut journal = Journal::open(&mut client).await?;
    let mut sink = Sink::open(export.format, export.output.as_deref())?;
    let mut count: u64 = 0;
    while let Some(entries) = journal.next().await? {
        count += entries.len() as u64;
        let rows = entries.into_iter().map(|entry| row(entry, &journal)).collect::<Result<Vec<_>>>()?;
        sink.write(rows)?;
    }
    sink.end()?;
    if let Some(path) = export.output {
        writeln!(
            std::io::stdout(),
            "{count} transfers up to revision {} in {}",
            journal.until,
            path.display()
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(entry: Entry, journal: &Journal) -> Result<Row> {
    let Entry { recorded, asked, moved, released } = entry;
    let done = recorded.code() == quoin_proto::quoin::ledger::v1::Code::Ok;
    let (debit, credit) = if done {
        (&recorded.debit_account, &recorded.credit_account)
    } else {
        (&asked.debit_account, &asked.credit_account)
    };
    let requested = join(asked.amount, asked.amount_high);
    let units = if done { moved } else { requested };
    let known = journal.accounts.get(debit).or_else(|| journal.accounts.get(credit));
    let amount = |units| known.map_or(String::new(), |account| format_amount(units, account.scale));
    let id = |id: &bytes::Bytes| if id.is_empty() { String::new() } else { id_text(id) };
    let extra = asked.extra.as_deref().cloned().unwrap_or_default();
    let account = |id| journal.accounts.get(id).map_or(String::new(), |account| account.number.clone());
    let metadata: BTreeMap<_, _> = extra.metadata.iter().collect();
    let more = [
        account(debit),
        account(credit),
        if requested > 0 { amount(requested) } else { String::new() },
        id(&asked.pending_id),
        id(&asked.reverted_id),
        unless_zero(asked.code),
        asked.user_data.clone(),
        unless_zero(join(extra.user_data_128, extra.user_data_128_high)),
        unless_zero(extra.user_data_64),
        unless_zero(extra.user_data_32),
        if metadata.is_empty() { String::new() } else { serde_json::to_string(&metadata)? },
        unless_zero(asked.timeout_ms),
        if asked.linked { "true".into() } else { String::new() },
        sides(asked.balancing_debit, asked.balancing_credit).into(),
        sides(asked.closing_debit, asked.closing_credit).into(),
        unless_zero(asked.client_time_ms),
        unless_zero(asked.settle_time_ms),
        if asked.imported { "true".into() } else { String::new() },
        asked.currency.clone(),
        id(&asked.debit_account),
        id(&asked.credit_account),
    ];
    Ok(Row {
        revision: i64::try_from(recorded.revision)?,
        position: i32::try_from(recorded.position)?,
        time_ms: i64::try_from(recorded.time_ms)?,
        texts: [
            id(&asked.id),
            kind_name(asked.kind()),
            code_name(recorded.code()),
            id(debit),
            id(credit),
            amount(units),
            if released > 0 { amount(released) } else { String::new() },
            known.map_or(asked.currency, |account| account.currency.clone()),
            asked.reference,
        ],
        more,
        minor: Some(units).filter(|units| known.is_some() && *units <= DECIMAL_MAX),
    })
}

fn unless_zero(number: impl Into<u128>) -> String {
    match number.into() {
        0 => String::new(),
        number => number.to_string(),
    }
}

fn sides(debit: bool, credit: bool) -> &'static str {
    match (debit, credit) {
        (false, false) => "",
        (true, false) => "debit",
        (false, true) => "credit",
        (true, true) => "both",
    }
}

enum Sink {
    Csv(Box<dyn Write>),
    Parquet(Box<SerializedFileWriter<BufWriter<File>>>, Vec<Row>),
}

impl Sink {
    fn open(format: Format, path: Option<&Path>) -> Result<Self> {
        let create = |path: &Path| File::create(path).with_context(|| format!("writing {}", path.display()));
        match (format, path) {
            (Format::Csv, path) => {
                let mut out: Box<dyn Write> = match path {
                    Some(path) => Box::new(BufWriter::new(create(path)?)),
                    None => Box::new(BufWriter::new(std::io::stdout())),
                };
                writeln!(out, "revision,position,time_ms,{},{}", TEXTS.join(","), MORE.join(","))?;
                Ok(Self::Csv(out))
            }
            (Format::Parquet, path) => {
                let file = BufWriter::new(create(path.context("Parquet needs --output FILE")?)?);
                let texts = |names: &[&str]| -> String {
                    names.iter().map(|name| format!("REQUIRED BYTE_ARRAY {name} (UTF8);")).collect()
                };
                let (texts, more) = (texts(&TEXTS), texts(&MORE));
                let schema = format!(
                    "message transfers {{ REQUIRED INT64 revision; REQUIRED INT32 position; \
                     REQUIRED INT64 time (TIMESTAMP(MILLIS,true)); {texts} \
                     OPTIONAL FIXED_LEN_BYTE_ARRAY(16) amount_minor (DECIMAL(38,0)); {more} }}"
                );
                let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
                let schema = Arc::new(parse_message_type(&schema)?);
                let writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
                Ok(Self::Parquet(Box::new(writer), Vec::new()))
            }
        }
    }

    fn write(&mut self, rows: Vec<Row>) -> Result<()> {
        match self {
            Self::Csv(out) => {
                for Row { revision, position, time_ms, texts, more, .. } in rows {
                    let cells: Vec<String> = texts.iter().chain(&more).map(|text| csv_cell(text)).collect();
                    writeln!(out, "{revision},{position},{time_ms},{}", cells.join(","))?;
                }
            }
            Self::Parquet(writer, waiting) => {
                waiting.extend(rows);
                if waiting.len() >= ROWS_PER_GROUP {
                    write_group(writer, &std::mem::take(waiting))?;
                }
            }
        }
        Ok(())
    }

    fn end(self) -> Result<()> {
        match self {
            Self::Csv(mut out) => out.flush()?,
            Self::Parquet(mut writer, waiting) => {
                if !waiting.is_empty() {
                    write_group(&mut writer, &waiting)?;
                }
                writer.close()?;
            }
        }
        Ok(())
    }
}

/// Writes a row group, column by column.
fn write_group(writer: &mut SerializedFileWriter<BufWriter<File>>, rows: &[Row]) -> Result<()> {
    let mut group = writer.next_row_group()?;
    let mut text = 0;
    while let Some(mut column) = group.next_column()? {
        match column.untyped() {
            ColumnWriter::Int32ColumnWriter(column) => {
                let positions: Vec<i32> = rows.iter().map(|row| row.position).collect();
                column.write_batch(&positions, None, None)?;
            }
            ColumnWriter::Int64ColumnWriter(column) => {
                let first = column.get_descriptor().name() == "revision";
                let numbers: Vec<i64> =
                    rows.iter().map(|row| if first { row.revision } else { row.time_ms }).collect();
                column.write_batch(&numbers, None, None)?;
            }
            ColumnWriter::ByteArrayColumnWriter(column) => {
                let cell =
                    |row: &Row| row.texts.iter().chain(&row.more).nth(text).map(|text| text.as_str().into());
                let cells: Vec<ByteArray> = rows.iter().filter_map(cell).collect();
                column.write_batch(&cells, None, None)?;
                text += 1;
            }
            ColumnWriter::FixedLenByteArrayColumnWriter(column) => {
                let bytes = |units: u128| FixedLenByteArray::from(units.to_be_bytes().to_vec());
                let numbers: Vec<FixedLenByteArray> =
                    rows.iter().filter_map(|row| row.minor).map(bytes).collect();
                let levels: Vec<i16> = rows.iter().map(|row| i16::from(row.minor.is_some())).collect();
                column.write_batch(&numbers, Some(&levels), None)?;
            }
            _ => unreachable!("the schema has no column of another type"),
        }
        column.close()?;
    }
    group.close()?;
    Ok(())
}

/// A cell of CSV (RFC 4180), quoted where necessary.
fn csv_cell(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    #[test]
    fn cells_are_quoted_where_necessary() {
        assert_eq!(csv_cell("plain"), "plain");
        assert_eq!(csv_cell("a,\"b\""), "\"a,\"\"b\"\"\"");
    }

    #[test]
    fn parquet_reads_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("transfers.parquet");
        let mut sink = Sink::open(Format::Parquet, Some(&path)).unwrap();
        let row = |number: i64, minor| Row {
            revision: number,
            position: 7,
            time_ms: 1_000,
            texts: TEXTS.map(str::to_owned),
            more: MORE.map(str::to_owned),
            minor,
        };
        sink.write(vec![row(1, Some(1250)), row(2, None)]).unwrap();
        sink.end().unwrap();
        let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[1].get_long(0).unwrap(), rows[0].get_int(1).unwrap()), (2, 7));
        assert_eq!(rows[0].get_string(8).unwrap(), "amount");
        assert_eq!(rows[0].get_decimal(12).unwrap().data()[14..], [4, 226]);
        assert_eq!(rows[0].get_string(16).unwrap(), "pending_id");
        assert!(rows[1].get_decimal(12).is_err(), "no amount where none is known");
    }
}
