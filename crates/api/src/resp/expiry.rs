//! Times to live: EXPIRE, TTL and their kin. Whether a key's time is over is asked in one place,
//! [`Sight::is_alive`].
//!
//! [`Sight::is_alive`]: super::keys::Sight::is_alive

use super::keys::{Expiry, Keys, Outcome, Problem};
use super::parse::{integer, invalid_expiry, is, refuse};
use super::reply::Reply;
use bytes::Bytes;

pub(super) fn expire(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set(args, keys, "expire", 1000, false)
}

pub(super) fn pexpire(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set(args, keys, "pexpire", 1, false)
}

pub(super) fn expireat(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set(args, keys, "expireat", 1000, true)
}

pub(super) fn pexpireat(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set(args, keys, "pexpireat", 1, true)
}

/// Under which conditions a time to live is set.
#[derive(Default)]
pub(super) struct Conditions {
    absent: bool,
    present: bool,
    later: bool,
    earlier: bool,
}

impl Conditions {
    pub(super) fn of(words: &[Bytes]) -> Result<Self, Problem> {
        let mut found = Self::default();
        for word in words {
            match () {
                () if is(word, "nx") => found.absent = true,
                () if is(word, "xx") => found.present = true,
                () if is(word, "gt") => found.later = true,
                () if is(word, "lt") => found.earlier = true,
                () => return refuse(format!("ERR Unsupported option {}", word.escape_ascii())),
            }
        }
        if found.absent && (found.present || found.later || found.earlier) {
            return refuse("ERR NX and XX, GT or LT options at the same time are not compatible");
        }
        if found.later && found.earlier {
            return refuse("ERR GT and LT options at the same time are not compatible");
        }
        Ok(found)
    }

    /// Whether they hold for a key, or a field, that ends at `before`, or never, and is to end `at`.
    pub(super) fn hold(&self, before: Option<u64>, at: i64) -> bool {
        let end = before.map_or(i64::MAX, |before| i64::try_from(before).unwrap_or(i64::MAX));
        // A key without a time to live never ends: no time is later.
        (!self.absent || before.is_none())
            && (!self.present || before.is_some())
            && (!self.later || before.is_some() && at > end)
            && (!self.earlier || before.is_none() || at < end)
    }
}

/// key number [NX | XX | GT | LT]
fn set(args: &[Bytes], keys: &mut Keys<'_>, command: &str, unit_ms: i64, absolute: bool) -> Outcome {
    let conditions = Conditions::of(&args[2..])?;
    let ms = integer(&args[1])?.checked_mul(unit_ms);
    let now = keys.now()?;
    let at = ms.and_then(|ms| if absolute { Some(ms) } else { ms.checked_add_unsigned(now) });
    let (Some(ms), Some(at)) = (ms, at) else { return refuse(invalid_expiry(command)) };
    let Some(entry) = keys.find(&args[0])? else { return Ok(Reply::Integer(0)) };
    if !conditions.hold(entry.expires_at, at) {
        return Ok(Reply::Integer(0));
    }
    match u64::try_from(at).ok().filter(|at| *at > now) {
        // From the stamp on, which is not quite now.
        Some(_) if !absolute => keys.expire(args[0].clone(), Expiry::In(ms.unsigned_abs())),
        Some(at) => keys.expire(args[0].clone(), Expiry::At(at)),
        // In the past: the key is deleted at once.
        None => keys.delete(args[0].clone()),
    }
    Ok(Reply::Integer(1))
}

pub(super) fn persist(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let expires = keys.find(&args[0])?.is_some_and(|entry| entry.expires_at.is_some());
    if expires {
        keys.expire(args[0].clone(), Expiry::Never);
    }
    Ok(Reply::Integer(expires.into()))
}

pub(super) fn ttl(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    show(args, keys, |at, now| seconds(at.saturating_sub(now)))
}

pub(super) fn pttl(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    show(args, keys, u64::saturating_sub)
}

pub(super) fn expiretime(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    show(args, keys, |at, _| seconds(at))
}

pub(super) fn pexpiretime(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    show(args, keys, |at, _| at)
}

/// The nearest whole number of seconds.
fn seconds(ms: u64) -> u64 {
    ms.saturating_add(500) / 1000
}

/// What `shown` makes of the key's deadline and of now; -1 for a key without a time to live, -2 for an absent
/// key.
fn show(args: &[Bytes], keys: &mut Keys<'_>, shown: fn(u64, u64) -> u64) -> Outcome {
    let Some(entry) = keys.find(&args[0])? else { return Ok(Reply::Integer(-2)) };
    let now = keys.now()?;
    Ok(Reply::Integer(entry.expires_at.map_or(-1, |at| i64::try_from(shown(at, now)).unwrap_or(i64::MAX))))
}
