//! What a table's values are: their layout, their codec, and what an absent key answers.
//!
//! Deliberately absent: how a schema is written into a shard file; see `format`.

use crate::codec::{Codec, DIMENSION_MAX};

/// The largest width of a fixed-width value, the largest inline capacity and the largest default row, in
/// bytes.
pub const WIDTH_MAX: u32 = 1 << 20;
/// The largest value of a table whose widths vary, in bytes.
pub const VALUE_BYTES_MAX: usize = 16 << 20;
/// The largest number of shards in a table.
pub const SHARDS_MAX: u32 = 1 << 16;

/// How an entry stores its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase", tag = "values")]
pub enum Layout {
    /// All values have the same width and follow their key.
    Fixed {
        /// Bytes per value.
        width: u32,
    },
    /// Widths vary. Values of up to `inline` bytes follow key and length; longer ones are in the part's heap.
    Variable {
        /// Bytes reserved for the value in each entry, at least 8.
        inline: u32,
    },
}

/// What a table's values are.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Schema {
    /// How an entry stores its value.
    #[serde(flatten)]
    pub layout: Layout,
    /// What the bytes of a value mean.
    #[serde(flatten)]
    pub codec: Codec,
    /// The stored value that an absent key answers. `None`: zeros, or no bytes where widths vary.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "hex")]
    pub default_row: Option<Vec<u8>>,
}

impl Schema {
    /// Fixed-width values under `codec`. `width`, in bytes, counts only for [`Codec::Raw`].
    pub fn fixed(codec: Codec, width: u32) -> Self {
        Self { layout: Layout::Fixed { width: codec.width().unwrap_or(width) }, codec, default_row: None }
    }

    /// Plain bytes of any width, up to `inline` of them (at least 8) stored beside the key.
    pub fn variable(inline: u32) -> Self {
        Self { layout: Layout::Variable { inline: inline.max(8) }, codec: Codec::Raw, default_row: None }
    }

    /// The size of an entry in bytes.
    pub(crate) fn stride(&self) -> usize {
        match self.layout {
            Layout::Fixed { width } => 8 + width as usize,
            Layout::Variable { inline } => 12 + inline as usize,
        }
    }

    /// Bytes per stored value; `None` where widths vary.
    pub fn width(&self) -> Option<u32> {
        match self.layout {
            Layout::Fixed { width } => Some(width),
            Layout::Variable { .. } => None,
        }
    }

    /// The schema in words, for people.
    pub fn describe(&self) -> String {
        match (self.codec, self.layout) {
            (Codec::Raw, Layout::Fixed { width }) => format!("{width} bytes"),
            (Codec::Raw, Layout::Variable { inline }) => format!("bytes of any width, up to {inline} inline"),
            (codec, _) => format!("{} numbers as {}", codec.dimension().unwrap_or(0), codec.name()),
        }
    }

    /// Whether values of `other` can stand in for values of this schema: same width and codec. The inline
    /// capacity and the default row may differ.
    pub fn answers_like(&self, other: &Self) -> bool {
        self.width() == other.width() && self.codec == other.codec
    }

    /// Checks that the schema is consistent and within the limits.
    ///
    /// # Errors
    /// What is wrong, with the value.
    pub fn check(&self) -> Result<(), String> {
        if let Some(dimension) = self.codec.dimension().filter(|&dimension| dimension > DIMENSION_MAX) {
            return Err(format!("dimension {dimension} exceeds {DIMENSION_MAX}"));
        }
        match self.layout {
            Layout::Fixed { width } if width > WIDTH_MAX => {
                return Err(format!("width {width} exceeds {WIDTH_MAX} bytes: use variable-width values"));
            }
            Layout::Fixed { width } if self.codec.width().is_some_and(|bytes| bytes != width) => {
                return Err(format!("width {width} does not match {}", self.codec.describe()));
            }
            Layout::Variable { inline } if !(8..=WIDTH_MAX).contains(&inline) => {
                return Err(format!("inline capacity {inline} is not between 8 and {WIDTH_MAX} bytes"));
            }
            Layout::Variable { .. } if self.codec != Codec::Raw => {
                return Err(format!("vectors ({}) have a fixed width", self.codec.name()));
            }
            Layout::Fixed { .. } | Layout::Variable { .. } => {}
        }
        match (self.width(), &self.default_row) {
            (Some(width), Some(row)) if row.len() != width as usize => {
                Err(format!("the default row has {} bytes, but values have {width}", row.len()))
            }
            (_, Some(row)) if row.len() > WIDTH_MAX as usize => {
                Err(format!("the default row has {} bytes, more than {WIDTH_MAX}", row.len()))
            }
            _ => Ok(()),
        }
    }
}

mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(row: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
        match row {
            Some(row) => serializer.serialize_str(&crate::hex::encode(row)),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| {
            crate::hex::decode(&text).ok_or_else(|| D::Error::custom("the default row is not hexadecimal"))
        })
        .transpose()
    }
}
