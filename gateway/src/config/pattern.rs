//! Patterns of egress rules, which select targets.

use ipnet::IpNet;
use postern_config::text_value;
use postern_proxy::target::Host;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

const ACCEPTED: &str = "\"HOST:PORTS\" or \"HOST\", where HOST is a name (\"b.example\"), all names below one \
     (\"*.example.org\"), an address or a network (\"192.0.2.7\", \"10.0.0.0/8\", \"[2001:db8::1]\", \"[2001:db8::]/32\") or \
     \"*\", and PORTS is a port, a range (\"8000-8999\") or \"*\"";

const BRACKETS: &str =
    "an IPv6 address stands in brackets, such as \"[2001:db8::1]:443\" or \"[2001:db8::]/32\"";

/// Hosts and ports that select targets, with the text from which they were parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: Box<str>,
    pub(crate) hosts: Hosts,
    /// `None` if the text has no ports.
    pub(crate) ports: Option<RangeInclusive<u16>>,
}

/// Hosts that a pattern selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// All hosts.
    Any,
    /// The host of this name, in A-labels and without a final dot.
    Name(Box<str>),
    /// Every name below this one, not the name itself.
    Below(Box<str>),
    /// The addresses of this network.
    Network(IpNet),
}

impl Pattern {
    /// Returns `true` if the pattern selects this name, which has no final dot. Ignores case.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        match &self.hosts {
            Hosts::Any => true,
            Hosts::Name(own) => name.eq_ignore_ascii_case(own),
            Hosts::Below(above) => is_below(name, above),
            Hosts::Network(_) => false,
        }
    }

    /// Returns `true` if the pattern is a network that contains this address.
    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        matches!(&self.hosts, Hosts::Network(network) if network.contains(&address))
    }
}

/// Returns `true` if a name is below another one, and not equal to it.
pub(super) fn is_below(name: &str, above: &str) -> bool {
    let (name, above) = (name.as_bytes(), above.as_bytes());
    let Some((labels, end)) = name.len().checked_sub(above.len()).and_then(|at| name.split_at_checked(at))
    else {
        return false;
    };
    labels.len() > 1 && labels.ends_with(b".") && end.eq_ignore_ascii_case(above)
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains("://") {
            return Err("it is a URL".to_owned());
        }
        let (host, ports) = split(text)?;
        let ports = ports.map(|ports| range(ports).ok_or_else(|| format!("\"{ports}\" are no ports")));
        Ok(Self { text: text.into(), hosts: hosts(host)?, ports: ports.transpose()? })
    }
}

/// Splits a text into the host, and the ports after a colon.
fn split(text: &str) -> Result<(&str, Option<&str>), String> {
    let end_of_address = text.strip_prefix('[').map(|_| text.find(']').unwrap_or(text.len()));
    let after = end_of_address.unwrap_or(0);
    let (host, ports) = match text[after..].find(':') {
        Some(colon) => (&text[..after + colon], Some(&text[after + colon + 1..])),
        None => (text, None),
    };
    match (host.is_empty(), ports) {
        (_, Some(ports)) if ports.contains(':') => Err(BRACKETS.to_owned()),
        (true, _) => Err("it has no host".to_owned()),
        _ => Ok((host, ports)),
    }
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let port = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u16>().ok().filter(|port| is_number && *port > 0)
    };
    let (first, last) = match (text, text.split_once('-')) {
        ("*", _) => (1, u16::MAX),
        (_, None) => (port(text)?, port(text)?),
        (_, Some((first, last))) => (port(first)?, port(last)?),
    };
    (first <= last).then_some(first..=last)
}

fn hosts(text: &str) -> Result<Hosts, String> {
    if text == "*" {
        return Ok(Hosts::Any);
    }
    let below = text.strip_prefix("*.");
    let host = below.unwrap_or(text);
    if host.contains('*') {
        return Err("a \"*\" stands alone, or as the whole first label: \"*.example.org\"".to_owned());
    }
    if let Some((address, prefix)) = host.split_once('/') {
        return network(address, prefix).map(Hosts::Network);
    }
    let ascii = if host.is_ascii() {
        host.to_owned()
    } else {
        idna::domain_to_ascii(host).map_err(|_| no_host(text))?
    };
    match (Host::parse(&ascii), below) {
        (Ok(Host::Name(name)), None) => Ok(Hosts::Name(name)),
        (Ok(Host::Name(name)), Some(_)) => Ok(Hosts::Below(name)),
        (Ok(Host::Address(address)), None) if address.to_canonical() != address => Err(format!(
            "an IPv4 address in an IPv6 one is judged as the IPv4 address, so this matches nothing: write \"{}\"",
            address.to_canonical()
        )),
        (Ok(Host::Address(address)), None) => Ok(Hosts::Network(address.into())),
        _ => Err(no_host(text)),
    }
}

fn no_host(text: &str) -> String {
    format!("\"{text}\" is neither a DNS name nor an address")
}

