//! Connections: HTTP/1.1 and HTTP/2, plain or over TLS. `routes` has what is served on them.

mod h1;
mod h2;
mod routes;

pub(crate) use routes::Routes;

use crate::answer::Refusal;
use crate::catalogue::IssuerOutcome;
use crate::reload::Settings;
use postern_daemon::drain::Shutdown;
use postern_daemon::early::begins_http2;
use postern_daemon::exchange::{Exchange, Patience};
use postern_daemon::farewell;
use postern_daemon::listen;
use postern_daemon::places::{Bounds, Place, Places};
use postern_daemon::proxy_protocol::{self, Named, NoHeader};
use postern_daemon::sources::Source;
use postern_daemon::tls::{self, Accepted, Bounded, PublicKeyDigest, ServerConfig, TlsStream};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// A request's header, all of it. Requests here are a few hundred bytes.
const MAX_HEADER: usize = 16 * 1024;

/// Connections that are open, and how new ones are treated.
pub(crate) struct Server {
    pub(crate) routes: Arc<Routes>,
    pub(crate) settings: Settings,
    pub(crate) places: Places,
    pub(crate) shutdown: Shutdown,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Client {
    pub(crate) source: Option<Source>,
    /// The public key of the certificate that it showed in the handshake.
    pub(crate) certificate: Option<PublicKeyDigest>,
}

impl Server {
    /// Accepts until the drain begins, then waits until the last connection is done.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let connections = TaskTracker::new();
        let server = Arc::new(self);
        let draining = server.shutdown.drain_token();
        let accepting = async {
            loop {
                match listener.accept().await {
                    Ok((stream, from)) => server.clone().admit(stream, from.ip(), &connections).await,
                    Err(error) => listen::pause("the issuer", &error).await,
                }
            }
        };
        let _: Option<()> = draining.run_until_cancelled(accepting).await;
        drop(listener);
        connections.close();
        connections.wait().await;
    }

    /// Returns when there is a place for the connection, or none for its source.
    async fn admit(self: Arc<Self>, stream: TcpStream, from: IpAddr, connections: &TaskTracker) {
        let (exchange, present) = (self.exchange(), self.settings.load_full());
        let bounds = Bounds { connections: present.connections, sources: &present.limits.source };
        let through_balancer = present.balancers.has(from);
        match self.places.wait((!through_balancer).then_some(from), bounds, &exchange).await {
            Ok(place) if through_balancer => {
                connections.spawn(async move {
                    self.shutdown.until_stopped(self.named_connection(stream, place, &exchange)).await
                });
            }
            Ok(place) => {
                connections.spawn(async move {
                    self.shutdown.until_stopped(self.connection(stream, &place, &exchange)).await
                });
            }
            Err(_) => {
                let answer = self.turned_away(&Refusal::SourceLimit);
                let Some(leaving) = self.places.leave(bounds.connections) else { return };
                let source = present.limits.source.source(from);
                connections.spawn(async move {
                    self.shutdown.until_stopped(self.turn_away(stream, source, &answer)).await;
                    drop(leaving);
                });
            }
        }
    }

    /// A connection through a load balancer, whose PROXY header names the client.
    async fn named_connection(&self, mut stream: TcpStream, mut place: Place, exchange: &Exchange) {
        let named = tokio::select! {
            named = self.named(&mut stream) => named,
            () = exchange.displaced() => return drop(self.turned_away(&Refusal::Displaced)),
        };
        let Some(named) = named else { return };
        let present = self.settings.load_full();
        let limits = &present.limits.source;
        let refused = named.filter(|client| place.attribute(client.ip(), limits).is_err());
        let Some(client) = refused else { return self.connection(stream, &place, exchange).await };
        drop(place);
        let answer = self.turned_away(&Refusal::SourceLimit);
        let Some(_leaving) = self.places.leave(present.connections) else { return };
        self.turn_away(stream, limits.source(client.ip()), &answer).await;
    }

    /// Whom the PROXY header names, unless there is none.
    async fn named(&self, stream: &mut TcpStream) -> Option<Named> {
        let reading = proxy_protocol::read(stream, self.header_timeout());
        match self.shutdown.drain_token().run_until_cancelled(reading).await? {
            Ok(named) => Some(named),
            Err(NoHeader::Closed) => None,
            Err(NoHeader::Malformed | NoHeader::Late) => {
                self.routes.recorder.answered(None, IssuerOutcome::BadRequest, Duration::ZERO);
                None
            }
        }
    }

