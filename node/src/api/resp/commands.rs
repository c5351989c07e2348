//! What each command does with keys, as a function of its arguments and of [`Keys`]. Commands that are about the
//! connection are in `connection.rs`, those that look at all keys in `scan.rs`.

use super::frame::Reply;
use super::keys::{Entry, Expiry, Failed, Keys};
use bytes::Bytes;
use quoin_core::kv::Increment;

/// Bytes of a value at most that APPEND and SETRANGE may make; as large as a request may be is checked when it is written.
const VALUE_BYTES_MAX: usize = 512 << 20;

/// A command about keys.
#[derive(Clone, Copy)]
pub(super) struct Command {
    pub(super) name: &'static str,
    /// Arguments with the name itself: exactly so many, or at least so many where it is negative.
    pub(super) arity: i32,
    /// It writes nothing.
    pub(super) reads: bool,
    run: Run,
}

type Run = fn(&[Bytes], &mut Keys<'_>) -> Outcome;
type Outcome = Result<Reply, Problem>;

/// Why a command has no reply of its own.
pub(super) enum Problem {
    /// The text of an error.
    Said(String),
    Failed(Failed),
}

impl From<Failed> for Problem {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

fn said<T>(text: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::Said(text.into()))
}

const SYNTAX: &str = "ERR syntax error";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";
const NO_FLOAT: &str = "ERR value is not a valid float";

impl Command {
    /// The command of this name, in any case.
    pub(super) fn find(name: &[u8]) -> Option<&'static Self> {
        COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Whether so many arguments, its name included, will do.
    pub(super) fn takes(&self, arguments: usize) -> bool {
        let given = arguments as i64;
        if self.arity < 0 { given >= i64::from(-self.arity) } else { given == i64::from(self.arity) }
    }

    /// What a counter's command adds, where it stands alone: many clients may add to one key at once, so the log does it. Within
    /// a transaction, and with an argument that is no number, it runs as any other.
    pub(super) fn increment(&self, arguments: &[Bytes]) -> Option<Increment> {
        let by = match (self.name, &arguments[2..]) {
            ("incr", []) => 1,
            ("decr", []) => -1,
            ("incrby", [by]) => integer(by).ok()?,
            ("decrby", [by]) => integer(by).ok()?.checked_neg()?,
            _ => return None,
        };
        Some(Increment { key: arguments[1].clone(), by })
    }

    /// Runs it; `arguments` begin with its name.
    pub(super) fn run(&self, arguments: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
        (self.run)(&arguments[1..], keys)
    }
}

const fn reads(name: &'static str, arity: i32, run: Run) -> Command {
    Command { name, arity, reads: true, run }
}

const fn writes(name: &'static str, arity: i32, run: Run) -> Command {
    Command { name, arity, reads: false, run }
}

/// All of them.
pub(super) const COMMANDS: &[Command] = &[
    reads("get", 2, get),
    writes("set", -3, set),
    reads("mget", -2, mget),
    writes("mset", -3, mset),
    writes("msetnx", -3, msetnx),
    writes("setnx", 3, setnx),
    writes("setex", 4, |args, keys| set_with_ttl(args, keys, 1000, "setex")),
    writes("psetex", 4, |args, keys| set_with_ttl(args, keys, 1, "psetex")),
    writes("getset", 3, getset),
    writes("getdel", 2, getdel),
    writes("getex", -2, getex),
    writes("del", -2, del),
    writes("unlink", -2, del),
    reads("exists", -2, exists),
    reads("touch", -2, exists),
    writes("expire", -3, |args, keys| expire(args, keys, 1000, false)),
    writes("pexpire", -3, |args, keys| expire(args, keys, 1, false)),
    writes("expireat", -3, |args, keys| expire(args, keys, 1000, true)),
    writes("pexpireat", -3, |args, keys| expire(args, keys, 1, true)),
    writes("persist", 2, persist),
    reads("ttl", 2, |args, keys| left(args, keys, |at, now| at.saturating_sub(now).div_ceil(1000))),
    reads("pttl", 2, |args, keys| left(args, keys, u64::saturating_sub)),
    reads("expiretime", 2, |args, keys| left(args, keys, |at, _| at / 1000)),
    reads("pexpiretime", 2, |args, keys| left(args, keys, |at, _| at)),
    writes("incr", 2, |args, keys| increment(&args[0], keys, 1)),
    writes("decr", 2, |args, keys| increment(&args[0], keys, -1)),
    writes("incrby", 3, |args, keys| increment(&args[0], keys, integer(&args[1])?)),
    writes("decrby", 3, decrby),
    writes("incrbyfloat", 3, incrbyfloat),
    writes("append", 3, append),
    reads("strlen", 2, strlen),
    reads("getrange", 4, getrange),
    reads("substr", 4, getrange),
    writes("setrange", 4, setrange),
    reads("type", 2, type_of),
    writes("rename", 3, rename),
    writes("renamenx", 3, renamenx),
    writes("copy", -3, copy),
];

fn integer(text: &[u8]) -> Result<i64, Problem> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Problem::Said(NO_INTEGER.into()))
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

