//! Connections and routes: HTTP/1.1, plain or over TLS.

use crate::answer::{Refusal, issued};
use crate::catalogue::{IssuerOutcome, TokenTypeAsked};
use crate::issue::Issuance;
use crate::keyring::Keyring;
use crate::recorder::Recorder;
use crate::reload::{Settings, Slots};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HOST};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, request};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use postern_daemon::drain::Shutdown;
use postern_daemon::exchange::{Exchange, Patience};
use postern_daemon::http::is_for_this_machine;
use postern_daemon::writes::Writes;
use postern_token::{DIRECTORY_MEDIA_TYPE, DIRECTORY_PATH, UnixSeconds};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

/// A request's header, all of it. Requests here are a few hundred bytes.
const MAX_HEADER: usize = 16 * 1024;
/// How long to leave the listener alone when accepting fails for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What is served.
#[derive(Debug)]
pub(crate) struct Routes {
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) issuance: Issuance,
    pub(crate) request_path: String,
    pub(crate) settings: Settings,
    pub(crate) recorder: Arc<Recorder>,
}

/// Connections that are open, and how new ones are treated.
pub(crate) struct Server {
    pub(crate) routes: Arc<Routes>,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) settings: Settings,
    pub(crate) slots: Slots,
    pub(crate) shutdown: Shutdown,
}

impl Server {
    /// Accepts until the drain begins, then waits until the last connection is done.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let connections = TaskTracker::new();
        let slots = self.slots.clone();
        let server = Arc::new(self);
        let draining = server.shutdown.drain_token();
        let accepting = async {
            // There is always a next place, so this ends only when the drain begins.
            while let Some(slot) = slots.take().await {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let server = server.clone();
                        connections.spawn(async move {
                            let _slot = slot;
                            let _ = server.shutdown.until_stopped(server.connection(stream)).await;
                        });
                    }
                    Err(error) => {
                        tracing::warn!(
                            "the issuer cannot accept a connection: {error}; it tries again. If this goes on, raise \
                             the limit of open files (ulimit -n, LimitNOFILE)"
                        );
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        draining.run_until_cancelled(accepting).await;
        drop(listener);
        connections.close();
        connections.wait().await;
    }

    async fn connection(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true); // without it answers may be slow, no more
        let Some(acceptor) = &self.tls else { return self.http(stream).await };
        let handshake = tokio::time::timeout(self.header_timeout(), acceptor.accept(stream));
        match self.shutdown.drain_token().run_until_cancelled(handshake).await {
            Some(Ok(Ok(stream))) => self.http(stream).await,
            Some(Ok(Err(error))) => tracing::debug!("a TLS handshake failed: {error}"),
            Some(Err(_)) => tracing::debug!("a TLS handshake took too long"),
            None => {} // the drain has begun, and no request came yet
        }
    }

    fn header_timeout(&self) -> Duration {
        self.settings.load().limits.header_timeout.get()
    }

    async fn http<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) {
        let timeout = self.header_timeout();
        let exchange = Exchange::new(Patience { answer: timeout, stream: timeout });
        let stream = Writes::new(stream, exchange.clone());
        let service = service_fn(|request| {
            let work = self.routes.answer(request);
            async { Ok::<_, Infallible>(exchange.answer(work).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new()) // without it the header timeout is silently off
            .header_read_timeout(timeout)
            .max_buf_size(MAX_HEADER)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = self.shutdown.draining() => {
                connection.as_mut().graceful_shutdown(); // the request that is being answered is the last one
                connection.await
            }
        };
        if let Err(error) = served {
            tracing::debug!("a connection ended early: {error}");
        }
    }
}

impl Routes {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let began = Instant::now();
        let is_for_token = request.uri().path() == self.request_path;
        let mut asked = TokenTypeAsked::Unread;
        let answered = self.route(request, &mut asked).await;
        let (response, outcome) = answered.unwrap_or_else(Refusal::into_response);
        self.recorder.answered(is_for_token.then_some(asked), outcome, began.elapsed());
        response
    }

    async fn route(
        &self,
        request: Request<Incoming>,
        asked: &mut TokenTypeAsked,
    ) -> Result<(Response<Full<Bytes>>, IssuerOutcome), Refusal> {
        let (head, body) = request.into_parts();
        refuse_ambiguous(&head)?;
        // Without accounts anyone who reaches the issuer gets tokens, so it listens on loopback.
        if self.issuance.accounts.is_open() && !is_for_this_machine(&head.headers) {
            return Err(Refusal::ByName);
        }
        match (head.uri.path(), &head.method) {
            (DIRECTORY_PATH, &Method::GET | &Method::HEAD) => Ok(self.directory(&head)),
            (DIRECTORY_PATH, _) => Err(Refusal::Method("GET, HEAD")),
            (path, &Method::POST) if path == self.request_path => {
                let response = self.issuance.answer(Request::from_parts(head, body), asked).await?;
                Ok((issued(&response), IssuerOutcome::Issued))
            }
            (path, _) if path == self.request_path => Err(Refusal::Method("POST")),
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
