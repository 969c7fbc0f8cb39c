//! Token buckets of networks, in a table of fixed size.
//!
//! A bucket is stored as the time at which it is full again (the generic cell rate algorithm), and a full bucket needs no entry.
//! So only recently active networks occupy the table. Each network maps to one small set, as in a processor's cache, regardless
//! of the other sets: no sweep, no growth, and a lock that two workers seldom need at once. The hash is keyed, so clients cannot
//! choose a set. A full set evicts the bucket that lacks least.
//!
//! Not the crate `governor`: its table grows by every key that is looked up, and a lookup takes from the bucket.

use crate::seldom::Seldom;
use crate::sources::{Network, Source};
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of sets, and of buckets in each: 65,536 networks, in 2 MiB.
const SETS: usize = 4_096;
const WAYS: usize = 16;
/// Minimum interval between log lines about evicted buckets.
const SAYING: Duration = Duration::from_secs(1);
const SECOND: u64 = 1_000_000_000;

/// Tokens that a bucket gains in a second, and that it holds when full.
#[derive(Clone, Copy)]
pub(super) struct Rate {
    /// Never zero.
    pub(super) per_second: u32,
    pub(super) burst: u32,
}

/// Nanoseconds since the table was created.
type Nanos = u64;

pub(super) struct Buckets {
    sets: Box<[Mutex<Vec<Bucket>>]>,
    hashing: RandomState,
    made: Instant,
    /// Latest time until which any bucket is empty.
    empty_until: AtomicU64,
    /// Limiter of the log lines about buckets that were evicted before they were full.
    forgotten: Seldom,
}

struct Bucket {
    network: Network,
    full_at: Nanos,
}

impl Default for Buckets {
    fn default() -> Self {
        Self {
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
            hashing: RandomState::new(),
            made: Instant::now(),
            empty_until: AtomicU64::new(0),
            forgotten: Seldom::every(SAYING),
        }
    }
}

impl Buckets {
    /// `true` if a bucket may ever have been empty; if not, no source waits.
    pub(super) fn were_empty(&self) -> bool {
        self.empty_until.load(Ordering::Relaxed) > 0
    }

    /// Returns the time until every bucket of `source` holds a token; `None` if each holds one now.
    pub(super) fn wait(&self, source: Source, rate: Rate, now: Instant) -> Option<Duration> {
        let now = self.nanos(now);
        if self.empty_until.load(Ordering::Relaxed) <= now {
            return None;
        }
        let waits = source.tiers().filter_map(|(network, share)| {
            let set = self.set(network).lock();
            let full_at = set.iter().find(|bucket| bucket.network == network)?.full_at;
            Some(rate.times(share).has_one_at(full_at).saturating_sub(now))
        });
        waits.max().filter(|&wait| wait > 0).map(Duration::from_nanos)
    }

    /// Takes `number` tokens from every bucket of `source`, even from an empty one, which is then full again that much later.
    pub(super) fn take(&self, source: Source, rate: Rate, number: u32, now: Instant) {
        let nanos = self.nanos(now);
        for (network, share) in source.tiers() {
            let rate = rate.times(share);
            let cost = rate.cost().saturating_mul(number.into());
            self.put_off(network, rate, now, |full_at| full_at.max(nanos).saturating_add(cost));
        }
    }

    /// Empties the bucket of `network` for at least `wait`, regardless of its refill.
    pub(super) fn empty(&self, network: Network, rate: Rate, wait: Duration, now: Instant) {
        let full_at = rate.full_at_when_one_is_there_at(self.nanos(now + wait));
        self.put_off(network, rate, now, |before| before.max(full_at));
    }

    fn put_off(&self, network: Network, rate: Rate, now: Instant, later: impl Fn(Nanos) -> Nanos) {
        let (full_at, is_forgotten) = put_off(&mut self.set(network).lock(), network, self.nanos(now), later);
        self.empty_until.fetch_max(rate.has_one_at(full_at), Ordering::Relaxed);
        if is_forgotten {
            self.forget(now);
        }
    }

