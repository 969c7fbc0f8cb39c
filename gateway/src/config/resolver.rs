//! `[egress.resolver]`: resolution of the names of targets.

use postern_config::{ConfigDuration, text_value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tokio_rustls::rustls::pki_types::ServerName;

/// Maximum of `max_ttl`.
const LONGEST_KEPT: Duration = Duration::from_secs(30 * 86_400);

/// DNS for names of targets. Search domains never apply. An answer is kept for its time to live.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResolverConfig {
    /// "system": /etc/hosts and /etc/resolv.conf; the others: `servers` only.
    pub kind: ResolverKind,
    /// Name servers, two asked at a time; ports default to 53, 853 or 443.
    pub servers: Vec<NameServer>,
    /// Name in the certificates, for "tls" and "https".
    pub name: Option<String>,
    /// Path for "https".
    pub path: String,
    /// Trusted authorities (PEM), instead of the platform's.
    pub ca: Option<PathBuf>,
    /// Time for one server's answer, within `limits.dial_timeout`.
    pub timeout: ConfigDuration,
    /// Shortest time that answers are kept.
    pub min_ttl: ConfigDuration,
    /// Longest time that answers are kept, at most "30d".
    pub max_ttl: ConfigDuration,
}

impl Default for ResolverConfig {
    fn default() -> Self {
        Self {
            kind: ResolverKind::System,
            servers: Vec::new(),
            name: None,
            path: "/dns-query".to_owned(),
            ca: None,
            timeout: ConfigDuration::secs(5),
            min_ttl: ConfigDuration::secs(0),
            max_ttl: ConfigDuration::hours(24),
        }
    }
}

/// Source of name servers, and their protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ResolverKind {
    /// As the machine's other programs do, by UDP and TCP.
    #[default]
    System,
    /// UDP, and TCP for long answers.
    Udp,
    /// TCP alone.
    Tcp,
    /// DNS over TLS.
    Tls,
    /// DNS over HTTPS.
    Https,
}

impl ResolverKind {
    /// Returns `true` if the servers present a certificate.
    #[must_use]
    pub const fn is_over_tls(self) -> bool {
        matches!(self, Self::Tls | Self::Https)
    }
}

/// An inconsistency of the resolver's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolverConfigError {
    /// No name server is configured.
    #[error(
        "egress.resolver.servers is empty: list the name servers, such as [\"192.0.2.53\"], or leave kind out for the system's"
    )]
    NoServers,
    /// Name servers are configured, but the system's are used.
    #[error(
        "egress.resolver.servers is for another kind than \"system\": set kind to \"udp\", \"tcp\", \"tls\" or \"https\""
    )]
    SystemServers,
    /// The name in the certificates is missing.
    #[error(
        "egress.resolver.name is missing: write the name in the servers' certificates, such as \"dns.example\""
    )]
    NoName,
    /// The name in the certificates is invalid.
    #[error(
        "egress.resolver.name is neither a DNS name nor an address: write the name in the servers' certificates"
    )]
    Name,
    /// A name or an authority is configured, but no certificate is verified.
    #[error(
        "egress.resolver.name and ca are for the kinds \"tls\" and \"https\": the others check no certificate. Remove them, or change kind"
    )]
    Unverified,
    /// The path does not begin with a slash.
    #[error("egress.resolver.path must begin with a slash, such as \"/dns-query\"")]
    Path,
    /// The timeout is zero.
    #[error("egress.resolver.timeout must be longer than nothing, such as \"5s\"")]
    Timeout,
    /// `min_ttl` exceeds `max_ttl`, or `max_ttl` exceeds 30 days.
    #[error("egress.resolver.min_ttl must not be longer than max_ttl, and max_ttl not longer than \"30d\"")]
    Ttl,
}

