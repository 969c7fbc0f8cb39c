//! One client connection: requests in sequence, until one of them becomes a tunnel, or the connection turns out to be HTTP/2.
//!
//! The driver of HTTP/1.1 returns the stream when a CONNECT was answered 200, and the same task becomes the tunnel: a tunnel
//! costs one task, and nothing is passed between tasks. The driver also returns a connection that begins with the preface of
//! HTTP/2, with or without TLS, and `h2` continues with it.

use crate::config::{AccessLog, Limits};
use crate::request::answer::Body;
use crate::request::forward::RequestBody;
use crate::request::peer::Peer;
use crate::request::session::{self, Answer, Client, Opened};
use crate::request::tunnel;
use crate::server::h2;
use crate::state::Worker;
use http::header::CONNECTION;
use http::{HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use parking_lot::Mutex;
use postern_daemon::exchange::{Answered, Exchange};
use postern_daemon::serve::h1::{Ended, Finished, Unanswered, builder, drive_http1};
use postern_daemon::serve::{Endpoint, Visitor};
use postern_daemon::tls::Accepted;
use postern_proxy::reset::Reset;
use postern_proxy::udp::is_upgrade;
use std::sync::Arc;

/// Maximum fields of a request. hyper reserves memory for all of them with every head: 256 cost half a microsecond more than
/// its default of 100, and 1,000 cost two.
const MOST_FIELDS: usize = 256;

/// Serves a connection until its end or the stop.
pub(super) async fn serve(
    endpoint: &impl Endpoint,
    stream: Accepted,
    mut visitor: Visitor,
    peer: Option<Peer>,
    worker: &Arc<Worker>,
) {
    let core = &worker.core;
    let generation = core.generation.load_full();
    let limits = Arc::clone(&generation.settings.limits);
    let address = (generation.settings.access == AccessLog::Full).then_some(visitor.address);
    drop(generation); // a reload waits for its last use
    let client = Client { address, source: visitor.place.source(), peer };
    // Boxed, so the memory of HTTP is freed before the tunnel begins.
    let requests = Box::pin(requests(endpoint, stream, client, &visitor.exchange, &limits, worker));
    match requests.await {
        (Finished { stream, early, ended: Ended::Closed }, Some(opened)) => {
            visitor.place.keep();
            let tunnel = tunnel::run(stream, opened, early, &limits, &core.recorder);
            drop(limits);
            core.shutdown.until_stopped(tunnel).await;
        }
        (Finished { stream, early, ended: Ended::Http2 }, _) if core.generation.load().settings.http2 => {
            stream.bound_unsent();
            Box::pin(h2::serve(endpoint, stream, early, (client, visitor), limits, worker)).await;
        }
        (finished, _) => finished.end(endpoint, &visitor.place, &visitor.exchange).await,
    }
}

/// Answers requests until one of them becomes a tunnel, whose parts it returns, the connection ends, or the stop comes.
async fn requests(
    endpoint: &impl Endpoint,
    stream: Accepted,
    client: Client,
    exchange: &Exchange,
    limits: &Limits,
    worker: &Worker,
) -> (Finished, Option<Opened>) {
    let opened = Mutex::new(None);
    let most_bytes = usize::try_from(limits.header_size.0).unwrap_or(usize::MAX);
    let mut http = builder(limits.header_timeout.get(), most_bytes);
    http.max_headers(MOST_FIELDS)
        .preserve_header_case(true) // of forwarded messages
        .half_close(true); // a client may close its sending side early and still expects its answer
    let answer = |request| Box::pin(respond(worker, limits, client, exchange, &opened, request));
    let finished = drive_http1(endpoint, &http, stream, exchange, answer).await;
    (finished, opened.into_inner())
}

/// Answers one request. Leaves a CONNECT's connection to its target in `opened` for the tunnel.
///
/// Each await here and in `session` is of a call, not of a future in a variable: a variable would double the future's size, and
/// all of it is moved for each request.
async fn respond(
    worker: &Worker,
    limits: &Limits,
    client: Client,
    exchange: &Exchange,
    opened: &Mutex<Option<Opened>>,
    request: Request<Incoming>,
) -> Result<Response<Answered<Body>>, Unanswered> {
    let answering = exchange.begin().await;
    let version = request.version();
    let (head, body) = request.into_parts();
    let is_transition = head.method == Method::CONNECT || is_upgrade(&head);
    let request = Request::from_parts(head, RequestBody::Left(body));
    let mut response = match session::answer(worker, limits, client, exchange, request).await {
        Answer::Tunnel(response, tunnel) => {
            *opened.lock() = Some(tunnel);
            exchange.keep();
            response
        }
        Answer::Refused(mut response) => {
            if is_transition {
                // The client may have sent bytes for the tunnel already, which must not be read as a request (RFC 9931).
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
        Answer::Forwarded(response) => {
            exchange.stream();
            response
        }
    };
    *response.version_mut() = version; // an answer in HTTP/1.0 is the last: RFC 9112, section 9.3
    Ok(response.map(|body| answering.with(body)))
}
