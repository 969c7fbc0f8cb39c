//! The URL of a next hop.

use postern_config::text_value;
use postern_proxy::target::Target;
use std::fmt;
use std::str::FromStr;

const ACCEPTED: &str =
    "the URL of a proxy, such as \"https://exit.example:443\" or \"socks5://127.0.0.1:9050\"";

/// How a next hop is spoken to.
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
    #[error("it begins with none of \"https://\", \"http://\" and \"socks5://\"")]
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
            Some(("https", rest)) => (HopKind::Https, rest),
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

text_value!(HopUrl, ACCEPTED);

#[cfg(test)]
mod tests {
    use super::*;

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
                (url.kind(), url.at().authority().as_str(), url.to_string().as_str()),
                (kind, authority, text)
            );
        }
        for (text, error) in [
            ("127.0.0.1:9050", HopUrlError::Scheme),
            ("ftp://proxy.example:21", HopUrlError::Scheme),
            ("http://a:b@proxy.example:3128", HopUrlError::Credentials),
            ("http://proxy.example:3128/path", HopUrlError::Path),
            ("http://proxy.example", HopUrlError::Address),
            ("socks5://:9050", HopUrlError::Address),
        ] {
            assert_eq!(text.parse::<HopUrl>().unwrap_err(), error, "{text}");
        }
    }
}
