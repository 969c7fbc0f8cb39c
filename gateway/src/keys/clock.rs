//! This machine's clock beside the issuer's: keys are good for a time, and two clocks that differ make good keys look
//! retired, or not yet in use.

use postern_daemon::utc::rough;
use postern_token::UnixSeconds;

/// Clocks that differ by no more than this do no harm: keys are published hours ahead.
const TOLERATED: u64 = 60;

/// How far the clocks differ, by the last answer with a Date.
#[derive(Default)]
pub(crate) struct Clock {
    /// Ours less theirs, in seconds.
    ahead: i64,
    /// The sentence that was logged last.
    logged: Option<String>,
}

impl Clock {
    /// Records an answer with the Date `theirs` to a request that was sent at `asked` and answered at `answered`.
    pub(crate) fn compare(&mut self, theirs: UnixSeconds, asked: UnixSeconds, answered: UnixSeconds) {
        let [theirs, asked, answered] =
            [theirs, asked, answered].map(|moment| i64::try_from(moment.0).unwrap_or(i64::MAX));
        // The answer was made somewhere in between.
        self.ahead = match theirs {
            _ if theirs < asked => asked - theirs,
            _ if theirs > answered => answered - theirs,
            _ => 0,
        };
        let differs = self.differs();
        if differs.is_some() != self.logged.is_some() {
            match &differs {
                Some(sentence) => tracing::warn!("{sentence}"),
                None => tracing::info!("this machine's clock agrees with the issuer's again"),
            }
            self.logged = differs;
        }
    }

    /// That the clocks differ, by how much, and what to do; nothing while they agree.
    pub(crate) fn differs(&self) -> Option<String> {
        if self.ahead.unsigned_abs() <= TOLERATED {
            return None;
        }
        let (by, way) =
            (rough(self.ahead.unsigned_abs()), if self.ahead > 0 { "ahead of" } else { "behind" });
        Some(format!(
            "this machine's clock is {by} {way} the issuer's, so the issuer's keys come into use and retire at the wrong \
             time here; set both clocks by NTP (timedatectl shows whether this one is)"
        ))
    }

    /// Whether it is ahead, where it differs.
    pub(crate) fn is_ahead(&self) -> bool {
        self.ahead > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(theirs: u64, asked: u64, answered: u64) -> Option<String> {
        let mut clock = Clock::default();
        clock.compare(UnixSeconds(theirs), UnixSeconds(asked), UnixSeconds(answered));
        clock.differs()
    }

    #[test]
    fn a_difference_is_told_with_its_direction_and_a_slow_answer_is_none() {
        assert_eq!(compared(1_000, 1_000, 1_000), None);
        assert_eq!(compared(1_500, 1_000, 2_000), None, "the answer took long");
        assert_eq!(compared(1_060, 1_000, 1_000), None);
        let behind = compared(4_600, 990, 1_000).unwrap();
        assert!(behind.starts_with("this machine's clock is 60 min behind the issuer's"), "{behind}");
        let ahead = compared(1_000, 5_185_000, 5_185_001).unwrap();
        assert!(ahead.starts_with("this machine's clock is 60 days ahead of the issuer's"), "{ahead}");
        assert!(ahead.contains("NTP"), "{ahead}");
    }
}
