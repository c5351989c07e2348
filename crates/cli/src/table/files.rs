//! Tables as folders: build, merge, inspect, verify. These commands ask no cluster.

use super::progress::Bar;
use crate::{outcome, output};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use quoin_table::build::{self, Built, CodecName, DefaultRow, Duplicates, Options, TextForm};
use quoin_table::{Layer, Manifest};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A build.
#[derive(Args)]
pub(crate) struct Build {
    /// Name of the table
    name: String,
    /// Input files, named .parquet, .csv, .jsonl or .ndjson, in order: their rows are later than those of
    /// earlier files
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    input: Vec<PathBuf>,
    /// Number of files of the table; a patch has as many as its base
    #[arg(long, default_value_t = 1, value_name = "N")]
    shards: u32,
    /// Folder to make [default: the name of the table]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Column of the keys: 64- or 32-bit integers; signed ones are read as unsigned with the same bits
    #[arg(long, default_value = "key", value_name = "COLUMN")]
    key: String,
    /// Columns of the values [default: all others]
    #[arg(long, value_delimiter = ',', value_name = "COLUMN,...")]
    values: Vec<String>,
    /// Encoding of stored values [default: raw for bytes and text, f32 for numbers]
    #[arg(long, value_enum)]
    codec: Option<CodecArgument>,
    /// Read text values of CSV and JSON as hexadecimal digits
    #[arg(long)]
    hex: bool,
    /// Allow values of any width, even if all have the same width now
    #[arg(long)]
    variable: bool,
    /// Which row counts if a key occurs more than once
    #[arg(long, value_enum, default_value_t = DuplicatesArgument::Last)]
    duplicates: DuplicatesArgument,
    /// Build a patch over the table, or the patch, in this folder
    #[arg(long, value_name = "FOLDER")]
    over: Option<PathBuf>,
    /// Column that says "delete" in the rows of keys that the patch deletes
    #[arg(long, requires = "over", value_name = "COLUMN")]
    operation: Option<String>,
    /// Value of absent keys: numbers separated by commas, or hexadecimal digits for raw bytes [default: that
    /// of the base, or zeros]
    #[arg(long, value_name = "ROW")]
    default_row: Option<String>,
    /// Text to keep in the manifest; repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    metadata: Vec<String>,
    #[command(flatten)]
    effort: Effort,
}

