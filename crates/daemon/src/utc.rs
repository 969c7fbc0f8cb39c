//! Times as people read them: RFC 3339, in UTC, to the second; lengths of time in one unit.

use std::time::{SystemTime, UNIX_EPOCH};

/// Written for times after the year 9999.
const NEVER: &str = "never";
/// The first second of the year 10000.
const YEAR_10000: u64 = 253_402_300_800;
const DAY: u64 = 86_400;

/// `2026-11-21T09:30:00Z`, from seconds since 1970; "never" for what is after the year 9999.
#[must_use]
pub fn rfc3339(unix_seconds: u64) -> String {
    if unix_seconds >= YEAR_10000 {
        return NEVER.to_owned();
    }
    let (year, month, day) = date(unix_seconds / DAY);
    let second = unix_seconds % DAY;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The system clock's present second, as [`rfc3339`] writes it. A clock set before 1970 reads as 1970.
#[must_use]
pub fn now() -> String {
    rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// The first second of a day written `2026-11-21`; nothing for what is no day from 1970 to 9999.
#[must_use]
pub fn day(text: &str) -> Option<u64> {
    let mut parts = text.splitn(3, '-');
    let mut number = |digits: usize| {
        let part = parts
            .next()
            .filter(|part| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit()))?;
        part.parse::<u64>().ok()
    };
    let (year, month, day) = (number(4)?, number(2)?, number(2)?);
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // As in `date`: the year begins in March.
    let year_from_march = year - u64::from(month <= 2);
    let (era, year_of_era) = (year_from_march / 400, year_from_march % 400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let days = era * 146_097 + 365 * year_of_era + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = days.checked_sub(719_468)?;
    (date(days) == (year, month, day)).then_some(days * DAY) // not on the 30th of February
}

/// A number of seconds in its largest unit, such as "3 min".
#[must_use]
pub fn rough(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Year, month and day of a number of days since 1970-01-01, in the Gregorian calendar.
///
/// The year is counted from March on, so that the leap day is its last; 400 such years have 146,097 days.
fn date(days: u64) -> (u64, u64, u64) {
    let since_march_of_year_0 = days + 719_468;
    let (era, day_of_era) = (since_march_of_year_0 / 146_097, since_march_of_year_0 % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        for (seconds, written) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (YEAR_10000 - 1, "9999-12-31T23:59:59Z"),
            (YEAR_10000, "never"),
            (u64::MAX, "never"),
        ] {
            assert_eq!(rfc3339(seconds), written);
        }
    }

    #[test]
    fn days_are_read_as_they_are_written_and_others_are_not() {
        for days in (0..2_932_896).step_by(97) {
            let text = &rfc3339(days * DAY)[..10];
            assert_eq!(day(text), Some(days * DAY), "{text}");
        }
        for none in
            ["", "2026", "2026-11", "2026-02-30", "2026-13-01", "2026-00-01", "2026-01-00", "1969-12-31"]
        {
            assert_eq!(day(none), None, "{none}");
        }
        for none in ["2026-1-01", "+026-01-01", "2026-01-01T00:00:00Z", "2025-02-29", "10000-01-01"] {
            assert_eq!(day(none), None, "{none}");
        }
        assert_eq!(day("2024-02-29"), Some(1_709_164_800));
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = date(0);
        for days in 1..200_000 {
            let (year, month, day) = date(days);
            let next_day = (year, month, day) == (before.0, before.1, before.2 + 1);
            let next_month = (year, month, day) == (before.0, before.1 + 1, 1);
            let next_year = (year, month, day) == (before.0 + 1, 1, 1) && (before.1, before.2) == (12, 31);
            assert!(next_day || next_month || next_year, "{before:?} then {:?}", (year, month, day));
            before = (year, month, day);
        }
    }
}
