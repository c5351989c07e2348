//! Keys whatever their values: DEL, EXISTS, TYPE, RENAME, COPY. Those that look at all keys are in `scan.rs`.

use super::keys::{Entry, Expiry, Keys, Outcome};
use super::parse::{SYNTAX, is, refuse};
use super::reply::Reply;
use bytes::Bytes;

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

/// COPY from to [REPLACE]
pub(super) fn copy(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let replace = match &args[2..] {
        [] => false,
        [word] if is(word, "replace") => true,
        [word, ..] if is(word, "db") => return refuse("ERR there is one database, 0"),
        _ => return refuse(SYNTAX),
    };
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
