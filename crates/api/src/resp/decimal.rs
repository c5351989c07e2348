//! Numbers with a fraction, as INCRBYFLOAT adds them: in decimal, so that 0.1 and 0.2 make 0.3.
//!
//! Redis adds them as `long double`, whose last digits are other ones (0 and `123456789.123` make
//! `123456789.12299999999959255`). What it writes has at most 17 digits after the point, and so have these.

use std::fmt;

/// Digits after the point.
const SCALE: i32 = 17;
/// Digits before the point, at most.
const WHOLE_DIGITS_MAX: u32 = 21;
/// The first number that is too large, in units.
const END: i128 = 10_i128.pow(WHOLE_DIGITS_MAX + SCALE as u32);
/// Significant digits that are read of a number; those after them are taken for zeros.
const DIGITS_READ_MAX: usize = 38;

/// A number, in units of its last possible digit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Decimal(i128);

/// Why there is no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoDecimal {
    #[error("value is not a valid float")]
    Malformed,
    #[error(
        "increment would produce NaN or Infinity, or more than {WHOLE_DIGITS_MAX} digits before the point"
    )]
    TooLarge,
}

impl Decimal {
    /// Reads `[+-]digits[.digits][e[+-]digits]`. What comes after the last possible digit is rounded.
    ///
    /// # Errors
    /// It is another text, infinite, or too large.
    pub(super) fn parse(text: &[u8]) -> Result<Self, NoDecimal> {
        let negative = text.first() == Some(&b'-');
        let text = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
        if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
            return Err(NoDecimal::TooLarge);
        }
        let place = text.iter().position(|byte| matches!(byte, b'e' | b'E'));
        let (mantissa, exponent) = match place {
            Some(at) => (&text[..at], exponent(&text[at + 1..])?),
            None => (text, 0),
        };
        let (digits, power) = digits(mantissa)?;
        let units = scaled(digits, power.saturating_add(exponent).saturating_add(SCALE))?;
        Self::of(if negative { -units } else { units })
    }

    fn of(units: i128) -> Result<Self, NoDecimal> {
        if units.abs() < END { Ok(Self(units)) } else { Err(NoDecimal::TooLarge) }
    }

    /// The exact sum.
    ///
    /// # Errors
    /// It is too large.
    pub(super) fn plus(self, other: Self) -> Result<Self, NoDecimal> {
        self.0.checked_add(other.0).ok_or(NoDecimal::TooLarge).and_then(Self::of)
    }
}

/// The digits of a number with or without a point, and the power of ten of the last one.
fn digits(text: &[u8]) -> Result<(i128, i32), NoDecimal> {
    let (mut number, mut read, mut power, mut point, mut any) = (0_i128, 0, 0_i32, false, false);
    for byte in text {
        match byte {
            b'.' if !point => point = true,
            b'0'..=b'9' => {
                any = true;
                if read < DIGITS_READ_MAX {
                    number = number * 10 + i128::from(byte - b'0');
                    read += usize::from(number > 0);
                    power -= i32::from(point);
                } else if !point {
                    power += 1;
                }
            }
            _ => return Err(NoDecimal::Malformed),
        }
    }
    if any { Ok((number, power)) } else { Err(NoDecimal::Malformed) }
}

fn exponent(text: &[u8]) -> Result<i32, NoDecimal> {
    let negative = text.first() == Some(&b'-');
    let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(NoDecimal::Malformed);
    }
    let step = |number: i32, digit: &u8| number.saturating_mul(10).saturating_add(i32::from(digit - b'0'));
    let number = digits.iter().fold(0, step);
    Ok(if negative { -number } else { number })
}

/// `digits` times ten to the `power`, rounded to the nearest whole number, halves up.
fn scaled(digits: i128, power: i32) -> Result<i128, NoDecimal> {
    let factor = || 10_i128.checked_pow(power.unsigned_abs());
    match digits {
        0 => Ok(0),
        _ if power >= 0 => factor().and_then(|by| digits.checked_mul(by)).ok_or(NoDecimal::TooLarge),
        _ => Ok(factor().map_or(0, |by| digits / by + i128::from(digits % by >= by - digits % by))),
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = 10_u128.pow(SCALE.unsigned_abs());
        let (whole, fraction) = (self.0.unsigned_abs() / unit, self.0.unsigned_abs() % unit);
        let sign = if self.0 < 0 { "-" } else { "" };
        if fraction == 0 {
            return write!(f, "{sign}{whole}");
        }
        let fraction = format!("{fraction:0>17}");
        write!(f, "{sign}{whole}.{}", fraction.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> Result<String, NoDecimal> {
        Ok(Decimal::parse(a.as_bytes())?.plus(Decimal::parse(b.as_bytes())?)?.to_string())
    }

    #[test]
    fn sums_are_exact_and_written_as_short_as_can_be() {
        for (a, b, wanted) in [
            ("0.1", "0.2", "0.3"),
            ("123456789.123", "1", "123456790.123"),
            ("12345678901234567890", "5", "12345678901234567895"),
            ("3.0", "1.10", "4.1"),
            ("5e3", "200", "5200"),
            (".5", "5.", "5.5"),
            ("5.5", "-5.50", "0"),
            ("-0", "0", "0"),
            ("-0.25", "+0.05", "-0.2"),
            ("1e-17", "1e-18", "0.00000000000000001"),
            ("5e-18", "0", "0.00000000000000001"),
            ("1e-99999999999", "0", "0"),
            ("0e99999999999", "1", "1"),
            ("100000000000000000000000000000000000000000000000000e-50", "1", "2"),
            ("999999999999999999999", "0.5", "999999999999999999999.5"),
            ("0.00000000000000000000000000000000000000000000000000001", "1", "1"),
        ] {
            assert_eq!(sum(a, b), Ok(wanted.into()), "{a} and {b}");
        }
    }

    #[test]
    fn what_is_no_number_is_told_from_what_is_too_large() {
        for text in ["", "-", ".", "e5", "1e", "1e+", "1.2.3", " 1", "1 ", "NaN", "0x10", "1,5", "--1", "1\0"]
        {
            assert_eq!(Decimal::parse(text.as_bytes()), Err(NoDecimal::Malformed), "{text:?}");
        }
        for text in ["inf", "-Infinity", "1e21", "-1e4000", "1000000000000000000000", "1e99999999999"] {
            assert_eq!(Decimal::parse(text.as_bytes()), Err(NoDecimal::TooLarge), "{text}");
        }
        assert_eq!(sum("999999999999999999999", "1"), Err(NoDecimal::TooLarge));
    }
}
