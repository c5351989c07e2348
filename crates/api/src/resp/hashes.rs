//! Hashes: HSET, HGET and their kin. What sets or deletes fields of one hash, and reads nothing else, is left to the
//! log, which answers how many were new or gone: clients who change one hash do not conflict.

use super::decimal::Decimal;
use super::glob;
use super::keys::{Expiry, Failed, Field, Hash, Keys, Outcome, Problem, Sight, replied};
use super::parse::{SYNTAX, integer, is, refuse, wrong_count};
use super::reply::Reply;
use super::scan::UNKNOWN_CURSOR;
use super::session::{FieldsAnswer, Session};
use super::transaction::failed;
use crate::commands::in_place;
use crate::error::Error;
use bytes::Bytes;
use quoin_core::kv::{self, FieldAction, FieldChange, WriteFields};
use std::collections::BTreeMap;

/// Maximum fields of one piece of HSCAN.
const PIECE: usize = 1000;
/// Fields that a piece may have without being read aside.
const FIELDS_IN_PLACE_MAX: usize = 100;
/// HRANDFIELD looks at so many fields, or as many as it returns.
const CHOSEN_AMONG_MAX: u64 = 1000;

/// A field, and whether there is a record of it, also one that is over.
type Seen = (Option<Field>, bool);

fn seen(keys: &mut Keys<'_>, key: &Bytes, hash: Option<Hash>, field: &Bytes) -> Result<Seen, Failed> {
    hash.map_or(Ok((None, false)), |hash| keys.field(key, hash, field))
}

fn bulk(keys: &mut Keys<'_>, field: Option<Field>) -> Outcome {
    let Some(field) = field else { return Ok(Reply::Null) };
    keys.answers(field.value.len())?;
    Ok(Reply::Bulk(field.value))
}

// Writing.

fn pairs<'b>(args: &'b [Bytes], command: &str) -> Result<std::slice::ChunksExact<'b, Bytes>, Problem> {
    match args[1..].len().is_multiple_of(2) {
        true => Ok(args[1..].chunks_exact(2)),
        false => refuse(wrong_count(command)),
    }
}

fn set(args: &[Bytes], keys: &mut Keys<'_>, command: &str) -> Result<i64, Problem> {
    let pairs = pairs(args, command)?;
    let (key, mut hash) = (&args[0], keys.hash(&args[0])?);
    let mut added = 0;
    for pair in pairs {
        let (before, there) = seen(keys, key, hash, &pair[0])?;
        added += i64::from(before.is_none());
        hash = Some(keys.put_field(key, hash, (&pair[0], there), pair[1].clone(), Expiry::Never)?);
    }
    Ok(added)
}

pub(super) fn hset(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set(args, keys, "hset").map(Reply::Integer)
}

pub(super) fn hmset(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    set(args, keys, "hmset").map(|_| Reply::OK)
}

pub(super) fn hsetnx(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let hash = keys.hash(&args[0])?;
    let (before, there) = seen(keys, &args[0], hash, &args[1])?;
    if before.is_none() {
        keys.put_field(&args[0], hash, (&args[1], there), args[2].clone(), Expiry::Never)?;
    }
    Ok(Reply::Integer(before.is_none().into()))
}

pub(super) fn hdel(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let (key, mut hash, mut removed) = (&args[0], keys.hash(&args[0])?, 0);
    for field in &args[1..] {
        let Some(found) = hash else { break };
        if keys.field(key, found, field)?.0.is_some() {
            hash = keys.delete_field(key, found, field)?;
            removed += 1;
        }
    }
    Ok(Reply::Integer(removed))
}

