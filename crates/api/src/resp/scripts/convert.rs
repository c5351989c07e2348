//! Replies as values of Lua, and what a script returns as a reply
//! (<https://redis.io/docs/latest/develop/programmability/lua-api/#data-type-conversion>).

use super::native::error_text;
use crate::resp::keys::{Failed, Problem, reply_too_large};
use crate::resp::number;
use crate::resp::parse::refuse;
use crate::resp::reply::Reply;
use mlua::{Lua, LuaString, Table, Value};

/// How deep a reply may be nested.
const DEPTH_MAX: usize = 100;

/// A command's reply as a script sees it, in this version of the protocol.
///
/// # Errors
/// There is no memory for it.
pub(super) fn to_lua(lua: &Lua, reply: &Reply, version: u8) -> mlua::Result<Value> {
    Ok(match reply {
        Reply::Simple(text) => field(lua, "ok", text.as_bytes())?,
        Reply::Status(text) => field(lua, "ok", text)?,
        Reply::Error(text) => field(lua, "err", text.as_bytes())?,
        Reply::Integer(number) => Value::Integer(*number),
        Reply::Double(number) => Value::Number(*number),
        Reply::Boolean(value) => Value::Boolean(*value),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Null | Reply::NullArray if version == 3 => Value::Nil,
        Reply::Null | Reply::NullArray => Value::Boolean(false),
        Reply::Array(items) | Reply::Push(items) | Reply::Several(items) | Reply::Set(items) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for (at, item) in items.iter().enumerate() {
                table.raw_set(at + 1, to_lua(lua, item, version)?)?;
            }
            Value::Table(table)
        }
        Reply::Pairs(pairs) if version == 3 => {
            let table = lua.create_table_with_capacity(pairs.len(), 0)?;
            for (at, (first, second)) in pairs.iter().enumerate() {
                let pair = [to_lua(lua, first, version)?, to_lua(lua, second, version)?];
                table.raw_set(at + 1, lua.create_sequence_from(pair)?)?;
            }
            Value::Table(table)
        }
        Reply::Map(pairs) | Reply::Pairs(pairs) => {
            let table = lua.create_table()?;
            for (at, (key, value)) in pairs.iter().enumerate() {
                let (key, value) = (to_lua(lua, key, version)?, to_lua(lua, value, version)?);
                if version == 3 {
                    table.raw_set(key, value)?;
                } else {
                    table.raw_set(2 * at + 1, key)?;
                    table.raw_set(2 * at + 2, value)?;
                }
            }
            if version == 3 {
                let map = lua.create_table()?;
                map.raw_set("map", table)?;
                Value::Table(map)
            } else {
                Value::Table(table)
            }
        }
    })
}

fn field(lua: &Lua, name: &str, text: &[u8]) -> mlua::Result<Value> {
    let table = lua.create_table_with_capacity(0, 1)?;
    table.raw_set(name, lua.create_string(text)?)?;
    Ok(Value::Table(table))
}

/// What a script returned, as its client gets it: `version` is the protocol's that the script chose. Of several items
/// it has at most `bytes_max` bytes, as often as they are said: a table may hold another one many times.
///
/// # Errors
/// It is too large, or nested too deep.
pub(super) fn to_reply(value: &Value, version: u8, bytes_max: usize) -> Result<Reply, Problem> {
    match value {
        Value::String(text) => Ok(bulk(text)),
        value => Making { version, left: bytes_max, bytes_max }.nested(value, 0),
    }
}

/// A reply being made.
struct Making {
    version: u8,
    /// Bytes that it may still have.
    left: usize,
    bytes_max: usize,
}

