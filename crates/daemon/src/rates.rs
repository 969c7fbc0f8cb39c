//! Rate limits per source on work before anyone has paid for it: TLS handshakes, refused requests.
//!
//! The caller decides when to check which source, so a connection can be checked once its source is known.

mod buckets;

use crate::sources::{Network, Source, SourceLimits};
use aws_lc_rs::hmac;
use buckets::{Buckets, Rate};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Recent activity of the sources of one listener.
#[derive(Default)]
pub struct Rates {
    handshakes: Buckets,
    refusals: Buckets,
    /// Refused requests not shared with the rest of the fleet yet.
    unshared: Unshared,
}

/// A source exceeds its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AboveRate {
    /// Whole seconds until the source is below its rate again, without further activity.
    pub seconds: u64,
}

impl Rates {
    /// Counts a TLS handshake that is about to begin. Exempt connections, which have no source, are not counted.
    ///
    /// # Errors
    /// [`AboveRate`]: the handshake must not begin, and is not counted.
    pub fn handshake(&self, source: Option<Source>, limits: &SourceLimits) -> Result<(), AboveRate> {
        let Some((source, rate)) = counted(source, limits.handshakes, limits.handshakes_burst) else {
            return Ok(());
        };
        let now = Instant::now();
        match self.handshakes.wait(source, rate, now) {
            Some(wait) => Err(AboveRate::until(wait)),
            None => {
                self.handshakes.take(source, rate, 1, now);
                Ok(())
            }
        }
    }

    /// Counts a request that was refused through its client's fault, and that no valid token has paid for. `times` is its cost as
    /// a multiple of an ordinary refusal's.
    pub fn refused(&self, source: Option<Source>, limits: &SourceLimits, times: u32) {
        if let Some((source, rate)) = counted(source, limits.refusals, limits.refusals_burst) {
            self.refusals.take(source, rate, times, Instant::now());
            self.unshared.count(source, times);
        }
    }

    /// Starts or stops collecting refused requests for [`Rates::growth`].
    pub fn share(&self, is_shared: bool) {
        self.unshared.keep(is_shared);
    }

    /// Takes the refusals since the last call, of at most `most` networks: those with the most refusals.
    pub fn growth(&self, most: usize) -> Vec<Growth> {
        self.unshared.take(most)
    }

    /// Applies the fleet's count: `total` requests of a network refused in the current minute, of which `left` remains. If
    /// `total` exceeds the maximum of one gateway in a minute, the network's requests are refused for the rest of the minute.
    pub fn counted_by_fleet(&self, growth: &Growth, total: u64, left: Duration, limits: &SourceLimits) {
        let Some(rate) = rate(limits.refusals, limits.refusals_burst).map(|rate| rate.times(growth.share))
        else {
            return;
        };
        if total > rate.in_a_minute() {
            self.refusals.empty(growth.network, rate, left, Instant::now());
        }
    }

    /// Checks that a request may be read: fewer requests of its source were refused than the limit. Counts nothing. Takes no lock
    /// while no source is above its rate.
    ///
    /// # Errors
    /// [`AboveRate`]: the request must be answered with 429.
    pub fn request(&self, source: Option<Source>, limits: &SourceLimits) -> Result<(), AboveRate> {
        match counted(source, limits.refusals, limits.refusals_burst) {
            Some((source, rate)) if self.refusals.were_empty() => self
                .refusals
                .wait(source, rate, Instant::now())
                .map_or(Ok(()), |wait| Err(AboveRate::until(wait))),
            _ => Ok(()),
        }
    }
}

/// Returns the source and its rate; `None` if the source is exempt or has no limit.
fn counted(source: Option<Source>, per_second: u32, burst: u32) -> Option<(Source, Rate)> {
    source.zip(rate(per_second, burst))
}

fn rate(per_second: u32, burst: u32) -> Option<Rate> {
    (per_second > 0).then(|| Rate { per_second, burst: burst.max(1) })
}

impl std::fmt::Debug for Rates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rates") // client addresses are never logged
    }
}

impl AboveRate {
    fn until(wait: Duration) -> Self {
        Self { seconds: wait.as_secs() + u64::from(wait.subsec_nanos() > 0) }
    }
}

/// Maximum number of networks between two rounds.
const MOST: usize = 4_096;
/// Maximum number of networks left for the next round, so that there is always room for new ones.
const MOST_LEFT: usize = MOST / 2;
/// Bytes of the digest in a key: 128 bits, so that no two networks share a counter.
const DIGEST: usize = 16;

/// Refused requests of one network that are not shared with the fleet yet. Has no `Debug`: client addresses are never logged.
pub struct Growth {
    network: Network,
    /// The network's limits as a multiple of one source's.
    share: u32,
    pub number: u32,
}

