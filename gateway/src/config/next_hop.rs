//! `[[egress.next_hops]]`: proxies that tunnels go on through, by the rules that name them.

use postern_config::Secret;
use postern_proxy::target::Target;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

const ACCEPTED: &str =
    "the URL of a proxy, such as \"socks5://127.0.0.1:9050\" or \"http://proxy.example:3128\"";
/// The longest user name and password that SOCKS can carry, in bytes (RFC 1929, section 2).
const LONGEST: usize = 255;

/// A proxy that tunnels go on through. It resolves the names of their targets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NextHop {
    /// What rules call it, by `via`.
    pub name: String,
    /// Its URL: "http://HOST:PORT" of a proxy that takes CONNECT, or "socks5://HOST:PORT". The connection to it is not encrypted.
    pub url: HopUrl,
    /// The user name that it demands: Basic over HTTP (RFC 7617), RFC 1929 over SOCKS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The user's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
}

/// Why next hops and the rules that name them do not go together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NextHopError {
    /// A name that no next hop has.
    #[error("rule {rule} of egress.rules goes via \"{name}\", and no [[egress.next_hops]] has that name")]
    Unknown {
        /// The number of the rule, counted from 1.
        rule: usize,
        /// What it names.
        name: String,
    },
    /// A name of two.
    #[error("two [[egress.next_hops]] have the name \"{0}\": rules could not tell them apart")]
    Twice(String),
    /// A user without a password, or a password without a user.
    #[error("the next hop \"{0}\" has one of user and password: write both, or neither")]
    HalfCredentials(String),
    /// Credentials that cannot be sent.
    #[error(
        "the user or the password of the next hop \"{0}\" cannot be sent: each has 1 to {LONGEST} bytes, none a control character, and the user of an http:// proxy no colon"
    )]
    Credentials(String),
}

impl NextHop {
    /// Its user name and password.
    pub(crate) fn credentials(&self) -> Option<(&str, &str)> {
        Some((self.user.as_deref()?, self.password.as_ref()?.expose()))
    }

    /// Finds keys that do not go together.
    pub(super) fn check(&self) -> Result<(), NextHopError> {
        if self.user.is_some() != self.password.is_some() {
            return Err(NextHopError::HalfCredentials(self.name.clone()));
        }
        let is_sendable =
            |text: &str| (1..=LONGEST).contains(&text.len()) && !text.chars().any(char::is_control);
        let can_be_sent = self.credentials().is_none_or(|(user, password)| {
            let has_colon = self.url.kind == HopKind::Http && user.contains(':');
            is_sendable(user) && is_sendable(password) && !has_colon
        });
        if can_be_sent { Ok(()) } else { Err(NextHopError::Credentials(self.name.clone())) }
    }
}

/// How a next hop is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopKind {
    /// CONNECT of HTTP/1.1.
    Http,
    /// CONNECT of SOCKS5 (RFC 1928).
    Socks5,
}

/// The URL of a next hop.
#[derive(Clone, PartialEq, Eq)]
pub struct HopUrl {
    text: Box<str>,
    kind: HopKind,
    at: Target,
}

/// Why a text is no URL of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HopUrlError {
    /// "ftp://proxy.example:21", "127.0.0.1:9050"
    #[error("it begins neither with \"http://\" nor with \"socks5://\"")]
    Scheme,
    /// "http://user:password@proxy.example:3128"
    #[error("credentials stand in the keys user and password, not in the URL")]
    Credentials,
    /// "http://proxy.example:3128/path"
    #[error("it has a path")]
    Path,
    /// "http://proxy.example"
    #[error("it does not end with a host and a port")]
    Address,
}

impl HopUrl {
    /// How it is spoken to.
    pub(crate) const fn kind(&self) -> HopKind {
        self.kind
    }

    /// Where it listens.
    pub(crate) const fn at(&self) -> &Target {
        &self.at
    }
}

impl FromStr for HopUrl {
    type Err = HopUrlError;

    fn from_str(text: &str) -> Result<Self, HopUrlError> {
        let (kind, rest) = match text.split_once("://") {
            Some(("http", rest)) => (HopKind::Http, rest),
            Some(("socks5" | "socks5h", rest)) => (HopKind::Socks5, rest),
            _ => return Err(HopUrlError::Scheme),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains('@') {
            return Err(HopUrlError::Credentials);
        }
        if authority.contains(['/', '?', '#']) {
            return Err(HopUrlError::Path);
        }
        let at = Target::parse(authority, None).map_err(|_| HopUrlError::Address)?;
        Ok(Self { text: text.into(), kind, at })
    }
}

impl fmt::Display for HopUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for HopUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for HopUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for HopUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for HopUrl {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "HopUrl".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "x-accepted": ACCEPTED })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_one_of_two_schemes_a_host_and_a_port() {
        for (text, kind, authority) in [
            ("http://proxy.example:3128", HopKind::Http, "proxy.example:3128"),
            ("http://[2001:db8::1]:3128/", HopKind::Http, "[2001:db8::1]:3128"),
            ("socks5://127.0.0.1:9050", HopKind::Socks5, "127.0.0.1:9050"),
            ("socks5h://tor:9050", HopKind::Socks5, "tor:9050"),
        ] {
            let url: HopUrl = text.parse().unwrap();
            assert_eq!(
                (url.kind(), url.at().authority().as_str(), url.to_string().as_str()),
                (kind, authority, text)
            );
        }
        for (text, error) in [
            ("127.0.0.1:9050", HopUrlError::Scheme),
            ("https://proxy.example:443", HopUrlError::Scheme),
            ("http://a:b@proxy.example:3128", HopUrlError::Credentials),
            ("http://proxy.example:3128/path", HopUrlError::Path),
            ("http://proxy.example", HopUrlError::Address),
            ("socks5://:9050", HopUrlError::Address),
        ] {
            assert_eq!(text.parse::<HopUrl>().unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn credentials_that_cannot_be_sent_are_refused() {
        let check = |url: &str, user: Option<&str>, password: Option<&str>| {
            let (user, password) = (user.map(str::to_owned), password.map(Secret::new));
            NextHop { name: "a".into(), url: url.parse().unwrap(), user, password }.check()
        };
        let (http, socks) = ("http://a:1", "socks5://a:1");
        assert_eq!(check(http, None, None), Ok(()));
        assert_eq!(check(http, Some("u"), Some("p:w")), Ok(()));
        assert_eq!(check(socks, Some("u:v"), Some("p")), Ok(()));
        assert_eq!(check(http, Some("u"), None), Err(NextHopError::HalfCredentials("a".into())));
        assert_eq!(check(http, None, Some("p")), Err(NextHopError::HalfCredentials("a".into())));
        let long = "x".repeat(256);
        for (url, user, password) in
            [(http, "u:v", "p"), (socks, "", "p"), (socks, "u", long.as_str()), (http, "u", "p\r\nX: y")]
        {
            assert_eq!(check(url, Some(user), Some(password)), Err(NextHopError::Credentials("a".into())));
        }
    }
}
