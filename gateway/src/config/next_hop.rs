//! `[[egress.next_hops]]`: proxies through which tunnels continue, all of them or those of rules that select one.

use postern_config::{ConfigDuration, Secret, text_value};
use postern_daemon::tls::{self, ClientConfig, OwnCertificate, TlsError};
use postern_proxy::target::Target;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Maximum bytes of a user name and of a password in SOCKS (RFC 1929, section 2).
const LONGEST: usize = 255;
/// Reserved name that selects no next hop.
pub(crate) const DIRECT: &str = "direct";
/// Minimum interval between checks: each costs a connection.
const LEAST_CHECK: Duration = Duration::from_secs(1);

/// A proxy through which tunnels continue, or several that take turns. The proxy resolves the names of targets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NextHop {
    /// Name for `via`.
    pub name: String,
    /// CONNECT (https, http) or SOCKS5 proxies; only https is encrypted.
    pub urls: Vec<HopUrl>,
    /// "load": the less loaded of two URLs; "target": the same for each target host.
    #[serde(default)]
    pub balance: Balance,
    /// User name at the proxy.
    pub user: Option<String>,
    /// Password of `user`.
    pub password: Option<Secret>,
    /// Trusted authorities (PEM), instead of the platform's.
    pub ca: Option<PathBuf>,
    /// Certificate chain (PEM) for mutual TLS.
    pub certificate: Option<PathBuf>,
    /// Unencrypted private key (PEM).
    pub key: Option<PathBuf>,
    /// The proxy carries UDP (CONNECT-UDP) over HTTP/1.1, which does not announce it; HTTP/2 does.
    #[serde(default)]
    pub udp: bool,
    /// Tunnels on one HTTP/2 connection.
    #[serde(default = "default_tunnels")]
    pub tunnels: NonZeroUsize,
    /// Age from which HTTP/2 connections take no new tunnels.
    #[serde(default = "ConfigDuration::of_secs::<600>")]
    pub connection_lifetime: ConfigDuration,
    /// Time to connect, with TLS.
    #[serde(default = "ConfigDuration::of_secs::<3>")]
    pub connect_timeout: ConfigDuration,
    /// Time between checks of a URL, at least "1s".
    #[serde(default = "ConfigDuration::of_secs::<10>")]
    pub check_every: ConfigDuration,
}

const fn default_tunnels() -> NonZeroUsize {
    const { NonZeroUsize::new(64).unwrap() }
}

/// Choice among several URLs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Balance {
    /// Of two that are drawn, the one with fewer tunnels of this gateway.
    #[default]
    Load,
    /// By rendezvous hashing of the target's host: a site sees one address of many users, and all of a user's tunnels.
    Target,
}

/// TLS settings for the https URLs of a next hop.
#[derive(Clone, Debug)]
pub(crate) struct HopTls {
    pub(crate) config: Arc<ClientConfig>,
    /// Certificate for servers that require one.
    pub(crate) own: Option<OwnCertificate>,
}

impl NextHop {
    pub(crate) fn credentials(&self) -> Option<(&str, &str)> {
        Some((self.user.as_deref()?, self.password.as_ref()?.expose()))
    }

    /// Reads the certificates for the https URLs; `None` without such a URL.
    pub(crate) fn client_tls(&self) -> Result<Option<HopTls>, TlsError> {
        if !self.has(HopKind::Https) {
            return Ok(None);
        }
        let files = self.certificate.clone().zip(self.key.clone());
        let own = files.map(|(certificate, key)| OwnCertificate::load(certificate, key)).transpose()?;
        let config = tls::client_config_showing(self.ca.as_deref(), own.as_ref())?;
        let config = if self.tunnels.get() > 1 { tls::offering_http2(config) } else { config };
        Ok(Some(HopTls { config, own }))
    }

    fn has(&self, kind: HopKind) -> bool {
        self.urls.iter().any(|url| url.kind == kind)
    }

    /// Checks what the types cannot express.
    pub(super) fn check(&self) -> Result<(), String> {
        let name = &self.name;
        let is_over_tls = self.has(HopKind::Https);
        let faults = [
            (self.urls.is_empty(), "no URL: write urls = [\"https://exit.example:443\"]"),
            (
                self.user.is_some() != self.password.is_some(),
                "one of user and password: write both, or neither",
            ),
            (
                self.certificate.is_some() != self.key.is_some(),
                "one of certificate and key: write both, or neither",
            ),
            (
                !is_over_tls && (self.ca.is_some() || self.certificate.is_some()),
                "ca or certificate, and no https URL that they are for",
            ),
            (
                self.udp && !is_over_tls && !self.has(HopKind::Http),
                "udp, and no https or http URL that it is for",
            ),
            (self.check_every.get() < LEAST_CHECK, "a check_every below \"1s\""),
        ];
        if name == DIRECT {
            return Err(
                "a next hop has the name \"direct\", by which a rule says that its tunnels have none: call it otherwise"
                    .to_owned(),
            );
        }
        if let Some((_, fault)) = faults.into_iter().find(|(is_there, _)| *is_there) {
            return Err(format!("the next hop \"{name}\" has {fault}"));
        }
        let is_sendable =
            |text: &str| (1..=LONGEST).contains(&text.len()) && !text.chars().any(char::is_control);
        let can_be_sent = self.credentials().is_none_or(|(user, password)| {
            let has_colon = (self.has(HopKind::Http) || is_over_tls) && user.contains(':');
            is_sendable(user) && is_sendable(password) && !has_colon
        });
        if can_be_sent {
            return Ok(());
        }
        Err(format!(
            "the user or the password of the next hop \"{name}\" cannot be sent: each has 1 to {LONGEST} bytes, none a control \
             character, and the user of an HTTP proxy no colon"
        ))
    }
}

