//! The admin listener: `/livez`, `/readyz`, `/metrics`, `/status.json` and the live page. Never on the public address.
//!
//! Several daemons in one process share one listener, one [`ProcessContext`] and one [`Exporter`].

use crate::ProcessContext;
use crate::accept;
use crate::live;
use ::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use postern_daemon::BoxFuture;
use postern_daemon::client_stream::ClientStream;
use postern_daemon::exchange::{Exchange, Patience};
use postern_daemon::farewell;
use postern_daemon::http::{is_for_this_machine, text};
use postern_daemon::listen::{self, BindError};
use postern_daemon::places::{Bounds, Places};
use postern_daemon::sources::SourceLimits;
use postern_telemetry::metrics::Exporter;
use std::convert::Infallible;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// A header that takes longer than this closes the connection, and so does a client that reads nothing for so long.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// For one more connection the oldest gives way that asks nothing: a scraper or two and a browser need a handful.
const MAX_CONNECTIONS: usize = 64;
/// Of these from one address, unless it is on this machine.
const MAX_OF_SOURCE: usize = 32;
/// Browsers that may watch the live page at once: fewer, so that a scraper always finds a place.
const MAX_WATCHERS: usize = 48;
/// The listener's name in the log and in errors.
const WHAT: &str = "the admin listener";

/// The admin listener, open but not yet serving.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
    local: SocketAddr,
    process: ProcessContext,
    exporter: Exporter,
}

impl Admin {
    /// Opens the listener.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn bind(
        address: SocketAddr,
        process: &ProcessContext,
        exporter: Exporter,
    ) -> Result<Self, BindError> {
        let listener = listen::bind(WHAT, address).await?;
        let local = listener.local_addr().map_err(|source| BindError { what: WHAT, address, source })?;
        Ok(Self { listener, local, process: process.clone(), exporter })
    }

    /// The address it listens on, with the real port in place of 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Serves until the state is *stopped*: through the drain, so that it can be watched. Spawn it beside the work, not
    /// on the tracker.
    pub fn serve(self) -> BoxFuture<'static, ()> {
        Box::pin(self.accept())
    }

    async fn accept(self) {
        let (places, sources) =
            (Places::default(), SourceLimits { connections: MAX_OF_SOURCE, ..SourceLimits::default() });
        let shutdown = self.process.shutdown.clone();
        let pages = Arc::new(Pages {
            process: self.process,
            exporter: self.exporter,
            watchers: Arc::new(Semaphore::new(MAX_WATCHERS)),
            is_loopback: self.local.ip().is_loopback(),
        });
        let accepting = async {
            loop {
                let (stream, from) = match self.listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        listen::pause(WHAT, &error).await;
                        continue;
                    }
                };
                let exchange = Exchange::new(Patience { answer: HEADER_TIMEOUT, stream: HEADER_TIMEOUT });
                let bounds = Bounds { connections: MAX_CONNECTIONS, sources: &sources };
                let (shutdown, pages) = (shutdown.clone(), pages.clone());
                match places.wait(Some(from.ip()), bounds, &exchange).await {
                    Ok(place) => tokio::spawn(async move {
                        shutdown.until_stopped(connection(stream, pages, &exchange)).await;
                        drop(place);
                    }),
                    Err(_) => {
                        let Some(leaving) = places.leave(MAX_CONNECTIONS) else { continue };
                        tokio::spawn(async move {
                            shutdown.until_stopped(farewell::part(stream, &too_many())).await;
                            drop(leaving);
                        })
                    }
                };
            }
        };
        shutdown.until_stopped(accepting).await;
    }
}

/// What a client reads whose address has too many connections.
fn too_many() -> Vec<u8> {
    let sentence = "Too many connections are open from this address. Close some, or try again later.\n";
    farewell::later(StatusCode::TOO_MANY_REQUESTS, 1, sentence)
}

