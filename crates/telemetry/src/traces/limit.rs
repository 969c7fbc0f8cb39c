//! A limit of traces a second: an outage makes every request an error, and a collector needs only a few of them.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Allows a number of events in each second. Called only for rare events or, in an outage, to refuse them.
#[derive(Debug)]
pub(super) struct Limit {
    most: u32,
    /// When the present second began, and how many it has allowed.
    second: Mutex<(Option<Instant>, u32)>,
}

impl Limit {
    pub(super) fn per_second(most: u32) -> Self {
        Self { most, second: Mutex::new((None, 0)) }
    }

    pub(super) fn allows(&self) -> bool {
        self.allows_at(Instant::now())
    }

    fn allows_at(&self, now: Instant) -> bool {
        let (began, allowed) = &mut *self.second.lock();
        if began.is_none_or(|began| now.saturating_duration_since(began) >= Duration::from_secs(1)) {
            (*began, *allowed) = (Some(now), 0);
        }
        *allowed += u32::from(*allowed <= self.most);
        *allowed <= self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_has_its_number_and_no_more() {
        let (limit, start) = (Limit::per_second(3), Instant::now());
        let allowed = |at: u64| {
            let now = start + Duration::from_millis(at);
            (0..1000).filter(|_| limit.allows_at(now)).count()
        };
        assert_eq!([allowed(0), allowed(999), allowed(1000), allowed(5000)], [3, 0, 3, 3]);
        assert!(!Limit::per_second(0).allows());
    }
}
