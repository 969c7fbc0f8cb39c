//! Connections to a URL of a next hop, new or shared.

use super::{Member, NextHop};
use crate::config::HopKind;
use crate::request::deny::Refusal;
use crate::request::egress::choose;
use crate::request::resolve::Resolver;
use parking_lot::Mutex;
use postern_daemon::drain::Shutdown;
use postern_daemon::http::no_answer;
use postern_daemon::tls;
use postern_net::Families;
use postern_net::dial::{Candidate, connect_found};
use postern_proxy::reset::Reset;
use postern_proxy::target::{Host, Target};
use postern_proxy::tunnel::{Joined, Lines, Made, OnDrain, Received, Sharing};
use std::io;
use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

/// Time until an unused connection is closed; less than a gateway's `limits.idle_timeout`.
const IDLE: Duration = Duration::from_mins(5);

/// Resolver and local addresses for new connections.
#[derive(Clone, Copy)]
pub(crate) struct Dialler<'a> {
    pub(crate) resolver: &'a Resolver,
    /// Local addresses; `turn` selects among them.
    pub(crate) sources: &'a [IpAddr],
    pub(crate) turn: usize,
}

/// A URL of a next hop, and the means to connect to it.
#[derive(Clone, Copy)]
pub(crate) struct Leg<'a> {
    pub(crate) hop: &'a NextHop,
    pub(crate) member: &'a Member,
    pub(crate) dialler: Dialler<'a>,
    pub(crate) lines: &'a Lines,
}

impl Leg<'_> {
    /// Connects, or finds a place on a connection of `lines`, and records if it carries UDP: HTTP/2 announces it; over HTTP/1.1
    /// the operator must know. Nothing was sent yet.
    ///
    /// # Errors
    /// Returns a sentence for the operator, without the tunnel's target.
    pub(crate) async fn reach(self, deadline: Instant) -> Result<Joined, String> {
        let reached = self.connect(deadline).await?;
        self.member.health.lock().lacks_udp = match &reached {
            Joined::Shared(seat) => !seat.carries_udp(),
            Joined::Alone(..) => !self.hop.config.udp || self.member.url.kind == HopKind::Socks5,
        };
        Ok(reached)
    }

    async fn connect(self, deadline: Instant) -> Result<Joined, String> {
        let Self { hop, member, dialler, lines } = self;
        let Some(tls) = &member.tls else {
            let stream = connect(&member.url.at, dialler, deadline).await?;
            return Ok(Joined::Alone(Box::new(stream), Received::default()));
        };
        if let Some(reason) = tls.own.as_ref().and_then(|own| own.refused()) {
            return Err(reason); // in TLS 1.3 the peer reports it only after the handshake
        }
        let connect = async {
            let stream = connect(&member.url.at, dialler, deadline).await.map_err(io::Error::other)?;
            let io = handshake(stream, &member.url.at, tls.config.clone()).await?;
            let is_http2 = tls::is_http2(io.get_ref().1);
            if is_http2 {
                io.bound_unsent();
            }
            Ok::<_, io::Error>(Made { io: Box::new(io), received: Received::default(), is_http2 })
        };
        let joined = if hop.config.tunnels.get() > 1 {
            lines.join(connect).await
        } else {
            connect.await.map(|made| Joined::Alone(made.io, made.received))
        };
        joined.map_err(|error| match error.kind() {
            // After the handshake: a server's alert about a certificate can be lost with the connection.
            ConnectionAborted | ConnectionReset | BrokenPipe => format!(
                "it broke the connection off behind the TLS handshake ({error}); if it accepts only clients with a certificate, check \
                 certificate and key of the next hop"
            ),
            _ => no_answer(&error, "ca of the next hop"),
        })
    }
}

async fn handshake(
    stream: TcpStream,
    at: &Target,
    config: Arc<tls::ClientConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let name = match at.host() {
        Host::Name(name) => ServerName::try_from(name.to_string()).map_err(io::Error::other)?,
        Host::Address(address) => ServerName::from(*address),
    };
    TlsConnector::from(config).connect(name, stream).await
}

async fn connect(at: &Target, dialler: Dialler<'_>, deadline: Instant) -> Result<TcpStream, String> {
    let candidate = |address: &IpAddr| {
        let from = choose(dialler.sources, *address, dialler.turn).ok()?;
        Some(Candidate { to: SocketAddr::new(*address, at.port()), from })
    };
    let candidates = |addresses: &[IpAddr]| -> Result<Vec<Candidate>, Refusal> {
        let candidates: Vec<_> = addresses.iter().filter_map(candidate).collect();
        if candidates.is_empty() { Err(Refusal::NoSource) } else { Ok(candidates) }
    };
    let found = match at.host() {
        Host::Address(address) => candidates(&[*address]).map(|found| (found, Families::known(Vec::new()))),
        Host::Name(name) => dialler.resolver.resolve(name, deadline, candidates).await,
    };
    let (first, families) = found.map_err(|refusal| match refusal {
        Refusal::NoSource => "source has no address of its family".to_owned(),
        refusal => format!("its name was not resolved: {refusal}"),
    })?;
    let later = |late: Vec<IpAddr>| late.iter().filter_map(candidate).collect();
    let connected = connect_found(first, families, deadline, later).await;
    let stream = connected.map_err(|error| format!("not reached: {error}"))?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    Ok(stream)
}

/// One worker's HTTP/2 connections to next hops, shared by its tunnels.
pub(crate) struct Connections {
    shutdown: Shutdown,
    known: Mutex<Vec<Known>>,
}

struct Known {
    to: Weak<Member>,
    sources: Box<[IpAddr]>,
    lines: Arc<Lines>,
}

impl Connections {
    pub(crate) fn new(shutdown: Shutdown) -> Self {
        Self { shutdown, known: Mutex::default() }
    }

    /// Returns the connections from `sources` to a URL of a next hop.
    pub(crate) fn to(&self, hop: &NextHop, member: &Arc<Member>, sources: &[IpAddr]) -> Arc<Lines> {
        let mut known = self.known.lock();
        let is_same = |known: &&Known| {
            std::ptr::eq(known.to.as_ptr(), Arc::as_ptr(member)) && *known.sources == *sources
        };
        if let Some(found) = known.iter().find(is_same) {
            return Arc::clone(&found.lines);
        }
        // A reload may have removed other URLs. Tunnels to those continue, and connections without tunnels end.
        known.retain(|known| known.to.strong_count() > 0);
        let lines = Arc::new(Lines::new(sharing(hop, self.shutdown.clone())));
        known.push(Known { to: Arc::downgrade(member), sources: sources.into(), lines: Arc::clone(&lines) });
        lines
    }
}

pub(super) fn sharing(hop: &NextHop, shutdown: Shutdown) -> Sharing {
    Sharing {
        tunnels: hop.config.tunnels.get(),
        lifetime: hop.config.connection_lifetime.get(),
        idle: IDLE,
        shutdown,
        // Each tunnel that is still to be opened has already cost a token.
        on_drain: OnDrain::Serve,
    }
}
