//! Sources of connections: limits of a source, and exempt networks.
//!
//! A source is one IPv4 address, or an IPv6 network of the size that one subscriber gets. Subscribers get IPv6 networks of
//! different sizes, so the wider network around a source is limited, too. The state is one number for each network that has open
//! connections, so it is bounded by the number of connections, whatever addresses arrive. Rates of a source are in
//! [`rates`](crate::rates).

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::IpAddr;

/// Limits of the wider IPv6 network around a source, as a multiple of the source's.
const WIDE_SHARE: u32 = 4;

/// Connections that one source may have, and how often it may do what costs the daemon work.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SourceLimits {
    /// Connections without a tunnel; more get 429.
    #[schemars(range(min = 1))]
    pub connections: usize,
    /// TLS handshakes a second; 0 means no limit.
    pub handshakes: u32,
    /// TLS handshakes at once.
    #[schemars(range(min = 1))]
    pub handshakes_burst: u32,
    /// Refused requests a second; beyond, every request gets 429. 0 means no limit.
    pub refusals: u32,
    /// Refused requests at once; each agent's first is one.
    #[schemars(range(min = 1))]
    pub refusals_burst: u32,
    /// Prefix length of an IPv6 source.
    #[schemars(range(min = 1, max = 128))]
    pub ipv6_prefix: u8,
    /// Prefix length of a wider network with four times these limits; 128 for none.
    #[schemars(range(min = 1, max = 128))]
    pub ipv6_wide_prefix: u8,
    /// Networks without limits, such as balancers that send no PROXY header.
    #[schemars(with = "Vec<String>")]
    pub exempt: Vec<IpNet>,
}

impl Default for SourceLimits {
    fn default() -> Self {
        let loopback = ["127.0.0.0/8", "::1/128"];
        Self {
            connections: 256,
            handshakes: 50,
            handshakes_burst: 500,
            refusals: 50,
            refusals_burst: 1_000,
            ipv6_prefix: 56,
            ipv6_wide_prefix: 48,
            exempt: loopback.iter().filter_map(|network| network.parse().ok()).collect(),
        }
    }
}

impl SourceLimits {
    /// Returns the source that a connection from `address` counts for; `None` if it is exempt.
    pub fn source(&self, address: IpAddr) -> Option<Source> {
        let address = address.to_canonical(); // an IPv4 client of an IPv6 socket
        if self.exempt.iter().any(|network| network.contains(&address)) {
            return None;
        }
        let network = |bits| IpNet::new(address, bits).ok().map(|network| Network(network.trunc()));
        match address {
            IpAddr::V4(_) => Some(Source { own: network(32)?, wide: None }),
            IpAddr::V6(_) => {
                let is_wider = self.ipv6_wide_prefix < self.ipv6_prefix;
                let wide = is_wider.then(|| network(self.ipv6_wide_prefix)).flatten();
                Some(Source { own: network(self.ipv6_prefix.min(128))?, wide })
            }
        }
    }
}

/// The address or network that a connection counts for. Never logged, so it has no `Debug`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Source {
    own: Network,
    wide: Option<Network>,
}

impl Source {
    /// Returns the widest limited network around the source, which gets one line in a fair queue. Anyone gets a /48 for free,
    /// from a tunnel broker or with a rented server, and a line for each of its 256 /56 would give it 256 turns for one turn of
    /// every other user. So users wait behind others of their /48, unless `ipv6_wide_prefix` is changed.
    pub fn widest(self) -> Network {
        self.wide.unwrap_or(self.own)
    }

    /// Returns the limited networks, each with its multiple of one source's limits.
    pub(crate) fn tiers(self) -> impl Iterator<Item = (Network, u32)> {
        [(self.own, 1)].into_iter().chain(self.wide.map(|wide| (wide, WIDE_SHARE)))
    }
}

/// A network with a count. Never logged, so it has no `Debug`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network(IpNet);

impl Network {
    /// Returns the prefix length and the address, which are unique to the network.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![self.0.prefix_len()];
        match self.0.addr() {
            IpAddr::V4(address) => bytes.extend_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes.extend_from_slice(&address.octets()),
        }
        bytes
    }
}

/// Number of open connections of each network that has any.
#[derive(Default)]
pub(crate) struct Sources(HashMap<Network, usize>);

