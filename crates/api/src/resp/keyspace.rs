//! Keys whatever their values: DEL, EXISTS, TYPE, RENAME, COPY. Those that look at all keys are in `scan.rs`.

use super::keys::{Expiry, Failed, Found, Hash, Keys, Outcome, Value};
use super::parse::{NO_OTHER_DATABASE, SYNTAX, integer, is, no_subcommand, refuse};
use super::reply::Reply;
use bytes::Bytes;
use quoin_core::kv;

pub(super) fn del(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let mut deleted = 0;
    for key in args {
        if keys.find(key)?.is_some() {
            keys.delete(key.clone());
            deleted += 1;
        }
    }
    Ok(Reply::Integer(deleted))
}

pub(super) fn exists(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let mut count = 0;
    for key in args {
        count += i64::from(keys.find(key)?.is_some());
    }
    Ok(Reply::Integer(count))
}

pub(super) fn type_of(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    Ok(Reply::Simple(match keys.find(&args[0])?.map(|found| found.value) {
        None => "none",
        Some(Value::String(_)) => "string",
        Some(Value::Hash(_)) => "hash",
    }))
}

pub(super) fn rename(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let Some(found) = keys.find(&args[0])? else { return refuse("ERR no such key") };
    if args[0] != args[1] {
        let moves = matches!(found.value, Value::Hash(_));
        if moves && keys.move_hash(&args[0], &args[1], ends(found.expires_at)) {
            return Ok(Reply::OK);
        }
        put_copy(keys, &args[0], &args[1], found)?;
        keys.delete(args[0].clone());
    }
    Ok(Reply::OK)
}

pub(super) fn renamenx(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    if keys.find(&args[0])?.is_none() {
        return refuse("ERR no such key");
    }
    if keys.find(&args[1])?.is_some() {
        return Ok(Reply::Integer(0));
    }
    rename(args, keys)?;
    Ok(Reply::Integer(1))
}

/// COPY from to [DB 0] [REPLACE]
pub(super) fn copy(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let (mut replace, mut options) = (false, &args[2..]);
    loop {
        options = match options {
            [] => break,
            [word, rest @ ..] if is(word, "replace") => {
                replace = true;
                rest
            }
            [word, number, rest @ ..] if is(word, "db") => {
                if integer(number)? != 0 {
                    return refuse(NO_OTHER_DATABASE);
                }
                rest
            }
            _ => return refuse(SYNTAX),
        }
    }
    if args[0] == args[1] {
        return refuse("ERR source and destination objects are the same");
    }
    let Some(found) = keys.find(&args[0])? else { return Ok(Reply::Integer(0)) };
    if !replace && keys.find(&args[1])?.is_some() {
        return Ok(Reply::Integer(0));
    }
    put_copy(keys, &args[0], &args[1], found)?;
    Ok(Reply::Integer(1))
}

fn ends(expires_at: Option<u64>) -> Expiry {
    expires_at.map_or(Expiry::Never, Expiry::At)
}

/// Writes what was found at one key to another. A hash is read and written whole, within the bound on what is written
/// at once.
fn put_copy(keys: &mut Keys<'_>, from: &Bytes, to: &Bytes, found: Found) -> Result<(), Failed> {
    let ttl = ends(found.expires_at);
    let hash = match found.value {
        Value::String(value) => return keys.put(to.clone(), value, ttl),
        Value::Hash(hash) => hash,
    };
    keys.delete(to.clone());
    let mut copy = None;
    keys.each_field(from, hash, |keys, name, field| {
        let ttl = ends(field.expires_at);
        copy = Some(keys.put_field(to, copy, (&Bytes::copy_from_slice(&name), false), field.value, ttl)?);
        Ok(true)
    })?;
    if copy.is_some() {
        keys.expire(to.clone(), ttl);
    }
    Ok(())
}

/// Values of at most this many bytes stand beside their object in Redis.
const EMBEDDED_BYTES_MAX: usize = 44;
/// Hashes of at most this many fields lie in one piece in Redis.
const PACKED_FIELDS_MAX: u64 = 128;
/// What a field costs in the store besides its bytes: its key's number, about.
const FIELD_OVERHEAD_BYTES: usize = 16;
/// Fields that MEMORY USAGE looks at.
const SAMPLES: u64 = 5;
/// What a key costs in the store besides its bytes: its record's numbers, about.
const KEY_OVERHEAD_BYTES: usize = 48;

/// OBJECT ENCODING key | REFCOUNT key
pub(super) fn object(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let [sub, key] = args else { return refuse(no_subcommand("object", &args[0], "ENCODING and REFCOUNT")) };
    let encoding = |value: &Bytes| match value.len() {
        _ if kv::integer(value).is_some() => "int",
        ..=EMBEDDED_BYTES_MAX => "embstr",
        _ => "raw",
    };
    let answer = |found: Found| match &found.value {
        Value::String(value) if is(sub, "encoding") => Ok(Reply::text(encoding(value))),
        Value::Hash(Hash { count: ..=PACKED_FIELDS_MAX, .. }) if is(sub, "encoding") => {
            Ok(Reply::text("listpack"))
        }
        Value::Hash(_) if is(sub, "encoding") => Ok(Reply::text("hashtable")),
        _ if is(sub, "refcount") => Ok(Reply::Integer(1)),
        _ => refuse(no_subcommand("object", sub, "ENCODING and REFCOUNT")),
    };
    keys.find(key)?.map_or(Ok(Reply::Null), answer)
}

/// MEMORY USAGE key [SAMPLES count]
pub(super) fn memory(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let key = match args {
        [sub, key] if is(sub, "usage") => key,
        [sub, key, word, count] if is(sub, "usage") && is(word, "samples") => {
            integer(count)?;
            key
        }
        _ => return refuse(no_subcommand("memory", &args[0], "USAGE")),
    };
    let bytes = match keys.find(key)?.map(|found| found.value) {
        None => return Ok(Reply::Null),
        Some(Value::String(value)) => value.len() as u64,
        Some(Value::Hash(hash)) => hash_bytes(keys, key, hash)?,
    };
    Ok(Reply::Integer((bytes.saturating_add((key.len() + KEY_OVERHEAD_BYTES) as u64)) as i64))
}

/// About how many bytes the fields of a hash take, by those that come first.
fn hash_bytes(keys: &mut Keys<'_>, key: &Bytes, hash: Hash) -> Result<u64, Failed> {
    let (mut seen, mut bytes) = (0, 0);
    keys.each_field(key, hash, |_, name, field| {
        seen += 1;
        bytes += (name.len() + field.value.len() + FIELD_OVERHEAD_BYTES) as u64;
        Ok(seen < SAMPLES)
    })?;
    Ok((bytes / seen.max(1)).saturating_mul(hash.count))
}

/// TIME: by which times to live are judged, in seconds and microseconds.
pub(super) fn time(_: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let now = keys.now()?;
    let texts = [now / 1000, now % 1000 * 1000].map(|number| Reply::text(number.to_string()));
    Ok(Reply::Array(texts.into()))
}
