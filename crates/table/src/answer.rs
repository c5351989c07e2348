//! The values of a batch of keys, gathered into one buffer for an answer.

use crate::codec::{Codec, Form};
use crate::schema::Schema;

/// The values of a batch of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// One bit per key, set if the key was found. The first key's bit is the lowest of the first byte.
    pub found: Vec<u8>,
    /// At a fixed width: one value per key, the default row or zeros for absent keys. Otherwise: the values
    /// (or default rows) one after another.
    pub values: Vec<u8>,
    /// Where widths vary: the offset of each key's value in `values`, and the end of the last. Otherwise
    /// empty.
    pub offsets: Vec<u32>,
    /// The number of keys found.
    pub count: u32,
}

/// The values exceed the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the values have {bytes} bytes, more than the limit of {limit}: ask for fewer keys at once")]
pub struct AnswerTooLarge {
    /// The size of the values in bytes.
    pub bytes: usize,
    /// The limit in bytes.
    pub limit: usize,
}

/// Bytes per value in an answer; `None` where widths vary.
pub fn answer_width(schema: &Schema, form: Form) -> Option<usize> {
    match (form, schema.codec.dimension()) {
        (Form::F32, Some(dimension)) => Some(dimension as usize * 4),
        (Form::Stored, _) | (Form::F32, None) => schema.width().map(|width| width as usize),
    }
}

/// Writes a stored value to `out` in the requested form; `out` has exactly the value's size in that form.
#[inline]
fn write_value(codec: Codec, form: Form, stored: &[u8], out: &mut [u8]) {
    match (form, codec) {
        (Form::Stored, _) | (Form::F32, Codec::Raw) => out.copy_from_slice(stored),
        (Form::F32, codec) => codec.decode(stored, out),
    }
}

/// Gathers the values of `keys` into `answer`, at most `limit` bytes of them and never more than 4 GiB.
/// `locate` finds the keys: [`crate::Table::locate`], [`crate::Stack::locate`], or a caller's own over one of
/// them.
///
/// # Errors
/// The values exceed the limit; none has been copied then.
pub fn gather<'a>(
    schema: &Schema,
    form: Form,
    keys: &[u64],
    limit: usize,
    answer: &mut Answer,
    locate: impl FnOnce(&[u64], &mut dyn FnMut(usize, &'a [u8])),
) -> Result<(), AnswerTooLarge> {
    let limit = limit.min(u32::MAX as usize);
    answer.found.clear();
    answer.found.resize(keys.len().div_ceil(8), 0);
    answer.values.clear();
    answer.offsets.clear();
    answer.count = 0;
    match answer_width(schema, form) {
        Some(width) => {
            check_size(width.saturating_mul(keys.len()), limit)?;
            gather_fixed(schema, form, width, keys, answer, locate);
            Ok(())
        }
        None => gather_variable(schema, keys, limit, answer, locate),
    }
}

fn check_size(bytes: usize, limit: usize) -> Result<(), AnswerTooLarge> {
    if bytes > limit { Err(AnswerTooLarge { bytes, limit }) } else { Ok(()) }
}

fn gather_fixed<'a>(
    schema: &Schema,
    form: Form,
    width: usize,
    keys: &[u64],
    answer: &mut Answer,
    locate: impl FnOnce(&[u64], &mut dyn FnMut(usize, &'a [u8])),
) {
    let Answer { found, values, count, .. } = answer;
    values.resize(keys.len() * width, 0);
    locate(keys, &mut |at, stored| {
        found[at / 8] |= 1 << (at % 8);
        *count += 1;
        write_value(schema.codec, form, stored, &mut values[at * width..(at + 1) * width]);
    });
    if let Some(row) = schema.default_row.as_ref().filter(|_| *count < keys.len() as u32) {
        for at in (0..keys.len()).filter(|at| found[at / 8] >> (at % 8) & 1 == 0) {
            write_value(schema.codec, form, row, &mut values[at * width..(at + 1) * width]);
        }
    }
}

fn gather_variable<'a>(
    schema: &Schema,
    keys: &[u64],
    limit: usize,
    answer: &mut Answer,
    locate: impl FnOnce(&[u64], &mut dyn FnMut(usize, &'a [u8])),
) -> Result<(), AnswerTooLarge> {
    let Answer { found, values, offsets, count } = answer;
    let mut places: Vec<Option<&[u8]>> = vec![None; keys.len()];
    locate(keys, &mut |at, stored| places[at] = Some(stored));
    let default_row = schema.default_row.as_deref().unwrap_or_default();
    check_size(places.iter().map(|place| place.unwrap_or(default_row).len()).sum(), limit)?;
    offsets.push(0);
    for (at, place) in places.into_iter().enumerate() {
        if place.is_some() {
            found[at / 8] |= 1 << (at % 8);
            *count += 1;
        }
        values.extend_from_slice(place.unwrap_or(default_row));
        offsets.push(values.len() as u32);
    }
    Ok(())
}
