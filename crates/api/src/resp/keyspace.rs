//! Keys whatever their values: DEL, EXISTS, TYPE, RENAME, COPY. Those that look at all keys are in `scan.rs`.

use super::keys::{Entry, Expiry, Keys, Outcome};
use super::parse::{NO_OTHER_DATABASE, SYNTAX, integer, is, no_subcommand, refuse};
use super::reply::Reply;
use bytes::Bytes;
use quoin_core::kv;

pub(super) fn del(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let mut deleted = 0;
    for key in args {
        if keys.get(key)?.is_some() {
            keys.delete(key.clone());
            deleted += 1;
        }
    }
    Ok(Reply::Integer(deleted))
}

pub(super) fn exists(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let mut count = 0;
    for key in args {
        count += i64::from(keys.get(key)?.is_some());
    }
    Ok(Reply::Integer(count))
}

pub(super) fn type_of(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    Ok(Reply::Simple(if keys.get(&args[0])?.is_some() { "string" } else { "none" }))
}

pub(super) fn rename(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let Some(entry) = keys.get(&args[0])? else { return refuse("ERR no such key") };
    if args[0] != args[1] {
        keys.delete(args[0].clone());
        let ttl = ttl_of(&entry);
        keys.put(args[1].clone(), entry.value, ttl)?;
    }
    Ok(Reply::OK)
}

pub(super) fn renamenx(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    if keys.get(&args[0])?.is_none() {
        return refuse("ERR no such key");
    }
    if keys.get(&args[1])?.is_some() {
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
    let Some(entry) = keys.get(&args[0])? else { return Ok(Reply::Integer(0)) };
    if !replace && keys.get(&args[1])?.is_some() {
        return Ok(Reply::Integer(0));
    }
    let ttl = ttl_of(&entry);
    keys.put(args[1].clone(), entry.value, ttl)?;
    Ok(Reply::Integer(1))
}

fn ttl_of(entry: &Entry) -> Expiry {
    entry.expires_at.map_or(Expiry::Never, Expiry::At)
}

/// Values of at most this many bytes stand beside their object in Redis.
const EMBEDDED_BYTES_MAX: usize = 44;
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
    let answer = |entry: Entry| match () {
        () if is(sub, "encoding") => Ok(Reply::text(encoding(&entry.value))),
        () if is(sub, "refcount") => Ok(Reply::Integer(1)),
        () => refuse(no_subcommand("object", sub, "ENCODING and REFCOUNT")),
    };
    keys.get(key)?.map_or(Ok(Reply::Null), answer)
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
    let bytes = |entry: Entry| Reply::Integer((key.len() + entry.value.len() + KEY_OVERHEAD_BYTES) as i64);
    Ok(keys.get(key)?.map_or(Reply::Null, bytes))
}

/// TIME: by which times to live are judged, in seconds and microseconds.
pub(super) fn time(_: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let now = keys.now()?;
    let texts = [now / 1000, now % 1000 * 1000].map(|number| Reply::text(number.to_string()));
    Ok(Reply::Array(texts.into()))
}
