//! Connections and routes: HTTP/1.1, plain or over TLS.

use crate::answer::{self, Refusal};
use crate::catalogue::{IssuerOutcome, TokenTypeAsked};
use crate::issue::Issuance;
use crate::keyring::Keyring;
use crate::recorder::Recorder;
use crate::reload::Settings;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HOST};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, request};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use postern_daemon::client_stream::ClientStream;
use postern_daemon::drain::Shutdown;
use postern_daemon::exchange::{Answered, Exchange, Patience};
use postern_daemon::farewell;
use postern_daemon::http::is_for_this_machine;
use postern_daemon::listen;
use postern_daemon::places::{Bounds, Place, Places};
use postern_daemon::proxy_protocol::{self, Named, NoHeader};
use postern_daemon::rates::Rates;
use postern_daemon::sources::Source;
use postern_daemon::tls::{self, Bounded, PublicKeyDigest, ServerConfig, TlsStream};
use postern_token::{DIRECTORY_MEDIA_TYPE, DIRECTORY_PATH, UnixSeconds};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

/// A request's header, all of it. Requests here are a few hundred bytes.
const MAX_HEADER: usize = 16 * 1024;

/// What is served.
#[derive(Debug)]
pub(crate) struct Routes {
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) issuance: Issuance,
    pub(crate) settings: Settings,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) rates: Rates,
}

/// Connections that are open, and how new ones are treated.
pub(crate) struct Server {
    pub(crate) routes: Arc<Routes>,
    pub(crate) settings: Settings,
    pub(crate) places: Places,
    pub(crate) shutdown: Shutdown,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy)]
struct Client {
    source: Option<Source>,
    /// The public key of the certificate that it showed in the handshake.
    certificate: Option<PublicKeyDigest>,
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
        let (timeout, present) = (self.header_timeout(), self.settings.load_full());
        let exchange = Exchange::new(Patience { answer: timeout, stream: timeout });
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
            return Box::pin(self.http(stream, client, place, exchange)).await;
        };
        tokio::select! {
            shaken = self.handshake(tls, stream, source) => if let Some(stream) = shaken {
                let client = Client { source, certificate: PublicKeyDigest::of_client(stream.get_ref().1) };
                Box::pin(self.http(stream, client, place, exchange)).await;
            },
            () = exchange.displaced() => drop(self.turned_away(&Refusal::Displaced)),
        }
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
        let handshake = tokio::time::timeout(self.header_timeout(), tls::accept(tls, stream));
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
        if let Some(stream) = self.handshake(tls, stream, source).await {
            farewell::part(stream, answer).await;
        }
    }

    fn header_timeout(&self) -> Duration {
        self.settings.load().limits.header_timeout.get()
    }

    async fn http<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        client: Client,
        place: &Place,
        exchange: &Exchange,
    ) {
        if let Err(refusal) = self.routes.may_ask(client.source) {
            let answer = self.turned_away(&refusal);
            tokio::select! {
                () = farewell::part(stream, &answer) => {}
                () = exchange.displaced() => {}
            }
            return;
        }
        // Boxed, so that a connection that waits for a request needs no room for one.
        let answer = |request| {
            Box::pin(async move { Ok::<_, Infallible>(self.routes.answer(request, client, exchange).await) })
        };
        let mut connection = http1::Builder::new()
            .timer(TokioTimer::new()) // without it the header timeout is silently off
            .header_read_timeout(self.header_timeout())
            .max_buf_size(MAX_HEADER)
            .serve_connection(TokioIo::new(ClientStream::new(stream, exchange.clone())), service_fn(answer));
        let served = tokio::select! {
            served = &mut connection => served,
            () = exchange.displaced() => {
                let answer = self.turned_away(&Refusal::Displaced);
                let parts = connection.into_parts();
                if place.may_answer(self.settings.load().connections) {
                    let is_owed = exchange.is_idle() && !parts.read_buf.is_empty();
                    let answer = if is_owed { &answer[..] } else { &[] };
                    farewell::part(parts.io.into_inner().into_inner(), answer).await;
                }
                return;
            }
            () = self.shutdown.draining() => {
                // The request that is being answered is the last one.
                std::pin::Pin::new(&mut connection).graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            if error.is_parse() {
                self.routes.refused(client.source); // hyper has answered 400
            }
            tracing::debug!("a connection ended early: {error}");
        }
    }
}