pub(super) fn hincrby(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let by = integer(&args[2])?;
    let (key, hash) = (&args[0], keys.hash(&args[0])?);
    let (before, there) = seen(keys, key, hash, &args[1])?;
    let number = before.map_or(Some(0), |field| kv::integer(&field.value));
    let Some(number) = number else { return refuse("ERR hash value is not an integer") };
    let Some(sum) = number.checked_add(by) else {
        return refuse("ERR increment or decrement would overflow");
    };
    keys.put_field(key, hash, (&args[1], there), sum.to_string().into(), Expiry::Keep)?;
    Ok(Reply::Integer(sum))
}

pub(super) fn hincrbyfloat(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let by = Decimal::parse(&args[2]).map_err(|problem| Problem::Refused(format!("ERR {problem}")))?;
    let (key, hash) = (&args[0], keys.hash(&args[0])?);
    let (before, there) = seen(keys, key, hash, &args[1])?;
    let number = before.map_or(Ok(Decimal::default()), |field| Decimal::parse(&field.value));
    let Ok(number) = number else { return refuse("ERR hash value is not a float") };
    let text = match number.plus(by) {
        Ok(sum) => Bytes::from(sum.to_string()),
        Err(problem) => return refuse(format!("ERR {problem}")),
    };
    keys.put_field(key, hash, (&args[1], there), text.clone(), Expiry::Keep)?;
    Ok(Reply::Bulk(text))
}

// The same for the log.

/// Of several changes of one field the last one counts.
fn changes(key: &Bytes, changes: impl Iterator<Item = (Bytes, FieldAction)>) -> WriteFields {
    let last: BTreeMap<Bytes, FieldAction> = changes.collect();
    let change = |(field, action)| FieldChange { field, action: Some(action), ttl: None };
    WriteFields {
        key: key.clone(),
        changes: last.into_iter().map(change).collect(),
        ..WriteFields::default()
    }
}

pub(super) fn set_fields(args: &[Bytes]) -> Option<(WriteFields, FieldsAnswer)> {
    let put = |pair: &[Bytes]| (pair[0].clone(), FieldAction::Put(pair[1].clone()));
    let pairs = pairs(args, "hset").ok()?;
    Some((changes(&args[0], pairs.map(put)), FieldsAnswer::Added))
}

pub(super) fn set_fields_ok(args: &[Bytes]) -> Option<(WriteFields, FieldsAnswer)> {
    set_fields(args).map(|(write, _)| (write, FieldsAnswer::Done))
}

pub(super) fn set_new(args: &[Bytes]) -> Option<(WriteFields, FieldsAnswer)> {
    let new = (args[1].clone(), FieldAction::PutNew(args[2].clone()));
    Some((changes(&args[0], std::iter::once(new)), FieldsAnswer::Added))
}

pub(super) fn delete_fields(args: &[Bytes]) -> Option<(WriteFields, FieldsAnswer)> {
    let delete = |field: &Bytes| (field.clone(), FieldAction::Delete(true));
    Some((changes(&args[0], args[1..].iter().map(delete)), FieldsAnswer::Removed))
}

pub(super) fn add(args: &[Bytes]) -> Option<(WriteFields, FieldsAnswer)> {
    let add = (args[1].clone(), FieldAction::Add(integer(&args[2]).ok()?));
    Some((changes(&args[0], std::iter::once(add)), FieldsAnswer::Number))
}

// Reading.

pub(super) fn hget(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let hash = keys.hash(&args[0])?;
    let (field, _) = seen(keys, &args[0], hash, &args[1])?;
    bulk(keys, field)
}

pub(super) fn hmget(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let hash = keys.hash(&args[0])?;
    let mut value = |field| {
        let (field, _) = seen(keys, &args[0], hash, field)?;
        bulk(keys, field)
    };
    args[1..].iter().map(&mut value).collect::<Result<_, Problem>>().map(Reply::Array)
}

pub(super) fn hexists(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let hash = keys.hash(&args[0])?;
    Ok(Reply::Integer(seen(keys, &args[0], hash, &args[1])?.0.is_some().into()))
}

