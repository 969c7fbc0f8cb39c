//! A log line once a second at most, for what a flood of connections would make a flood of lines.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// When the line was logged.
pub(crate) struct OnceASecond(Mutex<Option<Instant>>);

impl OnceASecond {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Whether the line is to be logged now.
    pub(crate) fn is_due(&self) -> bool {
        let (mut logged, now) = (self.0.lock(), Instant::now());
        let is_due =
            logged.is_none_or(|logged| now.saturating_duration_since(logged) >= Duration::from_secs(1));
        if is_due {
            *logged = Some(now);
        }
        is_due
    }
}
