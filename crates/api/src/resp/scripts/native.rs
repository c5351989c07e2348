//! What the prelude of a Lua state (`prelude.lua`) has from Rust.
//!
//! A function here returns true and its results, or false and the text of an error, which the prelude raises
//! where the script called.

use super::json;
use super::pattern::{self, Capture, Match};
use super::stop::Stop;
use crate::resp::commands::Command;
use mlua::chunk::ChunkMode;
use mlua::{IntoLua, IntoLuaMulti, Lua, LuaString, MultiValue, Table, Value};
use parking_lot::Mutex;
use quoin_core::function;
use sha1::{Digest, Sha1};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes that a state may take.
pub(super) const MEMORY_MAX: usize = 32 << 20;
/// The version of Redis whose scripts these are.
const REDIS_VERSION: &str = "7.0.0";
const REDIS_VERSION_NUMBER: u32 = 0x0007_0000;
/// The name of the prelude, which no script's can be.
pub(super) const PRELUDE: &str = "=prelude";

/// Where a script failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Located {
    /// The chunk's name, with `@` before that of a script.
    pub(super) source: String,
    pub(super) line: usize,
}

/// What a state's functions share with who runs it.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) stop: Arc<Stop>,
    pub(super) failed_at: Arc<Mutex<Option<Located>>>,
    /// The protocol's in which the script wants replies.
    pub(super) version: Arc<AtomicU8>,
}

/// The error of a command that `redis.call` ran.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct CommandFailed(pub(super) String);

/// An error as scripts know it: a table for that of a command, a text for another one of this side.
fn plain(lua: &Lua, error: Value) -> mlua::Result<Value> {
    let Value::Error(error) = error else { return Ok(error) };
    match error.downcast_ref::<CommandFailed>() {
        Some(CommandFailed(text)) => {
            let table = lua.create_table()?;
            table.raw_set("err", text.as_str())?;
            Ok(Value::Table(table))
        }
        None => error_text(&error).into_lua(lua),
    }
}

/// A function's results, or the text of its error.
type Results = Result<MultiValue, String>;

/// The table `native`.
pub(super) fn table(lua: &Lua, shared: &Shared) -> mlua::Result<Table> {
    let native = lua.create_table()?;
    native.set("memory_max", MEMORY_MAX)?;
    native.set("version", REDIS_VERSION)?;
    native.set("version_number", REDIS_VERSION_NUMBER)?;
    native.set("null", Value::NULL)?;
    native.set("text", texts(lua, &shared.stop)?)?;
    native.set("bit", bits(lua)?)?;
    let stop = Arc::clone(&shared.stop);
    native.set("ended", lua.create_function(move |_, ()| Ok(stop.has_ended()))?)?;
    let stop = Arc::clone(&shared.stop);
    native.set("check_time", lua.create_function(move |_, ()| stop.check())?)?;
    native.set("compile", lua.create_function(compile)?)?;
    native.set(
        "is_name",
        lua.create_function(|_, name: LuaString| {
            Ok(std::str::from_utf8(&name.as_bytes()).is_ok_and(function::is_name))
        })?,
    )?;
    native.set(
        "flag",
        lua.create_function(|_, name: LuaString| {
            let flag = function::FLAGS.iter().find(|(known, _)| name.as_bytes() == known.as_bytes());
            Ok(flag.map(|(_, flag)| *flag))
        })?,
    )?;
    native.set(
        "exists",
        lua.create_function(|_, name: LuaString| Ok(Command::find(&name.as_bytes()).is_some()))?,
    )?;
    native.set("sha1hex", lua.create_function(|_, text: LuaString| Ok(sha1_hex(&text.as_bytes())))?)?;
    native.set("log", lua.create_function(log)?)?;
    native.set(
        "json_decode",
        lua.create_function(|lua, text: LuaString| {
            Ok(match json::decode(lua, &text.as_bytes()) {
                Ok(value) => (true, value),
                Err(problem) => (false, problem.into_lua(lua)?),
            })
        })?,
    )?;
    let failed_at = Arc::clone(&shared.failed_at);
    native.set(
        "located",
        lua.create_function(move |lua, error: Value| {
            *failed_at.lock() = located(lua);
            plain(lua, error)
        })?,
    )?;
    native.set("plain", lua.create_function(plain)?)?;
    native.set("seed", lua.create_function(|_, ()| Ok(rand::random_range(0..1_u64 << 48)))?)?;
    let version = Arc::clone(&shared.version);
    native.set(
        "set_version",
        lua.create_function(move |_, number: u8| {
            version.store(number, Ordering::Relaxed);
            Ok(())
        })?,
    )?;
    Ok(native)
}

