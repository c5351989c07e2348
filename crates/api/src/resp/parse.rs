//! Arguments as numbers and options, with Redis's errors for those that are neither.

use super::keys::{Expiry, Problem};
use bytes::Bytes;
use quoin_core::kv;

pub(super) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub(super) const SYNTAX: &str = "ERR syntax error";
pub(super) const NO_OTHER_DATABASE: &str = "ERR DB index is out of range: there is one database, 0";
pub(super) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
/// Maximum milliseconds to live: added to a time until the year 2248 they are a time that 63 bits can hold.
pub(super) const DURATION_MS_MAX: i64 = i64::MAX - (1 << 43);

/// An error that is the command's reply.
pub(super) fn refuse<T>(text: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::Refused(text.into()))
}

/// The error for a request with too few or too many arguments.
pub(super) fn wrong_count(command: &str) -> String {
    format!("ERR wrong number of arguments for '{command}' command")
}

/// The error for a subcommand that does not exist, or has other arguments.
pub(super) fn no_subcommand(command: &str, given: &[u8], existing: &str) -> String {
    let given = given.escape_ascii().to_string().to_ascii_lowercase();
    format!(
        "ERR unknown subcommand or wrong number of arguments for '{command} {given}': there are {existing}"
    )
}

/// Whether `word` is the option `name`, in any case.
pub(super) fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

/// An integer as INCR and all other commands take it: without blanks, a plus or needless zeros.
pub(super) fn integer(text: &[u8]) -> Result<i64, Problem> {
    kv::integer(text).ok_or_else(|| Problem::Refused(NOT_AN_INTEGER.into()))
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
    let ms_max = if absolute { i64::MAX } else { DURATION_MS_MAX };
    let ms = positive_ms(number, unit_ms, ms_max, command)?;
    Ok(Some(if absolute { Expiry::At(ms) } else { Expiry::In(ms) }))
}

/// A positive number of units, in milliseconds: at most `ms_max`.
pub(super) fn positive_ms(number: &[u8], unit_ms: i64, ms_max: i64, command: &str) -> Result<u64, Problem> {
    integer(number)?
        .checked_mul(unit_ms)
        .filter(|ms| (1..=ms_max).contains(ms))
        .map(i64::unsigned_abs)
        .ok_or_else(|| Problem::Refused(invalid_expiry(command)))
}

/// The error for a time to live that nothing can have.
pub(super) fn invalid_expiry(command: &str) -> String {
    format!("ERR invalid expire time in '{command}' command")
}
