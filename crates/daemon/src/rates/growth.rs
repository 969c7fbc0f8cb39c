//! Refusals of each network that are not shared with the rest of the fleet yet.
//!
//! The table is bounded. Refusals of networks beyond its capacity are not shared, and no client is refused because of that.

use crate::sources::{Network, Source};
use aws_lc_rs::hmac;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of networks between two rounds.
const MOST: usize = 4_096;
/// Maximum number of networks left for the next round, so that there is always room for new ones.
const MOST_LEFT: usize = MOST / 2;
/// Bytes of the digest in a key: 128 bits, so that no two networks share a counter.
const DIGEST: usize = 16;

/// Refused requests of one network that are not shared with the fleet yet. Has no `Debug`: client addresses are never logged.
pub struct Growth {
    pub(super) network: Network,
    /// The network's limits as a multiple of one source's.
    pub(super) share: u32,
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

#[derive(Default)]
pub(super) struct Unshared {
    is_kept: AtomicBool,
    /// Network to (share, requests).
    networks: Mutex<HashMap<Network, (u32, u32)>>,
}

impl Unshared {
    pub(super) fn keep(&self, is_kept: bool) {
        self.is_kept.store(is_kept, Ordering::Relaxed);
        if !is_kept {
            *self.networks.lock() = HashMap::new();
        }
    }

    pub(super) fn count(&self, source: Source, times: u32) {
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

    pub(super) fn take(&self, most: usize) -> Vec<Growth> {
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
    use crate::sources::SourceLimits;
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