pub(super) fn hstrlen(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let hash = keys.hash(&args[0])?;
    let (field, _) = seen(keys, &args[0], hash, &args[1])?;
    Ok(Reply::Integer(field.map_or(0, |field| field.value.len() as i64)))
}

/// HLEN: counts fields that are over and not deleted yet, as Redis does.
pub(super) fn hlen(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    Ok(Reply::Integer(keys.hash(&args[0])?.map_or(0, |hash| hash.count as i64)))
}

/// What `shown` makes of each field, within the bound on replies.
fn all<T>(
    key: &Bytes,
    keys: &mut Keys<'_>,
    shown: impl Fn(Bytes, Bytes) -> (usize, T),
) -> Result<Vec<T>, Problem> {
    let Some(hash) = keys.hash(key)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    keys.each_field(key, hash, |keys, name, field| {
        let (bytes, item) = shown(name, field.value);
        keys.answers_item(bytes)?;
        found.push(item);
        Ok(true)
    })?;
    Ok(found)
}

pub(super) fn hgetall(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let pair =
        |name: Bytes, value: Bytes| (name.len() + value.len(), (Reply::Bulk(name), Reply::Bulk(value)));
    all(&args[0], keys, pair).map(Reply::Map)
}

pub(super) fn hkeys(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    all(&args[0], keys, |name, _| (name.len(), Reply::Bulk(name))).map(Reply::Array)
}

pub(super) fn hvals(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    all(&args[0], keys, |_, value| (value.len(), Reply::Bulk(value))).map(Reply::Array)
}

/// HRANDFIELD key [count [WITHVALUES]]. Of a hash with more than [`CHOSEN_AMONG_MAX`] fields those are chosen from that
/// come first by name, so that it is not read whole.
pub(super) fn hrandfield(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let with_values = match &args[1..] {
        [] | [_] => false,
        [_, word] if is(word, "withvalues") => true,
        _ => return refuse(SYNTAX),
    };
    let count = args.get(1).map(|text| integer(text)).transpose()?;
    let most = i64::MAX / 2;
    if count.is_some_and(|count| !(-most..=most).contains(&count)) {
        return refuse("ERR value is out of range");
    }
    let Some(hash) = keys.hash(&args[0])? else {
        return Ok(if count.is_some() { Reply::Array(Vec::new()) } else { Reply::Null });
    };
    let wanted = count.map_or(1, i64::unsigned_abs);
    let among = wanted.max(CHOSEN_AMONG_MAX) as usize;
    let mut found: Vec<(Bytes, Bytes)> = Vec::new();
    keys.each_field(&args[0], hash, |keys, name, field| {
        keys.answers_item(name.len() + field.value.len())?;
        found.push((name, field.value));
        Ok(found.len() < among)
    })?;
    let pair = |(name, value): (Bytes, Bytes)| (Reply::Bulk(name), Reply::Bulk(value));
    let mut chosen = Vec::new();
    match count {
        _ if found.is_empty() => {}
        Some(..0) => {
            for _ in 0..wanted {
                let (name, value) = &found[rand::random_range(0..found.len())];
                keys.answers_item(name.len() + if with_values { value.len() } else { 0 })?;
                chosen.push(pair((name.clone(), value.clone())));
            }
        }
        Some(_) | None => {
            while !found.is_empty() && (chosen.len() as u64) < wanted {
                chosen.push(pair(found.swap_remove(rand::random_range(0..found.len()))));
            }
        }
    }
    Ok(match count {
        None => chosen.pop().map_or(Reply::Null, |(name, _)| name),
        Some(_) if with_values => Reply::Pairs(chosen),
        Some(_) => Reply::Array(chosen.into_iter().map(|(name, _)| name).collect()),
    })
}