/// A value as an answer, within what answers may be.
fn bulk(keys: &mut Keys<'_>, entry: Option<Entry>) -> Outcome {
    let Some(entry) = entry else { return Ok(Reply::Null) };
    keys.answers(entry.value.len())?;
    Ok(Reply::Bulk(entry.value))
}

fn get(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let entry = keys.get(&args[0])?;
    bulk(keys, entry)
}

fn mget(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let mut value = |key| {
        let entry = keys.get(key)?;
        bulk(keys, entry)
    };
    args.iter().map(&mut value).collect::<Result<_, Problem>>().map(Reply::Array)
}

/// A time to live among the options of SET and GETEX: its word, and the number after it.
fn expiry(word: &[u8], number: Option<&Bytes>, command: &str) -> Result<Option<Expiry>, Problem> {
    let (unit, absolute) = match () {
        () if is(word, "ex") => (1000, false),
        () if is(word, "px") => (1, false),
        () if is(word, "exat") => (1000, true),
        () if is(word, "pxat") => (1, true),
        () => return Ok(None),
    };
    let Some(number) = number else { return said(SYNTAX) };
    let ms = u64::try_from(integer(number)?)
        .ok()
        .filter(|number| *number > 0)
        .and_then(|number| number.checked_mul(unit));
    match ms {
        Some(at) if absolute => Ok(Some(Expiry::At(at))),
        Some(ms) => Ok(Some(Expiry::In(ms))),
        None => said(format!("ERR invalid expire time in '{command}' command")),
    }
}

fn set(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
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
                None => return said(SYNTAX),
            },
            () => return said(SYNTAX),
        }
    }
    if only_absent && only_present {
        return said(SYNTAX);
    }
    let old = if only_absent || only_present || answer_old { keys.get(&args[0])? } else { None };
    let refused = if old.is_some() { only_absent } else { only_present };
    let holds = !refused;
    if holds {
        keys.put(args[0].clone(), args[1].clone(), ttl.unwrap_or(Expiry::Never));
    }
    match (answer_old, holds) {
        (true, _) => bulk(keys, old),
        (false, true) => Ok(Reply::OK),
        (false, false) => Ok(Reply::Null),
    }
}

fn pairs<'b>(args: &'b [Bytes], command: &str) -> Result<std::slice::ChunksExact<'b, Bytes>, Problem> {
    if args.len().is_multiple_of(2) {
        return Ok(args.chunks_exact(2));
    }
    said(format!("ERR wrong number of arguments for '{command}' command"))
}

fn mset(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    for pair in pairs(args, "mset")? {
        keys.put(pair[0].clone(), pair[1].clone(), Expiry::Never);
    }
    Ok(Reply::OK)
}

fn msetnx(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    for pair in pairs(args, "msetnx")? {
        if keys.get(&pair[0])?.is_some() {
            return Ok(Reply::Integer(0));
        }
    }
    mset(args, keys)?;
    Ok(Reply::Integer(1))
}

fn setnx(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let absent = keys.get(&args[0])?.is_none();
    if absent {
        keys.put(args[0].clone(), args[1].clone(), Expiry::Never);
    }
    Ok(Reply::Integer(absent.into()))
}