impl Sources {
    /// Counts a connection, and returns `true`, if its source is below its limit. Each counted connection must be
    /// [released](Sources::release).
    pub(crate) fn count(&mut self, source: Option<Source>, limits: &SourceLimits) -> bool {
        let Some(source) = source else { return true };
        let has_room = |(network, share): (Network, u32)| {
            let most = limits.connections.max(1).saturating_mul(share as usize);
            self.0.get(&network).is_none_or(|&open| open < most)
        };
        let may = source.tiers().all(has_room);
        if may {
            source.tiers().for_each(|(network, _)| *self.0.entry(network).or_default() += 1);
        }
        may
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn release(&mut self, source: Source) {
        for (network, _) in source.tiers() {
            if let Some(open) = self.0.get_mut(&network) {
                *open -= 1;
                if *open == 0 {
                    self.0.remove(&network);
                }
            }
        }
        if self.0.capacity() > 4 * self.0.len() + 1024 {
            self.0.shrink_to_fit(); // after a burst of sources
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(exempt: &[&str]) -> SourceLimits {
        let exempt = exempt.iter().map(|network| network.parse().unwrap()).collect();
        SourceLimits { connections: 1, exempt, ..SourceLimits::default() }
    }

    /// Returns `true` for each of these addresses that is admitted, in order.
    fn admitted(limits: &SourceLimits, addresses: &[&str]) -> Vec<bool> {
        let mut sources = Sources::default();
        addresses
            .iter()
            .map(|address| sources.count(limits.source(address.parse().unwrap()), limits))
            .collect()
    }

    #[test]
    fn an_ipv4_address_is_one_source_however_it_is_written() {
        let came = ["192.0.2.1", "192.0.2.2", "192.0.2.1", "::ffff:192.0.2.2"];
        assert_eq!(admitted(&limits(&[]), &came), [true, true, false, false]);
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let came = ["2001:db8:0:100::1", "2001:db8:0:1ff:2::3", "2001:db8:0:200::1"];
        assert_eq!(admitted(&limits(&[]), &came), [true, false, true]);
        let narrow = SourceLimits { ipv6_prefix: 128, ..limits(&[]) };
        assert_eq!(admitted(&narrow, &came), [true, true, true]);
    }

    #[test]
    fn the_network_around_ipv6_sources_has_four_times_the_limit_of_one() {
        let sources =
            |around: &str| (0..6).map(|number| format!("{around}:{number}00::1")).collect::<Vec<_>>();
        let (one, another) = (sources("2001:db8:0"), sources("2001:db8:1"));
        let came: Vec<_> = one.iter().chain(&another).map(String::as_str).collect();
        let shared = [true, true, true, true, false, false];
        assert_eq!(admitted(&limits(&[]), &came), [shared, shared].concat());
        for ipv6_wide_prefix in [56, 64] {
            let one_tier = SourceLimits { ipv6_wide_prefix, ..limits(&[]) };
            assert_eq!(admitted(&one_tier, &came), [true; 12], "{ipv6_wide_prefix}");
        }
        let equal_first = ["2001:db8::1", "2001:db8::2", "2001:db8:0:ff00::1"];
        assert_eq!(admitted(&limits(&[]), &equal_first), [true, false, true], "/56 and /48 count apart");
    }

    #[test]
    fn exempt_networks_have_no_limit_and_loopback_is_exempt_by_default() {
        let came = ["192.0.2.1", "192.0.2.1", "::ffff:192.0.2.1", "127.0.0.1", "127.0.0.1"];
        assert_eq!(admitted(&limits(&["192.0.2.0/24"]), &came), [true, true, true, true, false]);
        let default = SourceLimits { connections: 1, ..SourceLimits::default() };
        assert_eq!(admitted(&default, &["127.0.0.1", "127.0.0.1", "::1", "::1"]), [true; 4]);
    }

    #[test]
    fn nothing_is_left_of_a_source_without_connections() {
        let (mut sources, limits) = (Sources::default(), limits(&[]));
        let count = |sources: &mut Sources, address| {
            let source = limits.source(address);
            assert!(sources.count(source, &limits));
            source.unwrap()
        };
        for number in 0..100_000_u32 {
            let address = std::net::Ipv6Addr::from(u128::from(number) << 64);
            for address in [IpAddr::V4(number.into()), IpAddr::V6(address)] {
                let source = count(&mut sources, address);
                sources.release(source);
            }
        }
        assert_eq!(sources.0.len(), 0);
        let held: Vec<_> =
            (0..100_000_u32).map(|number| count(&mut sources, IpAddr::V4(number.into()))).collect();
        held.into_iter().for_each(|source| sources.release(source));
        assert!(sources.0.is_empty() && sources.0.capacity() < 4096, "{}", sources.0.capacity());
    }
}
