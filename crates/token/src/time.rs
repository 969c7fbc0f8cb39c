//! Time as an argument: only [`UnixSeconds::now`] reads a clock.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time in whole seconds since 1970-01-01T00:00:00Z.
///
/// Callers at the edge obtain the time from [`UnixSeconds::now`] and pass it down, so that validity windows can be tested without
/// waiting.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct UnixSeconds(pub u64);

impl UnixSeconds {
    /// The last representable time; a window that never closes ends here.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the current second of the system clock. A clock set before 1970 reads as 0.
    pub fn now() -> Self {
        Self(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }

    /// Adds `span` (whole seconds; fractions are dropped), saturating at [`UnixSeconds::MAX`].
    #[must_use]
    pub fn saturating_add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.as_secs()))
    }

    /// Subtracts `span` (whole seconds; fractions are dropped), saturating at 1970.
    #[must_use]
    pub fn saturating_sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span.as_secs()))
    }

    /// Returns the time from `self` to `later`; zero if `later` is the earlier one.
    pub fn until(self, later: Self) -> Duration {
        Duration::from_secs(later.0.saturating_sub(self.0))
    }
}

impl fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
