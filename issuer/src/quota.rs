//! Quotas: a number of tokens in each aligned window of time. Nothing here reads a clock.

use parking_lot::Mutex;
use postern_config::ConfigDuration;
use postern_token::UnixSeconds;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// So many tokens in each period, written "10000/1d".
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    tokens: u64,
    period: ConfigDuration,
}

const ACCEPTED: &str = "a number of tokens and a period, such as \"10000/1d\" or \"50/1h\"";

impl Quota {
    /// So many tokens in each `period`, which is cut to whole seconds and is one second at least.
    #[must_use]
    pub fn new(tokens: u64, period: ConfigDuration) -> Self {
        let seconds = period.get().as_secs().max(1);
        Self { tokens, period: ConfigDuration(Duration::from_secs(seconds)) }
    }

    fn seconds(self) -> u64 {
        self.period.get().as_secs()
    }

    /// The first second of the window that `now` lies in.
    fn window(self, now: UnixSeconds) -> UnixSeconds {
        UnixSeconds(now.0 - now.0 % self.seconds())
    }

    /// A clock that was set back by less than a window stays in the window it was in, so that setting it forward
    /// and back does not give a quota twice.
    fn has_ended(self, usage: Usage, now: UnixSeconds) -> bool {
        let (window, length) = (self.window(now), self.seconds());
        let set_back = window.0.saturating_add(length) < usage.window_start.0;
        usage.period_seconds != length || usage.window_start < window || set_back
    }
}

impl FromStr for Quota {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((tokens, period)) = text.split_once('/') else {
            return Err("there is no \"/\" between the tokens and the period".to_owned());
        };
        let tokens = tokens.trim();
        if !tokens.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err("it does not begin with a whole number of tokens".to_owned());
        }
        let tokens = tokens.parse().map_err(|_| "the number of tokens is missing or too large".to_owned())?;
        let period: ConfigDuration =
            period.trim().parse().map_err(|error| format!("the period is wrong: {error}"))?;
        if period < ConfigDuration::secs(1) {
            return Err("the period is shorter than a second".to_owned());
        }
        Ok(Self::new(tokens, period))
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tokens, self.period)
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Quota {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Quota".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "x-accepted": ACCEPTED })
    }
}

/// What an account has used of its quota, as it is kept on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Usage {
    /// The first second of the window that `used` counts in.
    pub(crate) window_start: UnixSeconds,
    /// The length of that window.
    pub(crate) period_seconds: u64,
    /// Tokens issued in it.
    pub(crate) used: u64,
}

impl Usage {
    /// Whether the window that it counts in has not ended.
    pub(crate) fn lasts(&self, now: UnixSeconds) -> bool {
        now.0 < self.window_start.0.saturating_add(self.period_seconds)
    }
}

/// One account's quota and what is used of it.
#[derive(Debug)]
pub(crate) struct Meter(Mutex<Metered>);

#[derive(Clone, Copy, Debug)]
struct Metered {
    quota: Quota,
    usage: Usage,
}

/// The quota of the present window is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spent {
    /// How long until the next window begins: one second at least.
    pub(crate) retry_after: Duration,
}

impl Meter {
    pub(crate) fn new(quota: Quota, usage: Usage) -> Self {
        Self(Mutex::new(Metered { quota, usage }))
    }

    pub(crate) fn usage(&self) -> Usage {
        self.0.lock().usage
    }

    /// For an account that the configuration does not list: nothing is left of its quota.
    pub(crate) fn unlisted(usage: Usage) -> Self {
        Self::new(Quota::new(0, ConfigDuration(Duration::from_secs(usage.period_seconds))), usage)
    }

    /// Another quota from now on. What was used counts against it, unless its period is another one.
    pub(crate) fn set_quota(&self, quota: Quota) {
        self.0.lock().quota = quota;
    }

    /// Counts one token, before it is signed. Dropping the charge takes it back.
    pub(crate) fn charge(self: &Arc<Self>, now: UnixSeconds) -> Result<Charge, Spent> {
        let Metered { quota, usage } = &mut *self.0.lock();
        if quota.has_ended(*usage, now) {
            *usage = Usage { window_start: quota.window(now), period_seconds: quota.seconds(), used: 0 };
        }
        if usage.used >= quota.tokens {
            let next = UnixSeconds(quota.window(now).0.saturating_add(quota.seconds()));
            return Err(Spent { retry_after: now.until(next) });
        }
        usage.used += 1;
        Ok(Charge { meter: Some((self.clone(), usage.window_start)) })
    }

