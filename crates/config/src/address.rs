//! Listen addresses, written with a name or numbers: `localhost:8080`, `127.0.0.1:8080`, `[::1]:8080`.

use crate::text_value;
use serde::de::Deserializer;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

pub(crate) const ADDRESS_ACCEPTED: &str =
    "an address and a port, such as \"127.0.0.1:8080\", \"[::1]:8080\" or \"localhost:8080\"";

/// An address and a port, written as numbers or a name. A name is resolved once, when it is read; IPv4 is preferred if the name
/// has several addresses, and `localhost` is always 127.0.0.1.
///
/// In a configuration: `#[serde(with = "postern_config::address")]` and `#[schemars(with = "postern_config::Address")]` on a
/// `SocketAddr`. On the command line: `value_parser = postern_config::address::argument`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub SocketAddr);

/// Parses an address. Blocks on the resolver if it is a name other than `localhost`.
fn parse(text: &str) -> Result<SocketAddr, String> {
    let no_port = || "it has no port".to_owned();
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if text.contains("://") {
        return Err("it is a URL".to_owned());
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(no_port)?;
    if text.ends_with(']') {
        return Err(no_port());
    }
    let is_bracketed = host.starts_with('[') && host.ends_with(']');
    if host.contains(':') && !is_bracketed || text.parse::<IpAddr>().is_ok() {
        return Err("an IPv6 address stands in brackets".to_owned());
    }
    let port: u16 =
        port.parse().map_err(|_| format!("\"{port}\" is no port, which is a number from 0 to 65535"))?;
    match host {
        "" => Err("it has no address before the port".to_owned()),
        "localhost" => Ok((Ipv4Addr::LOCALHOST, port).into()),
        name => lookup(name, port),
    }
}

/// Parses an argument of the command line. Blocks on the resolver if it is a name other than `localhost`.
///
/// # Errors
/// A sentence: what is wrong, and what to write.
pub fn argument(text: &str) -> Result<SocketAddr, String> {
    parse(text).map_err(|error| format!("{error}; write {ADDRESS_ACCEPTED}"))
}

fn lookup(name: &str, port: u16) -> Result<SocketAddr, String> {
    let unresolved = |reason: &dyn Display| format!("the name \"{name}\" cannot be resolved ({reason})");
    let found: Vec<SocketAddr> =
        (name, port).to_socket_addrs().map_err(|error| unresolved(&error))?.collect();
    let preferred = found.iter().find(|address| address.is_ipv4()).or(found.first());
    preferred.copied().ok_or_else(|| unresolved(&"it has no address"))
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map(Self)
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

text_value!(Address, ADDRESS_ACCEPTED);

/// Reads a `SocketAddr` as an [`Address`].
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    Address::deserialize(deserializer).map(|address| address.0)
}

/// Writes the address in numbers.
pub fn serialize<S: serde::Serializer>(address: &SocketAddr, serializer: S) -> Result<S::Ok, S::Error> {
    address.serialize(serializer)
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
            ("localhost", "it has no port"),
            ("8080", "it has no port"),
            ("127.0.0.1", "it has no port"),
            ("", "it has no port"),
            (":8080", "it has no address before the port"),
            ("http://127.0.0.1:8080", "it is a URL"),
            ("localhost:http", "\"http\" is no port, which is a number from 0 to 65535"),
            ("localhost:65536", "\"65536\" is no port, which is a number from 0 to 65535"),
            ("localhost:", "\"\" is no port, which is a number from 0 to 65535"),
            ("[::1]:80800", "\"80800\" is no port, which is a number from 0 to 65535"),
            ("[::1]", "it has no port"),
            ("::1:8080", "an IPv6 address stands in brackets"),
            ("::1", "an IPv6 address stands in brackets"),
        ] {
            assert_eq!(parse(text).unwrap_err(), error, "{text}");
        }
        // `.invalid` never resolves (RFC 6761, section 6.4).
        let said = parse("nowhere.invalid:80").unwrap_err();
        assert!(said.starts_with("the name \"nowhere.invalid\" cannot be resolved ("), "{said}");
    }
}
