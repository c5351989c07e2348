//! What the table's values will be: the codec before the first row is read, the layout once all widths are
//! known.

use super::counters::Counters;
use super::error::BuildError;
use super::options::{CodecName, DefaultRow, Options};
use super::rows::{Kind, Shape};
use crate::codec::Codec;
use crate::schema::{Layout, Schema, WIDTH_MAX};

/// What each row's value becomes, for inputs of this shape; without one it is the base's, or plain bytes.
pub(super) fn kind(options: &Options, shape: Option<Shape>) -> Result<Kind, BuildError> {
    let below = options.over.as_ref().map(|below| below.schema.codec);
    let dimension = below.and_then(Codec::dimension);
    let shape =
        shape.unwrap_or_else(|| dimension.map_or(Shape::Bytes, |dimension| Shape::Vector { dimension }));
    let wanted = options.codec.or(below.map(CodecName::of));
    let codec = match (wanted, shape) {
        (None | Some(CodecName::Raw), Shape::Bytes) => Codec::Raw,
        (None, Shape::Vector { dimension }) => Codec::F32 { dimension },
        (Some(CodecName::Raw), Shape::Vector { .. }) => {
            return Err(BuildError::Options(
                "the values are vectors of numbers: choose f32, f16 or q8".into(),
            ));
        }
        (Some(_), Shape::Bytes) => {
            return Err(BuildError::Options("the values are not vectors of numbers: choose raw".into()));
        }
        (Some(name), Shape::Vector { dimension }) => name.with(dimension),
    };
    if let Some(below) = below.filter(|&below| below != codec) {
        return Err(BuildError::Options(format!(
            "the input has {}, but the table below the patch has {}",
            codec.describe(),
            below.describe()
        )));
    }
    Ok(Kind { codec, patch: options.over.is_some() })
}

/// The schema, now that all rows have been counted.
pub(super) fn schema(options: &Options, kind: Kind, counters: &Counters) -> Result<Schema, BuildError> {
    let below = options.over.as_ref().map(|below| &below.schema);
    let mut schema = match (kind.codec, below.map(|below| below.layout)) {
        (Codec::Raw, Some(Layout::Fixed { width })) => Schema::fixed(Codec::Raw, width),
        (Codec::Raw, Some(Layout::Variable { .. })) => Schema::variable(counters.inline()),
        (Codec::Raw, None) => {
            match counters.single_width().filter(|&width| !options.variable && width <= WIDTH_MAX) {
                Some(width) => Schema::fixed(Codec::Raw, width),
                None => Schema::variable(counters.inline()),
            }
        }
        (codec, _) => Schema::fixed(codec, 0),
    };
    schema.default_row = match &options.default_row {
        None => below.and_then(|below| below.default_row.clone()),
        Some(DefaultRow::Bytes(bytes)) => Some(bytes.clone()),
        Some(DefaultRow::Vector(vector)) => {
            let mut row = Vec::new();
            let encoded = schema.codec.encode(vector, &mut row);
            encoded.map_err(|error| BuildError::Options(format!("the default row: {error}")))?;
            Some(row)
        }
    };
    schema.check().map_err(BuildError::Options)?;
    Ok(schema)
}