impl Routes {
    /// Whether a request of this source is read, or refused because too many before it were.
    fn may_ask(&self, source: Option<Source>) -> Result<(), Refusal> {
        self.rates.request(source, &self.settings.load().limits.source).map_err(Refusal::SourceRefusals)
    }

    /// Counts a refused request that its client caused.
    fn refused(&self, source: Option<Source>) {
        self.rates.refused(source, &self.settings.load().limits.source);
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        client: Client,
        exchange: &Exchange,
    ) -> Response<Answered<Full<Bytes>>> {
        let began = Instant::now();
        let (head, body) = request.into_parts();
        let is_for_token = self.settings.load().takes_requests_at(head.uri.path());
        let is_posted = is_for_token && head.method == Method::POST;
        // Until its body is there, a request gives way to another connection as one does whose header is not.
        let may_ask = self.may_ask(client.source);
        let is_read = is_posted && may_ask.is_ok();
        let body = if is_read {
            self.issuance.read(&head.headers, client.certificate, body).await
        } else {
            Ok(Bytes::new())
        };
        let answering = exchange.begin().await;
        let mut asked = TokenTypeAsked::Unread;
        let answered = match may_ask {
            Ok(()) => self.route(&head, client, body, &mut asked).await,
            Err(refusal) => Err(refusal),
        };
        if answered.as_ref().is_err_and(Refusal::is_of_client) {
            self.refused(client.source);
        }
        let (response, outcome) = answered.unwrap_or_else(Refusal::into_response);
        self.recorder.answered(is_for_token.then_some(asked), outcome, began.elapsed());
        response.map(|body| answering.with(body))
    }

    async fn route(
        &self,
        head: &request::Parts,
        client: Client,
        body: Result<Bytes, Refusal>,
        asked: &mut TokenTypeAsked,
    ) -> Result<(Response<Full<Bytes>>, IssuerOutcome), Refusal> {
        refuse_ambiguous(head)?;
        // Without accounts anyone who reaches the issuer gets tokens, so it listens on loopback.
        if self.issuance.accounts.is_open() && !is_for_this_machine(&head.headers) {
            return Err(Refusal::ByName);
        }
        match (head.uri.path(), &head.method) {
            (DIRECTORY_PATH, &Method::GET | &Method::HEAD) => Ok(self.directory(head)),
            (DIRECTORY_PATH, _) => Err(Refusal::Method("GET, HEAD")),
            (path, &Method::POST) if self.settings.load().takes_requests_at(path) => {
                let (headers, certificate) = (&head.headers, client.certificate);
                Ok(answer::issued(&self.issuance.answer(headers, certificate, body?, asked).await?))
            }
            (path, _) if self.settings.load().takes_requests_at(path) => Err(Refusal::Method("POST")),
            _ => Err(Refusal::NotFound),
        }
    }

    /// The key directory (RFC 9578, section 4), or 304 to who has it.
    fn directory(&self, head: &request::Parts) -> (Response<Full<Bytes>>, IssuerOutcome) {
        let document = self.keyring.document();
        let max_age = document.max_age(self.settings.load().directory_max_age, UnixSeconds::now()).as_secs();
        let known = document.is_known_to(&head.headers);
        let body = if known { Bytes::new() } else { document.body.clone() };
        let mut response = Response::new(Full::new(body));
        let headers = response.headers_mut();
        let field = |value: String| HeaderValue::try_from(value).ok(); // ASCII by construction
        headers.extend(field(format!("public, max-age={max_age}")).map(|value| (CACHE_CONTROL, value)));
        headers.extend(field(document.etag.clone()).map(|value| (ETAG, value)));
        if known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return (response, IssuerOutcome::NotModified);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(DIRECTORY_MEDIA_TYPE));
        (response, IssuerOutcome::Directory)
    }
}

/// What a proxy in front could read otherwise than we do (RFC 9112, section 3.2). hyper refuses the rest, and closes
/// the connection after a request with both Transfer-Encoding and Content-Length (section 6.3).
fn refuse_ambiguous(head: &request::Parts) -> Result<(), Refusal> {
    let hosts = head.headers.get_all(HOST).iter().count();
    if hosts > 1 || (hosts == 0 && head.version == Version::HTTP_11) {
        return Err(Refusal::Ambiguous("does not have exactly one Host field"));
    }
    Ok(())
}