impl ResolverConfig {
    /// Returns an error if keys are inconsistent.
    pub(crate) fn check(&self) -> Result<(), ResolverConfigError> {
        use ResolverConfigError as E;
        let (is_system, verifies) = (self.kind == ResolverKind::System, self.kind.is_over_tls());
        match &self.name {
            _ if is_system && !self.servers.is_empty() => Err(E::SystemServers),
            _ if !is_system && self.servers.is_empty() => Err(E::NoServers),
            None if verifies => Err(E::NoName),
            Some(_) if !verifies => Err(E::Unverified),
            None if self.ca.is_some() => Err(E::Unverified),
            Some(name) if ServerName::try_from(name.as_str()).is_err() => Err(E::Name),
            _ if !self.path.starts_with('/') => Err(E::Path),
            _ if self.timeout.get().is_zero() => Err(E::Timeout),
            _ if self.min_ttl.get() > self.max_ttl.get() || self.max_ttl.get() > LONGEST_KEPT => Err(E::Ttl),
            _ => Ok(()),
        }
    }
}

/// The address of a name server, and its port if it is not the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameServer {
    /// IP address.
    pub address: IpAddr,
    /// Port; `None` for the default of the kind.
    pub port: Option<u16>,
}

/// An error for a text that is not the address of a name server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name server is given by its address: a name would have to be resolved first")]
pub struct NameServerError;

impl FromStr for NameServer {
    type Err = NameServerError;

    fn from_str(text: &str) -> Result<Self, NameServerError> {
        if let Ok(socket) = text.parse::<SocketAddr>() {
            return Ok(Self { address: socket.ip(), port: Some(socket.port()).filter(|port| *port > 0) });
        }
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        let address = bare.parse().map_err(|_| NameServerError)?;
        Ok(Self { address, port: None })
    }
}

impl fmt::Display for NameServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).fmt(f),
            None => self.address.fmt(f),
        }
    }
}

text_value!(NameServer, "an address, such as \"192.0.2.53\", \"192.0.2.53:5353\" or \"[2001:db8::53]:53\"");

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<(), ResolverConfigError> {
        postern_config::parse::<ResolverConfig>("resolver.toml", text, []).unwrap().check()
    }

    #[test]
    fn keys_that_do_not_go_together_are_refused() {
        use ResolverConfigError as E;
        for (text, expected) in [
            ("", Ok(())),
            ("kind = \"udp\"\nservers = [\"192.0.2.53\", \"[2001:db8::53]:5353\", \"2001:db8::53\"]", Ok(())),
            ("kind = \"tls\"\nservers = [\"192.0.2.53\"]\nname = \"dns.example\"", Ok(())),
            ("kind = \"https\"\nservers = [\"192.0.2.53\"]\nname = \"192.0.2.53\"", Ok(())),
            ("servers = [\"192.0.2.53\"]", Err(E::SystemServers)),
            ("kind = \"tcp\"", Err(E::NoServers)),
            ("kind = \"tls\"\nservers = [\"192.0.2.53\"]", Err(E::NoName)),
            ("kind = \"tls\"\nservers = [\"192.0.2.53\"]\nname = \"https://dns\"", Err(E::Name)),
            ("kind = \"udp\"\nservers = [\"192.0.2.53\"]\nname = \"dns.example\"", Err(E::Unverified)),
            ("ca = \"ca.pem\"", Err(E::Unverified)),
            ("path = \"dns-query\"", Err(E::Path)),
            ("timeout = \"0s\"", Err(E::Timeout)),
            ("min_ttl = \"2h\"\nmax_ttl = \"1h\"", Err(E::Ttl)),
        ] {
            assert_eq!(checked(text), expected, "{text}");
        }
        let named =
            postern_config::parse::<ResolverConfig>("resolver.toml", "servers = [\"dns.example\"]", []);
        assert!(named.err().unwrap().to_string().contains("a name would have to be resolved first"));
    }

    #[test]
    fn name_servers_are_written_as_they_are_read() {
        for text in ["192.0.2.53", "192.0.2.53:5353", "2001:db8::53", "[2001:db8::53]:5353"] {
            assert_eq!(text.parse::<NameServer>().unwrap().to_string(), text);
        }
    }
}
