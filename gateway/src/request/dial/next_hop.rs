//! A tunnel that goes on through a proxy of the operator's. Both protocols are read to the byte where the tunnel begins: the target
//! may speak first, and its bytes may come together with the proxy's answer.

use crate::config::{HopKind, NextHop};
use crate::request::deny::Refusal;
use crate::request::egress::{Via, choose};
use crate::request::resolve::Resolver;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use postern_daemon::seldom::Seldom;
use postern_proxy::dial::{Candidate, connect_from};
use postern_proxy::target::{Host, Target};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_socks::Error as SocksError;
use tokio_socks::tcp::Socks5Stream;

/// The most that a proxy answers before the tunnel begins, in bytes.
const HEAD_LIMIT: usize = 16 * 1024;
/// The most fields of an answer.
const FIELD_LIMIT: usize = 100;

/// Why there is no tunnel.
#[derive(Debug)]
enum Failure {
    /// The next hop says so of the target.
    Target(Refusal),
    /// It is the next hop's own fault: a sentence for the operator, without the target.
    Hop(String),
}

impl Failure {
    fn hop(reason: impl ToString) -> Self {
        Self::Hop(reason.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Hop(format!("the connection broke before the tunnel was open: {error}"))
    }
}

/// Opens a tunnel to `target` through the next hop.
pub(super) async fn connect(
    via: Via<'_>,
    target: &Target,
    turn: usize,
    resolver: &Resolver,
    deadline: Instant,
) -> Result<TcpStream, Refusal> {
    let opened = match timeout_at(deadline, reach(&via, turn, resolver, deadline)).await {
        Err(_) => Err(Failure::hop("it did not take the connection in time")),
        Ok(Err(failure)) => Err(failure),
        Ok(Ok(stream)) => match timeout_at(deadline, open(stream, via.hop, target)).await {
            Ok(opened) => opened,
            Err(_) => Err(Failure::Target(Refusal::DialTimeout)),
        },
    };
    opened.map_err(|failure| match failure {
        Failure::Target(refusal) => refusal,
        Failure::Hop(reason) => {
            warn(via.hop, &reason);
            Refusal::NextHop
        }
    })
}

/// For the operator, without the target.
fn warn(hop: &NextHop, reason: &str) {
    static REPORTED: Seldom = Seldom::every(Duration::from_secs(10));
    if REPORTED.due(std::time::Instant::now()).is_some() {
        let NextHop { name, url, .. } = hop;
        tracing::warn!("a tunnel was refused (502) because of the next hop \"{name}\" ({url}): {reason}");
    }
}

/// Connects to the next hop itself.
async fn reach(
    via: &Via<'_>,
    turn: usize,
    resolver: &Resolver,
    deadline: Instant,
) -> Result<TcpStream, Failure> {
    let at = via.hop.url.at();
    let addresses = match at.host() {
        Host::Address(address) => vec![*address],
        Host::Name(name) => resolver
            .resolve(name, deadline)
            .await
            .map_err(|refusal| Failure::Hop(format!("its name was not resolved: {}", refusal.details())))?,
    };
    let candidate = |address: IpAddr| {
        let from = choose(via.sources, address, turn).ok()?;
        Some(Candidate { to: SocketAddr::new(address, at.port()), from })
    };
    let candidates: Vec<Candidate> = addresses.into_iter().filter_map(candidate).collect();
    if candidates.is_empty() {
        return Err(Failure::hop("source has no address of its family"));
    }
    let stream =
        connect_from(candidates).await.map_err(|error| Failure::Hop(format!("not reached: {error}")))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn open(stream: TcpStream, hop: &NextHop, target: &Target) -> Result<TcpStream, Failure> {
    match hop.url.kind() {
        HopKind::Http => open_http(stream, hop, target).await,
        HopKind::Socks5 => open_socks(stream, hop, target).await,
    }
}

async fn open_http(mut stream: TcpStream, hop: &NextHop, target: &Target) -> Result<TcpStream, Failure> {
    let authority = target.authority();
    let mut request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n");
    if let Some((user, password)) = hop.credentials() {
        let credentials = BASE64_STANDARD.encode(format!("{user}:{password}"));
        request.push_str("Proxy-Authorization: Basic ");
        request.push_str(&credentials);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut left = HEAD_LIMIT;
    let status = loop {
        match read_status(&mut stream, &mut left).await? {
            100..=199 => {} // RFC 9110, section 15.2
            status => break status,
        }
    };
    let target = |refusal| Err(Failure::Target(refusal));
    match status {
        200..=299 => Ok(stream),
        401 | 407 if hop.user.is_none() => {
            Err(Failure::Hop(format!("it demands credentials ({status}): set user and password")))
        }
        401 | 407 => Err(Failure::Hop(format!("it does not accept the user and the password ({status})"))),
        504 => target(Refusal::DialTimeout),
        500.. => target(Refusal::Unreachable),
        _ => target(Refusal::NextHopRefused),
    }
}

/// Takes one head off the stream, `left` bytes of it at most, and not a byte more than the head.
async fn read_status(stream: &mut TcpStream, left: &mut usize) -> Result<u16, Failure> {
    let mut head = Vec::new();
    let mut next = [0; 1024];
    loop {
        let seen = stream.peek(&mut next).await?;
        if seen == 0 {
            return Err(Failure::hop("it closed without a whole answer"));
        }
        let before = head.len();
        head.extend_from_slice(next.get(..seen).unwrap_or_default());
        let mut fields = [httparse::EMPTY_HEADER; FIELD_LIMIT];
        let mut answer = httparse::Response::new(&mut fields);
        let parsed = answer
            .parse(&head)
            .map_err(|error| Failure::Hop(format!("it does not answer in HTTP: {error}")))?;
        let (status, end) = match parsed {
            httparse::Status::Complete(end) => (answer.code, end),
            httparse::Status::Partial => (None, head.len()),
        };
        *left =
            left.checked_sub(end - before).ok_or_else(|| Failure::hop("its answer's head is too large"))?;
        let part = next.get_mut(..end - before).unwrap_or_default();
        stream.read_exact(part).await?;
        if let Some(status) = status {
            return Ok(status);
        }
    }
}

async fn open_socks(stream: TcpStream, hop: &NextHop, target: &Target) -> Result<TcpStream, Failure> {
    let opened = match (target.host(), hop.credentials()) {
        (Host::Name(name), None) => Socks5Stream::connect_with_socket(stream, (&**name, target.port())).await,
        (Host::Address(address), None) => {
            Socks5Stream::connect_with_socket(stream, (*address, target.port())).await
        }
        (Host::Name(name), Some((user, password))) => {
            let to = (&**name, target.port());
            Socks5Stream::connect_with_password_and_socket(stream, to, user, password).await
        }
        (Host::Address(address), Some((user, password))) => {
            let to = (*address, target.port());
            Socks5Stream::connect_with_password_and_socket(stream, to, user, password).await
        }
    };
    opened.map(Socks5Stream::into_inner).map_err(failure)
}

/// The reply of RFC 1928, section 6.
fn failure(error: SocksError) -> Failure {
    match error {
        SocksError::Io(error) => error.into(),
        SocksError::ConnectionNotAllowedByRuleset => Failure::Target(Refusal::NextHopRefused),
        SocksError::ConnectionRefused => Failure::Target(Refusal::ConnectionRefused),
        SocksError::TtlExpired => Failure::Target(Refusal::DialTimeout),
        SocksError::NetworkUnreachable
        | SocksError::HostUnreachable
        | SocksError::GeneralSocksServerFailure => Failure::Target(Refusal::Unreachable),
        SocksError::NoAcceptableAuthMethods => {
            Failure::hop("it takes none of our ways to authenticate: set user and password, or remove them")
        }
        SocksError::PasswordAuthFailure(_) => Failure::hop("it does not accept the user and the password"),
        error => Failure::hop(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    /// A connection whose other end writes `pieces`, each a moment after the one before, and closes.
    async fn answered(pieces: &'static [&'static [u8]]) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            for piece in pieces {
                far.write_all(piece).await.unwrap();
                sleep(Duration::from_millis(20)).await;
            }
            let _ = far.shutdown().await;
            let _ = far.read_to_end(&mut Vec::new()).await;
        });
        stream
    }

    fn hop(url: &str) -> NextHop {
        NextHop { name: "a".into(), url: url.parse().unwrap(), user: None, password: None }
    }

    async fn opened(url: &str, pieces: &'static [&'static [u8]]) -> Result<String, Failure> {
        let target = Target::parse("b.example:443", None).unwrap();
        let mut stream = open(answered(pieces).await, &hop(url), &target).await?;
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        Ok(rest)
    }

