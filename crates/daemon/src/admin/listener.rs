//! The admin listener: `/livez`, `/readyz`, `/metrics`, `/status.json` and the live page. Never on the public address.
//!
//! Several daemons in one process share one listener, one [`ProcessContext`] and one [`Exporter`].

use super::live;
use super::process::ProcessContext;
use crate::BoxFuture;
use crate::client_stream::ClientStream;
use crate::exchange::Patience;
use crate::farewell::last_answer;
use crate::http::{is_for_this_machine, text};
use crate::listen::{self, BindError};
use crate::places::{Bounds, Places};
use crate::rates::Rates;
use crate::serve::h1::builder;
use crate::serve::{self, Endpoint, Limits, Parts, TurnedAway, Visitor};
use crate::sources::SourceLimits;
use crate::tls::Accepted;
use ::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use postern_telemetry::metrics::Exporter;
use std::convert::Infallible;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

/// Time limit for a request's header, and for a client that reads nothing.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of connections. A further one displaces the oldest without a request; a scraper or two and a browser need a
/// handful.
const MAX_CONNECTIONS: usize = 64;
/// Maximum number of connections from one address, except from this machine.
const MAX_OF_SOURCE: usize = 32;
/// Maximum number of browsers on the live page; smaller, so that a scraper always finds a place.
const MAX_WATCHERS: usize = 48;
const WHAT: &str = "the admin listener";

/// The admin listener, open but not yet serving.
pub struct Admin {
    listener: TcpListener,
    local: SocketAddr,
    process: ProcessContext,
    exporter: Exporter,
}

impl Admin {
    /// Binds the listener.
    pub async fn bind(
        address: SocketAddr,
        process: &ProcessContext,
        exporter: Exporter,
    ) -> Result<Self, BindError> {
        let listener = listen::bind(WHAT, address).await?;
        let local = listener.local_addr().map_err(|source| BindError { what: WHAT, address, source })?;
        Ok(Self { listener, local, process: process.clone(), exporter })
    }

    /// Returns the bound address, with the actual port in place of 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Serves until the state is *stopped*, so that the drain can be observed. Spawn it next to the work, not on the tracker.
    pub fn serve(self) -> BoxFuture<'static, ()> {
        Box::pin(self.accept())
    }

    async fn accept(self) {
        let pages = Pages {
            process: self.process,
            exporter: self.exporter,
            watchers: Arc::new(Semaphore::new(MAX_WATCHERS)),
            is_loopback: self.local.ip().is_loopback(),
            places: Places::default(),
            rates: Rates::default(),
            sources: SourceLimits { connections: MAX_OF_SOURCE, refusals: 0, ..SourceLimits::default() },
        };
        let (shutdown, connections) = (pages.process.shutdown.clone(), TaskTracker::new());
        let accepting =
            serve::accept(Arc::new(pages), (WHAT, self.listener), &connections, shutdown.stopped());
        let _ = accepting.await; // fails only after the stop
    }
}

impl Endpoint for Pages {
    const WAITS: bool = true; // an answer takes milliseconds, so a place is free soon

