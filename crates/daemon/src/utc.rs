//! Human-readable times: RFC 3339 in UTC, to the second, and durations in one unit.

use std::time::SystemTime;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Formats Unix seconds as `2026-11-21T09:30:00Z`; "never" after the year 9999.
pub fn rfc3339(unix_seconds: u64) -> String {
    let seconds = i64::try_from(unix_seconds).ok();
    let time = seconds.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| "never".to_owned())
}

/// Returns the time of the system clock in Unix seconds. A clock before 1970 gives 0.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Formats the current time by the system clock as [`rfc3339`] does.
pub fn now() -> String {
    rfc3339(unix_now())
}

/// Parses a day such as `2026-11-21` to its first Unix second; `None` unless it is a valid day from 1970 to 9999.
pub fn day(text: &str) -> Option<u64> {
    let midnight = OffsetDateTime::parse(&format!("{text}T00:00:00Z"), &Rfc3339).ok()?;
    u64::try_from(midnight.unix_timestamp()).ok()
}

/// Formats seconds in the largest unit that gives at least two, such as "3 min".
pub fn rough(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR_10000: u64 = 253_402_300_800;
    const DAY: u64 = 86_400;

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

    fn date(days: u64) -> (u64, u64, u64) {
        let text = rfc3339(days * DAY);
        let number = |range: std::ops::Range<usize>| text[range].parse().unwrap();
        (number(0..4), number(5..7), number(8..10))
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
