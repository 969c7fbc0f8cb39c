//! Rate-limited log lines, for events that a flood of connections repeats.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Time of the last log line, and the number of events since.
#[derive(Debug)]
pub struct Seldom {
    pause: Duration,
    last: Mutex<(Option<Instant>, u64)>,
}

impl Seldom {
    /// Allows at most one line per `pause`.
    pub const fn every(pause: Duration) -> Self {
        Self { pause, last: Mutex::new((None, 0)) }
    }

    /// Records an event at `now`. Returns the number of events since the last line, including this one, if a line is due.
    pub fn due(&self, now: Instant) -> Option<u64> {
        let (logged, number) = &mut *self.last.lock();
        *number += 1;
        let is_due = logged.is_none_or(|logged| now.saturating_duration_since(logged) >= self.pause);
        is_due.then(|| {
            *logged = Some(now);
            std::mem::take(number)
        })
    }

    #[cfg(test)]
    pub(crate) fn has_logged(&self) -> bool {
        self.last.lock().0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_at_once_and_then_after_each_pause_with_the_number_left_out() {
        let (seldom, start) = (Seldom::every(Duration::from_secs(2)), Instant::now());
        let due: Vec<_> = (0..6).map(|second| seldom.due(start + Duration::from_secs(second))).collect();
        assert_eq!(due, [Some(1), None, Some(2), None, Some(2), None]);
    }
}