fn set_with_ttl(args: &[Bytes], keys: &mut Keys<'_>, unit: u64, command: &str) -> Outcome {
    let word = if unit == 1 { "px" } else { "ex" };
    let ttl = expiry(word.as_bytes(), Some(&args[1]), command)?.expect("the word is one of the four");
    keys.put(args[0].clone(), args[2].clone(), ttl);
    Ok(Reply::OK)
}

fn getset(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let old = keys.get(&args[0])?;
    keys.put(args[0].clone(), args[1].clone(), Expiry::Never);
    bulk(keys, old)
}

fn getdel(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let old = keys.get(&args[0])?;
    if old.is_some() {
        keys.delete(args[0].clone());
    }
    bulk(keys, old)
}

fn getex(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let ttl = match &args[1..] {
        [] => None,
        [word] if is(word, "persist") => Some(Expiry::Never),
        [word, number] => match expiry(word, Some(number), "getex")? {
            Some(ttl) => Some(ttl),
            None => return said(SYNTAX),
        },
        _ => return said(SYNTAX),
    };
    let entry = keys.get(&args[0])?;
    if let (Some(_), Some(ttl)) = (&entry, ttl) {
        keys.expire(args[0].clone(), ttl);
    }
    bulk(keys, entry)
}

fn del(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let mut deleted = 0;
    for key in args {
        if keys.get(key)?.is_some() {
            keys.delete(key.clone());
            deleted += 1;
        }
    }
    Ok(Reply::Integer(deleted))
}

fn exists(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let mut count = 0;
    for key in args {
        count += i64::from(keys.get(key)?.is_some());
    }
    Ok(Reply::Integer(count))
}

fn expire(args: &[Bytes], keys: &mut Keys<'_>, unit: i64, absolute: bool) -> Outcome {
    let Some(ms) = integer(&args[1])?.checked_mul(unit) else { return said("ERR invalid expire time") };
    let now = keys.now()?;
    let at = if absolute { ms } else { ms.saturating_add_unsigned(now) };
    let Some(entry) = keys.get(&args[0])? else { return Ok(Reply::Integer(0)) };
    let before = entry.expires_at.map_or(i64::MAX, |at| i64::try_from(at).unwrap_or(i64::MAX));
    let holds = match args.get(2) {
        None => true,
        Some(word) if is(word, "nx") => entry.expires_at.is_none(),
        Some(word) if is(word, "xx") => entry.expires_at.is_some(),
        Some(word) if is(word, "gt") => at > before,
        Some(word) if is(word, "lt") => at < before,
        Some(word) => return said(format!("ERR Unsupported option {}", word.escape_ascii())),
    };
    if !holds {
        return Ok(Reply::Integer(0));
    }
    match u64::try_from(at).ok().filter(|at| *at > now) {
        Some(at) => keys.expire(args[0].clone(), Expiry::At(at)),
        // In the past: the key is gone at once.
        None => keys.delete(args[0].clone()),
    }
    Ok(Reply::Integer(1))
}

fn persist(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let expires = keys.get(&args[0])?.is_some_and(|entry| entry.expires_at.is_some());
    if expires {
        keys.expire(args[0].clone(), Expiry::Never);
    }
    Ok(Reply::Integer(expires.into()))
}

/// -2 without the key, -1 where it does not expire.
fn left(args: &[Bytes], keys: &mut Keys<'_>, shown: fn(u64, u64) -> u64) -> Outcome {
    let Some(entry) = keys.get(&args[0])? else { return Ok(Reply::Integer(-2)) };
    let now = keys.now()?;
    Ok(Reply::Integer(entry.expires_at.map_or(-1, |at| i64::try_from(shown(at, now)).unwrap_or(i64::MAX))))
}

fn increment(key: &Bytes, keys: &mut Keys<'_>, by: i64) -> Outcome {
    let before = keys.get(key)?.map_or(Ok(0), |entry| integer(&entry.value))?;
    let Some(after) = before.checked_add(by) else {
        return said("ERR increment or decrement would overflow");
    };
    keys.put(key.clone(), after.to_string().into(), Expiry::Keep);
    Ok(Reply::Integer(after))
}

