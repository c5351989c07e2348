//! Fields with times to live: HEXPIRE, HTTL and their kin, HGETEX and HSETEX.

use super::expiry::Conditions;
use super::keys::{Expiry, Field, Hash, Keys, Outcome, Problem};
use super::parse::{expiry, integer, invalid_expiry, is, refuse};
use super::reply::Reply;
use bytes::Bytes;

const NO_FIELD: Reply = Reply::Integer(-2);
const NO_DEADLINE: Reply = Reply::Integer(-1);

/// The fields of `FIELDS count field ...`, of which each has `each` arguments.
fn fields(args: &[Bytes], each: usize) -> Result<std::slice::ChunksExact<'_, Bytes>, Problem> {
    let [word, count, rest @ ..] = args else { return refuse(NO_FIELDS) };
    if !is(word, "fields") {
        return refuse(NO_FIELDS);
    }
    let count = integer(count).ok().and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
    let Some(count) = count else { return refuse("ERR Parameter `numFields` should be greater than 0") };
    if count.checked_mul(each) != Some(rest.len()) {
        return refuse("ERR The `numfields` parameter must match the number of arguments");
    }
    Ok(rest.chunks_exact(each))
}

const NO_FIELDS: &str = "ERR Mandatory argument FIELDS is missing or not at the right position";