    fn take_back(&self, window: UnixSeconds) {
        let usage = &mut self.0.lock().usage;
        if usage.window_start == window {
            usage.used = usage.used.saturating_sub(1);
        }
    }
}

/// One token, counted but not yet signed.
#[derive(Debug)]
#[must_use = "a charge that is dropped is taken back"]
pub(crate) struct Charge {
    meter: Option<(Arc<Meter>, UnixSeconds)>,
}

impl Charge {
    /// For an issuer that is open: nothing is counted.
    pub(crate) const FREE: Self = Self { meter: None };

    /// The token is signed: the charge stands.
    pub(crate) fn keep(mut self) {
        self.meter = None;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some((meter, window)) = self.meter.take() {
            meter.take_back(window);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    fn meter(quota: &str) -> Arc<Meter> {
        Arc::new(Meter::new(quota.parse().unwrap(), Usage::default()))
    }

    #[test]
    fn a_quota_is_a_number_and_a_period() {
        for (text, written) in [("10000/1d", "10000/1d"), ("50 / 60s", "50/1m"), ("0/1h", "0/1h")] {
            assert_eq!(text.parse::<Quota>().unwrap().to_string(), written);
        }
        for text in [
            "",
            "10",
            "10/",
            "/1d",
            "-1/1d",
            "1.5/1d",
            "10/1",
            "10/0s",
            "10/500ms",
            "99999999999999999999/1d",
        ] {
            assert!(text.parse::<Quota>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn windows_are_aligned_and_a_spent_one_says_when_the_next_begins() {
        let meter = meter("2/1d");
        let noon = UnixSeconds(10 * DAY + DAY / 2);
        meter.charge(noon).unwrap().keep();
        meter.charge(noon).unwrap().keep();
        assert_eq!(meter.charge(noon).unwrap_err().retry_after, Duration::from_secs(DAY / 2));
        let last = UnixSeconds(11 * DAY - 1);
        assert_eq!(meter.charge(last).unwrap_err().retry_after, Duration::from_secs(1));
        meter.charge(UnixSeconds(11 * DAY)).unwrap().keep();
        assert_eq!(meter.usage().used, 1);
    }

    #[test]
    fn a_dropped_charge_is_taken_back_but_not_from_another_window() {
        let meter = meter("1/1d");
        drop(meter.charge(UnixSeconds(0)).unwrap());
        let old = meter.charge(UnixSeconds(1)).unwrap();
        meter.charge(UnixSeconds(DAY)).unwrap().keep();
        drop(old);
        assert!(meter.charge(UnixSeconds(DAY)).is_err());
    }

    #[test]
    fn a_clock_set_back_a_little_gives_nothing_twice_and_one_set_back_far_starts_again() {
        let meter = meter("1/1h");
        meter.charge(UnixSeconds(7_200)).unwrap().keep();
        assert!(meter.charge(UnixSeconds(7_199)).is_err());
        meter.charge(UnixSeconds(10)).unwrap().keep();
        assert_eq!(meter.usage().window_start, UnixSeconds(0));
    }

    #[test]
    fn another_period_in_the_configuration_starts_a_new_count() {
        let usage = Usage { window_start: UnixSeconds(0), period_seconds: 3_600, used: 9 };
        let meter = Arc::new(Meter::new("10/1d".parse().unwrap(), usage));
        meter.charge(UnixSeconds(5)).unwrap().keep();
        assert_eq!(meter.usage().used, 1);
    }

    #[test]
    fn another_quota_counts_what_was_used_and_what_is_taken_back() {
        let meter = meter("2/1d");
        meter.charge(UnixSeconds(0)).unwrap().keep();
        let open = meter.charge(UnixSeconds(1)).unwrap();
        meter.set_quota("1/1d".parse().unwrap());
        assert!(meter.charge(UnixSeconds(2)).is_err());
        meter.set_quota("3/1d".parse().unwrap());
        drop(open);
        assert_eq!(meter.usage().used, 1);
        meter.charge(UnixSeconds(3)).unwrap().keep();
        meter.charge(UnixSeconds(4)).unwrap().keep();
        assert!(meter.charge(UnixSeconds(5)).is_err());
    }
}