/// HSCAN key cursor [MATCH pattern] [COUNT n] [NOVALUES]
pub(super) async fn hscan(session: &mut Session, args: &[Bytes]) -> Result<Reply, Error> {
    let number = |bytes: &Bytes| std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<u64>().ok());
    let Some(cursor) = number(&args[1]) else { return Ok(Reply::error("ERR invalid cursor")) };
    let sight = session.sight().await?.clone();
    // As in Redis, of an absent key the options are not looked at.
    let hash = match Keys::only_read(&sight).hash(&args[0]) {
        Ok(Some(hash)) => hash,
        Ok(None) => return Ok(scanned(0, Vec::new())),
        Err(problem) => return replied(Err(problem)).map_err(failed),
    };
    let options = match Options::of(&args[2..]) {
        Ok(options) => options,
        Err(problem) => return replied(Err(problem)).map_err(failed),
    };
    let server = &session.server;
    let from = match cursor {
        0 => Vec::new(),
        cursor => match server.cursors.find(cursor) {
            Some(after) => [&after[..], b"\0"].concat(),
            None => return Ok(Reply::error(UNKNOWN_CURSOR)),
        },
    };
    let bytes_max = server.engine.limits().response_bytes_max;
    let aside = options.pattern.is_some() || options.count > FIELDS_IN_PLACE_MAX;
    let piece = in_place(aside, || Piece::read(&sight, hash, &from, &options, bytes_max)).map_err(failed)?;
    Ok(scanned(piece.next.map_or(0, |last| server.cursors.remember(last)), piece.found))
}

fn scanned(cursor: u64, found: Vec<Reply>) -> Reply {
    Reply::Array(vec![Reply::text(cursor.to_string()), Reply::Array(found)])
}

/// Of HSCAN.
struct Options<'a> {
    pattern: Option<&'a Bytes>,
    count: usize,
    with_values: bool,
}

impl<'a> Options<'a> {
    fn of(mut words: &'a [Bytes]) -> Result<Self, Problem> {
        let mut found = Self { pattern: None, count: 10, with_values: true };
        loop {
            words = match words {
                [] => return Ok(found),
                [word, value, rest @ ..] if is(word, "match") => {
                    if let Some(Reply::Error(text)) = glob::too_long(value) {
                        return refuse(text);
                    }
                    found.pattern = Some(value);
                    rest
                }
                [word, value, rest @ ..] if is(word, "count") => {
                    let Ok(count @ 1..) = usize::try_from(integer(value)?) else { return refuse(SYNTAX) };
                    found.count = count.min(PIECE);
                    rest
                }
                [word, rest @ ..] if is(word, "novalues") => {
                    found.with_values = false;
                    rest
                }
                _ => return refuse(SYNTAX),
            }
        }
    }
}

/// A piece of a hash.
struct Piece {
    found: Vec<Reply>,
    /// The last field that was looked at, if there are more.
    next: Option<Bytes>,
}

impl Piece {
    fn read(
        sight: &Sight,
        hash: Hash,
        from: &[u8],
        options: &Options<'_>,
        bytes_max: usize,
    ) -> Result<Self, Failed> {
        let (mut found, mut last, mut looked, mut bytes) = (Vec::new(), None, 0, 0);
        let stored = hash.stored.map(|stored| kv::fields(sight.view.view(), stored, from));
        for pair in stored.into_iter().flatten() {
            let (name, field) = pair.map_err(|error| Failed::Error(error.into()))?;
            if looked == options.count || bytes > bytes_max {
                return Ok(Self { found, next: last });
            }
            looked += 1;
            // A copy: what a scan returns may be a slice of a whole block.
            last = Some(Bytes::copy_from_slice(&name));
            let wanted = options.pattern.is_none_or(|pattern| glob::matches(pattern, &name));
            if wanted && sight.is_alive(field.expires.map(|at| at.0)) {
                bytes += name.len() + field.value.len();
                found.push(Reply::Bulk(name));
                found.extend(options.with_values.then_some(Reply::Bulk(field.value)));
            }
        }
        Ok(Self { found, next: None })
    }
}
