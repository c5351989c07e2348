//! Arguments as numbers and options, with Redis's errors for those that are neither.

use super::keys::{Expiry, Problem};
use bytes::Bytes;

pub(super) const SYNTAX: &str = "ERR syntax error";
pub(super) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const NOT_A_FLOAT: &str = "ERR value is not a valid float";

/// An error that is the command's reply.
pub(super) fn refuse<T>(text: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::Refused(text.into()))
}

/// The error for a request with too few or too many arguments.
pub(super) fn wrong_count(command: &str) -> String {
    format!("ERR wrong number of arguments for '{command}' command")
}

/// Whether `word` is the option `name`, in any case.
pub(super) fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

pub(super) fn integer(text: &[u8]) -> Result<i64, Problem> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Problem::Refused(NOT_AN_INTEGER.into()))
}

pub(super) fn float(text: &[u8]) -> Result<f64, Problem> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse::<f64>().ok());
    parsed.filter(|number| !number.is_nan()).ok_or_else(|| Problem::Refused(NOT_A_FLOAT.into()))
}

/// The time to live that SET's and GETEX's option `word` gives with the `number` after it; `None` for another
/// option.
pub(super) fn expiry(word: &[u8], number: Option<&Bytes>, command: &str) -> Result<Option<Expiry>, Problem> {
    let (unit_ms, absolute) = match () {
        () if is(word, "ex") => (1000, false),
        () if is(word, "px") => (1, false),
        () if is(word, "exat") => (1000, true),
        () if is(word, "pxat") => (1, true),
        () => return Ok(None),
    };
    let Some(number) = number else { return refuse(SYNTAX) };
    let ms = positive_ms(number, unit_ms, command)?;
    Ok(Some(if absolute { Expiry::At(ms) } else { Expiry::In(ms) }))
}

/// A positive number of units, in milliseconds.
pub(super) fn positive_ms(number: &[u8], unit_ms: u64, command: &str) -> Result<u64, Problem> {
    u64::try_from(integer(number)?)
        .ok()
        .filter(|number| *number > 0)
        .and_then(|number| number.checked_mul(unit_ms))
        .ok_or_else(|| Problem::Refused(format!("ERR invalid expire time in '{command}' command")))
}
