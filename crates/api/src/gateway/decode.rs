//! JSON as Protocol Buffers, with the rules of etcd's gateway: fields by their names in the text or in lower camel
//! case, unknown ones ignored, 64-bit numbers as strings or numbers, bytes in base64 of either alphabet, enums by
//! name or number, null for what is not set.
//!
//! **Invariant: Bounded.** The bytes are written as the text is read, and nothing is built in between: a request takes
//! less than its text. What decoding *them* takes is bounded where gRPC's messages are, in `quoin_proto`.

use super::schema::{Field, Kind, MessageId, Schema};
use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost::encoding::{WireType, encode_key, encode_varint};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const PLAIN_BASE64: GeneralPurpose = GeneralPurpose::new(&STANDARD, LENIENT);
const URL_BASE64: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, LENIENT);

/// A message of type `of`, from a JSON object.
///
/// # Errors
/// The text is not JSON, or a field has another type.
pub(super) fn decode(schema: &Schema, of: MessageId, text: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let mut out = Vec::with_capacity(text.len());
    let mut json = serde_json::Deserializer::from_slice(text);
    Object { schema, of, out: &mut out }.deserialize(&mut json)?;
    json.end()?;
    Ok(out)
}

/// Appends the fields of an object.
struct Object<'a> {
    schema: &'a Schema,
    of: MessageId,
    out: &'a mut Vec<u8>,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            match self.schema.field_named(self.of, &name) {
                Some(field) => map.next_value_seed(Content { schema: self.schema, field, out: self.out })?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Appends what an object has for a field.
struct Content<'a> {
    schema: &'a Schema,
    field: &'a Field,
    out: &'a mut Vec<u8>,
}

impl<'de> DeserializeSeed<'de> for Content<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        if self.field.repeated {
            json.deserialize_any(Elements(self))
        } else {
            json.deserialize_any(One(self, true))
        }
    }
}

struct Elements<'a>(Content<'a>);

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "an array in {:?}", self.0.field.name)
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let Content { schema, field, out } = self.0;
        while elements.next_element_seed(Element(Content { schema, field, out }))?.is_some() {}
        Ok(())
    }
}

struct Element<'a>(Content<'a>);

impl<'de> DeserializeSeed<'de> for Element<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(One(self.0, false))
    }
}

/// A single value; where the flag says so, null stands for none.
struct One<'a>(Content<'a>, bool);

impl One<'_> {
    fn bytes(self, bytes: &[u8]) {
        encode_key(self.0.field.number, WireType::LengthDelimited, self.0.out);
        encode_varint(bytes.len() as u64, self.0.out);
        self.0.out.extend_from_slice(bytes);
    }

    /// Appends a number. Zero too: of a choice it says which one it is.
    fn number(self, number: u64) {
        encode_key(self.0.field.number, WireType::Varint, self.0.out);
        encode_varint(number, self.0.out);
    }

    fn integer<E: Error>(self, given: i128) -> Result<(), E> {
        let fits = match self.0.field.kind {
            Kind::Int64 => i64::try_from(given).is_ok(),
            Kind::Uint64 => u64::try_from(given).is_ok(),
            Kind::Int32 | Kind::Enum(_) => i32::try_from(given).is_ok(),
            Kind::Uint32 => u32::try_from(given).is_ok(),
            Kind::Message(_) | Kind::Bytes | Kind::String | Kind::Bool => false,
        };
        if !fits {
            return Err(E::custom(format_args!("{:?} cannot be {given}", self.0.field.name)));
        }
        // As in Protocol Buffers, negative numbers of any size are extended to 64 bits.
        self.number(given as u64);
        Ok(())
    }
}

/// A whole number, also as `1.0` or `1e3`.
fn whole(number: f64) -> Option<i128> {
    // Beyond 2^53 not every whole number is one; clients send those as strings.
    (number.fract() == 0.0 && number.abs() < 1e19).then_some(number as i128)
}

impl<'de> Visitor<'de> for One<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.0.field.name;
        match self.0.field.kind {
            Kind::Message(_) => write!(out, "an object in {name:?}"),
            Kind::Enum(_) => write!(out, "a name or a number in {name:?}"),
            Kind::Bytes => write!(out, "base64 in {name:?}"),
            Kind::String => write!(out, "a string in {name:?}"),
            Kind::Bool => write!(out, "true or false in {name:?}"),
            _ => write!(out, "a number in {name:?}"),
        }
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        if self.1 {
            return Ok(());
        }
        Err(E::invalid_type(serde::de::Unexpected::Unit, &self))
    }

    fn visit_bool<E: Error>(self, given: bool) -> Result<(), E> {
        if self.0.field.kind != Kind::Bool {
            return Err(E::invalid_type(serde::de::Unexpected::Bool(given), &self));
        }
        self.number(given.into());
        Ok(())
    }

    fn visit_u64<E: Error>(self, given: u64) -> Result<(), E> {
        self.integer(given.into())
    }

    fn visit_i64<E: Error>(self, given: i64) -> Result<(), E> {
        self.integer(given.into())
    }

    fn visit_f64<E: Error>(self, given: f64) -> Result<(), E> {
        match whole(given) {
            Some(given) => self.integer(given),
            None => Err(E::invalid_value(serde::de::Unexpected::Float(given), &self)),
        }
    }

    fn visit_str<E: Error>(self, given: &str) -> Result<(), E> {
        let invalid = |field: &Field, what: &str| {
            E::custom(format_args!("{:?} has no {what}: {:?}", field.name, short(given)))
        };
        let Content { schema, field, .. } = self.0;
        match field.kind {
            Kind::String => self.bytes(given.as_bytes()),
            Kind::Bytes => {
                let of_urls = given.contains(['-', '_']);
                let decoded = if of_urls { URL_BASE64.decode(given) } else { PLAIN_BASE64.decode(given) };
                self.bytes(&decoded.map_err(|_| invalid(field, "base64"))?);
            }
            Kind::Enum(of) => {
                let number = schema.enum_number(of, given).ok_or_else(|| invalid(field, "known name"))?;
                self.number(i64::from(number).cast_unsigned());
            }
            Kind::Int32 | Kind::Int64 | Kind::Uint32 | Kind::Uint64 => {
                let number = given.parse().ok().or_else(|| whole(given.parse().ok()?));
                self.integer(number.ok_or_else(|| invalid(field, "number"))?)?;
            }
            Kind::Message(_) | Kind::Bool => {
                return Err(E::invalid_type(serde::de::Unexpected::Str(short(given)), &self));
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let Content { schema, field, .. } = self.0;
        let Kind::Message(of) = field.kind else {
            return Err(A::Error::invalid_type(serde::de::Unexpected::Map, &self));
        };
        let mut inner = Vec::new();
        Object { schema, of, out: &mut inner }.visit_map(map)?;
        self.bytes(&inner);
        Ok(())
    }
}

/// As much of a text as an error quotes.
fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(40)]
}