    async fn connection(&self, stream: TcpStream, place: &Place, exchange: &Exchange) {
        let _ = stream.set_nodelay(true); // without it answers may be slow, no more
        let tls = self.settings.load().tls.clone();
        let source = place.source();
        let Some(tls) = &tls else {
            let client = Client { source, certificate: None };
            return Box::pin(self.plain(stream, client, place, exchange)).await;
        };
        tokio::select! {
            shaken = self.handshake(&tls.serving, stream, source) => if let Some(stream) = shaken {
                let connection = stream.get_ref().1;
                let client = Client { source, certificate: PublicKeyDigest::of_client(connection) };
                // Boxed, so that the handshake's room is given back.
                let (is_http2, stream) = (tls::is_http2(connection), Accepted::Right(Box::new(stream)));
                if is_http2 {
                    Box::pin(self.http2(stream, Vec::new(), client, exchange)).await;
                } else {
                    Box::pin(self.http1(stream, Vec::new(), client, place, exchange)).await;
                }
            },
            () = exchange.displaced() => drop(self.turned_away(&Refusal::Displaced)),
        }
    }

    /// A connection without TLS, whose first bytes show which HTTP it is.
    async fn plain(&self, mut stream: TcpStream, client: Client, place: &Place, exchange: &Exchange) {
        let mut early = Vec::new();
        if self.settings.load().http2 {
            let draining = self.shutdown.drain_token();
            let begun = timeout(self.header_timeout(), begins_http2(&mut stream, &mut early));
            let begun = tokio::select! {
                begun = draining.run_until_cancelled(begun) => begun,
                () = exchange.displaced() => {
                    return self.displaced(stream, place, !early.is_empty()).await;
                }
            };
            match begun {
                Some(Ok(Ok(true))) => {
                    return self.http2(Accepted::Left(stream), early, client, exchange).await;
                }
                Some(Ok(Ok(false))) => {}
                _ => return, // it broke, brought nothing in time, or the drain has begun
            }
        }
        self.http1(Accepted::Left(stream), early, client, place, exchange).await;
    }

    async fn handshake(
        &self,
        tls: &Arc<ServerConfig>,
        stream: TcpStream,
        source: Option<Source>,
    ) -> Option<TlsStream<Bounded<TcpStream>>> {
        if self.routes.rates.handshake(source, &self.settings.load().limits.source).is_err() {
            self.turned_away(&Refusal::SourceHandshakes);
            return None;
        }
        let handshake = timeout(self.header_timeout(), tls::accept(tls, stream));
        match self.shutdown.drain_token().run_until_cancelled(handshake).await {
            Some(Ok(Ok(stream))) => return Some(stream),
            Some(Ok(Err(error))) => tracing::debug!("a TLS handshake failed: {error}"),
            Some(Err(_)) => tracing::debug!("a TLS handshake took too long"),
            None => {} // the drain has begun, and no request came yet
        }
        None
    }

    /// Counts a client that is not served; returns what it may read.
    fn turned_away(&self, refusal: &Refusal) -> Vec<u8> {
        let (answer, outcome) = refusal.raw();
        self.routes.recorder.answered(None, outcome, Duration::ZERO);
        answer
    }

    async fn turn_away(&self, stream: TcpStream, source: Option<Source>, answer: &[u8]) {
        let tls = self.settings.load().tls.clone();
        let Some(tls) = &tls else { return farewell::part(stream, answer).await };
        if let Some(stream) = self.handshake(&tls.refusing, stream, source).await {
            farewell::part(stream, answer).await;
        }
    }

    /// Ends a connection of HTTP/1.1 whose place another needs; `is_owed` an answer if a part of a request came.
    async fn displaced<S>(&self, stream: S, place: &Place, is_owed: bool)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let answer = self.turned_away(&Refusal::Displaced);
        if place.may_answer(self.settings.load().connections) {
            farewell::part(stream, if is_owed { &answer } else { &[] }).await;
        }
    }

    /// What a new connection, or a stream of one, is doing: nothing yet.
    fn exchange(&self) -> Exchange {
        let timeout = self.header_timeout();
        Exchange::new(Patience { answer: timeout, stream: timeout })
    }

    fn header_timeout(&self) -> Duration {
        self.settings.load().limits.header_timeout.get()
    }
}