fn network(address: &str, prefix: &str) -> Result<IpNet, String> {
    let Ok(Host::Address(address)) = Host::parse(address) else {
        let is_v6 = address.parse::<Ipv6Addr>().is_ok();
        return Err(if is_v6 { BRACKETS.to_owned() } else { no_host(address) });
    };
    let no_prefix = || format!("\"/{prefix}\" is no prefix length of this address");
    let length = prefix.parse().ok().filter(|_| prefix.bytes().all(|byte| byte.is_ascii_digit()));
    let network = IpNet::new(address, length.ok_or_else(no_prefix)?).map_err(|_| no_prefix())?;
    if network.trunc() != network {
        return Err(format!(
            "the address has bits beyond its prefix: write \"{}\" for the network, or leave the prefix out for the address",
            written(network.trunc())
        ));
    }
    if address.to_canonical() != address && network.prefix_len() >= 96 {
        return Err(
            "IPv4 addresses in IPv6 ones are judged as IPv4 addresses, so this matches nothing: write the IPv4 network"
                .to_owned(),
        );
    }
    Ok(network)
}

/// Formats a network as a pattern contains it.
fn written(network: IpNet) -> String {
    let (address, length) = (network.addr(), network.prefix_len());
    if address.is_ipv6() { format!("[{address}]/{length}") } else { format!("{address}/{length}") }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

text_value!(Pattern, ACCEPTED);

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn hosts_and_ports_are_read() {
        let read = |text: &str| {
            let pattern = pattern(text);
            (pattern.hosts, pattern.ports)
        };
        let network = |text: &str| Hosts::Network(text.parse().unwrap());
        assert_eq!(read("*"), (Hosts::Any, None));
        assert_eq!(read("*:443"), (Hosts::Any, Some(443..=443)));
        assert_eq!(read("b.example"), (Hosts::Name("b.example".into()), None));
        assert_eq!(read("b.example.:*"), (Hosts::Name("b.example".into()), Some(1..=65535)));
        assert_eq!(read("*.example.org:8000-8999"), (Hosts::Below("example.org".into()), Some(8000..=8999)));
        assert_eq!(read("B\u{fc}cher.example"), (Hosts::Name("xn--bcher-kva.example".into()), None));
        assert_eq!(read("*.b\u{fc}cher.example"), (Hosts::Below("xn--bcher-kva.example".into()), None));
        assert_eq!(read("10.0.0.0/8:22"), (network("10.0.0.0/8"), Some(22..=22)));
        assert_eq!(read("192.0.2.7"), (network("192.0.2.7/32"), None));
        assert_eq!(read("[2001:db8::]/32"), (network("2001:db8::/32"), None));
        assert_eq!(read("[::1]:80"), (network("::1/128"), Some(80..=80)));
        assert_eq!(read("0.0.0.0/0"), (network("0.0.0.0/0"), None));
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_a_hint() {
        for (text, error) in [
            ("", "it has no host"),
            (":443", "it has no host"),
            ("https://b.example", "it is a URL"),
            ("::1", BRACKETS),
            ("2001:db8::/32", BRACKETS),
            ("[::ffff:10.0.0.1]:22", "write \"10.0.0.1\""),
            ("[::ffff:10.0.0.0]/104", "write the IPv4 network"),
            ("10.0.0.0/33", "\"/33\" is no prefix length"),
            ("10.0.0.0/", "\"/\" is no prefix length"),
            ("10.0.0.0/+8", "\"/+8\" is no prefix length"),
            ("10.0.0.1/8:22", "write \"10.0.0.0/8\" for the network"),
            ("[2001:db8::1]/32", "write \"[2001:db8::]/32\" for the network"),
            ("*example.org", "stands alone"),
            ("a.*.example", "stands alone"),
            ("*.*.example", "stands alone"),
            ("*.10.0.0.1", "\"*.10.0.0.1\" is neither"),
            ("b.example:https", "\"https\" are no ports"),
            ("b.example:", "\"\" are no ports"),
            ("b.example:0", "\"0\" are no ports"),
            ("b.example:9-8", "\"9-8\" are no ports"),
            ("b.example:1-65536", "\"1-65536\" are no ports"),
            ("b..example", "\"b..example\" is neither"),
            ("999.1.1.1", "\"999.1.1.1\" is neither"),
            ("example.org/8", "\"example.org\" is neither"),
            ("[::1", "\"[::1\" is neither"),
            ("[::1]x", "\"[::1]x\" is neither"),
            ("*.", "\"*.\" is neither"),
            ("a b", "\"a b\" is neither"),
        ] {
            let found = text.parse::<Pattern>().unwrap_err();
            assert!(found.contains(error), "{text}: {found}");
        }
    }

    #[test]
    fn names_compare_as_dns_does() {
        for (text, name, matches) in [
            ("b.example", "B.Example", true),
            ("b.example", "a.b.example", false),
            ("*.example.org", "a.example.org", true),
            ("*.example.org", "a.b.EXAMPLE.org", true),
            ("*.example.org", "example.org", false),
            ("*.example.org", "aexample.org", false),
            ("*.example.org", ".example.org", false),
            ("*.example.org", "org", false),
            ("*", "anything.example", true),
            ("10.0.0.0/8", "a.example", false),
        ] {
            assert_eq!(pattern(text).has_name(name), matches, "{text} {name}");
        }
        let address = "10.1.2.3".parse().unwrap();
        assert!(pattern("10.0.0.0/8").has_address(address) && !pattern("*").has_address(address));
    }
}
