//! Targets whose tunnels came back from a next hop. Rules of several gateways may lead in a circle for some targets alone, which no
//! check can find out before a tunnel does. The next request for such a target is refused before its token is read.

use parking_lot::Mutex;
use postern_proxy::target::Target;
use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// For how long a target counts as one that comes back. Then a request for it costs its token again, and finds out.
const STANDS: Duration = Duration::from_secs(60);
/// The most targets that are known. The oldest gives way.
const MOST: usize = 256;

/// The targets, by a hash with a key of this process.
#[derive(Debug, Default)]
pub(crate) struct Returned {
    hasher: RandomState,
    known: Mutex<VecDeque<(u64, Instant)>>,
    /// There has been one: without it, no request waits for the lock.
    is_any: AtomicBool,
}

impl Returned {
    /// Takes note of a tunnel that came back.
    pub(crate) fn note(&self, target: &Target, now: Instant) {
        let mut known = self.known.lock();
        known.retain(|(_, since)| now < *since + STANDS);
        if known.len() == MOST {
            known.pop_front();
        }
        known.push_back((self.hasher.hash_one(target), now));
        self.is_any.store(true, Ordering::Relaxed);
    }

    /// Returns whether a tunnel to `target` came back lately.
    pub(crate) fn has(&self, target: &Target, now: Instant) -> bool {
        let is_it = |of: u64| move |(hash, since): &(u64, Instant)| *hash == of && now < *since + STANDS;
        self.is_any.load(Ordering::Relaxed)
            && self.known.lock().iter().any(is_it(self.hasher.hash_one(target)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_came_back_is_known_for_a_minute_and_among_many() {
        let (returned, now) = (Returned::default(), Instant::now());
        let target = |port: usize| Target::parse(&format!("a.example:{port}"), None).unwrap();
        assert!(!returned.has(&target(1), now));
        returned.note(&target(1), now);
        assert!(returned.has(&target(1), now + STANDS - Duration::from_nanos(1)));
        assert!(!returned.has(&target(1), now + STANDS) && !returned.has(&target(2), now));
        for port in 2..=MOST + 1 {
            returned.note(&target(port), now);
        }
        assert!(!returned.has(&target(1), now) && returned.has(&target(2), now));
        returned.note(&target(1), now + STANDS);
        assert_eq!(returned.known.lock().len(), 1);
    }
}