    fn nanos(&self, now: Instant) -> Nanos {
        u64::try_from(now.saturating_duration_since(self.made).as_nanos()).unwrap_or(u64::MAX)
    }

    fn set(&self, network: Network) -> &Mutex<Vec<Bucket>> {
        &self.sets[self.hashing.hash_one(network) as usize % SETS]
    }

    fn forget(&self, now: Instant) {
        if let Some(number) = self.forgotten.due(now) {
            tracing::warn!(
                number,
                "more addresses come than the limits of [limits.source] can be kept for: of some it is forgotten what they \
                 did, and they may do more. No client is refused for it. Limit the clients in front of this listener, by \
                 network"
            );
        }
    }

    #[cfg(test)]
    fn held(&self) -> usize {
        self.sets.iter().map(|set| set.lock().len()).sum()
    }
}

/// Postpones the time at which a network's bucket is full: 0 if it has no entry. Returns that time, and `true` if another bucket
/// was evicted before it was full.
fn put_off(
    set: &mut Vec<Bucket>,
    network: Network,
    now: Nanos,
    later: impl Fn(Nanos) -> Nanos,
) -> (Nanos, bool) {
    if let Some(bucket) = set.iter_mut().find(|bucket| bucket.network == network) {
        bucket.full_at = later(bucket.full_at);
        return (bucket.full_at, false);
    }
    let full_at = later(0);
    let (bucket, has_room, mut is_forgotten) = (Bucket { network, full_at }, set.len() < WAYS, false);
    match set.iter_mut().min_by_key(|bucket| bucket.full_at) {
        Some(fullest) if fullest.full_at <= now => *fullest = bucket,
        Some(fullest) if !has_room => (*fullest, is_forgotten) = (bucket, true),
        _ => set.push(bucket),
    }
    (full_at, is_forgotten)
}

impl Rate {
    pub(super) fn times(self, share: u32) -> Self {
        Self { per_second: self.per_second.saturating_mul(share), burst: self.burst.saturating_mul(share) }
    }

    /// Returns the maximum that a full bucket yields in a minute.
    pub(super) fn in_a_minute(self) -> u64 {
        u64::from(self.per_second) * 60 + u64::from(self.burst)
    }

    /// Returns the time in which a bucket gains one token.
    fn cost(self) -> Nanos {
        (SECOND / u64::from(self.per_second)).max(1)
    }

    /// Returns the time from which a bucket holds at least one token, if it is full at `full_at`.
    fn has_one_at(self, full_at: Nanos) -> Nanos {
        full_at.saturating_add(self.cost()).saturating_sub(u64::from(self.burst) * self.cost())
    }

