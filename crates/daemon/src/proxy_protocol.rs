//! The PROXY protocol, versions 1 and 2 (haproxy's proxy-protocol.txt): the header by which a load balancer names the client of a
//! forwarded connection.
//!
//! Not by a crate: `ppp` has panicked on bytes from the network, `proxy-header` treats a LOCAL header without addresses as
//! incomplete, and with either most of this file would remain, because it locates the header's end and decides which headers to
//! refuse.

use crate::seldom::Seldom;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Networks of the load balancers. Connections from them begin with a header; on other connections no header is read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Balancers(pub Vec<IpNet>);

impl Balancers {
    /// `true` if a connection from `address` begins with a header.
    pub fn has(&self, address: IpAddr) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let address = address.to_canonical(); // an IPv4 balancer at an IPv6 socket
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// The client that a header names; `None` for a connection of the balancer itself, such as a health check, or for no TCP client.
pub type Named = Option<SocketAddr>;

/// Reason that a balancer's connection is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHeader {
    /// The connection broke, or was closed without a byte, as by a health check that only connects.
    Closed,
    /// The bytes are not a header.
    Malformed,
    /// The header did not arrive in time.
    Late,
}

/// Reads exactly the header that `stream` begins with. Logs a missing header; the caller then closes the connection.
///
/// # Errors
/// No complete header arrives within `patience`.
pub async fn read(stream: &mut TcpStream, patience: Duration) -> Result<Named, NoHeader> {
    let read = timeout(patience, read_header(stream)).await.unwrap_or(Err(NoHeader::Late));
    if matches!(read, Err(NoHeader::Malformed | NoHeader::Late)) {
        report();
    }
    read
}

async fn read_header(stream: &mut TcpStream) -> Result<Named, NoHeader> {
    let closed = |_: io::Error| NoHeader::Closed;
    let mut bytes = vec![0; LONGEST];
    let mut known = 0;
    loop {
        let peeked = stream.peek(&mut bytes[known..]).await.map_err(closed)?;
        let header = match parse(&bytes[..known + peeked]) {
            _ if known + peeked == 0 => return Err(NoHeader::Closed),
            Err(Malformed) => return Err(NoHeader::Malformed),
            Ok(None) if peeked == 0 => return Err(NoHeader::Malformed), // ended inside the header
            Ok(header) => header,
        };
        // All bytes so far belong to the header. They are consumed, so that the next peek waits for more.
        let end = header.map_or(known + peeked, |header| header.length);
        stream.read_exact(&mut bytes[known..end]).await.map_err(closed)?;
        known = end;
        if let Some(header) = header {
            return Ok(header.client);
        }
    }
}

/// Logs that a balancer sends no header, at most once a second and without the balancer's address.
fn report() {
    static REPORTED: Seldom = Seldom::every(Duration::from_secs(1));
    if REPORTED.due(Instant::now()).is_some() {
        tracing::warn!(
            "the load balancer in [listen] proxy_protocol sends no header: its connections are closed. Switch the PROXY \
             protocol on there (haproxy: send-proxy-v2), or take its network out of the list"
        );
    }
}

// ---- The header's bytes ----

const V1: &[u8] = b"PROXY ";
const V1_LONGEST: usize = 107;
const V2: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Length of a header of version 2 before the addresses.
const V2_FIXED: usize = 16;
/// Maximum length of the addresses and other fields in version 2.
const V2_MOST: usize = 4096;
const LONGEST: usize = V2_FIXED + V2_MOST;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub length: usize,
    pub client: Named,
}

/// The bytes do not begin with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Parses the header that `bytes` begin with; `None` if it is incomplete, and then all bytes belong to it.
///
/// # Errors
/// No continuation makes the bytes a header of at most 107 bytes (version 1) or 4,112 bytes (version 2).
pub fn parse(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    if begins(bytes, V2) {
        parse_v2(bytes)
    } else if begins(bytes, V1) {
        parse_v1(&bytes[..bytes.len().min(V1_LONGEST)])
    } else {
        Err(Malformed)
    }
}

/// `true` if `bytes` and `signature` agree up to the shorter length.
fn begins(bytes: &[u8], signature: &[u8]) -> bool {
    bytes.iter().zip(signature).all(|(byte, expected)| byte == expected)
}

fn parse_v1(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
        return if bytes.len() < V1_LONGEST { Ok(None) } else { Err(Malformed) };
    };
    let line = bytes[..end].strip_suffix(b"\r").ok_or(Malformed)?;
    let line = std::str::from_utf8(line).map_err(|_| Malformed)?;
    let mut words = line.split(' ').skip(1);
    let client = match words.next() {
        Some("UNKNOWN") => None, // the rest is ignored
        Some("TCP4") => Some(parse_endpoints::<Ipv4Addr>(words)?),
        Some("TCP6") => Some(parse_endpoints::<Ipv6Addr>(words)?),
        _ => return Err(Malformed),
    };
    Ok(Some(Header { length: end + 1, client }))
}

/// Parses "client balancer client-port balancer-port"; returns the client's address.
fn parse_endpoints<'a, A>(mut words: impl Iterator<Item = &'a str>) -> Result<SocketAddr, Malformed>
where
    A: std::str::FromStr + Into<IpAddr>,
{
    let address = |word: Option<&str>| word.and_then(|word| word.parse::<A>().ok()).ok_or(Malformed);
    let (client, _) = (address(words.next())?, address(words.next())?);
    let (port, _) = (parse_port(words.next())?, parse_port(words.next())?);
    words.next().map_or(Ok(SocketAddr::new(client.into(), port)), |_| Err(Malformed))
}

fn parse_port(word: Option<&str>) -> Result<u16, Malformed> {
    let digits = word.filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).ok_or(Malformed)
}

fn parse_v2(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    let Some((&[.., command, family, high, low], rest)) = bytes.split_first_chunk::<V2_FIXED>() else {
        return Ok(None);
    };
    let following = usize::from(u16::from_be_bytes([high, low]));
    let is_local = match command {
        0x20 => true,
        0x21 => false,
        _ => return Err(Malformed),
    };
    if following > V2_MOST {
        return Err(Malformed);
    }
    let Some(rest) = rest.get(..following) else { return Ok(None) };
    let client = match family {
        _ if is_local => None,
        0x11 => {
            let [a, b, c, d, _, _, _, _, high, low, ..] = *rest else { return Err(Malformed) };
            Some((Ipv4Addr::new(a, b, c, d).into(), [high, low]))
        }
        0x21 => {
            let (client, rest) = rest.split_first_chunk::<16>().ok_or(Malformed)?;
            let (_, ports) = rest.split_first_chunk::<16>().ok_or(Malformed)?;
            let [high, low, ..] = *ports else { return Err(Malformed) };
            Some((Ipv6Addr::from(*client).into(), [high, low]))
        }
        // Unspecified, UDP, Unix sockets: no client that could be counted.
        0x00 | 0x12 | 0x22 | 0x31 | 0x32 => None,
        _ => return Err(Malformed),
    };
    let client = client.map(|(address, port)| SocketAddr::new(address, u16::from_be_bytes(port)));
    Ok(Some(Header { length: V2_FIXED + following, client }))
}

#[cfg(test)]
mod tests;
