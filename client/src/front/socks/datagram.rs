//! Addresses in SOCKS5, and the header of a datagram (RFC 1928, sections 5 and 7).

use postern_proxy::target::{Host, Target, TargetError, Transport};
use std::net::{IpAddr, SocketAddr};

pub(super) const IPV4: u8 = 1;
pub(super) const NAME: u8 = 3;
pub(super) const IPV6: u8 = 4;

/// Two reserved bytes, and FRAG: a datagram that is no fragment.
pub(super) const WHOLE: [u8; 3] = [0; 3];

/// A datagram of a program.
pub(super) struct Datagram<'a> {
    /// Type, address and port of the target, as the program wrote them.
    pub(super) address: &'a [u8],
    pub(super) target: Target,
    pub(super) payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Parses a datagram; `None` if it is malformed, or a fragment, which this agent does not reassemble.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let bytes = bytes.strip_prefix(&WHOLE)?;
        let (&kind, rest) = bytes.split_first()?;
        let (host, rest) = match kind {
            IPV4 => {
                let (octets, rest) = rest.split_first_chunk::<4>()?;
                (Host::Address(IpAddr::from(*octets)), rest)
            }
            IPV6 => {
                let (octets, rest) = rest.split_first_chunk::<16>()?;
                (Host::Address(IpAddr::from(*octets)), rest)
            }
            NAME => {
                let (&length, rest) = rest.split_first()?;
                let (name, rest) = rest.split_at_checked(usize::from(length))?;
                (parse_name(name).ok()?, rest)
            }
            _ => return None,
        };
        let (port, payload) = rest.split_first_chunk::<2>()?;
        let target = Target::new(host, u16::from_be_bytes(*port)).ok()?.over(Transport::Udp);
        Some(Self { address: &bytes[..bytes.len() - payload.len()], target, payload })
    }
}

/// Parses the address of type [`NAME`]. Some programs send an IPv6 address as a name, without brackets.
pub(super) fn parse_name(name: &[u8]) -> Result<Host, TargetError> {
    let name = std::str::from_utf8(name).unwrap_or_default(); // an empty name is refused
    name.parse().map(Host::Address).or_else(|_| Host::parse(name))
}

/// Returns type, address and port.
pub(super) fn written(address: SocketAddr) -> Vec<u8> {
    let port = address.port().to_be_bytes();
    match address.ip() {
        IpAddr::V4(ip) => [&[IPV4][..], &ip.octets(), &port].concat(),
        IpAddr::V6(ip) => [&[IPV6][..], &ip.octets(), &port].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(bytes: &[u8]) -> Option<(String, Vec<u8>, Vec<u8>)> {
        let Datagram { address, target, payload } = Datagram::parse(bytes)?;
        assert_eq!(target.transport(), Transport::Udp);
        Some((target.authority(), address.to_vec(), payload.to_vec()))
    }

    #[test]
    fn targets_of_each_form_are_read_and_kept_as_they_were_written() {
        let v4 = [1, 192, 0, 2, 1, 0, 53];
        let v6 = [&[4, 0x20, 1, 0xd, 0xb8][..], &[0; 11], &[1, 1, 187]].concat();
        let name = [&[3, 11][..], b"example.com", &[0, 53]].concat();
        let v6_as_name = [&[3, 3][..], b"::1", &[0, 53]].concat();
        for (address, authority) in [
            (&v4[..], "192.0.2.1:53"),
            (&v6, "[2001:db8::1]:443"),
            (&name, "example.com:53"),
            (&v6_as_name, "[::1]:53"),
        ] {
            for payload in [&b""[..], b"x", &[7; 1200]] {
                let found = parsed(&[&WHOLE, address, payload].concat()).unwrap();
                assert_eq!(found, (authority.to_owned(), address.to_vec(), payload.to_vec()));
            }
        }
    }

    #[test]
    fn what_is_malformed_or_a_fragment_is_no_datagram() {
        let whole = [0, 0, 0, 1, 192, 0, 2, 1, 0, 53];
        assert!(parsed(&whole).is_some());
        for length in 0..whole.len() {
            assert!(parsed(&whole[..length]).is_none(), "{length} bytes");
        }
        for (at, byte) in [(0, 1), (1, 1), (2, 1), (2, 0x80), (3, 0), (3, 2), (3, 5), (9, 0)] {
            let mut bytes = whole;
            bytes[at] = byte;
            assert!(parsed(&bytes).is_none(), "byte {at} is {byte}");
        }
        for name in [&b""[..], b"a b", b"a..b", b"\xff", b"127.1", b"a\r\nb"] {
            let length = u8::try_from(name.len()).unwrap();
            let bytes = [&[0, 0, 0, 3, length][..], name, &[0, 53]].concat();
            assert!(parsed(&bytes).is_none(), "{name:?}");
        }
        assert!(parsed(&[0, 0, 0, 3, 9, b'x', 0, 53]).is_none(), "a name that is cut off");
    }

    #[test]
    fn an_address_is_written_in_its_family() {
        let octets = |address: &str| written(address.parse().unwrap());
        assert_eq!(octets("127.0.0.1:258"), [1, 127, 0, 0, 1, 1, 2]);
        assert_eq!(octets("[::1]:258"), [&[4][..], &[0; 15], &[1, 1, 2]].concat());
    }
}
