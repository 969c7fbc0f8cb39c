//! Durations and sizes with units, and secrets that redact themselves.

use crate::text_value;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Deserializer;
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A duration, written "250ms", "10s", "5m", "24h" or "30d".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigDuration(pub Duration);

/// A number of bytes, written "512B", "64KiB", "10MiB" or "2GiB".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// The serialized form of a [`Secret`].
pub(super) const REDACTED: &str = "(redacted)";

/// A string that is never shown: not by `Debug`, not when serialized, not in errors.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Milliseconds in each unit, the largest first.
const DURATION_UNITS: &[(&str, u64)] =
    &[("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
pub(crate) const DURATION_ACCEPTED: &str =
    "a duration with its unit, such as \"250ms\", \"10s\", \"5m\", \"24h\" or \"30d\"";
/// Bytes in each unit, the largest first.
const SIZE_UNITS: &[(&str, u64)] = &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
pub(crate) const SIZE_ACCEPTED: &str = "a size with its unit, such as \"512B\", \"64KiB\" or \"10MiB\"";

impl ConfigDuration {
    pub const fn millis(number: u64) -> Self {
        Self(Duration::from_millis(number))
    }

    pub const fn secs(number: u64) -> Self {
        Self(Duration::from_secs(number))
    }

    /// Returns `N` seconds, for `#[serde(default = "ConfigDuration::of_secs::<10>")]`.
    pub const fn of_secs<const N: u64>() -> Self {
        Self::secs(N)
    }

    pub const fn minutes(number: u64) -> Self {
        Self::secs(number * 60)
    }

    pub const fn hours(number: u64) -> Self {
        Self::minutes(number * 60)
    }

    /// Creates a duration from days of 24 hours.
    pub const fn days(number: u64) -> Self {
        Self::hours(number * 24)
    }

    pub const fn get(self) -> Duration {
        self.0
    }
}

impl Size {
    /// Creates a size from KiB of 1,024 bytes.
    pub const fn kib(number: u64) -> Self {
        Self(number << 10)
    }

    /// Creates a size from MiB of 1,048,576 bytes.
    pub const fn mib(number: u64) -> Self {
        Self(number << 20)
    }

    /// Returns the number of bytes for a buffer or a limit in memory; `usize::MAX` if it is larger.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl Secret {
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// Returns the secret itself, for sending or hashing it, never for showing it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// The reason to reject a number alone.
const NO_UNIT: &str = "a bare number has no unit";

fn parse_with_unit(text: &str, units: &[(&str, u64)], names: &str) -> Result<u64, String> {
    let too_large = || "the number is too large".to_owned();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    if digits.is_empty() || unit.starts_with(['.', ',', '_']) {
        return Err("it does not begin with a whole number".to_owned());
    }
    let number: u64 = digits.parse().map_err(|_| too_large())?;
    let unit = unit.strip_prefix(' ').unwrap_or(unit);
    if unit.is_empty() {
        return Err(NO_UNIT.to_owned());
    }
    let (_, factor) = units
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| format!("the unit is not one of {names}"))?;
    number.checked_mul(*factor).ok_or_else(too_large)
}

/// Writes a value in the largest unit that leaves no fraction.
fn write_with_unit(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let fits = |(_, factor): &&(&str, u64)| value >= *factor && value.is_multiple_of(*factor);
    match units.iter().find(fits).or(units.last()) {
        Some((name, factor)) => write!(f, "{}{name}", value / factor),
        None => write!(f, "{value}"),
    }
}

impl FromStr for ConfigDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_with_unit(text, DURATION_UNITS, "ms, s, m, h and d").map(Self::millis)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_with_unit(text, SIZE_UNITS, "B, KiB, MiB and GiB").map(Self)
    }
}

impl fmt::Display for ConfigDuration {
    /// Writes whole milliseconds, rounded down.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if millis == 0 { f.write_str("0s") } else { write_with_unit(f, millis, DURATION_UNITS) }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_unit(f, self.0, SIZE_UNITS)
    }
}

/// Implements the traits that [`ConfigDuration`] and [`Size`] share: text in files, a sentence in the schema.
macro_rules! with_unit {
    ($type:ident, $accepted:ident) => {
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        text_value!($type, $accepted, "x-number": NO_UNIT);
    };
}

with_unit!(ConfigDuration, DURATION_ACCEPTED);
with_unit!(Size, SIZE_ACCEPTED);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(REDACTED)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

impl JsonSchema for Secret {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "secret" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_units_come_back_as_they_were_written() {
        for text in ["0s", "1ms", "250ms", "10s", "90s", "5m", "24h", "30d"] {
            let span: ConfigDuration = text.parse().unwrap();
            assert_eq!(span, span.to_string().parse().unwrap(), "{text} is written {span}");
        }
        assert_eq!(ConfigDuration::hours(24).to_string(), "1d");
        assert_eq!(ConfigDuration::secs(90).to_string(), "90s");
        for text in ["0B", "1B", "512B", "64KiB", "10MiB", "3GiB", "1500B"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        for (text, error) in [
            ("10", NO_UNIT),
            ("", "it does not begin with a whole number"),
            ("s", "it does not begin with a whole number"),
            ("-1s", "it does not begin with a whole number"),
            ("1.5s", "it does not begin with a whole number"),
            ("1w", "the unit is not one of ms, s, m, h and d"),
            ("99999999999999999999s", "the number is too large"),
            ("9999999999999999999d", "the number is too large"),
        ] {
            assert_eq!(text.parse::<ConfigDuration>(), Err(error.to_owned()), "{text}");
        }
        let unknown = "the unit is not one of B, KiB, MiB and GiB";
        assert_eq!("64KB".parse::<Size>(), Err(unknown.to_owned()));
    }

    #[test]
    fn a_secret_does_not_show() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?}"), "Secret(redacted)");
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"(redacted)\"");
        assert_eq!(secret.expose(), "hunter2");
    }
}
