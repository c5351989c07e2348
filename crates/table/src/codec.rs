//! What a value's bytes mean: plain bytes, or a vector of numbers in one of three encodings.
//!
//! **Error bounds** for a component `x` read back as f32:
//! - `f32`: exact.
//! - `f16`: half a unit in the last place of binary16, which is at most `|x| / 2048`, or `2^-25` if `|x| <
//!   2^-14`.
//! - `q8`: half a step, `(max - min) / 510`, plus f32 rounding, at most `2^-22 * max(|min|, |max|)`. `min`
//!   and `max` are the smallest and largest component of the row. Rows whose `max - min` overflows f32 are refused; the
//!   bound does not hold where it is subnormal.
//!
//! Deliberately absent: arithmetic on vectors, and implicit conversion. A lookup copies stored bytes unless
//! it asks for [`Form::F32`].

use half::f16;
use half::slice::HalfFloatSliceExt;

/// The largest number of components in a vector.
pub const DIMENSION_MAX: u32 = 1 << 16;

/// How a table stores its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase", tag = "codec")]
pub enum Codec {
    /// Plain bytes.
    Raw,
    /// Little-endian IEEE 754 binary32.
    F32 {
        /// Components per vector.
        dimension: u32,
    },
    /// Little-endian IEEE 754 binary16.
    F16 {
        /// Components per vector.
        dimension: u32,
    },
    /// Quantized by row: minimum and step as little-endian binary32, then one byte per component: `min + step
    /// * byte`.
    Q8 {
        /// Components per vector.
        dimension: u32,
    },
}

/// The form in which a lookup returns values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// As stored.
    #[default]
    Stored,
    /// As vectors of little-endian f32; values of [`Codec::Raw`] as stored.
    F32,
}

/// Why a vector cannot be stored.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The vector's dimension differs from the table's.
    #[error("the vector has {found} components, but the table's have {expected}")]
    Dimension {
        /// Components of the table's vectors.
        expected: u32,
        /// Components of this vector.
        found: usize,
    },
    /// The codec cannot represent a component.
    #[error("component {component} is {value}, which {codec} cannot hold: use f32, or clean the input")]
    Value {
        /// The component's position, from 0.
        component: usize,
        /// Its value.
        value: f32,
        /// The codec's name.
        codec: &'static str,
    },
    /// The components of a row are too far apart: read back, some would be infinite.
    #[error("components from {min} to {max} are too far apart for q8: use f32, or clean the input")]
    Range {
        /// The smallest component.
        min: f32,
        /// The largest component.
        max: f32,
    },
    /// The table holds plain bytes, not vectors.
    #[error("the table holds plain bytes, not vectors")]
    Raw,
}

impl Codec {
    /// Bytes per stored value; `None` for plain bytes, whose width is part of the schema.
    pub fn width(self) -> Option<u32> {
        match self {
            Self::Raw => None,
            Self::F32 { dimension } => Some(dimension * 4),
            Self::F16 { dimension } => Some(dimension * 2),
            Self::Q8 { dimension } => Some(dimension + 8),
        }
    }

    /// Components per vector; `None` for plain bytes.
    pub fn dimension(self) -> Option<u32> {
        match self {
            Self::Raw => None,
            Self::F32 { dimension } | Self::F16 { dimension } | Self::Q8 { dimension } => Some(dimension),
        }
    }

    /// The codec in words.
    pub fn describe(self) -> String {
        match self.dimension() {
            None => "plain bytes".into(),
            Some(dimension) => format!("vectors of {dimension} numbers as {}", self.name()),
        }
    }

    /// The codec's name in manifests and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::F32 { .. } => "f32",
            Self::F16 { .. } => "f16",
            Self::Q8 { .. } => "q8",
        }
    }

    /// Appends `vector` to `out` in stored form.
    ///
    /// # Errors
    /// The number of components is wrong, or the codec cannot represent one of them; nothing is appended
    /// then. `f32` holds every value; `f16` refuses finite values of magnitude 65520 and above, which would
    /// round to infinity; `q8` refuses infinities, NaN, and rows that would be read back as infinite.
    pub fn encode(self, vector: &[f32], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let expected = self.dimension().ok_or(EncodeError::Raw)?;
        if vector.len() != expected as usize {
            return Err(EncodeError::Dimension { expected, found: vector.len() });
        }
        let refuse = |bad: fn(f32) -> bool| match vector.iter().position(|&value| bad(value)) {
            None => Ok(()),
            Some(component) => {
                Err(EncodeError::Value { component, value: vector[component], codec: self.name() })
            }
        };
        match self {
            Self::Raw | Self::F32 { .. } => {
                out.extend(vector.iter().flat_map(|value| value.to_le_bytes()));
            }
            Self::F16 { .. } => {
                refuse(|value| value.is_finite() && f16::from_f32(value).is_infinite())?;
                out.extend(vector.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()));
            }
            Self::Q8 { .. } => {
                refuse(|value| !value.is_finite())?;
                quantize(vector, out)?;
            }
        }
        Ok(())
    }

    /// Decodes a stored value into `out` as little-endian f32; `out` has exactly the vector's size.
    ///
    /// # Panics
    /// If `stored` or `out` has the wrong size, or the codec is [`Codec::Raw`].
    pub fn decode(self, stored: &[u8], out: &mut [u8]) {
        match self {
            Self::Raw => panic!("plain bytes are not a vector"),
            Self::F32 { .. } => out.copy_from_slice(stored),
            Self::F16 { .. } => {
                assert_eq!(stored.len() * 2, out.len(), "the vector's size");
                for (halves, floats) in stored.chunks(64).zip(out.chunks_mut(128)) {
                    widen(halves, floats);
                }
            }
            Self::Q8 { .. } => {
                let (head, bytes) = stored.split_at(8);
                assert_eq!(bytes.len() * 4, out.len(), "the vector's size");
                let number =
                    |at: usize| f32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
                let (min, step) = (number(0), number(4));
                for (&byte, four) in bytes.iter().zip(out.chunks_exact_mut(4)) {
                    four.copy_from_slice(&(min + step * f32::from(byte)).to_le_bytes());
                }
            }
        }
    }
}

