//! Strings and numbers: GET, SET, INCR and their kin.

use super::decimal::Decimal;
use super::keys::{Entry, Expiry, Found, Keys, Outcome, Problem, Value};
use super::parse::{DURATION_MS_MAX, SYNTAX, expiry, integer, is, positive_ms, refuse, wrong_count};
use super::reply::Reply;
use bytes::Bytes;
use quoin_core::limits::REQUEST_BYTES_MAX;

/// Maximum bytes of a value that SETRANGE makes: no setting lets a larger one be written. What a write may
/// have is checked later; this bounds the memory for making it.
const VALUE_BYTES_MAX: usize = REQUEST_BYTES_MAX;

/// A value as a reply, within the bound on replies.
fn bulk(keys: &mut Keys<'_>, entry: Option<Entry>) -> Outcome {
    let Some(entry) = entry else { return Ok(Reply::Null) };
    keys.answers(entry.value.len())?;
    Ok(Reply::Bulk(entry.value))
}

pub(super) fn get(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let entry = keys.get(&args[0])?;
    bulk(keys, entry)
}

pub(super) fn mget(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let mut value = |key| match keys.find(key)? {
        Some(Found { value: Value::String(value), expires_at }) => {
            bulk(keys, Some(Entry { value, expires_at }))
        }
        // As in Redis, what is no string is not told from an absent key.
        _ => Ok(Reply::Null),
    };
    args.iter().map(&mut value).collect::<Result<_, Problem>>().map(Reply::Array)
}

/// SET key value [NX | XX] [GET] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]
pub(super) fn set(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let (mut ttl, mut only_absent, mut only_present, mut answer_old) = (None, false, false, false);
    let mut options = args[2..].iter();
    while let Some(word) = options.next() {
        match () {
            () if is(word, "nx") => only_absent = true,
            () if is(word, "xx") => only_present = true,
            () if is(word, "get") => answer_old = true,
            () if is(word, "keepttl") && ttl.is_none() => ttl = Some(Expiry::Keep),
            () if ttl.is_none() => match expiry(word, options.as_slice().first(), "set")? {
                Some(found) => {
                    ttl = Some(found);
                    options.next();
                }
                None => return refuse(SYNTAX),
            },
            () => return refuse(SYNTAX),
        }
    }
    if only_absent && only_present {
        return refuse(SYNTAX);
    }
    let old = if answer_old { keys.get(&args[0])? } else { None };
    let exists = old.is_some() || (only_absent || only_present) && keys.find(&args[0])?.is_some();
    let refused = if exists { only_absent } else { only_present };
    if !refused {
        keys.put(args[0].clone(), args[1].clone(), ttl.unwrap_or(Expiry::Never))?;
    }
    match (answer_old, refused) {
        (true, _) => bulk(keys, old),
        (false, false) => Ok(Reply::OK),
        (false, true) => Ok(Reply::Null),
    }
}

fn pairs<'b>(args: &'b [Bytes], command: &str) -> Result<std::slice::ChunksExact<'b, Bytes>, Problem> {
    if args.len().is_multiple_of(2) { Ok(args.chunks_exact(2)) } else { refuse(wrong_count(command)) }
}

pub(super) fn mset(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    for pair in pairs(args, "mset")? {
        keys.put(pair[0].clone(), pair[1].clone(), Expiry::Never)?;
    }
    Ok(Reply::OK)
}

pub(super) fn msetnx(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    for pair in pairs(args, "msetnx")? {
        if keys.find(&pair[0])?.is_some() {
            return Ok(Reply::Integer(0));
        }
    }
    mset(args, keys)?;
    Ok(Reply::Integer(1))
}

pub(super) fn setnx(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let absent = keys.find(&args[0])?.is_none();
    if absent {
        keys.put(args[0].clone(), args[1].clone(), Expiry::Never)?;
    }
    Ok(Reply::Integer(absent.into()))
}

pub(super) fn setex(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set_with_ttl(args, keys, 1000, "setex")
}

pub(super) fn psetex(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set_with_ttl(args, keys, 1, "psetex")
}

fn set_with_ttl(args: &[Bytes], keys: &mut Keys<'_>, unit_ms: i64, command: &str) -> Outcome {
    let ttl = Expiry::In(positive_ms(&args[1], unit_ms, DURATION_MS_MAX, command)?);
    keys.put(args[0].clone(), args[2].clone(), ttl)?;
    Ok(Reply::OK)
}

pub(super) fn getset(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let old = keys.get(&args[0])?;
    keys.put(args[0].clone(), args[1].clone(), Expiry::Never)?;
    bulk(keys, old)
}

pub(super) fn getdel(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let old = keys.get(&args[0])?;
    if old.is_some() {
        keys.delete(args[0].clone());
    }
    bulk(keys, old)
}

/// GETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST]
pub(super) fn getex(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let ttl = match &args[1..] {
        [] => None,
        [word] if is(word, "persist") => Some(Ok(Expiry::Never)),
        [word, number] => match expiry(word, Some(number), "getex").transpose() {
            Some(ttl) => Some(ttl),
            None => return refuse(SYNTAX),
        },
        _ => return refuse(SYNTAX),
    };
    let entry = keys.get(&args[0])?;
    if let (Some(Entry { expires_at, .. }), Some(ttl)) = (&entry, ttl) {
        // Of an absent key the number is not looked at; one that ends never is written no more.
        let ttl = ttl?;
        if ttl != Expiry::Never || expires_at.is_some() {
            keys.expire(args[0].clone(), ttl);
        }
    }
    bulk(keys, entry)
}

pub(super) fn append(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let entry = keys.get(&args[0])?;
    let length = entry.as_ref().map_or(0, |entry| entry.value.len()) + args[1].len();
    keys.may_make(&args[0], length)?;
    let mut value = keys.take_value(&args[0], entry);
    value.extend_from_slice(&args[1]);
    keys.put(args[0].clone(), value.freeze(), Expiry::Keep)?;
    Ok(Reply::Integer(length as i64))
}

pub(super) fn strlen(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    Ok(Reply::Integer(keys.get(&args[0])?.map_or(0, |entry| entry.value.len() as i64)))
}

pub(super) fn getrange(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let (from, to) = (integer(&args[1])?, integer(&args[2])?);
    let value = keys.get(&args[0])?.map_or(Bytes::new(), |entry| entry.value);
    let length = value.len() as i64;
    // Negative positions count from the end.
    let place = |number: i64| if number < 0 { number.saturating_add(length).max(0) } else { number };
    let backwards = from < 0 && to < 0 && from > to;
    let (from, to) = (place(from), place(to).min(length - 1));
    if backwards || from > to || length == 0 {
        return Ok(Reply::Bulk(Bytes::new()));
    }
    let part = value.slice(from as usize..=to as usize);
    keys.answers(part.len())?;
    Ok(Reply::Bulk(part))
}

pub(super) fn setrange(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let Ok(offset) = usize::try_from(integer(&args[1])?) else { return refuse("ERR offset is out of range") };
    let entry = keys.get(&args[0])?;
    if args[2].is_empty() {
        return Ok(Reply::Integer(entry.map_or(0, |entry| entry.value.len() as i64)));
    }
    let end = offset.saturating_add(args[2].len());
    if end > VALUE_BYTES_MAX {
        return refuse("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    }
    keys.may_make(&args[0], end)?;
    let mut value = keys.take_value(&args[0], entry);
    if value.len() < end {
        value.resize(end, 0);
    }
    value[offset..end].copy_from_slice(&args[2]);
    let length = value.len();
    keys.put(args[0].clone(), value.freeze(), Expiry::Keep)?;
    Ok(Reply::Integer(length as i64))
}

pub(super) fn incr(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    increment(&args[0], keys, 1)
}

pub(super) fn decr(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    increment(&args[0], keys, -1)
}

pub(super) fn incrby(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    increment(&args[0], keys, integer(&args[1])?)
}

pub(super) fn decrby(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    match integer(&args[1])?.checked_neg() {
        Some(by) => increment(&args[0], keys, by),
        None => refuse("ERR decrement would overflow"),
    }
}

/// What INCRBY adds; `None` where it is not an integer.
pub(super) fn added(args: &[Bytes]) -> Option<i64> {
    integer(&args[1]).ok()
}

/// What DECRBY adds; `None` where that is not an integer.
pub(super) fn subtracted(args: &[Bytes]) -> Option<i64> {
    integer(&args[1]).ok()?.checked_neg()
}

fn increment(key: &Bytes, keys: &mut Keys<'_>, by: i64) -> Outcome {
    let before = keys.get(key)?.map_or(Ok(0), |entry| integer(&entry.value))?;
    let Some(after) = before.checked_add(by) else {
        return refuse("ERR increment or decrement would overflow");
    };
    keys.put(key.clone(), after.to_string().into(), Expiry::Keep)?;
    Ok(Reply::Integer(after))
}

pub(super) fn incrbyfloat(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let zero = Ok(Decimal::default());
    let before = keys.get(&args[0])?.map_or(zero, |entry| Decimal::parse(&entry.value));
    let sum = before.and_then(|before| before.plus(Decimal::parse(&args[1])?));
    let text = match sum {
        Ok(sum) => Bytes::from(sum.to_string()),
        Err(problem) => return refuse(format!("ERR {problem}")),
    };
    keys.put(args[0].clone(), text.clone(), Expiry::Keep)?;
    Ok(Reply::Bulk(text))
}
