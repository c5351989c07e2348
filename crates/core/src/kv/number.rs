//! Integers as values.

/// The integer that `text` is, written as Rust writes it: in decimal, without blanks, plus or needless zeros. So a
/// value that is counted up by nothing stays as it was.
pub fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let short = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', ..] => true,
        _ => false,
    };
    std::str::from_utf8(text).ok().filter(|_| short)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `007`, `+5` and `-0` were counted up; Redis refuses them.
    #[test]
    fn an_integer_is_one_that_is_written_back_as_it_was() {
        let odd =
            ["", "-", "+5", "007", "-0", "00", "-01", " 1", "1 ", "1.0", "0x1", "1_0", "--1", "\u{661}"];
        let large = ["9223372036854775808", "-9223372036854775809", "99999999999999999999999"];
        for text in odd.into_iter().chain(large) {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
        for number in [0, 1, -1, 10, 1_000_000, i64::MAX, i64::MIN] {
            assert_eq!(integer(number.to_string().as_bytes()), Some(number));
        }
        assert_eq!(integer(b"1\xff"), None);
    }
}