/// What `answer` says of each field; `absent` where there is no hash.
fn each(
    key: &Bytes,
    args: &[Bytes],
    keys: &mut Keys<'_>,
    absent: &Reply,
    mut answer: impl FnMut(&mut Keys<'_>, &mut Option<Hash>, &Bytes, Field) -> Outcome,
) -> Outcome {
    let fields = fields(args, 1)?;
    let mut hash = keys.hash(key)?;
    let mut replies = Vec::new();
    for field in fields.flatten() {
        let found = match hash {
            Some(hash) => keys.field(key, hash, field)?.0,
            None => None,
        };
        replies.push(match found {
            Some(found) => answer(keys, &mut hash, field, found)?,
            None => absent.clone(),
        });
    }
    Ok(Reply::Array(replies))
}

pub(super) fn hexpire(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set(args, keys, "hexpire", 1000, false)
}

pub(super) fn hpexpire(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set(args, keys, "hpexpire", 1, false)
}

pub(super) fn hexpireat(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set(args, keys, "hexpireat", 1000, true)
}

pub(super) fn hpexpireat(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set(args, keys, "hpexpireat", 1, true)
}

/// key number [NX | XX | GT | LT] FIELDS count field ...: 1 where it is set, 0 where the condition does not hold, 2
/// where the field is deleted at once, -2 where there is none.
fn set(args: &[Bytes], keys: &mut Keys<'_>, command: &str, unit_ms: i64, absolute: bool) -> Outcome {
    let (words, rest) = if is(&args[2], "fields") { args[2..].split_at(0) } else { args[2..].split_at(1) };
    let rest_is_fields = rest.first().is_some_and(|word| is(word, "fields"));
    if !rest_is_fields {
        return refuse(NO_FIELDS);
    }
    let conditions = Conditions::of(words)?;
    let ms = integer(&args[1])?.checked_mul(unit_ms).filter(|ms| (0..=FIELD_MS_MAX).contains(ms));
    let now = keys.now()?;
    let at = ms.and_then(|ms| if absolute { Some(ms) } else { ms.checked_add_unsigned(now) });
    let at = at.filter(|at| *at <= FIELD_MS_MAX);
    let (Some(ms), Some(at)) = (ms, at) else { return refuse(invalid_expiry(command)) };
    let key = &args[0];
    each(key, rest, keys, &NO_FIELD, |keys, hash, field, found| {
        let Some(of) = *hash else { return Ok(NO_FIELD) };
        if !conditions.hold(found.expires_at, at) {
            return Ok(Reply::Integer(0));
        }
        if at.unsigned_abs() <= now {
            *hash = keys.delete_field(key, of, field)?;
            return Ok(Reply::Integer(2));
        }
        let expiry = if absolute { Expiry::At(at.unsigned_abs()) } else { Expiry::In(ms.unsigned_abs()) };
        keys.expire_field(key, of, field, expiry)?;
        Ok(Reply::Integer(1))
    })
}

/// The last millisecond that a field can end at: Redis has 46 bits for it.
const FIELD_MS_MAX: i64 = (1 << 46) - 1;

pub(super) fn httl(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    show(args, keys, |at, now| at.saturating_sub(now).div_ceil(1000))
}

pub(super) fn hpttl(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    show(args, keys, u64::saturating_sub)
}

pub(super) fn hexpiretime(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    show(args, keys, |at, _| at.div_ceil(1000))
}

pub(super) fn hpexpiretime(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    show(args, keys, |at, _| at)
}

/// What `shown` makes of each field's deadline and of now; -1 for a field without one, -2 for an absent field.
fn show(args: &[Bytes], keys: &mut Keys<'_>, shown: fn(u64, u64) -> u64) -> Outcome {
    let now = keys.now()?;
    each(&args[0], &args[1..], keys, &NO_FIELD, |_, _, _, found| {
        let Some(at) = found.expires_at else { return Ok(NO_DEADLINE) };
        Ok(Reply::Integer(i64::try_from(shown(at, now)).unwrap_or(i64::MAX)))
    })
}

pub(super) fn hpersist(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let key = &args[0];
    each(key, &args[1..], keys, &NO_FIELD, |keys, hash, field, found| {
        let Some(of) = hash.filter(|_| found.expires_at.is_some()) else { return Ok(NO_DEADLINE) };
        keys.expire_field(key, of, field, Expiry::Never)?;
        Ok(Reply::Integer(1))
    })
}

/// HGETDEL key FIELDS count field ...
pub(super) fn hgetdel(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let key = &args[0];
    each(key, &args[1..], keys, &Reply::Null, |keys, hash, field, found| {
        if let Some(of) = *hash {
            *hash = keys.delete_field(key, of, field)?;
        }
        keys.answers(found.value.len())?;
        Ok(Reply::Bulk(found.value))
    })
}

/// HGETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST] FIELDS count field ...
pub(super) fn hgetex(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let (wanted, rest) = match &args[1..] {
        [word, rest @ ..] if is(word, "persist") => (Some(Expiry::Never), rest),
        [word, number, rest @ ..] => match expiry(word, Some(number), "hgetex")? {
            Some(wanted) => (Some(wanted), rest),
            None => (None, &args[1..]),
        },
        rest => (None, rest),
    };
    let (key, now) = (&args[0], keys.now()?);
    each(key, rest, keys, &Reply::Null, |keys, hash, field, found| {
        keys.answers(found.value.len())?;
        match (*hash, wanted) {
            (Some(of), Some(Expiry::At(at))) if at <= now => *hash = keys.delete_field(key, of, field)?,
            (Some(of), Some(wanted)) if wanted != Expiry::Never || found.expires_at.is_some() => {
                keys.expire_field(key, of, field, wanted)?;
            }
            _ => {}
        }
        Ok(Reply::Bulk(found.value))
    })
}

/// HSETEX key [FNX | FXX] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL] FIELDS count field value ...: 1, or 0 where the
/// condition does not hold for all of them.
pub(super) fn hsetex(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let (mut only_if, mut wanted, mut rest) = (None, None, &args[1..]);
    loop {
        rest = match rest {
            [word, rest @ ..] if only_if.is_none() && is(word, "fnx") => {
                only_if = Some(false);
                rest
            }
            [word, rest @ ..] if only_if.is_none() && is(word, "fxx") => {
                only_if = Some(true);
                rest
            }
            [word, rest @ ..] if wanted.is_none() && is(word, "keepttl") => {
                wanted = Some(Expiry::Keep);
                rest
            }
            [word, number, rest @ ..] if wanted.is_none() && !is(word, "fields") => {
                match expiry(word, Some(number), "hsetex")? {
                    Some(found) => wanted = Some(found),
                    None => return refuse(NO_FIELDS),
                }
                rest
            }
            _ => break,
        };
    }
    let (key, pairs) = (&args[0], fields(rest, 2)?);
    let mut hash = keys.hash(key)?;
    if let Some(present) = only_if {
        for pair in pairs.clone() {
            let found = match hash {
                Some(hash) => keys.field(key, hash, &pair[0])?.0,
                None => None,
            };
            if found.is_some() != present {
                return Ok(Reply::Integer(0));
            }
        }
    }
    for pair in pairs {
        let there = match hash {
            Some(hash) => keys.field(key, hash, &pair[0])?.1,
            None => false,
        };
        let expiry = wanted.unwrap_or(Expiry::Never);
        hash = Some(keys.put_field(key, hash, (&pair[0], there), pair[1].clone(), expiry)?);
    }
    Ok(Reply::Integer(1))
}
