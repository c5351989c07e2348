//! Objects of a body; lists and maps in it, with a bound on their length.
//!
//! **Invariant: Bounded.** An element can be three bytes of JSON and hundreds in memory, so what exceeds the
//! bound is refused while it is read.

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// Maximum texts in metadata; their bytes have a bound too.
const TEXTS_MAX: usize = 4096;

/// What is written as an object. A derived reader takes a list too, its elements for the fields in their order.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// Reads a list of at most `MAX` elements.
pub(super) fn at_most<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(List::<T, MAX>(PhantomData))
}

/// As [`at_most`], for texts and numbers.
pub(super) fn values<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(Values::<T, MAX>(PhantomData))
}

/// Reads texts by name.
pub(super) fn texts<'de, D>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error>
where
    D: Deserializer<'de>,
{
    deserializer.deserialize_map(Texts)
}

/// As [`texts`], for a field that may be null.
pub(super) fn optional_texts<'de, D>(deserializer: D) -> Result<Option<BTreeMap<String, String>>, D::Error>
where
    D: Deserializer<'de>,
{
    struct Wanted(BTreeMap<String, String>);
    impl<'de> Deserialize<'de> for Wanted {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            texts(deserializer).map(Self)
        }
    }
    Ok(Option::<Wanted>::deserialize(deserializer)?.map(|Wanted(texts)| texts))
}

struct List<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(Object(element)) = sequence.next_element()? {
            if list.len() == MAX {
                return Err(A::Error::custom(format_args!(
                    "more than {MAX} elements: send them in several requests"
                )));
            }
            list.push(element);
        }
        Ok(list)
    }
}

struct Values<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Values<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = sequence.next_element()? {
            if list.len() == MAX {
                return Err(A::Error::custom(format_args!("more than {MAX} elements")));
            }
            list.push(element);
        }
        Ok(list)
    }
}

struct Texts;

impl<'de> Visitor<'de> for Texts {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {TEXTS_MAX} texts by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut texts = BTreeMap::new();
        while let Some((name, text)) = map.next_entry()? {
            if texts.len() == TEXTS_MAX {
                return Err(A::Error::custom(format_args!("more than {TEXTS_MAX} texts")));
            }
            texts.insert(name, text);
        }
        Ok(texts)
    }
}
