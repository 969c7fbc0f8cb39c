//! Where a tunnel shall go: a host and a port, checked so that they can stand in a request line.

use std::fmt;
use std::net::Ipv6Addr;

/// A tunnel's target. `Debug` redacts it: a destination belongs in no log.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// A name, an IPv4 address, or an IPv6 address in brackets.
    host: String,
    port: u16,
}

/// Why something is not a target. Says nothing about the value: it may be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TargetError {
    #[error("the target has no port: write host:port")]
    NoPort,
    #[error("the target's port must be a number from 1 to 65535")]
    Port,
    #[error(
        "the target's host must be a name of 1 to 253 letters, digits, dots, hyphens and underscores, or an IP address"
    )]
    Host,
}

impl Target {
    /// Reads `host:port`; `default_port` stands in when there is no port.
    pub(crate) fn parse(authority: &str, default_port: Option<u16>) -> Result<Self, TargetError> {
        // The colons of a bracketed address are not the port's.
        let colon = authority.rfind(':').filter(|&colon| !authority[colon..].contains(']'));
        let (host, port) = match (colon, default_port) {
            (Some(colon), _) => {
                let digits = &authority[colon + 1..];
                let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok());
                (&authority[..colon], number.flatten().ok_or(TargetError::Port)?)
            }
            (None, Some(port)) => (authority, port),
            (None, None) => return Err(TargetError::NoPort),
        };
        Self::new(host, port)
    }

    /// A host as a name, an IPv4 address, or an IPv6 address with or without brackets.
    pub(crate) fn new(host: &str, port: u16) -> Result<Self, TargetError> {
        if port == 0 {
            return Err(TargetError::Port);
        }
        let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Ok(address) = inner.unwrap_or(host).parse::<Ipv6Addr>() {
            return Ok(Self { host: format!("[{address}]"), port });
        }
        let is_name = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
        if host.is_empty() || host.len() > 253 || !is_name {
            return Err(TargetError::Host);
        }
        Ok(Self { host: host.to_owned(), port })
    }

    /// The value of `Host` in a plain request, without the default port of `http`.
    pub(crate) fn host_header(&self) -> String {
        if self.port == 80 { self.host.clone() } else { self.to_string() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Target(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(authority: &str) -> Result<String, TargetError> {
        Target::parse(authority, None).map(|target| target.to_string())
    }

    #[test]
    fn names_and_addresses_are_targets() {
        for authority in ["example.com:443", "a-b_c.example:1", "192.0.2.1:80", "[2001:db8::1]:443"] {
            assert_eq!(parsed(authority).as_deref(), Ok(authority));
        }
        assert_eq!(Target::new("2001:db8::1", 443).unwrap().to_string(), "[2001:db8::1]:443");
        assert_eq!(Target::parse("example.com", Some(80)).unwrap().to_string(), "example.com:80");
        assert_eq!(Target::parse("[::1]", Some(80)).unwrap().host_header(), "[::1]");
    }

    #[test]
    fn nothing_that_could_break_a_request_line_is_a_target() {
        for host in ["", "a b", "a\r\nX: y", "a/b", "user@host", "a:b", "[::1", "::1]", "ex\u{e4}mple", "%31"]
        {
            assert_eq!(Target::new(host, 443), Err(TargetError::Host), "{host:?}");
        }
        assert_eq!(Target::new(&"a".repeat(254), 443), Err(TargetError::Host));
        assert_eq!(parsed("example.com"), Err(TargetError::NoPort));
        for port in ["", "0", "65536", "+1", "-1", "x"] {
            assert_eq!(parsed(&format!("example.com:{port}")), Err(TargetError::Port), "{port:?}");
        }
    }
}
