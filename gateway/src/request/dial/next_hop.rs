//! Tunnels through a next hop. Each protocol is read exactly to the byte where the tunnel begins: the target may send first,
//! and its bytes may arrive together with the proxy's answer.

use crate::config::{HopKind, NextHop as Config};
use crate::next_hops::{Connections, Dialler, Leg, Member, NO_METHOD, WRONG_PASSWORD};
use crate::request::deny::Refusal;
use crate::request::egress::Via;
use crate::request::hops::CDN_LOOP;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::StatusCode;
use postern_daemon::seldom::Seldom;
use postern_proxy::target::{Host, Target, Transport};
use postern_proxy::tunnel::{Connect, HeadError, Io, Joined, Tunnel, ask};
use postern_proxy::udp::template::Template;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_socks::tcp::Socks5Stream;
use tokio_socks::{Error as SocksError, TargetAddr};

/// Reason why no tunnel was opened.
#[derive(Debug)]
enum Failure {
    /// The next hop refuses the target, or cannot reach it.
    Target(Refusal),
    /// The next hop opens no tunnels now, and another URL may.
    Busy(StatusCode),
    /// The tunnel would come back to a gateway that it has passed.
    Loop,
    /// The next hop carries no UDP, and another URL may.
    NoUdp(&'static str),
    /// The next hop is at fault: a sentence for the operator, without the target.
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

impl From<HeadError> for Failure {
    fn from(error: HeadError) -> Self {
        match error {
            HeadError::Broken(reason) => {
                Self::Hop(format!("the connection broke before the tunnel was open: {reason}"))
            }
            HeadError::Grammar(reason) => Self::Hop(format!("it does not answer in HTTP: {reason}")),
            HeadError::Tls => Self::Hop(error.to_string()),
            HeadError::TooLarge | HeadError::NoEnd => Self::hop("its answer's head is too large"),
        }
    }
}

/// Opens a tunnel to `target` through the next hop. If one of its URLs is at fault or busy, tries the next one: no byte of the
/// client was sent yet.
pub(super) async fn connect(
    via: Via<'_>,
    target: &Target,
    hops: &str,
    dialler: Dialler<'_>,
    connections: &Connections,
    deadline: Instant,
) -> Result<Tunnel, Refusal> {
    let hop = &via.hop.config;
    let mut refused = match target.transport() {
        Transport::Tcp => Refusal::NextHop,
        Transport::Udp => Refusal::NextHopUdp, // unless a URL is tried
    };
    for member in via.hop.order(target, Instant::now()) {
        let through = member.begin();
        let lines = connections.to(via.hop, &member, via.sources);
        let limit = deadline.min(Instant::now() + hop.connect_timeout.get());
        let leg = Leg { hop: via.hop, member: &member, dialler, lines: &lines };
        let opened = match timeout_at(limit, leg.reach(limit)).await {
            Err(_) => Err(Failure::hop("it did not take the connection in time")),
            Ok(Err(reason)) => Err(Failure::Hop(reason)),
            // Its first connection shows it.
            Ok(Ok(_)) if target.transport() == Transport::Udp && !member.may_carry_udp() => {
                Err(Failure::NoUdp("it does not announce it (SETTINGS of HTTP/2)"))
            }
            Ok(Ok(reached)) => open(reached, hop, &member, (target, hops), deadline).await,
        };
        let (reason, refusal) = match opened {
            Ok(tunnel) => {
                member.opened();
                return Ok(tunnel.holding(through));
            }
            Err(Failure::Target(refusal)) => return Err(refusal),
            Err(Failure::Loop) => {
                member.looped();
                let reason = "it leads back to a gateway that the tunnel has passed (508)";
                (reason.to_owned(), Refusal::Loop)
            }
            Err(Failure::Busy(status)) => (format!("it answered {status}"), Refusal::Unreachable),
            Err(Failure::NoUdp(reason)) => (format!("it carries no UDP: {reason}"), Refusal::NextHopUdp),
            Err(Failure::Hop(reason)) => {
                member.failed(&reason);
                (reason, Refusal::NextHop)
            }
        };
        warn(hop, &member, &reason);
        refused = refusal;
        if matches!(refused, Refusal::Loop) || Instant::now() >= deadline {
            break;
        }
    }
    Err(refused)
}

/// Warns the operator, at most once in ten seconds, without the target.
fn warn(hop: &Config, member: &Member, reason: &str) {
    static REPORTED: Seldom = Seldom::every(Duration::from_secs(10));
    if REPORTED.due(std::time::Instant::now()).is_some() {
        let (name, url) = (&hop.name, &member.url);
        tracing::warn!("no tunnel was opened through {url} of the next hop \"{name}\": {reason}");
    }
}

async fn open(
    reached: Joined,
    hop: &Config,
    member: &Arc<Member>,
    (target, hops): (&Target, &str),
    deadline: Instant,
) -> Result<Tunnel, Failure> {
    let began = Instant::now();
    let vigil = match &reached {
        Joined::Shared(seat) => Some(seat.vigil()),
        Joined::Alone(..) => None,
    };
    let lost = async {
        match vigil {
            Some(vigil) => vigil.lost(hop.connect_timeout.get()).await,
            None => pending().await,
        }
    };
    let opening = async {
        match reached {
            Joined::Alone(stream, received) if member.url.kind == HopKind::Socks5 => {
                Ok(Tunnel::alone(open_socks(stream, hop, target).await?, received))
            }
            reached => open_http(reached, hop, member, (target, hops)).await,
        }
    };
    let opened = tokio::select! {
        opened = opening => opened,
        () = lost => Err(Failure::hop("its connection gives no sign of life")),
        () = sleep_until(deadline) => {
            member.was_silent(began);
            return Err(Failure::Target(Refusal::DialTimeout));
        }
    };
    if let Err(Failure::Target(_) | Failure::Busy(_) | Failure::Loop | Failure::NoUdp(_)) = &opened {
        member.served(); // it answered
    }
    opened
}

async fn open_http(
    reached: Joined,
    hop: &Config,
    member: &Member,
    (target, hops): (&Target, &str),
) -> Result<Tunnel, Failure> {
    let is_udp = target.transport() == Transport::Udp;
    let path = is_udp.then(|| Template::default().expand(target));
    let authority = if is_udp { member.url.at.authority() } else { target.authority() };
    let authorization = hop
        .credentials()
        .map(|(user, password)| format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}"))));
    let connect = Connect {
        authority: &authority,
        udp: path.as_deref(),
        authorization: authorization.as_deref(),
        // Only gateways read the list, and gateways are reached only over TLS.
        more: (member.url.kind == HopKind::Https).then_some((CDN_LOOP, hops)),
    };
    let is_http2 = matches!(reached, Joined::Shared(_));
    let (head, tunnel) = match reached {
        Joined::Shared(seat) => seat.connect(&connect).await?,
        Joined::Alone(stream, received) => {
            let asked = ask(stream, received, &connect).await?;
            (asked.head, asked.tunnel.after(asked.rest.freeze()))
        }
    };
    let target = |refusal| Err(Failure::Target(refusal));
    if connect.is_opened_by(&head, is_http2) {
        if is_udp {
            member.carried_udp();
        }
        return Ok(tunnel);
    }
    match head.status.as_u16() {
        400 | 404 if is_udp && member.has_carried_udp() => target(Refusal::NextHopRefused),
        // Servers that know no such path, method or upgrade.
        ..=299 | 400 | 404 | 405 | 501 if is_udp => {
            member.refused_udp();
            Err(Failure::NoUdp("it does not know CONNECT-UDP"))
        }
        status @ (401 | 407) if hop.user.is_none() => {
            Err(Failure::Hop(format!("it demands credentials ({status}): set user and password")))
        }
        status @ (401 | 407) => {
            Err(Failure::Hop(format!("it does not accept the user and the password ({status})")))
        }
        429 | 503 => Err(Failure::Busy(head.status)),
        504 => target(Refusal::DialTimeout),
        508 => Err(Failure::Loop),
        500.. => target(Refusal::Unreachable),
        _ => target(Refusal::NextHopRefused),
    }
}

async fn open_socks(stream: Box<dyn Io>, hop: &Config, target: &Target) -> Result<Box<dyn Io>, Failure> {
    let to = match target.host() {
        Host::Name(name) => TargetAddr::Domain((&**name).into(), target.port()),
        Host::Address(address) => TargetAddr::Ip(SocketAddr::new(*address, target.port())),
    };
    let opened = match hop.credentials() {
        None => Socks5Stream::connect_with_socket(stream, to).await,
        Some((user, password)) => {
            Socks5Stream::connect_with_password_and_socket(stream, to, user, password).await
        }
    };
    opened.map(Socks5Stream::into_inner).map_err(failure)
}

/// Maps the reply of a SOCKS proxy (RFC 1928, section 6).
fn failure(error: SocksError) -> Failure {
    match error {
        SocksError::Io(error) => error.into(),
        SocksError::ConnectionNotAllowedByRuleset => Failure::Target(Refusal::NextHopRefused),
        SocksError::ConnectionRefused => Failure::Target(Refusal::ConnectionRefused),
        SocksError::TtlExpired => Failure::Target(Refusal::DialTimeout),
        SocksError::NetworkUnreachable
        | SocksError::HostUnreachable
        | SocksError::GeneralSocksServerFailure => Failure::Target(Refusal::Unreachable),
        SocksError::NoAcceptableAuthMethods => Failure::hop(NO_METHOD),
        SocksError::PasswordAuthFailure(_) => Failure::hop(WRONG_PASSWORD),
        error => Failure::hop(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::next_hops::NextHop;
    use crate::request::hops::Pseudonym;
    use postern_proxy::tunnel::Received;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::sleep;

    /// Returns a connection whose other end writes `pieces` with a short pause after each, and closes.
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

    async fn opened(url: &str, pieces: &'static [&'static [u8]]) -> Result<String, Failure> {
        let text = format!("name = \"a\"\nurls = [\"{url}\"]");
        let hop = NextHop::new(&postern_config::parse("hop.toml", &text, []).unwrap()).unwrap();
        let target = Target::parse("b.example:443", None).unwrap();
        let member = hop.order(&target, Instant::now()).remove(0);
        let deadline = Instant::now() + Duration::from_secs(10);
        let reached = Joined::Alone(Box::new(answered(pieces).await), Received::default());
        let hops = Pseudonym::random().first();
        let mut tunnel = open(reached, &hop.config, &member, (&target, &*hops), deadline).await?;
        let mut rest = String::new();
        tunnel.read_to_string(&mut rest).await.unwrap();
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
            ("http://a:1", &[b"HTTP/1.1 200 OK\r\nX: y"], "the connection broke before the tunnel was open"),
            ("http://a:1", &[b"HTTP/1.1 200 OK\r\nX: ", &[b'y'; 40_000]], "its answer's head is too large"),
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

    #[tokio::test]
    async fn one_that_is_busy_may_be_followed_by_another() {
        let answers: [&'static [&'static [u8]]; 2] =
            [&[b"HTTP/1.1 503 No\r\n\r\n"], &[b"HTTP/1.1 429 No\r\n\r\n"]];
        for answer in answers {
            assert!(matches!(opened("http://a:1", answer).await, Err(Failure::Busy(_))));
        }
    }
}