    /// Inverts [`Rate::has_one_at`].
    fn full_at_when_one_is_there_at(self, at: Nanos) -> Nanos {
        at.saturating_add(u64::from(self.burst.max(1) - 1) * self.cost())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::SourceLimits;
    use std::net::{IpAddr, Ipv6Addr};

    const RATE: Rate = Rate { per_second: 10, burst: 3 };
    const TENTH: Duration = Duration::from_millis(100);

    fn source(address: impl Into<IpAddr>) -> Source {
        SourceLimits { exempt: Vec::new(), ..SourceLimits::default() }.source(address.into()).unwrap()
    }

    fn ipv4(number: u32) -> Source {
        source(IpAddr::V4(number.into()))
    }

    #[test]
    fn a_bucket_holds_its_burst_and_fills_at_its_rate() {
        let (buckets, now) = (Buckets::default(), Instant::now());
        for _ in 0..3 {
            assert_eq!(buckets.wait(ipv4(1), RATE, now), None);
            buckets.take(ipv4(1), RATE, 1, now);
        }
        assert_eq!(buckets.wait(ipv4(1), RATE, now), Some(TENTH));
        assert_eq!(buckets.wait(ipv4(2), RATE, now), None);
        assert_eq!(buckets.wait(ipv4(1), RATE, now + TENTH / 2), Some(TENTH / 2));
        assert_eq!(buckets.wait(ipv4(1), RATE, now + TENTH), None);
        buckets.take(ipv4(1), RATE, 1, now + TENTH);
        assert_eq!(buckets.wait(ipv4(1), RATE, now + TENTH), Some(TENTH));
        let later = now + 100 * TENTH;
        (0..2).for_each(|_| buckets.take(ipv4(1), RATE, 1, later));
        assert_eq!(buckets.wait(ipv4(1), RATE, later), None, "it holds no more than its burst");
        buckets.take(ipv4(1), RATE, 1, later);
        assert_eq!(buckets.wait(ipv4(1), RATE, later), Some(TENTH));
        (0..5).for_each(|_| buckets.take(ipv4(1), RATE, 1, later));
        assert_eq!(buckets.wait(ipv4(1), RATE, later), Some(6 * TENTH), "what is taken in excess is owed");
    }

    #[test]
    fn a_bucket_that_is_emptied_has_one_when_the_time_is_over_and_not_before() {
        let (one, other, wait) = (ipv4(1), ipv4(2), Duration::from_secs(5));
        for owed in [0, 2] {
            let (buckets, now) = (Buckets::default(), Instant::now());
            (0..owed).for_each(|_| buckets.take(one, RATE, 1, now));
            one.tiers().for_each(|(network, _)| buckets.empty(network, RATE, wait, now));
            assert!(buckets.were_empty());
            assert_eq!((buckets.wait(one, RATE, now), buckets.wait(other, RATE, now)), (Some(wait), None));
            assert_eq!(buckets.wait(one, RATE, now + wait), None);
            buckets.take(one, RATE, 1, now + wait);
            assert_eq!(buckets.wait(one, RATE, now + wait), Some(TENTH), "it holds no more than one");
        }
        let (buckets, now) = (Buckets::default(), Instant::now());
        (0..100).for_each(|_| buckets.take(other, RATE, 1, now));
        other.tiers().for_each(|(network, _)| buckets.empty(network, RATE, wait, now));
        assert_eq!(buckets.wait(other, RATE, now), Some(98 * TENTH), "it is not sooner than by what is owed");
    }

    #[test]
    fn the_sources_of_a_48_have_four_buckets_together() {
        let (buckets, now) = (Buckets::default(), Instant::now());
        let of = |site: u128, source_in: u128| source(Ipv6Addr::from((site << 80) | (source_in << 72)));
        let mut taken = 0;
        for number in 0..256 {
            while buckets.wait(of(1, number), RATE, now).is_none() {
                buckets.take(of(1, number), RATE, 1, now);
                taken += 1;
            }
        }
        assert_eq!(taken, 12);
        assert_eq!(buckets.wait(of(1, 255), RATE, now), Some(TENTH / 4), "the /48 fills four times as fast");
        assert_eq!(buckets.wait(of(2, 0), RATE, now), None);
    }

    #[test]
    fn what_is_held_is_bounded_and_who_lacks_least_is_forgotten() {
        let (buckets, now) = (Buckets::default(), Instant::now());
        (0..3).for_each(|_| buckets.take(ipv4(0), RATE, 1, now));
        (1..400_000).for_each(|number| buckets.take(ipv4(number), RATE, 1, now));
        assert_eq!(buckets.held(), SETS * WAYS);
        assert!(buckets.sets.iter().all(|set| set.lock().capacity() <= WAYS));
        assert_eq!(buckets.wait(ipv4(0), RATE, now), Some(TENTH), "the flood does not clear the first");
        assert!(buckets.forgotten.has_logged());
    }

    #[test]
    fn buckets_that_are_full_again_give_room_without_loss() {
        let (buckets, start) = (Buckets::default(), Instant::now());
        for round in 0..20 {
            let now = start + round * 2 * TENTH;
            (0..8_192).for_each(|number| buckets.take(ipv4(round * 8_192 + number), RATE, 1, now));
        }
        assert!(buckets.held() <= SETS * WAYS / 2, "{}", buckets.held());
        assert!(!buckets.forgotten.has_logged());
    }
}
