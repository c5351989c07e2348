//! Times in RFC 3339 and UTC, to and from milliseconds since the Unix epoch.
//!
//! Days are counted from 0000-03-01, so that a leap day is the last of its year.

const DAY_MS: i64 = 86_400_000;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH_DAYS: i64 = 719_468;
const ERA_DAYS: i64 = 146_097;

/// `2026-11-21T09:45:00.123Z`.
pub(crate) fn format(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    let (days, of_day) = (ms.div_euclid(DAY_MS) + EPOCH_DAYS, ms.rem_euclid(DAY_MS));
    let (era, of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, fraction) = (of_day / 1000 % 60, of_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:03}Z")
}

/// A time in UTC, as [`format`] writes it, with or without a fraction of a second; `None` for anything else.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let number = |text: &str, digits: usize| {
        let plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
        if plain { text.parse::<i64>().ok() } else { None }
    };
    let mut date = date.split('-');
    let (year, month, day) = (number(date.next()?, 4)?, number(date.next()?, 2)?, number(date.next()?, 2)?);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut time = time.split(':');
    let (hour, minute, second) =
        (number(time.next()?, 2)?, number(time.next()?, 2)?, number(time.next()?, 2)?);
    let long = date.next().is_some() || time.next().is_some() || fraction.is_empty() || fraction.len() > 9;
    if long || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if !(1..=12).contains(&month) || day < 1 || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let millis: i64 = format!("{fraction:0<3}")[..3].parse().ok()?;
    let shifted_year = year - i64::from(month <= 2);
    let (era, year_of_era) = (shifted_year.div_euclid(400), shifted_year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    let days = era * ERA_DAYS + of_era - EPOCH_DAYS;
    let ms = days * DAY_MS + hour * 3_600_000 + minute * 60_000 + second * 1000 + millis;
    // A day that its month does not have is formatted as another.
    u64::try_from(ms).ok().filter(|ms| format(*ms)[..10] == text[..10])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_round_trip() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_795_254_300_123, "2026-11-21T09:45:00.123Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
        ] {
            assert_eq!(format(ms), text);
            assert_eq!(parse(text), Some(ms));
        }
        assert_eq!(parse("2026-11-21T09:45:00Z"), Some(1_795_254_300_000));
        assert_eq!(parse("2026-11-21T09:45:00.5Z"), Some(1_795_254_300_500));
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for bad in [
            "",
            "Z",
            "2026-11-21",
            "2026-11-21T09:45:00",
            "2026-13-21T09:45:00Z",
            "2026-02-30T00:00:00Z",
            "2026-11-21T24:00:00Z",
            "1969-12-31T23:59:59Z",
            "2026-11-21T09:45:00.Z",
            "+026-11-21T09:45:00Z",
            "2026-11-21T09:45Z",
            "é026-11-21T09:45:00Z",
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
