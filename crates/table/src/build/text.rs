//! What CSV and JSON lines share: keys, operations, vectors and bytes in text, and the look at the first
//! rows.

use super::options::{CodecName, Options, TextForm};
use super::rows::{Rows, Shape};

/// The number of rows to look at to estimate how many there are.
pub(super) const SAMPLE: usize = 1000;

/// What the first rows show.
#[derive(Default)]
pub(super) struct Sample {
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// The shape of the first row that has a value.
    pub(super) shape: Option<Shape>,
}

impl Sample {
    /// The shape, and an estimate of the number of rows in a file of `length` bytes.
    pub(super) fn extrapolate(self, length: u64) -> (Option<Shape>, u64) {
        let per_row = (self.bytes / self.rows.max(1)).max(1);
        (self.shape, length / per_row)
    }
}

/// Whether a single text column holds vectors: only if the options or the base ask for a vector codec.
pub(super) fn wants_vectors(options: &Options) -> bool {
    let below = options.over.as_ref().and_then(|below| below.schema.codec.dimension());
    options.codec.map_or(below.is_some(), |codec| codec != CodecName::Raw)
}

/// Whether a row with this operation deletes its key.
pub(super) fn deletes(operation: Option<&[u8]>) -> bool {
    operation.is_some_and(|text| text.eq_ignore_ascii_case(b"delete") || text.eq_ignore_ascii_case(b"d"))
}

/// A key in decimal digits. A negative one stands for the unsigned integer with the same bits.
pub(super) fn key(text: &[u8]) -> Result<u64, String> {
    let text = String::from_utf8_lossy(text);
    let text = text.trim();
    text.parse::<u64>()
        .or_else(|_| text.parse::<i64>().map(|key| key as u64))
        .map_err(|_| format!("the key {text:?} is not a 64-bit integer"))
}

/// Appends plain bytes.
pub(super) fn push_bytes(form: TextForm, text: &[u8], rows: &mut Rows) -> Result<(), String> {
    match form {
        TextForm::Text => rows.push_bytes(text),
        TextForm::Hex => {
            let text = String::from_utf8_lossy(text);
            let bytes = crate::hex::decode(&text).ok_or_else(|| format!("{text:?} is not hexadecimal"))?;
            rows.push_bytes(&bytes)
        }
    }
}

/// A number as vectors hold it.
pub(super) fn narrow(number: f64) -> Result<f32, String> {
    let narrow = number as f32;
    if narrow.is_infinite() && number.is_finite() { Err(too_large(number)) } else { Ok(narrow) }
}

fn too_large(number: impl std::fmt::Display) -> String {
    format!("{number} is too large: vectors hold numbers up to {:e}", f32::MAX)
}

/// Appends the numbers in `text`, which brackets, commas, semicolons or spaces separate.
pub(super) fn push_numbers(text: &[u8], out: &mut Vec<f32>) -> Result<(), String> {
    let text = String::from_utf8_lossy(text);
    let separator = |c: char| matches!(c, '[' | ']' | ',' | ';') || c.is_whitespace();
    for word in text.split(separator).filter(|word| !word.is_empty()) {
        let number: f32 = word.parse().map_err(|_| format!("{word:?} is not a number"))?;
        if number.is_infinite() && word.bytes().any(|byte| byte.is_ascii_digit()) {
            return Err(too_large(word));
        }
        out.push(number);
    }
    Ok(())
}