async fn connection(stream: TcpStream, pages: Arc<Pages>, exchange: &Exchange) {
    let service = service_fn(move |request: Request<Incoming>| {
        let pages = pages.clone();
        async move { Ok::<_, Infallible>(exchange.answer(async { pages.answer(&request) }).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new()) // without it the header timeout is silently off
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(ClientStream::new(stream, exchange.clone())), service);
    tokio::select! {
        served = serving => if let Err(error) = served {
            tracing::debug!("an admin connection ended early: {error}");
        },
        () = exchange.displaced() => tracing::debug!("an admin connection gave way to another"),
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What the listener answers.
struct Pages {
    process: ProcessContext,
    exporter: Exporter,
    watchers: Arc<Semaphore>,
    is_loopback: bool,
}

impl Pages {
    fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let (method, path) = (request.method(), request.uri().path());
        if method == Method::CONNECT {
            let sentence = "This is an admin listener of Postern, no proxy: give the address of the gateway or the agent.\n";
            return whole(text(StatusCode::NOT_FOUND, sentence));
        }
        if self.is_loopback && !is_for_this_machine(request.headers()) {
            let sentence = "This listener is on loopback: address it as localhost or by its IP address.\n";
            return whole(text(StatusCode::MISDIRECTED_REQUEST, sentence));
        }
        if !PATHS.contains(&path) {
            let list = PATHS.join("\n");
            return whole(text(StatusCode::NOT_FOUND, format!("Nothing here. There is:\n{list}\n")));
        }
        if method != Method::GET && method != Method::HEAD {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD are answered here.\n");
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return whole(response);
        }
        match path {
            "/livez" => whole(text(StatusCode::OK, "live\n")),
            "/readyz" => whole(self.ready()),
            "/metrics" => whole(self.metrics(request.headers())),
            "/live.json" => whole(of_type("application/json", self.process.live.latest())),
            "/status.json" => whole(of_type("application/json", self.status())),
            "/events" => self.events(method),
            _ => whole(page()),
        }
    }

    fn metrics(&self, headers: &HeaderMap) -> Response<Full<Bytes>> {
        if accept::prefers_open_metrics(headers) {
            return of_type(accept::OPEN_METRICS, self.exporter.render_open_metrics());
        }
        of_type("text/plain; version=0.0.4; charset=utf-8", self.exporter.render())
    }

    fn ready(&self) -> Response<Full<Bytes>> {
        self.process.readiness.look();
        let mut reasons = self.process.readiness.reasons();
        if self.process.shutdown.is_draining() {
            reasons.insert(0, "draining".to_owned());
        }
        if !reasons.is_empty() {
            return text(StatusCode::SERVICE_UNAVAILABLE, lines(String::new(), "", &reasons));
        }
        text(StatusCode::OK, lines("ready\n".to_owned(), "degraded: ", &self.process.readiness.degraded()))
    }

    /// The reports of the daemons, and what `/readyz` says.
    fn status(&self) -> String {
        self.process.readiness.look();
        let mut status = self.process.reports.collect();
        status.insert("draining".to_owned(), self.process.shutdown.is_draining().into());
        status.insert("not_ready".to_owned(), self.process.readiness.reasons().into());
        status.insert("degraded".to_owned(), self.process.readiness.degraded().into());
        serde_json::Value::Object(status).to_string()
    }

    /// The live page's stream: the one answer here without an end.
    fn events(&self, method: &Method) -> Response<Body> {
        if method == Method::HEAD {
            return whole(of_type(EVENT_STREAM, ""));
        }
        let Ok(place) = Arc::clone(&self.watchers).try_acquire_owned() else {
            let sentence = format!("{MAX_WATCHERS} pages are open already: close one.\n");
            return whole(text(StatusCode::SERVICE_UNAVAILABLE, sentence));
        };
        // The place is given back with the stream.
        let events = live::events(&self.process.live).map(move |event| {
            let _place = &place;
            event
        });
        let mut response = Response::new(StreamBody::new(events).boxed_unsync());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

const PATHS: [&str; 7] = ["/", "/livez", "/readyz", "/metrics", "/live.json", "/status.json", "/events"];
const EVENT_STREAM: &str = "text/event-stream";
/// Nothing from elsewhere, and nothing to elsewhere.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn page() -> Response<Full<Bytes>> {
    let mut response = of_type("text/html; charset=utf-8", live::page());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

fn of_type(content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::OK, body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn whole(response: Response<Full<Bytes>>) -> Response<Body> {
    response.map(BodyExt::boxed_unsync)
}

fn lines(text: String, prefix: &str, reasons: &[String]) -> String {
    reasons.iter().fold(text, |mut text, reason| {
        let _ = writeln!(text, "{prefix}{reason}"); // writing to a String cannot fail
        text
    })
}
