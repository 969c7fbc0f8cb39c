//! The destination of a tunnel: a host and a port. It is the most private data that a proxy holds, so `Debug` redacts it and
//! there is no `Display`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest DNS name in characters, without the final dot: the 255 octets include a length before each label, and the root at the
/// end (RFC 1035, section 3.1).
const MAX_NAME_LEN: usize = 253;

/// A host and a port, over TCP or UDP.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Target {
    host: Host,
    port: u16,
    transport: Transport,
}

/// Protocol in which a target is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    #[default]
    Tcp,
    Udp,
}

/// A name to resolve, or an address.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// A DNS name, without a final dot.
    Name(Box<str>),
    /// An IP address, which needs no resolution.
    Address(IpAddr),
}

/// Reasons to reject a target. The messages are shown to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error("the target must be host:port, with a port from 1 to 65535")]
    Port,
    #[error("the target's host must be a DNS name, an IPv4 address or an IPv6 address in brackets")]
    Host,
    #[error("the target must not carry a user name")]
    UserInfo,
}

impl Target {
    /// Parses the authority form of a CONNECT (`host:port`), or the authority of an absolute form, whose port is optional.
    ///
    /// # Errors
    /// [`TargetError`], whose messages contain nothing of `authority`.
    pub fn parse(authority: &str, default_port: Option<u16>) -> Result<Self, TargetError> {
        if authority.contains('@') {
            return Err(TargetError::UserInfo);
        }
        let (host, port) = split(authority)?;
        let port = match port {
            Some(digits) => number(digits)?,
            None => default_port.ok_or(TargetError::Port)?,
        };
        Self::new(Host::parse(host)?, port)
    }

    /// Creates a target over TCP.
    ///
    /// # Errors
    /// [`TargetError::Port`] if `port` is 0.
    pub fn new(host: Host, port: u16) -> Result<Self, TargetError> {
        if port == 0 { Err(TargetError::Port) } else { Ok(Self { host, port, transport: Transport::Tcp }) }
    }

    /// Returns the same host and port over another protocol.
    #[must_use]
    pub fn over(self, transport: Transport) -> Self {
        Self { transport, ..self }
    }

    pub const fn transport(&self) -> Transport {
        self.transport
    }

    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the port, which is never 0.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns `host:port`, as a CONNECT contains it. Not for a log.
    pub fn authority(&self) -> String {
        let port = self.port;
        match &self.host {
            Host::Name(name) => format!("{name}:{port}"),
            Host::Address(address) => SocketAddr::new(*address, port).to_string(),
        }
    }
}

impl Host {
    /// Parses a DNS name, an IPv4 address or an IPv6 address in brackets.
    pub fn parse(host: &str) -> Result<Self, TargetError> {
        if let Some(inner) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            return inner
                .parse::<Ipv6Addr>()
                .map(|ip| Self::Address(ip.into()))
                .map_err(|_| TargetError::Host);
        }
        if let Ok(address) = host.parse::<Ipv4Addr>() {
            return Ok(Self::Address(address.into()));
        }
        let name = host.strip_suffix('.').unwrap_or(host);
        let labels_fit = name.split('.').all(|label| (1..=63).contains(&label.len()));
        // DNS accepts any label (RFC 2181, section 11), and an authority these characters (RFC 3986, section 3.2.2). The percent
        // sign is excluded, because it would allow several spellings of one name.
        let characters_fit =
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte));
        // Some systems read a last label of digits or 0x… as an IPv4 address; it is never part of a name (WHATWG URL).
        let last = name.rsplit('.').next().unwrap_or_default();
        let numeric = last.bytes().all(|byte| byte.is_ascii_digit())
            || last.starts_with("0x")
            || last.starts_with("0X");
        if name.len() > MAX_NAME_LEN || !labels_fit || !characters_fit || numeric {
            return Err(TargetError::Host);
        }
        Ok(Self::Name(name.into()))
    }
}