impl Growth {
    /// Returns the key of the network's counter for `minute`, in minutes since the Unix epoch. Without the secret, a key reveals
    /// no address, and keys of different minutes cannot be linked.
    pub fn key(&self, secret: &[u8], minute: u64) -> String {
        let mut message = minute.to_be_bytes().to_vec();
        message.extend_from_slice(&self.network.bytes());
        let digest = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &message);
        let mut key = "postern:rate:".to_owned();
        for byte in &digest.as_ref()[..DIGEST] {
            let _ = write!(key, "{byte:02x}"); // writing to a String cannot fail
        }
        key
    }
}

/// Refusals of each network that are not shared with the rest of the fleet yet. The table is bounded: refusals of networks beyond
/// its capacity are not shared, and no client is refused because of that.
#[derive(Default)]
struct Unshared {
    is_kept: AtomicBool,
    /// Network to (share, requests).
    networks: Mutex<HashMap<Network, (u32, u32)>>,
}

impl Unshared {
    fn keep(&self, is_kept: bool) {
        self.is_kept.store(is_kept, Ordering::Relaxed);
        if !is_kept {
            *self.networks.lock() = HashMap::new();
        }
    }

    fn count(&self, source: Source, times: u32) {
        if !self.is_kept.load(Ordering::Relaxed) {
            return;
        }
        let mut networks = self.networks.lock();
        for (network, share) in source.tiers() {
            if networks.len() < MOST || networks.contains_key(&network) {
                let (_, number) = networks.entry(network).or_insert((share, 0));
                *number = number.saturating_add(times);
            }
        }
    }