    #[tokio::test]
    async fn what_the_target_says_first_is_the_tunnels_however_the_answer_is_cut() {
        let http: &[&[&[u8]]] = &[
            &[b"HTTP/1.1 200 OK\r\n\r\nSSH-2.0"],
            &[b"HTTP/1.0 200 Connection established\r\nVia: 1.0 p\r\n", b"\r\nSSH", b"-2.0"],
            &[b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 204 No\r\nContent-Length: 3\r\n\r\nSSH-2.0"],
            &[b"H", b"TTP/1.1 299 x\r", b"\n\r", b"\nSSH-2.0"],
        ];
        for pieces in http {
            assert_eq!(opened("http://a:1", pieces).await.unwrap(), "SSH-2.0");
        }
        let socks: &[&[&[u8]]] = &[
            &[b"\x05\x00\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00SSH-2.0"],
            &[b"\x05", b"\x00\x05\x00\x00", b"\x03\x01a\x00\x00SSH", b"-2.0"],
        ];
        for pieces in socks {
            assert_eq!(opened("socks5://a:1", pieces).await.unwrap(), "SSH-2.0");
        }
    }

    #[tokio::test]
    async fn each_refusal_of_a_next_hop_is_told_by_whose_fault_it_is() {
        let of_target: &[(&str, &'static [&'static [u8]], &str)] = &[
            ("http://a:1", &[b"HTTP/1.1 403 No\r\n\r\n"], "NextHopRefused"),
            ("http://a:1", &[b"HTTP/1.1 302 No\r\n\r\n"], "NextHopRefused"),
            ("http://a:1", &[b"HTTP/1.1 500 No\r\n\r\n"], "Unreachable"),
            ("http://a:1", &[b"HTTP/1.1 503 No\r\n\r\n"], "Unreachable"),
            ("http://a:1", &[b"HTTP/1.1 504 No\r\n\r\n"], "DialTimeout"),
            ("socks5://a:1", &[b"\x05\x00\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00"], "NextHopRefused"),
            ("socks5://a:1", &[b"\x05\x00\x05\x04\x00\x01\x00\x00\x00\x00\x00\x00"], "Unreachable"),
            ("socks5://a:1", &[b"\x05\x00\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00"], "ConnectionRefused"),
        ];
        for (url, pieces, expected) in of_target {
            match opened(url, pieces).await {
                Err(Failure::Target(refusal)) => assert_eq!(format!("{refusal:?}"), *expected),
                other => panic!("{expected}: {other:?}"),
            }
        }
        let of_hop: &[(&str, &'static [&'static [u8]], &str)] = &[
            ("http://a:1", &[b"HTTP/1.1 407 No\r\n\r\n"], "it demands credentials (407)"),
            ("http://a:1", &[b"SSH-2.0-x\r\n"], "it does not answer in HTTP"),
            ("http://a:1", &[b"HTTP/1.1 200 OK\r\nX: y"], "it closed without a whole answer"),
            ("http://a:1", &[b"HTTP/1.1 200 OK\r\nX: ", &[b'y'; 20_000]], "its answer's head is too large"),
            ("socks5://a:1", &[b"\x05\xff"], "it takes none of our ways"),
            ("socks5://a:1", &[b"HTTP/1.1 400"], "Invalid response version"),
            ("socks5://a:1", &[b"\x05"], "the connection broke before the tunnel was open"),
        ];
        for (url, pieces, expected) in of_hop {
            match opened(url, pieces).await {
                Err(Failure::Hop(reason)) => assert!(reason.starts_with(expected), "{reason}"),
                other => panic!("{expected}: {other:?}"),
            }
        }
    }
}
