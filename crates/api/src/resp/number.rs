//! Numbers as C's `printf` writes them with `%.17g`: what Redis makes of a number that a script passes to a command.

/// Digits that tell any two numbers apart.
const DIGITS: usize = 17;

/// The number with up to 17 significant digits.
pub(super) fn text(number: f64) -> String {
    if number.is_nan() {
        return if number.is_sign_negative() { "-nan" } else { "nan" }.into();
    }
    if number.is_infinite() {
        return if number < 0.0 { "-inf" } else { "inf" }.into();
    }
    let scientific = format!("{number:.*e}", DIGITS - 1);
    let (mantissa, exponent) = scientific.split_once('e').expect("`e` stands before the exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is an integer");
    if !(-4..DIGITS as i32).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(mantissa), exponent.unsigned_abs());
    }
    let decimals = (DIGITS as i32 - 1 - exponent) as usize;
    trimmed(&format!("{number:.decimals$}")).into()
}

/// Without zeros at the end of a fraction.
fn trimmed(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn numbers_are_written_as_redis_writes_those_of_scripts() {
        for (number, wanted) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.5, "1.5"),
            (0.1, "0.10000000000000001"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (-1.25e-7, "-1.2499999999999999e-07"),
            (1e-4, "0.0001"),
            (1e300, "1.0000000000000001e+300"),
            (1234567.0, "1234567"),
            (f64::INFINITY, "inf"),
            (-f64::NAN, "-nan"),
        ] {
            assert_eq!(text(number), wanted);
        }
    }
}