    fn take(&self, most: usize) -> Vec<Growth> {
        let networks = std::mem::take(&mut *self.networks.lock());
        let growth = |(network, (share, number))| Growth { network, share, number };
        let mut taken: Vec<_> = networks.into_iter().map(growth).collect();
        taken.sort_unstable_by_key(|growth| std::cmp::Reverse(growth.number));
        let left = taken.split_off(most.min(taken.len()));
        let mut networks = self.networks.lock();
        for Growth { network, share, number } in left.into_iter().take(MOST_LEFT) {
            let (_, counted) = networks.entry(network).or_insert((share, 0));
            *counted = counted.saturating_add(number); // counted since the take
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(address: &str) -> Option<Source> {
        SourceLimits::default().source(address.parse().unwrap())
    }

    fn limits() -> SourceLimits {
        // One more per second.
        SourceLimits {
            handshakes: 1,
            handshakes_burst: 3,
            refusals: 1,
            refusals_burst: 2,
            ..SourceLimits::default()
        }
    }

    #[test]
    fn a_source_makes_its_burst_of_handshakes_and_no_more() {
        let (rates, one, other) = (Rates::default(), source("192.0.2.1"), source("192.0.2.2"));
        let made: Vec<_> = (0..5).map(|_| rates.handshake(one, &limits()).is_ok()).collect();
        assert_eq!(made, [true, true, true, false, false]);
        assert!(rates.handshake(other, &limits()).is_ok());
    }

    #[test]
    fn requests_are_read_until_too_many_were_refused() {
        let (rates, one, other) = (Rates::default(), source("192.0.2.1"), source("192.0.2.2"));
        for _ in 0..2 {
            assert_eq!(rates.request(one, &limits()), Ok(()));
            rates.refused(one, &limits(), 1);
        }
        assert_eq!(rates.request(one, &limits()), Err(AboveRate { seconds: 1 }));
        assert_eq!(rates.request(other, &limits()), Ok(()));
        rates.refused(one, &limits(), 40);
        (0..60).for_each(|_| rates.refused(one, &limits(), 1)); // by requests that arrived earlier
        let Err(AboveRate { seconds }) = rates.request(one, &limits()) else { panic!("it is below") };
        assert!((95..=101).contains(&seconds), "{seconds}");
    }

    #[test]
    fn what_the_fleet_counted_limits_a_source_for_the_rest_of_the_minute() {
        let (rates, one, other, left) =
            (Rates::default(), source("192.0.2.1"), source("192.0.2.2"), Duration::from_secs(40));
        rates.share(true);
        rates.refused(one, &limits(), 1);
        let growth = rates.growth(10);
        rates.counted_by_fleet(&growth[0], 62, left, &limits());
        assert_eq!(rates.request(one, &limits()), Ok(()), "60 seconds and 2 at once");
        let unlimited = SourceLimits { refusals: 0, ..limits() };
        rates.counted_by_fleet(&growth[0], 63, left, &unlimited);
        assert_eq!(rates.request(one, &limits()), Ok(()));
        rates.counted_by_fleet(&growth[0], 63, left, &limits());
        let Err(AboveRate { seconds }) = rates.request(one, &limits()) else { panic!("it is below") };
        assert!((35..=40).contains(&seconds), "{seconds}");
        assert_eq!(rates.request(other, &limits()), Ok(()));
    }

    #[test]
    fn the_network_around_a_source_has_four_times_the_minute_of_one() {
        let (rates, one, left) = (Rates::default(), source("2001:db8::1"), Duration::from_secs(40));
        rates.share(true);
        rates.refused(one, &limits(), 1);
        let growth = rates.growth(10);
        let [wide] = growth.iter().filter(|growth| growth.share == 4).collect::<Vec<_>>()[..] else {
            panic!("no /48")
        };
        rates.counted_by_fleet(wide, 248, left, &limits());
        assert_eq!(rates.request(one, &limits()), Ok(()));
        rates.counted_by_fleet(wide, 249, left, &limits());
        assert!(rates.request(source("2001:db8:0:ff00::1"), &limits()).is_err());
    }

    #[test]
    fn exempt_connections_and_rates_of_zero_are_not_counted() {
        let rates = Rates::default();
        let unlimited = SourceLimits { handshakes: 0, refusals: 0, ..limits() };
        for (source, limits) in [(source("127.0.0.1"), limits()), (source("192.0.2.1"), unlimited)] {
            for _ in 0..10_000 {
                assert_eq!(rates.handshake(source, &limits), Ok(()));
                rates.refused(source, &limits, 1);
            }
            assert_eq!(rates.request(source, &limits), Ok(()));
        }
    }

    #[test]
    fn a_hundred_agents_behind_one_address_start_at_once() {
        let (rates, limits, one) = (Rates::default(), SourceLimits::default(), source("192.0.2.1"));
        for _ in 0..100 {
            assert_eq!((rates.handshake(one, &limits), rates.request(one, &limits)), (Ok(()), Ok(())));
            rates.refused(one, &limits, 1);
        }
    }

    mod unshared {
        use super::super::*;
        use std::net::IpAddr;

        fn source(address: impl Into<IpAddr>) -> Source {
            SourceLimits::default().source(address.into()).unwrap()
        }

        fn ipv4(number: u32) -> Source {
            source(IpAddr::V4((0x0a00_0000 + number).into()))
        }

        fn kept() -> Unshared {
            let unshared = Unshared::default();
            unshared.keep(true);
            unshared
        }

        fn numbers(growth: &[Growth]) -> Vec<u32> {
            growth.iter().map(|growth| growth.number).collect()
        }

        #[test]
        fn those_with_the_most_are_taken_first_and_the_others_are_left() {
            let unshared = kept();
            for number in 1..=5 {
                (0..number).for_each(|_| unshared.count(ipv4(number), 1));
            }
            assert_eq!(numbers(&unshared.take(2)), [5, 4]);
            unshared.count(ipv4(1), 1);
            unshared.count(ipv4(5), 1);
            assert_eq!(numbers(&unshared.take(1)), [3]);
            let mut rest = numbers(&unshared.take(10));
            rest.sort_unstable();
            assert_eq!(rest, [1, 2, 2]);
            assert!(unshared.take(10).is_empty());
        }

        #[test]
        fn what_is_kept_is_bounded_and_one_that_does_much_finds_room_in_the_next_round() {
            let unshared = kept();
            (0..100_000).for_each(|number| unshared.count(ipv4(number), 1));
            assert_eq!(unshared.networks.lock().len(), MOST);
            assert_eq!(unshared.take(256).len(), 256);
            assert_eq!(unshared.networks.lock().len(), MOST_LEFT);
            (0..50).for_each(|_| unshared.count(ipv4(200_000), 1));
            assert_eq!(unshared.take(256)[0].number, 50);
        }

        #[test]
        fn nothing_is_kept_where_nothing_is_shared() {
            let unshared = Unshared::default();
            unshared.count(ipv4(1), 1);
            assert!(unshared.take(1).is_empty());
            unshared.keep(true);
            unshared.count(ipv4(1), 1);
            unshared.keep(false);
            assert!(unshared.take(1).is_empty());
        }

        #[test]
        fn a_key_is_of_its_secret_its_minute_and_its_network_and_shows_none_of_them() {
            let unshared = kept();
            unshared.count(source("2001:db8::1".parse::<IpAddr>().unwrap()), 1); // a /56 and a /48 with the same address
            unshared.count(ipv4(1), 1);
            let growth = unshared.take(10);
            let mut keys: Vec<String> = Vec::new();
            for secret in ["a secret of a fleet", "a secret of another"] {
                for minute in [29_000_000, 29_000_001] {
                    keys.extend(growth.iter().map(|growth| growth.key(secret.as_bytes(), minute)));
                }
            }
            for key in &keys {
                let digest = key.strip_prefix("postern:rate:").unwrap();
                assert!(digest.len() == 32 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{key}");
            }
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), 12);
        }

        /// The key is the HMAC-SHA256 of the minute (8 bytes), the prefix length and the address; all gateways of a fleet must agree
        /// on it.
        #[test]
        fn a_key_is_what_openssl_makes_of_it() {
            let unshared = kept();
            unshared.count(source("192.0.2.1".parse::<IpAddr>().unwrap()), 1);
            let key = unshared.take(1)[0].key(b"0123456789abcdef", 29_000_000);
            assert_eq!(key, "postern:rate:ce12f95fa445d2748995685c9ee81e7b");
        }
    }
}
