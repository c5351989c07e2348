//! What to build.

use super::error::BuildError;
use crate::codec::Codec;
use crate::manifest::{MANIFEST, Manifest, check_name};
use crate::part::Plan;
use crate::schema::SHARDS_MAX;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What to build.
#[derive(Clone, Debug)]
pub struct Options {
    /// The table's name.
    pub name: String,
    /// Files that end in `.parquet`, `.csv`, `.jsonl` or `.ndjson`. Their order decides which of several rows
    /// is the last.
    pub inputs: Vec<PathBuf>,
    /// The folder to create; it must not contain a manifest.
    pub output: PathBuf,
    /// The number of shards. A patch has as many as its base.
    pub shards: u32,
    /// The column (or field) of the keys.
    pub key: String,
    /// The columns of the values. Empty: all except the key and the operation.
    pub values: Vec<String>,
    /// How values are stored. `None`: as the base's for a patch, otherwise plain bytes or f32, as the input
    /// suggests.
    pub codec: Option<CodecName>,
    /// How plain bytes are written in text.
    pub text: TextForm,
    /// Stores plain bytes of one width as if widths varied, so that patches may bring other widths.
    pub variable: bool,
    /// Which row wins if a key occurs more than once.
    pub duplicates: Duplicates,
    /// A patch: the manifest of the layer to build over.
    pub over: Option<Manifest>,
    /// A patch: the column that says `delete` (or `d`) for keys to delete.
    pub operation: Option<String>,
    /// What a lookup returns for an absent key. `None`: the base's for a patch, otherwise zeros or nothing.
    pub default_row: Option<DefaultRow>,
    /// Goes into the manifest.
    pub metadata: BTreeMap<String, String>,
    /// The folder of the temporary file, which takes the uncompressed data. `None`: the output folder.
    pub scratch: Option<PathBuf>,
    /// Memory for buffers, in bytes, all threads together.
    pub memory_bytes: usize,
    /// The number of threads; 0: one per processor.
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

    pub(super) fn threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }

    pub(super) fn scratch(&self) -> PathBuf {
        self.scratch.clone().unwrap_or_else(|| self.output.clone())
    }

    /// The plan for about `rows` rows.
    pub(super) fn plan(&self, rows: u64) -> Plan {
        Plan::new(rows, self.over.as_ref().map_or(self.shards, |below| below.shards))
    }

    /// Checks all options but the inputs, and creates the output folder.
    pub(super) fn prepare(&self) -> Result<(), BuildError> {
        check_name(&self.name).map_err(BuildError::Options)?;
        if self.output.join(MANIFEST).exists() {
            let output = self.output.display();
            return Err(BuildError::Options(format!(
                "{output} already contains a table: choose another folder"
            )));
        }
        if self.operation.is_some() && self.over.is_none() {
            return Err(BuildError::Options(
                "only a patch has an operation column: say which table it is over".into(),
            ));
        }
        if !(1..=SHARDS_MAX).contains(&self.shards) {
            return Err(BuildError::Options(format!("{} shards: choose 1 to {SHARDS_MAX}", self.shards)));
        }
        std::fs::create_dir_all(&self.output).map_err(|source| BuildError::scratch(&self.output, source))
    }
}

/// A codec whose dimension the input decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecName {
    /// Plain bytes.
    Raw,
    /// Vectors of f32.
    F32,
    /// Vectors of f16.
    F16,
    /// Vectors quantized by row.
    Q8,
}

impl CodecName {
    pub(super) fn of(codec: Codec) -> Self {
        match codec {
            Codec::Raw => Self::Raw,
            Codec::F32 { .. } => Self::F32,
            Codec::F16 { .. } => Self::F16,
            Codec::Q8 { .. } => Self::Q8,
        }
    }

    pub(super) fn with(self, dimension: u32) -> Codec {
        match self {
            Self::Raw => Codec::Raw,
            Self::F32 => Codec::F32 { dimension },
            Self::F16 => Codec::F16 { dimension },
            Self::Q8 => Codec::Q8 { dimension },
        }
    }
}

/// A default row as people write it.
#[derive(Clone, Debug, PartialEq)]
pub enum DefaultRow {
    /// In stored form.
    Bytes(Vec<u8>),
    /// To be encoded by the table's codec.
    Vector(Vec<f32>),
}

/// Which row wins if a key occurs more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplicates {
    /// The last row, in the order of the inputs.
    #[default]
    Last,
    /// The first row, in the order of the inputs.
    First,
    /// The build fails.
    Error,
}

/// How plain bytes are written in CSV and JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextForm {
    /// As UTF-8 text.
    #[default]
    Text,
    /// Two hexadecimal digits per byte.
    Hex,
}