    fn parts(&self) -> Parts<'_> {
        Parts { places: &self.places, rates: &self.rates, shutdown: &self.process.shutdown }
    }

    fn with_limits<T>(&self, read: impl FnOnce(Limits<'_>) -> T) -> T {
        let bounds = Bounds { connections: MAX_CONNECTIONS, sources: &self.sources };
        read(Limits { bounds, patience: Patience { answer: HEADER_TIMEOUT, stream: HEADER_TIMEOUT } })
    }

    fn record(&self, reason: TurnedAway) {
        tracing::debug!("an admin connection is turned away: {reason:?}");
    }

    fn answer(&self, _: TurnedAway) -> Vec<u8> {
        let sentence = "Too many connections are open from this address. Close some, or try again later.\n";
        last_answer(StatusCode::TOO_MANY_REQUESTS, Some(1), sentence)
    }

    /// hyper alone drives the connection: a drain, which can be observed here, does not end it.
    async fn serve(&self, stream: Accepted, Visitor { place: _place, exchange, .. }: Visitor) {
        let answering = &exchange;
        let service = service_fn(|request: Request<Incoming>| async move {
            Ok::<_, Infallible>(answering.answer(async { self.respond(&request) }).await)
        });
        let stream = TokioIo::new(ClientStream::new(stream, exchange.clone()));
        let serving = builder(HEADER_TIMEOUT, 16 * 1024).serve_connection(stream, service);
        tokio::select! {
            served = self.process.shutdown.until_stopped(serving) => if let Some(Err(error)) = served {
                tracing::debug!("an admin connection ended early: {error}");
            },
            () = exchange.displaced() => self.record(TurnedAway::Displaced),
        }
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

struct Pages {
    process: ProcessContext,
    exporter: Exporter,
    watchers: Arc<Semaphore>,
    is_loopback: bool,
    places: Places,
    /// Empty: requests are not limited by a rate.
    rates: Rates,
    sources: SourceLimits,
}

impl Pages {
    fn respond(&self, request: &Request<Incoming>) -> Response<Body> {
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
        if prefers_open_metrics(headers) {
            return of_type(OPEN_METRICS, self.exporter.render_open_metrics());
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

    /// Returns the daemons' reports and the state of `/readyz`, as JSON.
    fn status(&self) -> String {
        self.process.readiness.look();
        let mut status = self.process.reports.collect();
        status.insert("draining".to_owned(), self.process.shutdown.is_draining().into());
        status.insert("not_ready".to_owned(), self.process.readiness.reasons().into());
        status.insert("degraded".to_owned(), self.process.readiness.degraded().into());
        serde_json::Value::Object(status).to_string()
    }

    /// Returns the live page's stream, the only answer without an end.
    fn events(&self, method: &Method) -> Response<Body> {
        if method == Method::HEAD {
            return whole(of_type(EVENT_STREAM, ""));
        }
        let Ok(place) = Arc::clone(&self.watchers).try_acquire_owned() else {
            let sentence = format!("{MAX_WATCHERS} pages are open already: close one.\n");
            return whole(text(StatusCode::SERVICE_UNAVAILABLE, sentence));
        };
        // Dropping the stream releases the place.
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
/// Forbids content from other origins and requests to them.
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

/// The format of `/metrics` for a scraper that prefers it, such as Prometheus; others get the older text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns `true` if `Accept` (RFC 9110, section 12.5.1) prefers OpenMetrics 1.0 to plain text, or ranks both equally. Wildcards
/// do not count.
fn prefers_open_metrics(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (mut open, mut plain) = (0.0, 0.0);
    for (media_type, version, weight) in values.flat_map(|value| value.split(',')).filter_map(range) {
        let preferred = match media_type {
            "application/openmetrics-text" if version.is_none_or(|version| version == "1.0.0") => &mut open,
            "text/plain" => &mut plain,
            _ => continue,
        };
        *preferred = weight.max(*preferred);
    }
    open > 0.0 && open >= plain
}

/// Parses a media range into type, `version` and `q`; `None` if its `q` is not a number.
fn range(text: &str) -> Option<(&str, Option<&str>, f32)> {
    let mut parts = text.split(';').map(str::trim);
    let (media_type, mut version, mut weight) = (parts.next()?, None, 1.0);
    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
        match name {
            "version" => version = Some(value.trim_matches('"')),
            "q" => weight = value.parse().ok()?,
            _ => {}
        }
    }
    Some((media_type, version, weight))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_is_for_who_prefers_it() {
        let prefers = |accept: &str| {
            let headers = [(header::ACCEPT, accept.parse().unwrap())].into_iter().collect();
            prefers_open_metrics(&headers)
        };
        for wanted in [
            "application/openmetrics-text",
            "text/plain;q=0.5, application/openmetrics-text; version=\"1.0.0\"; charset=utf-8",
            // Prometheus 2.42 and 3.
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
        ] {
            assert!(prefers(wanted), "{wanted}");
        }
        for unwanted in [
            "",
            "*/*",
            "text/html, application/xhtml+xml, */*;q=0.8",
            "text/plain;version=0.0.4, application/openmetrics-text;version=1.0.0;q=0.5",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;version=2.0.0",
            "application/openmetrics-text;q=high",
        ] {
            assert!(!prefers(unwanted), "{unwanted}");
        }
        assert!(!prefers_open_metrics(&HeaderMap::new()));
    }
}
