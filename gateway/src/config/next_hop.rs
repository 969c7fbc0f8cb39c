//! `[[egress.next_hops]]`: proxies that tunnels go on through, all of them or those of the rules that name one.

use super::hop_url::{HopKind, HopUrl};
use postern_config::{ConfigDuration, Secret};
use postern_daemon::tls::{self, ClientConfig, OwnCertificate, TlsError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The longest user name and password that SOCKS can carry, in bytes (RFC 1929, section 2).
const LONGEST: usize = 255;
/// The name that stands for no next hop.
pub(crate) const DIRECT: &str = "direct";
/// A check costs a connection.
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
    /// Share of each URL, such as [2, 1].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<NonZeroU16>,
    /// User name at the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Password of `user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// Trusted authorities (PEM), instead of the platform's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Certificate chain (PEM) for mutual TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// Unencrypted private key (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Tunnels on one HTTP/2 connection.
    #[serde(default = "default_tunnels")]
    pub tunnels: NonZeroUsize,
    /// Age from which HTTP/2 connections take no new tunnels.
    #[serde(default = "default_lifetime")]
    pub connection_lifetime: ConfigDuration,
    /// Time to connect, with TLS.
    #[serde(default = "default_connect_timeout")]
    pub connect_timeout: ConfigDuration,
    /// Time between checks of a URL, at least "1s".
    #[serde(default = "default_check_every")]
    pub check_every: ConfigDuration,
}

const fn default_tunnels() -> NonZeroUsize {
    const { NonZeroUsize::new(64).unwrap() }
}

fn default_lifetime() -> ConfigDuration {
    ConfigDuration::minutes(10)
}

fn default_connect_timeout() -> ConfigDuration {
    ConfigDuration::secs(3)
}

fn default_check_every() -> ConfigDuration {
    ConfigDuration::secs(10)
}

/// Choice among several URLs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Balance {
    /// Of two that are drawn, the one with fewer tunnels of this gateway for its weight.
    #[default]
    Load,
    /// By weighted rendezvous hashing of the target's host: a site sees one address of many users, and all of a user's tunnels.
    Target,
}

/// How the https URLs of a next hop are spoken to.
#[derive(Clone, Debug)]
pub(crate) struct HopTls {
    pub(crate) config: Arc<ClientConfig>,
    /// What is shown to a server that requires a certificate.
    pub(crate) own: Option<OwnCertificate>,
}

/// Why next hops and the rules that name them do not go together.
#[derive(Debug, thiserror::Error)]
pub enum NextHopError {
    /// A name that no next hop has.
    #[error("{place} goes via \"{name}\", and no [[egress.next_hops]] has that name")]
    Unknown {
        /// The rule, or the key for all tunnels.
        place: String,
        /// What it names.
        name: String,
    },
    /// A name of two.
    #[error("two [[egress.next_hops]] have the name \"{0}\": rules could not tell them apart")]
    Twice(String),
    /// A name that means something else.
    #[error(
        "a next hop has the name \"direct\", by which a rule says that its tunnels have none: call it otherwise"
    )]
    Direct,
    /// Nothing to connect to.
    #[error("the next hop \"{0}\" has no URL: write urls = [\"https://exit.example:443\"]")]
    NoUrl(String),
    /// Weights that belong to no URLs.
    #[error("the next hop \"{0}\" has not as many weights as URLs: write one for each, or none")]
    Weights(String),
    /// A user without a password, or a password without a user.
    #[error("the next hop \"{0}\" has one of user and password: write both, or neither")]
    HalfCredentials(String),
    /// Credentials that cannot be sent.
    #[error(
        "the user or the password of the next hop \"{0}\" cannot be sent: each has 1 to {LONGEST} bytes, none a control character, and the user of an HTTP proxy no colon"
    )]
    Credentials(String),
    /// A certificate without a key, or a key without a certificate.
    #[error("the next hop \"{0}\" has one of certificate and key: write both, or neither")]
    HalfCertificate(String),
    /// Certificates for nothing.
    #[error("the next hop \"{0}\" has ca or certificate, and no https URL that they are for")]
    NotTls(String),
    /// A check for each of many moments.
    #[error("the next hop \"{0}\" has a check_every below \"1s\"")]
    Checks(String),
    /// Files that cannot be used.
    #[error("the next hop \"{name}\": {source}")]
    Tls {
        /// The next hop.
        name: String,
        /// What is wrong with them.
        source: TlsError,
    },
}

