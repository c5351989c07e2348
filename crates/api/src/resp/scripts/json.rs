//! JSON for the library `cjson`: texts quoted as it quotes them, and values decoded straight into Lua's, whose
//! memory is bounded.

use super::native::{MEMORY_MAX, error_text};
use mlua::{Lua, Value};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// A text in quotes; `None` where it is larger than a state's memory.
pub(super) fn quote(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() + 2);
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'/' => out.extend_from_slice(b"\\/"),
            8 => out.extend_from_slice(b"\\b"),
            12 => out.extend_from_slice(b"\\f"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..32 | 127 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
        if out.len() > MEMORY_MAX {
            return None;
        }
    }
    out.push(b'"');
    Some(out)
}

/// The value that `text` says; what is null there is `cjson.null`.
///
/// # Errors
/// It is not JSON, or there is no memory for it.
pub(super) fn decode(lua: &Lua, text: &[u8]) -> Result<Value, String> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    let value = Decoding(lua).deserialize(&mut parser).and_then(|value| parser.end().map(|()| value));
    value.map_err(|problem| problem.to_string())
}

/// What a value becomes.
#[derive(Clone, Copy)]
struct Decoding<'a>(&'a Lua);

impl<'de> DeserializeSeed<'de> for Decoding<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Value, D::Error> {
        value.deserialize_any(self)
    }
}

fn of_lua<E: Error>(error: mlua::Error) -> E {
    E::custom(error_text(&error))
}

impl<'de> Visitor<'de> for Decoding<'_> {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value of JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::NULL)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Boolean(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.0.create_string(value).map(Value::String).map_err(of_lua)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let table = self.0.create_table().map_err(of_lua)?;
        let mut count = 0;
        while let Some(item) = items.next_element_seed(self)? {
            count += 1;
            table.raw_set(count, item).map_err(of_lua)?;
        }
        Ok(Value::Table(table))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let table = self.0.create_table().map_err(of_lua)?;
        while let Some(key) = pairs.next_key::<Cow<'de, str>>()? {
            let value = pairs.next_value_seed(self)?;
            table.raw_set(&*key, value).map_err(of_lua)?;
        }
        Ok(Value::Table(table))
    }
}
