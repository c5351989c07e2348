//! What every input becomes: chunks of keys with their values in stored form.
//!
//! Deliberately absent: guessing. A row that does not fit the shape of the first row is an error that names
//! the row.

use crate::codec::Codec;
use crate::schema::VALUE_BYTES_MAX;
use std::fmt;

/// The maximum number of rows in a chunk.
pub(super) const CHUNK_ROWS: usize = 8 << 10;
/// A chunk of this many bytes of values is full; the last row may exceed it.
pub(super) const CHUNK_BYTES: usize = 4 << 20;

/// What the values of an input are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Bytes,
    Vector { dimension: u32 },
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes => f.write_str("bytes"),
            Self::Vector { dimension } => write!(f, "vectors of {dimension} numbers"),
        }
    }
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
    /// A patch: whether each row deletes its key. Otherwise empty.
    pub(super) deletes: Vec<bool>,
    pub(super) values: Vec<u8>,
    /// The end of each row's value in `values`.
    pub(super) ends: Vec<u32>,
    /// Bytes of the input that these rows took, approximately.
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

    /// Ends a row whose value has been appended to `values`.
    pub(super) fn end_row(&mut self, key: u64) {
        self.keys.push(key);
        self.ends.push(self.values.len() as u32);
    }

    pub(super) fn value(&self, row: usize) -> &[u8] {
        let begin = if row == 0 { 0 } else { self.ends[row - 1] as usize };
        &self.values[begin..self.ends[row] as usize]
    }

    /// Appends plain bytes to `values`.
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) -> Result<(), String> {
        if bytes.len() > VALUE_BYTES_MAX {
            return Err(format!("a value of {} bytes exceeds {VALUE_BYTES_MAX}", bytes.len()));
        }
        self.values.extend_from_slice(bytes);
        Ok(())
    }

    /// Parses a row's operation; true if the row deletes its key.
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

/// Takes chunks from a reader.
pub(super) type Take<'a> = dyn FnMut(&Rows) -> Result<(), ()> + 'a;

/// Why a reader stopped early.
pub(super) enum Stop {
    /// The input is invalid.
    Refused(String),
    /// [`Take`] failed.
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