impl NextHop {
    /// Its user name and password.
    pub(crate) fn credentials(&self) -> Option<(&str, &str)> {
        Some((self.user.as_deref()?, self.password.as_ref()?.expose()))
    }

    /// Reads the certificates for its https URLs; `None` where it has none.
    pub(crate) fn client_tls(&self) -> Result<Option<HopTls>, TlsError> {
        if !self.has(HopKind::Https) {
            return Ok(None);
        }
        let files = self.certificate.clone().zip(self.key.clone());
        let own = files.map(|(certificate, key)| OwnCertificate::load(certificate, key)).transpose()?;
        let ca = self.ca.as_deref();
        let config = match &own {
            Some(own) => tls::client_config_showing(ca, own)?,
            None => tls::client_config(ca)?,
        };
        let config = if self.tunnels.get() > 1 { tls::offering_http2(config) } else { config };
        Ok(Some(HopTls { config, own }))
    }

    fn has(&self, kind: HopKind) -> bool {
        self.urls.iter().any(|url| url.kind() == kind)
    }

    /// Finds keys that do not go together, and files that cannot be used.
    pub(super) fn check(&self) -> Result<(), NextHopError> {
        let name = || self.name.clone();
        if self.name == DIRECT {
            return Err(NextHopError::Direct);
        }
        if self.urls.is_empty() {
            return Err(NextHopError::NoUrl(name()));
        }
        if !self.weights.is_empty() && self.weights.len() != self.urls.len() {
            return Err(NextHopError::Weights(name()));
        }
        if self.user.is_some() != self.password.is_some() {
            return Err(NextHopError::HalfCredentials(name()));
        }
        let is_sendable =
            |text: &str| (1..=LONGEST).contains(&text.len()) && !text.chars().any(char::is_control);
        let can_be_sent = self.credentials().is_none_or(|(user, password)| {
            let has_colon = (self.has(HopKind::Http) || self.has(HopKind::Https)) && user.contains(':');
            is_sendable(user) && is_sendable(password) && !has_colon
        });
        if !can_be_sent {
            return Err(NextHopError::Credentials(name()));
        }
        if self.certificate.is_some() != self.key.is_some() {
            return Err(NextHopError::HalfCertificate(name()));
        }
        if !self.has(HopKind::Https) && (self.ca.is_some() || self.certificate.is_some()) {
            return Err(NextHopError::NotTls(name()));
        }
        if self.check_every.get() < LEAST_CHECK {
            return Err(NextHopError::Checks(name()));
        }
        self.client_tls().map_err(|source| NextHopError::Tls { name: name(), source })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> String {
        let hop: Result<NextHop, _> = postern_config::parse("hop.toml", &format!("name = \"a\"\n{text}"), []);
        hop.unwrap().check().map_or_else(|error| error.to_string(), |()| "good".to_owned())
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
            (format!("{http}weights = [1, 2]"), "has not as many weights as URLs"),
            (format!("{http}ca = \"ca.pem\""), "no https URL that they are for"),
            (format!("{http}check_every = \"10ms\""), "a check_every below"),
            ("urls = [\"https://a:1\"]\nkey = \"k.pem\"".to_owned(), "has one of certificate and key"),
            ("urls = [\"https://a:1\"]\nca = \"/nowhere/ca.pem\"".to_owned(), "cannot read /nowhere/ca.pem"),
        ] {
            let found = check(&text);
            assert!(found.contains(expected), "{text}: {found}");
        }
    }
}
