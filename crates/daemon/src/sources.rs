//! Where connections come from: how many one source may have, and which networks are exempt.
//!
//! A source is one IPv4 address, or an IPv6 network of the size that one subscriber gets. What is held of sources is one
//! number for each that has a connection now, so it is bounded as connections are, whatever addresses come.

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::IpAddr;

/// How many connections one source may have.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SourceLimits {
    /// Connections that one source may have at once, open tunnels not counted. More are answered 429.
    #[schemars(range(min = 1))]
    pub connections: usize,
    /// The size of an IPv6 network that counts as one source, as a prefix length. IPv4 addresses count one by one.
    #[schemars(range(min = 1, max = 128))]
    pub ipv6_prefix: u8,
    /// Networks without this limit: load balancers, through which everyone comes from few addresses. Loopback is among
    /// them because what runs on this machine is the operator's, such as a TLS terminator.
    #[schemars(with = "Vec<String>")]
    pub exempt: Vec<IpNet>,
}

impl Default for SourceLimits {
    fn default() -> Self {
        let loopback = ["127.0.0.0/8", "::1/128"];
        let exempt = loopback.iter().filter_map(|network| network.parse().ok()).collect();
        Self { connections: 256, ipv6_prefix: 56, exempt }
    }
}

impl SourceLimits {
    /// What a connection from `address` is counted under; none if it is exempt.
    fn source(&self, address: IpAddr) -> Option<Source> {
        let address = address.to_canonical(); // an IPv4 client of an IPv6 socket
        if self.exempt.iter().any(|network| network.contains(&address)) {
            return None;
        }
        let bits = match address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => self.ipv6_prefix.min(128),
        };
        IpNet::new(address, bits).ok().map(|network| Source(network.network()))
    }
}

/// The first address of a source. It is in no log, so it has no `Debug`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Source(IpAddr);

/// How many connections each source has that has any.
#[derive(Default)]
pub(crate) struct Sources(HashMap<Source, usize>);

impl Sources {
    /// Counts a connection from `address`, unless its source has all it may have. What it returns is to be given back.
    pub(crate) fn count(&mut self, address: IpAddr, limits: &SourceLimits) -> Result<Option<Source>, ()> {
        let Some(source) = limits.source(address) else { return Ok(None) };
        let open = self.0.entry(source).or_default();
        if *open >= limits.connections.max(1) {
            return Err(());
        }
        *open += 1;
        Ok(Some(source))
    }

    /// How many sources have connections.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A connection that was counted has ended.
    pub(crate) fn release(&mut self, source: Source) {
        if let Some(open) = self.0.get_mut(&source) {
            *open -= 1;
            if *open == 0 {
                self.0.remove(&source);
            }
        }
        if self.0.capacity() > 4 * self.0.len() + 1024 {
            self.0.shrink_to_fit(); // many sources came and went
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

    /// Which of these addresses are let in, one after the other.
    fn admitted(limits: &SourceLimits, addresses: &[&str]) -> Vec<bool> {
        let mut sources = Sources::default();
        addresses.iter().map(|address| sources.count(address.parse().unwrap(), limits).is_ok()).collect()
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
    fn exempt_networks_have_no_limit_and_loopback_is_exempt_by_default() {
        let came = ["192.0.2.1", "192.0.2.1", "::ffff:192.0.2.1", "127.0.0.1", "127.0.0.1"];
        assert_eq!(admitted(&limits(&["192.0.2.0/24"]), &came), [true, true, true, true, false]);
        let default = SourceLimits { connections: 1, ..SourceLimits::default() };
        assert_eq!(admitted(&default, &["127.0.0.1", "127.0.0.1", "::1", "::1"]), [true; 4]);
    }

    #[test]
    fn nothing_is_left_of_a_source_without_connections() {
        let (mut sources, limits) = (Sources::default(), limits(&[]));
        for number in 0..100_000_u32 {
            let source = sources.count(IpAddr::V4(number.into()), &limits).unwrap().unwrap();
            sources.release(source);
        }
        assert_eq!(sources.0.len(), 0);
        let held: Vec<_> = (0..100_000_u32)
            .map(|number| sources.count(IpAddr::V4(number.into()), &limits).unwrap().unwrap())
            .collect();
        held.into_iter().for_each(|source| sources.release(source));
        assert!(sources.0.is_empty() && sources.0.capacity() < 4096, "{}", sources.0.capacity());
    }
}