fn decrby(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    match integer(&args[1])?.checked_neg() {
        Some(by) => increment(&args[0], keys, by),
        None => said("ERR decrement would overflow"),
    }
}

fn float(text: &[u8]) -> Result<f64, Problem> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse::<f64>().ok());
    parsed.filter(|number| !number.is_nan()).ok_or_else(|| Problem::Said(NO_FLOAT.into()))
}

fn incrbyfloat(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let before = keys.get(&args[0])?.map_or(Ok(0.0), |entry| float(&entry.value))?;
    let after = before + float(&args[1])?;
    if !after.is_finite() {
        return said("ERR increment would produce NaN or Infinity");
    }
    let text = Bytes::from(after.to_string());
    keys.put(args[0].clone(), text.clone(), Expiry::Keep);
    Ok(Reply::Bulk(text))
}

fn append(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let mut value = keys.get(&args[0])?.map_or(Vec::new(), |entry| entry.value.to_vec());
    value.extend_from_slice(&args[1]);
    let length = value.len();
    keys.put(args[0].clone(), value.into(), Expiry::Keep);
    Ok(Reply::Integer(length as i64))
}

fn strlen(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    Ok(Reply::Integer(keys.get(&args[0])?.map_or(0, |entry| entry.value.len() as i64)))
}

fn getrange(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let value = keys.get(&args[0])?.map_or(Bytes::new(), |entry| entry.value);
    let length = value.len() as i64;
    // Counted from the end where it is negative.
    let place = |number: i64| if number < 0 { number.saturating_add(length).max(0) } else { number };
    let (from, to) = (place(integer(&args[1])?), place(integer(&args[2])?).min(length - 1));
    if from > to || length == 0 {
        return Ok(Reply::Bulk(Bytes::new()));
    }
    Ok(Reply::Bulk(value.slice(from as usize..=to as usize)))
}

fn setrange(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let Ok(offset) = usize::try_from(integer(&args[1])?) else { return said("ERR offset is out of range") };
    let mut value = keys.get(&args[0])?.map_or(Vec::new(), |entry| entry.value.to_vec());
    let end = offset.saturating_add(args[2].len());
    if end > VALUE_BYTES_MAX {
        return said("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    }
    if args[2].is_empty() {
        return Ok(Reply::Integer(value.len() as i64));
    }
    if value.len() < end {
        value.resize(end, 0);
    }
    value[offset..end].copy_from_slice(&args[2]);
    let length = value.len();
    keys.put(args[0].clone(), value.into(), Expiry::Keep);
    Ok(Reply::Integer(length as i64))
}

fn type_of(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    Ok(Reply::Simple(if keys.get(&args[0])?.is_some() { "string" } else { "none" }))
}

fn as_it_was(entry: &Entry) -> Expiry {
    entry.expires_at.map_or(Expiry::Never, Expiry::At)
}

fn rename(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let Some(entry) = keys.get(&args[0])? else { return said("ERR no such key") };
    if args[0] != args[1] {
        keys.delete(args[0].clone());
        let ttl = as_it_was(&entry);
        keys.put(args[1].clone(), entry.value, ttl);
    }
    Ok(Reply::OK)
}

fn renamenx(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    if keys.get(&args[0])?.is_none() {
        return said("ERR no such key");
    }
    if keys.get(&args[1])?.is_some() {
        return Ok(Reply::Integer(0));
    }
    rename(args, keys)?;
    Ok(Reply::Integer(1))
}

fn copy(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let replace = match &args[2..] {
        [] => false,
        [word] if is(word, "replace") => true,
        [word, ..] if is(word, "db") => return said("ERR there is one database, 0"),
        _ => return said(SYNTAX),
    };
    let Some(entry) = keys.get(&args[0])? else { return Ok(Reply::Integer(0)) };
    if !replace && keys.get(&args[1])?.is_some() {
        return Ok(Reply::Integer(0));
    }
    let ttl = as_it_was(&entry);
    keys.put(args[1].clone(), entry.value, ttl);
    Ok(Reply::Integer(1))
}
