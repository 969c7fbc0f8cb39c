//! The clock for the times of keys. Those times are the issuer's, so if this machine's clock is wrong by more than a minute, the
//! issuer's clock is used: an agent whose clock is wrong keeps working and reports it.

use parking_lot::Mutex;
use postern_daemon::utc::rough;
use postern_token::UnixSeconds;
use std::fmt;
use std::time::Duration;

/// Tolerated difference, due to the network and the whole seconds of a `Date`.
const TOLERATED: Duration = Duration::from_secs(60);

/// The difference between this machine's clock and the issuer's, in seconds; positive if this machine is ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skew(i64);

impl Skew {
    /// Compares this machine's clock with the `Date` of an answer. A difference of up to a minute counts as none.
    #[must_use]
    pub fn between(ours: UnixSeconds, theirs: UnixSeconds) -> Self {
        let ahead = i64::try_from(i128::from(ours.0) - i128::from(theirs.0)).unwrap_or_default();
        Self(if ahead.unsigned_abs() > TOLERATED.as_secs() { ahead } else { 0 })
    }

    /// Returns `true` if the clocks differ.
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }

    pub(crate) fn apart(self) -> String {
        let direction = if self.0 > 0 { "ahead of" } else { "behind" };
        format!("this machine's clock is {} {direction} the issuer's", rough(self.0.unsigned_abs()))
    }

    /// Converts this machine's time to the issuer's.
    #[must_use]
    pub const fn corrected(self, ours: UnixSeconds) -> UnixSeconds {
        UnixSeconds(ours.0.saturating_add_signed(self.0.saturating_neg()))
    }
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; set it right (for example with NTP), or the times of keys and certificates are misread",
            self.apart()
        )
    }
}

/// The corrected clock of one agent: the skew of the issuer's last answer.
#[derive(Debug, Default)]
pub(crate) struct Clock(Mutex<Option<Skew>>);

impl Clock {
    /// Returns the present time by the issuer's clock.
    pub(crate) fn now(&self) -> UnixSeconds {
        self.skew().corrected(UnixSeconds::now())
    }

    pub(crate) fn skew(&self) -> Skew {
        self.0.lock().unwrap_or_default()
    }

    /// Returns `true` once an answer of the issuer has been compared. Until then nothing irreversible may depend on this clock.
    pub(crate) fn is_compared(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Sets the skew of an answer; returns it if it differs from the previous one by more than a minute.
    pub(crate) fn set(&self, skew: Skew) -> Option<Skew> {
        let before = self.0.lock().replace(skew).unwrap_or_default();
        (before.0.abs_diff(skew.0) > TOLERATED.as_secs()).then_some(skew)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_tolerated_and_more_is_corrected() {
        let noon = UnixSeconds(1_000_000);
        assert!(!Skew::between(noon, UnixSeconds(1_000_060)).is_some());
        let behind = Skew::between(noon, UnixSeconds(1_003_600));
        assert_eq!(behind.corrected(noon), UnixSeconds(1_003_600));
        let sentence = behind.to_string();
        assert!(sentence.starts_with("this machine's clock is 60 min behind the issuer's"), "{sentence}");
        let ahead = Skew::between(noon, UnixSeconds(999_800));
        assert_eq!(ahead.corrected(noon), UnixSeconds(999_800));
        assert!(ahead.to_string().contains("3 min ahead of the issuer's"), "{ahead}");
    }

    #[test]
    fn only_a_change_is_news() {
        let clock = Clock::default();
        let skew = Skew::between(UnixSeconds(10_000), UnixSeconds(20_000));
        assert!(!clock.is_compared());
        assert_eq!(clock.set(skew), Some(skew));
        assert_eq!(clock.set(skew), None);
        assert_eq!(clock.set(Skew::default()), Some(Skew::default()));
        assert!(clock.is_compared());
    }
}