/// Resources that a build may use.
#[derive(Args)]
pub(crate) struct Effort {
    /// Folder for temporary files, as large as the uncompressed data [default: the output folder]
    #[arg(long, value_name = "FOLDER")]
    scratch: Option<PathBuf>,
    /// Memory for buffers, in MiB
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    memory: usize,
    /// Number of threads [default: one per processor]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

#[derive(Clone, Copy, ValueEnum)]
enum CodecArgument {
    Raw,
    F32,
    F16,
    Q8,
}

#[derive(Clone, Copy, ValueEnum)]
enum DuplicatesArgument {
    Last,
    First,
    Error,
}

/// A merge.
#[derive(Args)]
pub(crate) struct Merge {
    /// Folder of the base
    base: PathBuf,
    /// Folders of the patches, oldest first
    #[arg(required = true)]
    patches: Vec<PathBuf>,
    /// Folder to make
    #[arg(long, value_name = "FOLDER")]
    output: PathBuf,
    /// Text to keep in the manifest; repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    metadata: Vec<String>,
    #[command(flatten)]
    effort: Effort,
}

/// An inspection.
#[derive(Args)]
pub(crate) struct Inspect {
    /// Folder of the table
    folder: PathBuf,
    /// Show the value of this key
    #[arg(long)]
    key: Option<u64>,
    /// Print the manifest, which is JSON
    #[arg(long)]
    json: bool,
}

/// A check.
#[derive(Args)]
pub(crate) struct Verify {
    /// Folders of tables
    #[arg(required = true)]
    folders: Vec<PathBuf>,
}

pub(super) fn build(arguments: Build) -> Result<()> {
    let over = arguments.over.as_deref().map(Manifest::read).transpose()?;
    let output = arguments.output.unwrap_or_else(|| arguments.name.replace(['/', ':'], "-").into());
    let mut options = Options::new(&arguments.name, arguments.input, output);
    options.shards = arguments.shards;
    options.key = arguments.key;
    options.values = arguments.values;
    options.codec = arguments.codec.map(|codec| match codec {
        CodecArgument::Raw => CodecName::Raw,
        CodecArgument::F32 => CodecName::F32,
        CodecArgument::F16 => CodecName::F16,
        CodecArgument::Q8 => CodecName::Q8,
    });
    options.text = if arguments.hex { TextForm::Hex } else { TextForm::Text };
    options.variable = arguments.variable;
    options.duplicates = match arguments.duplicates {
        DuplicatesArgument::Last => Duplicates::Last,
        DuplicatesArgument::First => Duplicates::First,
        DuplicatesArgument::Error => Duplicates::Error,
    };
    options.over = over;
    options.operation = arguments.operation;
    options.default_row = arguments.default_row.as_deref().map(default_row).transpose()?;
    metadata(&mut options, &arguments.metadata)?;
    arguments.effort.apply(&mut options);
    let bar = Bar::new();
    let built = build::build(&options, &|progress| bar.show(progress));
    report(&bar, &options, built)
}

/// Hexadecimal digits alone are bytes; anything else must be a vector of numbers.
fn default_row(text: &str) -> Result<DefaultRow> {
    if let Some(bytes) = quoin_table::hex::decode(text) {
        return Ok(DefaultRow::Bytes(bytes));
    }
    let numbers: Result<Vec<f32>, _> = text.split(',').map(|number| number.trim().parse()).collect();
    let bad =
        || format!("--default-row {text:?} is neither hexadecimal digits nor numbers separated by commas");
    Ok(DefaultRow::Vector(numbers.with_context(bad)?))
}

fn metadata(options: &mut Options, pairs: &[String]) -> Result<()> {
    for pair in pairs {
        let Some((name, value)) = pair.split_once('=') else {
            bail!("--metadata {pair:?} is not NAME=VALUE")
        };
        options.metadata.insert(name.into(), value.into());
    }
    Ok(())
}

impl Effort {
    pub(super) fn apply(self, options: &mut Options) {
        options.scratch = self.scratch;
        options.memory_bytes = self.memory << 20;
        options.threads = self.threads.unwrap_or(0);
    }
}

pub(super) fn report(bar: &Bar, options: &Options, built: Result<Built, build::BuildError>) -> Result<()> {
    bar.end();
    let Built { manifest, rows } = built?;
    let seconds = bar.elapsed().as_secs_f64();
    let kind = if manifest.over.is_some() { "patch" } else { "table" };
    writeln!(
        std::io::stdout(),
        "{kind} {} ({}) in {}: {} keys, {} deleted, {} bytes in {} files, {rows} rows in {seconds:.1} s, {:.2} M rows/s",
        manifest.name,
        manifest.id,
        options.output.display(),
        manifest.count,
        manifest.deleted,
        manifest.bytes(),
        manifest.all_files().count(),
        rows as f64 / seconds / 1e6,
    )?;
    Ok(())
}

pub(super) fn merge(arguments: Merge) -> Result<()> {
    let name = Manifest::read(&arguments.base)?.name;
    let mut options = Options::new(&name, Vec::new(), arguments.output);
    metadata(&mut options, &arguments.metadata)?;
    arguments.effort.apply(&mut options);
    let bar = Bar::new();
    let built = build::merge(&options, &arguments.base, &arguments.patches, &|progress| bar.show(progress));
    report(&bar, &options, built)
}

pub(super) fn inspect(arguments: &Inspect) -> Result<()> {
    let manifest = Manifest::read(&arguments.folder)?;
    if let Some(key) = arguments.key {
        return show_key(&arguments.folder, key);
    }
    if arguments.json {
        return output::json(&serde_json::to_value(&manifest)?);
    }
    let mut rows = vec![
        vec!["name".into(), manifest.name.clone()],
        vec!["id".into(), manifest.id.clone()],
        vec!["over".into(), manifest.over.clone().unwrap_or_else(|| "nothing: a base".into())],
        vec!["values".into(), manifest.schema.describe()],
        vec!["keys".into(), manifest.count.to_string()],
        vec!["deleted".into(), manifest.deleted.to_string()],
        vec!["bytes".into(), manifest.bytes().to_string()],
    ];
    rows.extend(
        manifest.metadata.iter().map(|(name, value)| vec![format!("metadata {name}"), value.clone()]),
    );
    output::table(&["what", "value"], &rows)?;
    let files: Vec<Vec<String>> = manifest
        .all_files()
        .map(|file| {
            let sum =
                file.digest.map_or_else(|| format!("{:016x}", file.checksum), |digest| digest.to_string());
            vec![file.name.clone(), file.count.to_string(), file.bytes.to_string(), sum]
        })
        .collect();
    output::table(&["file", "keys", "bytes", "digest"], &files)
}

fn show_key(folder: &Path, key: u64) -> Result<()> {
    let layer = Layer::open(folder, quoin_table::Options::default())?;
    if layer.deletes().is_some_and(|deletes| deletes.get(key).is_some()) {
        return outcome::refuse(format!("key {key} is deleted by this patch"));
    }
    let Some(stored) = layer.values().get(key) else {
        return outcome::refuse(format!("key {key} is not in {}", folder.display()));
    };
    let codec = layer.values().schema().codec;
    layer.check_read()?;
    let Some(dimension) = codec.dimension() else {
        writeln!(std::io::stdout(), "{}", output::text(stored))?;
        return Ok(());
    };
    let mut bytes = vec![0; dimension as usize * 4];
    codec.decode(stored, &mut bytes);
    let numbers: Vec<String> = bytes
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]).to_string())
        .collect();
    writeln!(std::io::stdout(), "{}", numbers.join(","))?;
    Ok(())
}

pub(super) fn verify(arguments: &Verify) -> Result<()> {
    let mut damaged = 0;
    for folder in &arguments.folders {
        match Layer::open_foreign(folder, quoin_table::Options::default()) {
            Ok(layer) => {
                let manifest = layer.manifest();
                let by = if manifest.format == 1 { " (by checksums: format 1 has no digests)" } else { "" };
                writeln!(std::io::stdout(), "{}: {} keys, whole{by}", folder.display(), manifest.count)?;
            }
            Err(error) => {
                damaged += 1;
                writeln!(std::io::stdout(), "{error}")?;
            }
        }
    }
    if damaged > 0 {
        return outcome::refuse(format!("{damaged} of {} folders are damaged", arguments.folders.len()));
    }
    Ok(())
}