fn split(authority: &str) -> Result<(&str, Option<&str>), TargetError> {
    let after_host = if authority.starts_with('[') {
        authority.find(']').ok_or(TargetError::Host)? + 1
    } else {
        authority.find(':').unwrap_or(authority.len())
    };
    let (host, rest) = authority.split_at(after_host);
    match rest.strip_prefix(':') {
        Some(port) => Ok((host, Some(port))),
        None if rest.is_empty() => Ok((host, None)),
        None => Err(TargetError::Host),
    }
}

fn number(digits: &str) -> Result<u16, TargetError> {
    let only_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|&port| only_digits && port != 0).ok_or(TargetError::Port)
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Target(redacted)")
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Host(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_told_apart() {
        let parse = |text: &str| Target::parse(text, None).map(|target| (target.host, target.port));
        let name = |text: &str| Host::Name(text.into());
        assert_eq!(parse("example.com:443"), Ok((name("example.com"), 443)));
        assert_eq!(parse("example.com.:443"), Ok((name("example.com"), 443)));
        let longest = [&"a".repeat(63); 4].map(String::as_str).join(".")[..MAX_NAME_LEN].to_owned();
        for odd in
            ["_dmarc.x-y.example", "my_app", "a_.b", "*.example", "-a-.example", "a!$&'()*+,;=~b", &longest]
        {
            assert_eq!(parse(&format!("{odd}:1")), Ok((name(odd), 1)));
            assert_eq!(parse(&format!("{odd}.:1")), Ok((name(odd), 1)));
        }
        assert_eq!(parse("192.0.2.7:80"), Ok((Host::Address(IpAddr::from([192, 0, 2, 7])), 80)));
        assert_eq!(parse("[::1]:80"), Ok((Host::Address(Ipv6Addr::LOCALHOST.into()), 80)));
    }

    #[test]
    fn what_is_neither_is_refused() {
        let error = |text: &str| Target::parse(text, None).err();
        for text in [
            "",
            ":",
            "example.com",
            "example.com:",
            "example.com:0",
            "example.com:65536",
            "a:+1",
            "a:1 ",
            "::1:80",
            "a\r\nX: y:1",
        ] {
            assert!(error(text).is_some(), "{text}");
        }
        let longer = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(62)].join(".");
        for text in [
            &*format!("{longer}:1"),
            &format!("{}.b:1", "a".repeat(64)),
            "a..b:1",
            "a b:1",
            "a/b:1",
            "a\"b:1",
            "a\\b:1",
            ".a:1",
            "[::1:80",
            "[::1%eth0]:80",
            "[::1]x:80",
            "ä.example:1",
            "%31:1",
        ] {
            assert_eq!(error(text), Some(TargetError::Host), "{text}");
        }
        for text in ["127.1:80", "2130706433:80", "0x7f.1:80", "1.2.3.0x4:80", "example.1:80"] {
            assert_eq!(error(text), Some(TargetError::Host), "{text}");
        }
        assert_eq!(error("user@example.com:443"), Some(TargetError::UserInfo));
    }

    #[test]
    fn an_absolute_form_may_leave_out_the_port() {
        assert_eq!(Target::parse("example.com", Some(80)).map(|target| target.port), Ok(80));
        assert_eq!(Target::parse("[::1]", Some(80)).map(|target| target.port), Ok(80));
    }

    #[test]
    fn a_connect_gets_the_authority_that_was_read() {
        for authority in ["example.com:443", "a-b_c.example:1", "192.0.2.1:80", "[2001:db8::1]:443"] {
            assert_eq!(Target::parse(authority, None).unwrap().authority(), authority);
        }
    }

    #[test]
    fn debug_output_names_no_destination() {
        let target = Target::parse("secret.example:443", None).unwrap();
        assert!(!format!("{target:?} {:?}", target.host).contains("secret"));
    }
}
