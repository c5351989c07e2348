//! Times to live: EXPIRE, TTL and their kin. Whether a key's time is over is asked in one place,
//! [`Sight::is_alive`].
//!
//! [`Sight::is_alive`]: super::keys::Sight::is_alive

use super::keys::{Expiry, Keys, Outcome};
use super::parse::{SYNTAX, integer, is, refuse};
use super::reply::Reply;
use bytes::Bytes;

pub(super) fn expire(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set(args, keys, 1000, false)
}

pub(super) fn pexpire(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set(args, keys, 1, false)
}

pub(super) fn expireat(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set(args, keys, 1000, true)
}

pub(super) fn pexpireat(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set(args, keys, 1, true)
}

/// key number [NX | XX | GT | LT]
fn set(args: &[Bytes], keys: &mut Keys<'_>, unit_ms: i64, absolute: bool) -> Outcome {
    let Some(ms) = integer(&args[1])?.checked_mul(unit_ms) else { return refuse("ERR invalid expire time") };
    let now = keys.now()?;
    let at = if absolute { ms } else { ms.saturating_add_unsigned(now) };
    let Some(entry) = keys.get(&args[0])? else { return Ok(Reply::Integer(0)) };
    let before = entry.expires_at.map_or(i64::MAX, |at| i64::try_from(at).unwrap_or(i64::MAX));
    let holds = match &args[2..] {
        [] => true,
        [word] if is(word, "nx") => entry.expires_at.is_none(),
        [word] if is(word, "xx") => entry.expires_at.is_some(),
        [word] if is(word, "gt") => at > before,
        [word] if is(word, "lt") => at < before,
        [word] => return refuse(format!("ERR Unsupported option {}", word.escape_ascii())),
        _ => return refuse(SYNTAX),
    };
    if !holds {
        return Ok(Reply::Integer(0));
    }
    match u64::try_from(at).ok().filter(|at| *at > now) {
        // From the stamp on, which is not quite now.
        Some(_) if !absolute => keys.expire(args[0].clone(), Expiry::In(ms as u64)),
        Some(at) => keys.expire(args[0].clone(), Expiry::At(at)),
        // In the past: the key is deleted at once.
        None => keys.delete(args[0].clone()),
    }
    Ok(Reply::Integer(1))
}

pub(super) fn persist(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let expires = keys.get(&args[0])?.is_some_and(|entry| entry.expires_at.is_some());
    if expires {
        keys.expire(args[0].clone(), Expiry::Never);
    }
    Ok(Reply::Integer(expires.into()))
}

pub(super) fn ttl(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    show(args, keys, |at, now| at.saturating_sub(now).div_ceil(1000))
}

pub(super) fn pttl(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    show(args, keys, u64::saturating_sub)
}

pub(super) fn expiretime(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    show(args, keys, |at, _| at / 1000)
}

pub(super) fn pexpiretime(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    show(args, keys, |at, _| at)
}

/// What `shown` makes of the key's deadline and of now; -1 for a key without a time to live, -2 for an absent
/// key.
fn show(args: &[Bytes], keys: &mut Keys<'_>, shown: fn(u64, u64) -> u64) -> Outcome {
    let Some(entry) = keys.get(&args[0])? else { return Ok(Reply::Integer(-2)) };
    let now = keys.now()?;
    Ok(Reply::Integer(entry.expires_at.map_or(-1, |at| i64::try_from(shown(at, now)).unwrap_or(i64::MAX))))
}