pub(super) fn sha1_hex(text: &[u8]) -> String {
    hex(&Sha1::digest(text))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
        text
    })
}

/// The innermost function of a script that is running.
fn located(lua: &Lua) -> Option<Located> {
    const LEVELS_MAX: usize = 100;
    (1..LEVELS_MAX).find_map(|level| {
        let found = lua.inspect_stack(level, |debug| {
            let source = debug.source();
            let name = source.source.as_deref().unwrap_or_default().to_owned();
            (name != PRELUDE && source.what != "C")
                .then(|| debug.current_line().map(|line| Located { source: name, line }))
                .flatten()
        });
        match found {
            None => Some(None),
            Some(None) => None,
            Some(found) => Some(found),
        }
    })?
}

/// A chunk of text as a function; nil and the problem where it is none.
fn compile(lua: &Lua, (chunk, name): (LuaString, LuaString)) -> mlua::Result<(Value, Value)> {
    let name = name.to_string_lossy();
    let compiled = lua.load(&chunk.as_bytes()[..]).set_name(name).set_mode(ChunkMode::Text).into_function();
    Ok(match compiled {
        Ok(function) => (Value::Function(function), Value::Nil),
        Err(mlua::Error::SyntaxError { message, .. }) => (Value::Nil, message.into_lua(lua)?),
        Err(other) => (Value::Nil, other.to_string().into_lua(lua)?),
    })
}

fn log(_: &Lua, (level, text): (u8, LuaString)) -> mlua::Result<()> {
    let text = text.to_string_lossy();
    match level {
        0 | 1 => tracing::debug!(target: "script", "{text}"),
        2 => tracing::info!(target: "script", "{text}"),
        _ => tracing::warn!(target: "script", "{text}"),
    }
    Ok(())
}

/// Sets `name` of `table` to a function of any arguments.
fn export(
    lua: &Lua,
    table: &Table,
    name: &'static str,
    run: impl Fn(&Lua, &[Value]) -> Results + Send + Sync + 'static,
) -> mlua::Result<()> {
    let function = lua.create_function(move |lua, args: MultiValue| {
        let args: Vec<Value> = args.into_iter().collect();
        match run(lua, &args) {
            Ok(mut results) => {
                results.push_front(Value::Boolean(true));
                Ok(results)
            }
            Err(problem) => (false, problem).into_lua_multi(lua),
        }
    })?;
    table.set(name, function)
}

/// The name of an argument's type, as errors say it.
fn kind(args: &[Value], at: usize) -> &'static str {
    match args.get(at) {
        None => "no value",
        Some(Value::Integer(_)) => "number",
        Some(Value::LightUserData(_) | Value::Error(_)) => "userdata",
        Some(value) => value.type_name(),
    }
}

fn bad(args: &[Value], at: usize, function: &str, wanted: &str) -> String {
    format!("bad argument #{} to '{function}' ({wanted} expected, got {})", at + 1, kind(args, at))
}

/// An argument as text; a number is written as Lua writes it.
fn text(lua: &Lua, args: &[Value], at: usize, function: &str) -> Result<LuaString, String> {
    match args.get(at) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(number @ (Value::Integer(_) | Value::Number(_))) => {
            let text = lua.coerce_string(number.clone()).map_err(|error| error.to_string())?;
            text.ok_or_else(|| bad(args, at, function, "string"))
        }
        _ => Err(bad(args, at, function, "string")),
    }
}

fn number(lua: &Lua, args: &[Value], at: usize, function: &str) -> Result<f64, String> {
    let value = args.get(at).cloned().unwrap_or(Value::Nil);
    let number = lua.coerce_number(value).map_err(|error| error.to_string())?;
    number.ok_or_else(|| bad(args, at, function, "number"))
}