const ACCEPTED: &str =
    "the URL of a proxy, such as \"https://exit.example:443\" or \"socks5://127.0.0.1:9050\"";

/// Protocol of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopKind {
    /// CONNECT of HTTP/1.1.
    Http,
    /// CONNECT over TLS, of HTTP/2 or HTTP/1.1.
    Https,
    /// CONNECT of SOCKS5 (RFC 1928).
    Socks5,
}

/// The URL of a next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopUrl {
    pub(crate) text: Box<str>,
    pub(crate) kind: HopKind,
    /// Host and port on which the next hop listens.
    pub(crate) at: Target,
}

impl FromStr for HopUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, rest) = match text.split_once("://") {
            Some(("http", rest)) => (HopKind::Http, rest),
            Some(("https", rest)) => (HopKind::Https, rest),
            Some(("socks5" | "socks5h", rest)) => (HopKind::Socks5, rest),
            _ => return Err("it begins with none of \"https://\", \"http://\" and \"socks5://\""),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains('@') {
            return Err("credentials stand in the keys user and password, not in the URL");
        }
        if authority.contains(['/', '?', '#']) {
            return Err("it has a path");
        }
        let at = Target::parse(authority, None).map_err(|_| "it does not end with a host and a port")?;
        Ok(Self { text: text.into(), kind, at })
    }
}

impl fmt::Display for HopUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

text_value!(HopUrl, ACCEPTED);

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> String {
        let hop: Result<NextHop, _> = postern_config::parse("hop.toml", &format!("name = \"a\"\n{text}"), []);
        let hop = hop.unwrap();
        let tls = || hop.client_tls().map(drop).map_err(|error| error.to_string());
        hop.check().and_then(|()| tls()).map_or_else(|error| error, |()| "good".to_owned())
    }

    #[test]
    fn keys_that_do_not_go_together_are_refused() {
        let (http, socks) = ("urls = [\"http://a:1\"]\n", "urls = [\"socks5://a:1\"]\n");
        let long = "x".repeat(256);
        for (text, expected) in [
            (http.to_owned(), "good"),
            (format!("{http}user = \"u\"\npassword = \"p:w\""), "good"),
            (format!("{socks}user = \"u:v\"\npassword = \"p\""), "good"),
            (format!("{http}user = \"u\""), "has one of user and password"),
            (format!("{http}password = \"p\""), "has one of user and password"),
            (format!("{http}user = \"u:v\"\npassword = \"p\""), "cannot be sent"),
            (format!("{socks}user = \"\"\npassword = \"p\""), "cannot be sent"),
            (format!("{socks}user = \"u\"\npassword = \"{long}\""), "cannot be sent"),
            (format!("{http}user = \"u\"\npassword = \"p\\r\\nX: y\""), "cannot be sent"),
            ("urls = []".to_owned(), "has no URL"),
            (format!("{http}ca = \"ca.pem\""), "no https URL that they are for"),
            (format!("{http}check_every = \"10ms\""), "a check_every below"),
            (format!("{http}udp = true"), "good"),
            (format!("{socks}udp = true"), "has udp, and no https or http URL"),
            ("urls = [\"https://a:1\"]\nkey = \"k.pem\"".to_owned(), "has one of certificate and key"),
            ("urls = [\"https://a:1\"]\nca = \"/nowhere/ca.pem\"".to_owned(), "cannot read /nowhere/ca.pem"),
        ] {
            let found = check(&text);
            assert!(found.contains(expected), "{text}: {found}");
        }
    }

    #[test]
    fn a_url_has_one_of_three_schemes_a_host_and_a_port() {
        for (text, kind, authority) in [
            ("http://proxy.example:3128", HopKind::Http, "proxy.example:3128"),
            ("http://[2001:db8::1]:3128/", HopKind::Http, "[2001:db8::1]:3128"),
            ("https://exit.example:443", HopKind::Https, "exit.example:443"),
            ("socks5://127.0.0.1:9050", HopKind::Socks5, "127.0.0.1:9050"),
            ("socks5h://tor:9050", HopKind::Socks5, "tor:9050"),
        ] {
            let url: HopUrl = text.parse().unwrap();
            assert_eq!(
                (url.kind, url.at.authority().as_str(), url.to_string().as_str()),
                (kind, authority, text)
            );
        }
        for (text, error) in [
            ("127.0.0.1:9050", "begins with none of"),
            ("ftp://proxy.example:21", "begins with none of"),
            ("http://a:b@proxy.example:3128", "in the keys user and password"),
            ("http://proxy.example:3128/path", "has a path"),
            ("http://proxy.example", "a host and a port"),
            ("socks5://:9050", "a host and a port"),
        ] {
            assert!(text.parse::<HopUrl>().unwrap_err().contains(error), "{text}");
        }
    }
}
