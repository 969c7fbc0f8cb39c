//! Quotas: a number of tokens in each aligned window of time. Nothing here reads a clock.

mod meter;

pub(crate) use meter::{Charge, Meter, NoCharge, Spent, Usage, Writing};

use crate::share::Share;
use postern_config::{ConfigDuration, text_value};
use postern_token::UnixSeconds;
use std::fmt;
use std::str::FromStr;
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

    /// How many tokens.
    #[must_use]
    pub fn tokens(self) -> u64 {
        self.tokens
    }

    pub(crate) fn period(self) -> ConfigDuration {
        self.period
    }

    /// What an issuer with this share gives of it.
    pub(crate) fn shared(self, share: Share) -> Self {
        Self { tokens: share.of(self.tokens), ..self }
    }

    /// The length of its period.
    pub(crate) fn seconds(self) -> u64 {
        self.period.get().as_secs()
    }

    /// The first second of the window that `now` lies in.
    pub(crate) fn window(self, now: UnixSeconds) -> UnixSeconds {
        UnixSeconds(now.0 - now.0 % self.seconds())
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

text_value!(Quota, ACCEPTED);