fn texts(lua: &Lua, stop: &Arc<Stop>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let of = Arc::clone(stop);
    export(lua, &table, "find", move |lua, args| search(lua, args, "find", &of))?;
    let of = Arc::clone(stop);
    export(lua, &table, "match", move |lua, args| search(lua, args, "match", &of))?;
    // text, pattern, from, whether `^` is an anchor
    let of = Arc::clone(stop);
    export(lua, &table, "match_at", move |lua, args| {
        let (text, pattern) = (text(lua, args, 0, "gsub")?, text(lua, args, 1, "gsub")?);
        let from = number(lua, args, 2, "gsub")? as usize - 1;
        let (text, anchors) = (text.as_bytes(), matches!(args.get(3), Some(Value::Boolean(true))));
        if from > text.len() {
            return Ok(MultiValue::new());
        }
        match pattern::find(&text, &pattern.as_bytes(), from, anchors, &of)? {
            Some(found) => Ok(placed(lua, &found).chain(captured(lua, &text, &found, true)?).collect()),
            None => Ok(MultiValue::new()),
        }
    })?;
    // the function's name, text, pattern
    export(lua, &table, "texts", |lua, args| {
        let name = text(lua, args, 0, "texts")?.to_string_lossy();
        let texts = [text(lua, &args[1..], 0, &name)?, text(lua, &args[1..], 1, &name)?];
        Ok(texts.into_iter().map(Value::String).collect())
    })?;
    export(lua, &table, "expand", |lua, args| {
        let replacement = text(lua, args, 0, "gsub")?;
        let made = expand(lua, &replacement.as_bytes(), &args[1..])?;
        value(lua, lua.create_string(made))
    })?;
    export(lua, &table, "json_quote", |lua, args| {
        let text = text(lua, args, 0, "encode")?;
        let quoted = json::quote(&text.as_bytes()).ok_or("not enough memory")?;
        value(lua, lua.create_string(quoted))
    })?;
    Ok(table)
}

fn value(lua: &Lua, made: mlua::Result<impl IntoLua>) -> Results {
    made.and_then(|made| made.into_lua_multi(lua)).map_err(|error| error_text(&error))
}

/// What a script is told of an error of this side.
pub(super) fn error_text(error: &mlua::Error) -> String {
    match error {
        mlua::Error::MemoryError(_) => "not enough memory".into(),
        mlua::Error::CallbackError { cause, .. } => error_text(cause),
        mlua::Error::RuntimeError(text) => text.clone(),
        other => other.to_string(),
    }
}

/// `string.find` and `string.match`: text, pattern, where to begin, whether the pattern is plain.
fn search(lua: &Lua, args: &[Value], name: &'static str, stop: &Stop) -> Results {
    let finds = name == "find";
    let (given, pattern) = (text(lua, args, 0, name)?, text(lua, args, 1, name)?);
    let (given, pattern) = (given.as_bytes(), pattern.as_bytes());
    let from = match args.get(2) {
        None | Some(Value::Nil) => 1,
        Some(_) => number(lua, args, 2, name)? as i64,
    };
    let length = given.len() as i64;
    // A negative place counts from the end.
    let from = if from < 0 { from.saturating_add(length).saturating_add(1) } else { from };
    let from = (from.max(1) - 1).min(length) as usize;
    let asked = !matches!(args.get(3), None | Some(Value::Nil | Value::Boolean(false)));
    let nothing = || Ok([Value::Nil].into_iter().collect());
    if finds && (asked || pattern::is_plain(&pattern)) {
        return match memchr::memmem::find(&given[from..], &pattern) {
            Some(at) => {
                let place = from + at..from + at + pattern.len();
                Ok(placed(lua, &Match { place, captures: Vec::new() }).collect())
            }
            None => nothing(),
        };
    }
    match pattern::find(&given, &pattern, from, true, stop)? {
        Some(found) if finds => {
            Ok(placed(lua, &found).chain(captured(lua, &given, &found, false)?).collect())
        }
        Some(found) => Ok(captured(lua, &given, &found, true)?.into_iter().collect()),
        None => nothing(),
    }
}

/// Where a match begins and ends, as Lua counts.
fn placed(_: &Lua, found: &Match) -> impl Iterator<Item = Value> + use<> {
    [found.place.start as i64 + 1, found.place.end as i64].map(Value::Integer).into_iter()
}