impl Making {
    fn nested(&mut self, value: &Value, depth: usize) -> Result<Reply, Problem> {
        let bytes = if let Value::String(text) = value { text.as_bytes().len() } else { 0 };
        let too_large = || Problem::Failed(Failed::Error(reply_too_large(self.bytes_max)));
        self.left = self.left.checked_sub(bytes + ITEM_BYTES).ok_or_else(too_large)?;
        Ok(match value {
            Value::String(text) => bulk(text),
            Value::Integer(number) => Reply::Integer(*number),
            Value::Number(number) => Reply::Integer(truncated(*number)),
            Value::Boolean(value) if self.version == 3 => Reply::Boolean(*value),
            Value::Boolean(true) => Reply::Integer(1),
            Value::Table(table) if depth < DEPTH_MAX => return self.of_table(table, depth + 1),
            Value::Table(_) => return refuse(format!("ERR a reply that is nested deeper than {DEPTH_MAX}")),
            _ => Reply::Null,
        })
    }

    fn of_table(&mut self, table: &Table, depth: usize) -> Result<Reply, Problem> {
        let fault = |error: mlua::Error| Problem::Refused(format!("ERR {}", error_text(&error)));
        let field = |name: &str| table.raw_get::<Value>(name).map_err(fault);
        if let Value::String(text) = field("err")? {
            return Ok(Reply::Error(text.to_string_lossy()));
        }
        if let Value::String(text) = field("ok")? {
            return Ok(Reply::Status(text.as_bytes().to_vec().into()));
        }
        match field("double")? {
            Value::Number(number) => return Ok(Reply::Double(number)),
            Value::Integer(number) => return Ok(Reply::Double(number as f64)),
            _ => {}
        }
        if let Value::Table(map) = field("map")? {
            let pairs = map.pairs::<Value, Value>().map(|pair| {
                let (key, value) = pair.map_err(fault)?;
                Ok((self.nested(&key, depth)?, self.nested(&value, depth)?))
            });
            return Ok(Reply::Map(pairs.collect::<Result<_, Problem>>()?));
        }
        if let Value::Table(set) = field("set")? {
            let members = set.pairs::<Value, Value>().map(|pair| self.nested(&pair.map_err(fault)?.0, depth));
            return Ok(Reply::Set(members.collect::<Result<_, Problem>>()?));
        }
        if let Value::String(number) = field("big_number")? {
            return Ok(bulk(&number));
        }
        if let Value::Table(verbatim) = field("verbatim_string")?
            && let Value::String(text) = verbatim.raw_get::<Value>("string").map_err(fault)?
        {
            return Ok(bulk(&text));
        }
        let mut items = Vec::new();
        loop {
            let item = table.raw_get::<Value>(items.len() + 1).map_err(fault)?;
            if item.is_nil() {
                return Ok(Reply::Array(items));
            }
            items.push(self.nested(&item, depth)?);
        }
    }
}

fn bulk(text: &LuaString) -> Reply {
    Reply::Bulk(bytes::Bytes::copy_from_slice(&text.as_bytes()))
}

/// As a processor converts it: what no integer can hold becomes the smallest.
fn truncated(number: f64) -> i64 {
    const END: f64 = 9_223_372_036_854_775_808.0;
    if (-END..END).contains(&number) { number as i64 } else { i64::MIN }
}

/// Bytes of the texts in a reply.
pub(super) fn text_bytes(reply: &Reply) -> usize {
    match reply {
        Reply::Bulk(bytes) | Reply::Status(bytes) => bytes.len(),
        Reply::Error(text) => text.len(),
        Reply::Array(items) | Reply::Set(items) => {
            items.iter().map(|item| ITEM_BYTES + text_bytes(item)).sum()
        }
        Reply::Map(pairs) | Reply::Pairs(pairs) => {
            pairs.iter().map(|(key, value)| 2 * ITEM_BYTES + text_bytes(key) + text_bytes(value)).sum()
        }
        _ => 0,
    }
}

/// What an item costs besides its text, on the wire.
const ITEM_BYTES: usize = 8;

/// A command's argument; `None` for what is neither a text nor a number.
pub(super) fn argument(value: &Value) -> Option<bytes::Bytes> {
    match value {
        Value::String(text) => Some(bytes::Bytes::copy_from_slice(&text.as_bytes())),
        Value::Integer(number) => Some(number::text(*number as f64).into()),
        Value::Number(number) => Some(number::text(*number).into()),
        _ => None,
    }
}
