//! Protocol Buffers as JSON, as etcd's gateway writes it: fields by their names in the text, without those that are
//! zero, 64-bit numbers as strings, bytes in base64.
//!
//! The bytes are walked once, and nothing is built in between, so an answer takes no more memory than its two texts.
//! It relies on what wrote them: a repeated field's elements stand together, and fields that are zero are left out.

use super::schema::{Field, Kind, MessageId, Schema};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use std::io::Write;

/// What a service answered is no message of its type: a fault of this node.
#[derive(Debug, thiserror::Error)]
#[error("an answer cannot be decoded: {0}")]
pub(super) struct Malformed(String);

impl From<prost::DecodeError> for Malformed {
    fn from(error: prost::DecodeError) -> Self {
        Self(error.to_string())
    }
}

/// Appends `message`, of type `of`, to `out`.
///
/// # Errors
/// It is not of that type.
pub(super) fn encode(
    schema: &Schema,
    of: MessageId,
    mut message: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    out.push(b'{');
    let mut last: Option<&Field> = None;
    while !message.is_empty() {
        let (number, wire_type) = decode_key(&mut message)?;
        let Some(field) = schema.field(of, number) else {
            skip_field(wire_type, number, &mut message, DecodeContext::default())?;
            continue;
        };
        if !field.repeated || last.is_none_or(|last| last.number != number) {
            close(last, out);
            if last.is_some() {
                out.push(b',');
            }
            quote(&field.name, out);
            out.push(b':');
            if field.repeated {
                out.push(b'[');
            }
        } else {
            out.push(b',');
        }
        last = Some(field);
        value(schema, field, wire_type, &mut message, out)?;
    }
    close(last, out);
    out.push(b'}');
    Ok(())
}

fn close(last: Option<&Field>, out: &mut Vec<u8>) {
    if last.is_some_and(|last| last.repeated) {
        out.push(b']');
    }
}

/// Appends a value, or the values of a packed field.
fn value(
    schema: &Schema,
    field: &Field,
    wire_type: WireType,
    message: &mut &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    match (field.kind, wire_type) {
        (Kind::Message(inner), WireType::LengthDelimited) => encode(schema, inner, content(message)?, out)?,
        (Kind::Bytes, WireType::LengthDelimited) => base64(content(message)?, out),
        (Kind::String, WireType::LengthDelimited) => {
            let text = std::str::from_utf8(content(message)?);
            quote(text.map_err(|error| Malformed(error.to_string()))?, out);
        }
        (kind, WireType::Varint) => number(schema, kind, decode_varint(message)?, out)?,
        (kind, WireType::LengthDelimited) if field.repeated => {
            let mut packed = content(message)?;
            let mut first = true;
            while !packed.is_empty() {
                if !std::mem::take(&mut first) {
                    out.push(b',');
                }
                number(schema, kind, decode_varint(&mut packed)?, out)?;
            }
        }
        _ => return Err(Malformed(format!("the field {} has another type", field.name))),
    }
    Ok(())
}

fn number(schema: &Schema, kind: Kind, number: u64, out: &mut Vec<u8>) -> Result<(), Malformed> {
    match kind {
        Kind::Bool => write(out, format_args!("{}", number != 0)),
        Kind::Int64 => write(out, format_args!("\"{}\"", number.cast_signed())),
        Kind::Uint64 => write(out, format_args!("\"{number}\"")),
        Kind::Int32 => write(out, format_args!("{}", number as i32)),
        Kind::Uint32 => write(out, format_args!("{}", number as u32)),
        Kind::Enum(of) => match schema.enum_name(of, number as i32) {
            Some(name) => quote(name, out),
            None => write(out, format_args!("{}", number as i32)),
        },
        Kind::Message(_) | Kind::Bytes | Kind::String => {
            return Err(Malformed("a number in place of bytes".into()));
        }
    }
    Ok(())
}

fn write(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a vector grows");
}

fn quote(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("a vector grows, and text is JSON");
}

fn base64(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let from = out.len();
    out.resize(from + bytes.len().div_ceil(3) * 4, 0);
    STANDARD.encode_slice(bytes, &mut out[from..]).expect("its length is known");
    out.push(b'"');
}

/// The content of a field with a length.
fn content<'a>(message: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let length = usize::try_from(decode_varint(message)?).unwrap_or(usize::MAX);
    let (content, rest) =
        message.split_at_checked(length).ok_or_else(|| Malformed("it ends within a field".into()))?;
    *message = rest;
    Ok(content)
}
