//! `[egress.resolver]`: resolution of the names of targets.

use postern_config::{ConfigDuration, text_value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use tokio_rustls::rustls::pki_types::ServerName;

/// DNS for names of targets. Search domains never apply. An answer is kept for its time to live, a day at most.
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

impl ResolverConfig {
    /// Checks what the types cannot express.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (is_system, verifies) = (self.kind == ResolverKind::System, self.kind.is_over_tls());
        let fault = match &self.name {
            _ if is_system && !self.servers.is_empty() => {
                "servers is for another kind than \"system\": set kind to \"udp\", \"tcp\", \"tls\" or \"https\""
            }
            _ if !is_system && self.servers.is_empty() => {
                "servers is empty: list the name servers, such as [\"192.0.2.53\"], or leave kind out for the system's"
            }
            None if verifies => {
                "name is missing: write the name in the servers' certificates, such as \"dns.example\""
            }
            name if !verifies && (name.is_some() || self.ca.is_some()) => {
                "name and ca are for the kinds \"tls\" and \"https\": the others check no certificate. Remove them, or change kind"
            }
            Some(name) if ServerName::try_from(name.as_str()).is_err() => {
                "name is neither a DNS name nor an address: write the name in the servers' certificates"
            }
            _ if !self.path.starts_with('/') => "path must begin with a slash, such as \"/dns-query\"",
            _ if self.timeout.get().is_zero() => "timeout must be longer than nothing, such as \"5s\"",
            _ => return Ok(()),
        };
        Err(format!("egress.resolver.{fault}"))
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

impl FromStr for NameServer {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(socket) = text.parse::<SocketAddr>() {
            return Ok(Self { address: socket.ip(), port: Some(socket.port()).filter(|port| *port > 0) });
        }
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        let address = bare
            .parse()
            .map_err(|_| "a name server is given by its address: a name would have to be resolved first")?;
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

    fn checked(text: &str) -> Result<(), String> {
        postern_config::parse::<ResolverConfig>("resolver.toml", text, []).unwrap().check()
    }

    #[test]
    fn keys_that_do_not_go_together_are_refused() {
        for (text, expected) in [
            ("", "good"),
            ("kind = \"udp\"\nservers = [\"192.0.2.53\", \"[2001:db8::53]:5353\", \"2001:db8::53\"]", "good"),
            ("kind = \"tls\"\nservers = [\"192.0.2.53\"]\nname = \"dns.example\"", "good"),
            ("kind = \"https\"\nservers = [\"192.0.2.53\"]\nname = \"192.0.2.53\"", "good"),
            ("servers = [\"192.0.2.53\"]", "servers is for another kind"),
            ("kind = \"tcp\"", "servers is empty"),
            ("kind = \"tls\"\nservers = [\"192.0.2.53\"]", "name is missing"),
            ("kind = \"tls\"\nservers = [\"192.0.2.53\"]\nname = \"https://dns\"", "name is neither"),
            ("kind = \"udp\"\nservers = [\"192.0.2.53\"]\nname = \"dns.example\"", "check no certificate"),
            ("ca = \"ca.pem\"", "check no certificate"),
            ("path = \"dns-query\"", "path must begin"),
            ("timeout = \"0s\"", "timeout must be"),
        ] {
            assert!(checked(text).err().unwrap_or_else(|| "good".to_owned()).contains(expected), "{text}");
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