/// Converts up to 32 numbers at once, so that the processor's vector conversion is used.
fn widen(halves: &[u8], floats: &mut [u8]) {
    let (mut narrow, mut wide) = ([f16::ZERO; 32], [0f32; 32]);
    let count = halves.len() / 2;
    for (value, two) in narrow.iter_mut().zip(halves.chunks_exact(2)) {
        *value = f16::from_le_bytes([two[0], two[1]]);
    }
    narrow[..count].convert_to_f32_slice(&mut wide[..count]);
    for (four, value) in floats.chunks_exact_mut(4).zip(&wide[..count]) {
        four.copy_from_slice(&value.to_le_bytes());
    }
}

fn quantize(vector: &[f32], out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let min = vector.iter().copied().fold(f32::INFINITY, f32::min);
    let max = vector.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let min = if vector.is_empty() { 0.0 } else { min };
    // In f64, because max - min may overflow f32.
    let range = if vector.is_empty() { 0.0 } else { f64::from(max) - f64::from(min) };
    let step = (range / 255.0) as f32;
    if (min + step * 255.0).is_infinite() {
        return Err(EncodeError::Range { min, max });
    }
    out.extend(min.to_le_bytes());
    out.extend(step.to_le_bytes());
    out.extend(vector.iter().map(|&value| {
        if step == 0.0 {
            return 0;
        }
        ((f64::from(value) - f64::from(min)) / f64::from(step)).round().clamp(0.0, 255.0) as u8
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn there_and_back(codec: Codec, vector: &[f32]) -> Vec<f32> {
        let mut stored = Vec::new();
        codec.encode(vector, &mut stored).expect("it fits");
        assert_eq!(Some(stored.len() as u32), codec.width());
        let mut out = vec![0; vector.len() * 4];
        codec.decode(&stored, &mut out);
        out.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four bytes"))).collect()
    }

    proptest! {
        #[test]
        fn each_codec_keeps_its_error_bound(
            vector in prop::collection::vec(-1e4f32..1e4, 0..100),
            scale in -110i32..110,
        ) {
            let dimension = vector.len() as u32;
            for (x, y) in vector.iter().zip(there_and_back(Codec::F16 { dimension }, &vector)) {
                prop_assert!((x - y).abs() <= (x.abs() / 2048.0).max(2f32.powi(-25)), "{} {}", x, y);
            }
            let vector: Vec<f32> = vector.iter().map(|x| x * 2f32.powi(scale)).collect();
            prop_assert_eq!(&there_and_back(Codec::F32 { dimension }, &vector), &vector);
            let row = || vector.iter().copied().map(f64::from);
            let (min, max) = (row().fold(f64::MAX, f64::min), row().fold(f64::MIN, f64::max));
            let bound = (max - min) / 510.0 + 2f64.powi(-22) * min.abs().max(max.abs());
            for (x, y) in vector.iter().zip(there_and_back(Codec::Q8 { dimension }, &vector)) {
                prop_assert!((f64::from(*x) - f64::from(y)).abs() <= bound, "{} {} {}", x, y, bound);
            }
        }
    }

    #[test]
    fn a_value_that_the_codec_cannot_hold_is_refused_with_its_position() {
        let refused = |codec: Codec, vector: &[f32]| {
            codec.encode(vector, &mut Vec::new()).expect_err("refused").to_string()
        };
        assert_eq!(
            refused(Codec::F16 { dimension: 2 }, &[1.0, 70000.0]),
            "component 1 is 70000, which f16 cannot hold: use f32, or clean the input"
        );
        assert!(refused(Codec::F16 { dimension: 1 }, &[-65520.0]).contains("-65520"));
        assert_eq!(
            there_and_back(Codec::F16 { dimension: 2 }, &[65519.9, f32::INFINITY]),
            [65504.0, f32::INFINITY]
        );
        assert!(refused(Codec::Q8 { dimension: 1 }, &[f32::NAN]).contains("NaN"));
        assert!(
            refused(Codec::F32 { dimension: 3 }, &[1.0]).contains("has 1 components, but the table's have 3")
        );
    }

    /// They were stored, and read back as infinite.
    #[test]
    fn a_row_whose_components_are_too_far_apart_for_q8_is_refused() {
        let codec = Codec::Q8 { dimension: 2 };
        let refused = codec.encode(&[f32::MAX, f32::MIN], &mut Vec::new()).expect_err("too far");
        assert!(matches!(refused, EncodeError::Range { min: f32::MIN, max: f32::MAX }), "{refused}");
        for row in [[f32::MAX, 0.0], [3e38, 1e38], [1.7e38, -1.7e38], [f32::MAX / 2.0, f32::MIN / 2.0]] {
            let mut stored = Vec::new();
            if codec.encode(&row, &mut stored).is_ok() {
                assert!(there_and_back(codec, &row).iter().all(|number| number.is_finite()), "{row:?}");
            }
        }
        assert!(codec.encode(&[1.7e38, -1.7e38], &mut Vec::new()).is_ok());
    }
}
