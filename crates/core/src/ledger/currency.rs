//! Units of account, and decimal amounts.
//!
//! A currency is a code of 3 to 8 capital letters and digits. ISO 4217's codes have ISO's scale (the number
//! of decimal places of the minor unit); others are custom units, whose scale is fixed when they are created.

use std::fmt;
use std::str::FromStr;

/// The largest scale of a custom unit.
pub const SCALE_MAX: u32 = 18;

/// A currency's code, packed: its ASCII bytes, zero-padded at the end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Currency(u64);

impl Currency {
    /// The packed form.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    /// From the packed form; `None` if it is not a code.
    pub fn from_bytes(bytes: [u8; 8]) -> Option<Self> {
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(8);
        let (code, padding) = bytes.split_at(length);
        let letters = code.iter().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
        (length >= 3 && letters && padding.iter().all(|byte| *byte == 0))
            .then(|| Self(u64::from_be_bytes(bytes)))
    }
}

impl FromStr for Currency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut bytes = [0; 8];
        if text.len() <= 8 {
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            if let Some(currency) = Self::from_bytes(bytes).filter(|_| !text.contains('\0')) {
                return Ok(currency);
            }
        }
        Err(format!("{text:?} is no currency code: 3 to 8 capital letters and digits, as EUR"))
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.to_bytes();
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(8);
        bytes[..length].iter().try_for_each(|byte| write!(f, "{}", *byte as char))
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// ISO 4217's active currencies by their number of decimal places.
const ISO: &[(u32, &str)] = &[
    (0, "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"),
    (
        2,
        "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF \
         CHE CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD \
         GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL \
         MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR \
         PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP \
         TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XAD XCD XCG YER ZAR ZMW ZWG",
    ),
    (3, "BHD IQD JOD KWD LYD OMR TND"),
    (4, "CLF UYW"),
];

/// The number of decimal places that ISO 4217 gives a code; `None` if the code is not in it.
pub fn iso_scale(currency: Currency) -> Option<u32> {
    let code = currency.to_string();
    ISO.iter().find(|(_, codes)| codes.split(' ').any(|known| known == code)).map(|(scale, _)| *scale)
}

/// Why a text is not an amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AmountError {
    /// Not digits with at most one point.
    #[error("{0:?} is no amount: write digits with at most one decimal point, as \"12.50\"")]
    Malformed(String),
    /// More decimal places than the currency has.
    #[error("{text:?} has more than the {scale} decimal places of the currency")]
    TooManyDecimals {
        /// The text.
        text: String,
        /// The currency's number of decimal places.
        scale: u32,
    },
    /// More than 2^128 - 1 minor units.
    #[error("{0:?} is too large: amounts stay below 2^128 minor units")]
    TooLarge(String),
    /// A minus sign.
    #[error("{0:?} is negative: amounts say how much moves, the accounts say from where to where")]
    Negative(String),
}

/// Parses a decimal amount into minor units: `"12.5"` at scale 2 is 1250.
///
/// ```
/// assert_eq!(quoin_core::ledger::parse_amount("12.5", 2), Ok(1250));
/// ```
///
/// # Errors
/// See [`AmountError`].
pub fn parse_amount(text: &str, scale: u32) -> Result<u128, AmountError> {
    let shown = || text.chars().take(64).collect::<String>();
    if text.starts_with('-') {
        return Err(AmountError::Negative(shown()));
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || text.ends_with('.') {
        return Err(AmountError::Malformed(shown()));
    }
    if fraction.len() > scale as usize {
        return Err(AmountError::TooManyDecimals { text: shown(), scale });
    }
    let zeros = std::iter::repeat_n(b'0', scale as usize - fraction.len());
    let mut units: u128 = 0;
    for digit in whole.bytes().chain(fraction.bytes()).chain(zeros) {
        units = units
            .checked_mul(10)
            .and_then(|units| units.checked_add(u128::from(digit - b'0')))
            .ok_or_else(|| AmountError::TooLarge(shown()))?;
    }
    Ok(units)
}

/// Formats minor units as a decimal amount with all its places: 1250 at scale 2 is `"12.50"`.
pub fn format_amount(units: u128, scale: u32) -> String {
    if scale == 0 {
        return units.to_string();
    }
    let digits = format!("{units:0>width$}", width = scale as usize + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale as usize);
    format!("{whole}.{fraction}")
}

/// Formats the difference of two amounts, with a minus sign if the second is larger.
pub fn format_signed(plus: u128, minus: u128, scale: u32) -> String {
    if plus >= minus {
        format_amount(plus - minus, scale)
    } else {
        format!("-{}", format_amount(minus - plus, scale))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_round_trip_and_bad_ones_say_why() {
        for (text, scale, units, shown) in [
            ("12.50", 2, 1250, "12.50"),
            ("12.5", 2, 1250, "12.50"),
            ("0", 2, 0, "0.00"),
            ("0.01", 2, 1, "0.01"),
            ("7", 0, 7, "7"),
            (
                "340282366920938463463374607431768211455",
                0,
                u128::MAX,
                "340282366920938463463374607431768211455",
            ),
        ] {
            assert_eq!(parse_amount(text, scale), Ok(units));
            assert_eq!(format_amount(units, scale), shown);
        }
        assert!(matches!(parse_amount("1.234", 2), Err(AmountError::TooManyDecimals { scale: 2, .. })));
        assert!(matches!(parse_amount("-1", 2), Err(AmountError::Negative(_))));
        let beyond = "340282366920938463463374607431768211456";
        assert!(matches!(parse_amount(beyond, 0), Err(AmountError::TooLarge(_))));
        for bad in ["", ".", "1.", ".5", "1e3", "+1", "1,5", " 1", "0x1", "1.2.3", "٣"] {
            assert!(matches!(parse_amount(bad, 2), Err(AmountError::Malformed(_))), "{bad:?}");
        }
        assert_eq!(format_signed(1, 251, 2), "-2.50");
    }

    #[test]
    fn codes_are_checked_and_iso_scales_are_known() {
        let scale = |code: &str| iso_scale(code.parse().unwrap());
        assert_eq!(
            (scale("EUR"), scale("JPY"), scale("KWD"), scale("POINTS")),
            (Some(2), Some(0), Some(3), None)
        );
        for bad in ["", "EU", "eur", "TOOLONG99", "E R", "EUR\0", "ÄÖÜ"] {
            assert!(bad.parse::<Currency>().is_err(), "{bad:?}");
        }
        let currency: Currency = "POINTS".parse().unwrap();
        assert_eq!(Currency::from_bytes(currency.to_bytes()), Some(currency));
        assert_eq!(currency.to_string(), "POINTS");
    }
}
