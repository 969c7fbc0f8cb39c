//! Addresses to listen on, written with a name or a number: `localhost:8080`, `127.0.0.1:8080`, `[::1]:8080`.

use crate::text_value;
use serde::de::Deserializer;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

const ACCEPTED: &str =
    "an address and a port, such as \"127.0.0.1:8080\", \"[::1]:8080\" or \"localhost:8080\"";

/// An address and a port that was written as either numbers or a name. A name is resolved when it is read, and stays
/// what it was then; where it has several addresses an IPv4 one is taken, and `localhost` is always 127.0.0.1.
///
/// In a configuration: `#[serde(with = "postern_config::address")]` and
/// `#[schemars(with = "postern_config::Address")]` on a `SocketAddr`, or `address::optional` on an
/// `Option<SocketAddr>`. On the command line: `value_parser = postern_config::address::argument`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub SocketAddr);

/// Why a text names no address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// "localhost", "8080", "127.0.0.1"
    #[error("it has no port")]
    NoPort,
    /// ":8080"
    #[error("it has no address before the port")]
    NoHost,
    /// "http://127.0.0.1:8080"
    #[error("it is a URL")]
    Url,
    /// "localhost:http", "localhost:80800"
    #[error("\"{0}\" is no port, which is a number from 0 to 65535")]
    Port(String),
    /// "::1:8080"
    #[error("an IPv6 address stands in brackets")]
    Brackets,
    /// A name that leads nowhere.
    #[error("the name \"{host}\" cannot be resolved ({reason})")]
    Unresolved {
        /// The name.
        host: String,
        /// The resolver's error.
        reason: String,
    },
}

/// The address that `text` stands for. Blocks on the resolver where it is a name other than `localhost`.
fn parse(text: &str) -> Result<SocketAddr, AddressError> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if text.contains("://") {
        return Err(AddressError::Url);
    }
    let (host, port) = text.rsplit_once(':').ok_or(AddressError::NoPort)?;
    if host.contains(':') || text.parse::<IpAddr>().is_ok() {
        return Err(AddressError::Brackets);
    }
    let port: u16 = port.parse().map_err(|_| AddressError::Port(port.to_owned()))?;
    match host {
        "" => Err(AddressError::NoHost),
        "localhost" => Ok((Ipv4Addr::LOCALHOST, port).into()),
        name => lookup(name, port),
    }
}

/// The address that an argument of the command line stands for. Blocks on the resolver where it is a name other than
/// `localhost`.
///
/// # Errors
/// A sentence.
pub fn argument(text: &str) -> Result<SocketAddr, String> {
    parse(text).map_err(|error| format!("{error}; write {ACCEPTED}"))
}

fn lookup(name: &str, port: u16) -> Result<SocketAddr, AddressError> {
    let unresolved = |reason| AddressError::Unresolved { host: name.to_owned(), reason };
    let found: Vec<SocketAddr> =
        (name, port).to_socket_addrs().map_err(|error| unresolved(error.to_string()))?.collect();
    let preferred = found.iter().find(|address| address.is_ipv4()).or(found.first());
    preferred.copied().ok_or_else(|| unresolved("it has no address".to_owned()))
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        parse(text).map(Self)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

text_value!(Address, ACCEPTED);

/// Reads a `SocketAddr` as an [`Address`].
///
/// # Errors
/// See [`AddressError`].
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    Address::deserialize(deserializer).map(|address| address.0)
}

/// Writes it in numbers.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: serde::Serializer>(address: &SocketAddr, serializer: S) -> Result<S::Ok, S::Error> {
    address.serialize(serializer)
}

/// The same for an address that may be absent: beside `#[serde(default)]`.
pub mod optional {
    use super::{Address, SocketAddr};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Reads an address, where there is one.
    ///
    /// # Errors
    /// See [`super::AddressError`].
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
        Ok(Option::<Address>::deserialize(deserializer)?.map(|address| address.0))
    }

    /// Writes it in numbers.
    ///
    /// # Errors
    /// Those of the serializer.
    #[allow(clippy::ref_option, reason = "serde calls it so")]
    pub fn serialize<S: Serializer>(address: &Option<SocketAddr>, serializer: S) -> Result<S::Ok, S::Error> {
        address.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_both_addresses() {
        for (text, resolved) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("[::1]:0", "[::1]:0"),
            ("localhost:8119", "127.0.0.1:8119"),
            ("0.0.0.0:65535", "0.0.0.0:65535"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), resolved);
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        for (text, error) in [
            ("localhost", AddressError::NoPort),
            ("8080", AddressError::NoPort),
            ("127.0.0.1", AddressError::NoPort),
            ("", AddressError::NoPort),
            (":8080", AddressError::NoHost),
            ("http://127.0.0.1:8080", AddressError::Url),
            ("localhost:http", AddressError::Port("http".to_owned())),
            ("localhost:65536", AddressError::Port("65536".to_owned())),
            ("localhost:", AddressError::Port(String::new())),
            ("::1:8080", AddressError::Brackets),
            ("::1", AddressError::Brackets),
        ] {
            assert_eq!(parse(text).unwrap_err(), error, "{text}");
        }
        // Reserved for names that do not exist (RFC 6761, section 6.4).
        let said = parse("nowhere.invalid:80").unwrap_err().to_string();
        assert!(said.starts_with("the name \"nowhere.invalid\" cannot be resolved ("), "{said}");
    }
}