/// The captures; without any, the whole match if `or_whole`.
fn captured(lua: &Lua, text: &[u8], found: &Match, or_whole: bool) -> Result<Vec<Value>, String> {
    let whole = [Capture::Text(found.place.start, found.place.end)];
    let captures = if found.captures.is_empty() && or_whole { &whole[..] } else { &found.captures };
    let value = |capture: &Capture| match *capture {
        Capture::Position(at) => Ok(Value::Integer(at as i64 + 1)),
        Capture::Text(from, to) => {
            lua.create_string(&text[from..to]).map(Value::String).map_err(|error| error_text(&error))
        }
        Capture::Open(_) => Err("unfinished capture".into()),
    };
    captures.iter().map(value).collect()
}

/// A replacement with what `%0`, `%1` and the like stand for: the whole match and its captures.
fn expand(lua: &Lua, replacement: &[u8], parts: &[Value]) -> Result<Vec<u8>, String> {
    let (mut out, mut bytes) = (Vec::new(), replacement.iter());
    while let Some(&byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        match bytes.next() {
            Some(digit @ b'0'..=b'9') => {
                let at = usize::from(digit - b'0');
                if at >= parts.len() {
                    return Err("invalid capture index".into());
                }
                out.extend_from_slice(&text(lua, parts, at, "gsub")?.as_bytes());
            }
            Some(&other) => out.push(other),
            // As the zero byte after a text of C's.
            None => out.push(0),
        }
        if out.len() > MEMORY_MAX {
            return Err("not enough memory".into());
        }
    }
    Ok(out)
}

type Unary = fn(u32) -> u32;
type Binary = fn(u32, u32) -> u32;

/// The library `bit` of LuaJIT (<https://bitop.luajit.org/api.html>).
fn bits(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let folds: [(&'static str, Binary); 3] =
        [("band", |a, b| a & b), ("bor", |a, b| a | b), ("bxor", |a, b| a ^ b)];
    for (name, fold) in folds {
        export(lua, &table, name, move |lua, args| {
            let mut all = bit_argument(lua, args, 0, name)?;
            for at in 1..args.len() {
                all = fold(all, bit_argument(lua, args, at, name)?);
            }
            Ok(signed(all))
        })?;
    }
    let shifts: [(&'static str, Binary); 5] = [
        ("lshift", |value, by| value << by),
        ("rshift", |value, by| value >> by),
        ("arshift", |value, by| ((value as i32) >> by) as u32),
        ("rol", u32::rotate_left),
        ("ror", u32::rotate_right),
    ];
    for (name, shift) in shifts {
        export(lua, &table, name, move |lua, args| {
            let (value, by) = (bit_argument(lua, args, 0, name)?, bit_argument(lua, args, 1, name)?);
            Ok(signed(shift(value, by & 31)))
        })?;
    }
    let maps: [(&'static str, Unary); 3] =
        [("tobit", |value| value), ("bnot", |value| !value), ("bswap", u32::swap_bytes)];
    for (name, map) in maps {
        export(lua, &table, name, move |lua, args| Ok(signed(map(bit_argument(lua, args, 0, name)?))))?;
    }
    export(lua, &table, "tohex", |lua, args| {
        let value = bit_argument(lua, args, 0, "tohex")?;
        let digits = match args.get(1) {
            None => 8,
            Some(_) => bit_argument(lua, args, 1, "tohex")? as i32,
        };
        let width = digits.unsigned_abs().min(8) as usize;
        let text = if digits < 0 { format!("{value:08X}") } else { format!("{value:08x}") };
        self::value(lua, lua.create_string(&text[8 - width..]))
    })?;
    Ok(table)
}

/// A number modulo 2^32.
fn bit_argument(lua: &Lua, args: &[Value], at: usize, function: &str) -> Result<u32, String> {
    if matches!(args.get(at), Some(Value::String(_))) {
        return Err(bad(args, at, function, "number"));
    }
    let number = number(lua, args, at, function)?;
    Ok(number.round_ties_even().rem_euclid(4_294_967_296.0) as u32)
}

fn signed(value: u32) -> MultiValue {
    [Value::Integer((value as i32).into())].into_iter().collect()
}
