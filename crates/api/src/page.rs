//! Page sizes of lists, with one rule on every wire: a size above the maximum is refused, never made smaller.
//!
//! A client that asks for 5,000 items and gets 1,000 without a word may take the short page for the last one.
//! docs/decisions/2026-11-21-wire.md has the alternatives.

use crate::error::Error;

/// The page sizes of one list.
pub(crate) struct PageSizes {
    /// Where the client does not say.
    pub(crate) default: u32,
    /// The largest.
    pub(crate) max: u32,
}

impl PageSizes {
    /// The size for which a client asks, if it asks.
    ///
    /// # Errors
    /// It is 0 or above the maximum. The text does not name the field.
    pub(crate) fn of(&self, asked: Option<u32>) -> Result<usize, String> {
        let (size, max) = (asked.unwrap_or(self.default), self.max);
        if (1..=max).contains(&size) {
            Ok(size as usize)
        } else {
            Err(format!("{size} is not between 1 and {max}"))
        }
    }

    /// The same for a field `limit` of a gRPC request, in which 0 and absent are the same.
    ///
    /// # Errors
    /// It is above the maximum.
    pub(crate) fn of_field(&self, limit: u32) -> Result<usize, Error> {
        let asked = (limit > 0).then_some(limit);
        self.of(asked).map_err(|problem| Error::invalid(format_args!("limit: {problem}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::{Code, Status};

    const SIZES: PageSizes = PageSizes { default: 100, max: 1000 };

    #[test]
    fn a_size_within_the_bounds_is_taken_and_one_that_is_absent_is_the_default() {
        assert_eq!(SIZES.of(None), Ok(100));
        assert_eq!(SIZES.of(Some(1)), Ok(1));
        assert_eq!(SIZES.of(Some(1000)), Ok(1000));
        assert_eq!(SIZES.of_field(0).unwrap(), 100);
        assert_eq!(SIZES.of_field(1000).unwrap(), 1000);
    }

    #[test]
    fn a_size_beyond_the_bounds_is_refused_with_its_value_and_the_maximum() {
        assert_eq!(SIZES.of(Some(0)), Err("0 is not between 1 and 1000".to_owned()));
        assert_eq!(SIZES.of(Some(1001)), Err("1001 is not between 1 and 1000".to_owned()));
        let status = Status::from(SIZES.of_field(1001).unwrap_err());
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "quoin: limit: 1001 is not between 1 and 1000");
    }
}
