//! Classification of public and special-purpose addresses.

use ipnet::{Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns `true` if a connection to `address` ends at a public unicast address, whichever of its [`forms`] a router uses.
pub fn is_public(address: IpAddr) -> bool {
    !forms(address).any(is_special)
}

/// Returns the addresses at which a connection to `address` may end: `address` itself, and the IPv4 address that it embeds.
pub fn forms(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let address = address.to_canonical(); // ::ffff:127.0.0.1 is 127.0.0.1
    let carried = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => carried_v4(address).map(IpAddr::V4),
    };
    [Some(address), carried].into_iter().flatten()
}

/// Returns `true` if `address` is not a public unicast address of the Internet (RFC 6890 and IANA's special-purpose registries),
/// or is a cloud's metadata service. Embedded addresses are not considered: see [`is_public`].
pub fn is_special(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => SPECIAL_V4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) => SPECIAL_V6.iter().any(|net| net.contains(&address)),
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(a: u16, b: u16, c: u16, d: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0), prefix)
}

const SPECIAL_V4: &[Ipv4Net] = &[
    v4(0, 0, 0, 0, 8),        // this network
    v4(10, 0, 0, 0, 8),       // private
    v4(100, 64, 0, 0, 10),    // carrier-grade NAT; Alibaba's metadata service
    v4(127, 0, 0, 0, 8),      // loopback
    v4(168, 63, 129, 16, 32), // Azure's host and metadata service
    v4(169, 254, 0, 0, 16),   // link-local; the metadata service of most clouds
    v4(172, 16, 0, 0, 12),    // private
    v4(192, 0, 0, 0, 24),     // protocol assignments; Oracle's metadata service
    v4(192, 0, 2, 0, 24),     // documentation
    v4(192, 88, 99, 0, 24),   // 6to4 relays, deprecated
    v4(192, 168, 0, 0, 16),   // private
    v4(198, 18, 0, 0, 15),    // benchmarking
    v4(198, 51, 100, 0, 24),  // documentation
    v4(203, 0, 113, 0, 24),   // documentation
    v4(224, 0, 0, 0, 4),      // multicast
    v4(240, 0, 0, 0, 4),      // reserved, broadcast
];

const SPECIAL_V6: &[Ipv6Net] = &[
    v6(0, 0, 0, 0, 96),          // unspecified, loopback, IPv4-compatible
    v6(0x64, 0xff9b, 1, 0, 48),  // local-use translation
    v6(0x100, 0, 0, 0, 64),      // discard
    v6(0x2001, 0, 0, 0, 23),     // protocol assignments, Teredo among them
    v6(0x2001, 0xdb8, 0, 0, 32), // documentation
    v6(0x3fff, 0, 0, 0, 20),     // documentation
    v6(0x5f00, 0, 0, 0, 16),     // segment routing
    v6(0xfc00, 0, 0, 0, 7),      // unique local; AWS's metadata service
    v6(0xfe80, 0, 0, 0, 10),     // link-local
    v6(0xfec0, 0, 0, 0, 10),     // site-local, deprecated
    v6(0xff00, 0, 0, 0, 8),      // multicast
];

/// Returns the IPv4 address embedded in a NAT64 (RFC 6052), 6to4 (RFC 3056), IPv4-translated (RFC 2765, section 2.1) or ISATAP
/// address (RFC 5214, section 6.1). A router of such a network forwards packets for the IPv6 address to the IPv4 address.
fn carried_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let octets = address.octets();
    let at = |offset: usize| {
        Ipv4Addr::new(octets[offset], octets[offset + 1], octets[offset + 2], octets[offset + 3])
    };
    if v6(0x2002, 0, 0, 0, 16).contains(&address) {
        return Some(at(2));
    }
    // The universal bit and the group bit of an ISATAP identifier may have any value.
    let is_isatap = octets[8] & !0b11 == 0 && octets[9..12] == [0, 0x5e, 0xfe];
    (NAT64.contains(&address) || TRANSLATED.contains(&address) || is_isatap).then(|| at(12))
}

const NAT64: Ipv6Net = v6(0x64, 0xff9b, 0, 0, 96);
const TRANSLATED: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_public() {
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "172.31.255.255",
            "192.168.1.1",
            "192.0.0.192",
            "198.19.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "64:ff9b::7f00:1",
            "64:ff9b::cb00:7101",
            "64:ff9b::a83f:8110",
            "64:ff9b:1::1",
            "::ffff:0:7f00:1",
            "2a00::5efe:7f00:1",
            "2a00::200:5efe:a00:1",
            "2a00::300:5efe:a9fe:a9fe",
            "2002:a00:1::",
            "2002:cb00:7101::",
            "2002:a83f:8110::",
            "2001::1",
            "2001:db8::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn addresses_of_the_internet_are_public() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "172.15.0.1",
            "172.32.0.1",
            "192.167.1.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00::1",
            "64:ff9b::101:101",
            "2002:101:101::",
            "::ffff:0:101:101",
            "2a00::5efe:101:101",
            "2a00::400:5efe:7f00:1",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }
}
