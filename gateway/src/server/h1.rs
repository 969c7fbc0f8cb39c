//! The driver of HTTP/1.1: hyper reads and writes the HTTP; when a CONNECT was answered 200 it gives the stream back.

use crate::config::Limits;
use crate::request::answer::Body;
use crate::request::deny::Refusal;
use crate::request::session::{self, Answer, Client, Opened};
use crate::request::upload::RequestBody;
use crate::state::Worker;
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use postern_daemon::answers_only::AnswersOnly;
use postern_daemon::client_stream::ClientStream;
use postern_daemon::early;
use postern_daemon::exchange::{Answered, Exchange};
use postern_daemon::tls::Accepted;
use postern_proxy::reset::Reset;
use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;

/// How long a connection that has not brought a request yet may still bring one when a drain begins: it may be on its
/// way, or lie in the kernel's queue.
const FIRST_REQUEST: Duration = Duration::from_millis(500);

/// Fields of a request. hyper lays out room for each of them with every head: 256 cost half a microsecond more than its 100, and 1,000
/// two.
const MOST_FIELDS: usize = 256;

/// What is left when hyper has finished with a connection.
pub(crate) enum Finished {
    /// A CONNECT was answered 200; `early` are bytes of the client that came with it.
    Tunnel { stream: Accepted, early: Bytes, opened: Opened },
    /// The client speaks HTTP/2, and began with `early`.
    Http2 { stream: Accepted, early: Bytes },
    /// A last answer is still to be written.
    Owed { stream: Accepted, refusal: Refusal },
    /// An answer broke off: its target did, or the stop came.
    Torn { stream: Accepted },
    /// Another connection needs the place; `is_owed` an answer if a part of a request came.
    Displaced { stream: Accepted, is_owed: bool },
    /// Nothing is left to write.
    Closed { stream: Accepted },
}

/// Answers requests until one of them becomes a tunnel, the connection is over, or the stop comes. Do not drop it
/// earlier: an answer in progress has to end in a reset.
pub(crate) async fn requests(
    stream: Accepted,
    client: Client,
    exchange: Exchange,
    limits: Arc<Limits>,
    worker: Arc<Worker>,
) -> Finished {
    let served = Arc::new(Served::default());
    let shutdown = worker.core.shutdown.clone();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout.get())
        .max_buf_size(usize::try_from(limits.header_size.0).unwrap_or(usize::MAX))
        .max_headers(MOST_FIELDS)
        .preserve_header_case(true) // of what is forwarded
        .half_close(true); // a client may close its sending side early and still wants its answer
    let service = {
        let (exchange, served, worker) = (exchange.clone(), Arc::clone(&served), Arc::clone(&worker));
        service_fn(move |request| {
            served.begin();
            let (worker, limits) = (Arc::clone(&worker), Arc::clone(&limits));
            Box::pin(respond(worker, limits, client, exchange.clone(), Arc::clone(&served), request))
        })
    };
    let stream = AnswersOnly::new(ClientStream::new(stream, exchange.clone()), exchange.clone());
    let mut connection = http.serve_connection(TokioIo::new(stream), service);
    // hyper ends a connection without a request at once, whatever it is about to bring.
    let drain = async {
        shutdown.draining().await;
        let _ = timeout(FIRST_REQUEST, served.begun.notified()).await;
    };
    let (mut draining, mut stopped) = (Some(pin!(drain)), pin!(shutdown.stopped()));
    let mut displaced = pin!(exchange.displaced());
    let ended = std::future::poll_fn(|cx| {
        if stopped.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ended::Stopped);
        }
        if displaced.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ended::Displaced);
        }
        if draining.as_mut().is_some_and(|drain| drain.as_mut().poll(cx).is_ready()) {
            draining = None;
            Pin::new(&mut connection).graceful_shutdown();
        }
        // Not `poll_without_shutdown`: it gives up what hyper has not written yet.
        Pin::new(&mut connection).poll(cx).map(Ended::Http)
    })
    .await;
    let parts = connection.into_parts();
    let stream = parts.io.into_inner().into_inner().into_inner();
    let opened = served.opened.lock().take();
    match (ended, opened) {
        (Ended::Http(Ok(())), Some(opened)) => Finished::Tunnel { stream, early: parts.read_buf, opened },
        (Ended::Http(Ok(())), None) => Finished::Closed { stream },
        (Ended::Displaced, _) => {
            let is_owed = exchange.is_idle() && !parts.read_buf.is_empty();
            if !exchange.is_idle() {
                stream.reset(); // what is unread of an answer is not all of it
            }
            Finished::Displaced { stream, is_owed }
        }
        (Ended::Stopped | Ended::Http(Err(_)), _) if !exchange.is_idle() => Finished::Torn { stream },
        (Ended::Stopped, _) => Finished::Closed { stream },
        (Ended::Http(Err(error)), _)
            if worker.core.generation.load().http2
                && !served.has_begun()
                && error.is_parse()
                && early::is_http2(&parts.read_buf) =>
        {
            Finished::Http2 { stream, early: parts.read_buf }
        }
        (Ended::Http(Err(error)), _) => match last_refusal(&error, !parts.read_buf.is_empty()) {
            Some(refusal) => Finished::Owed { stream, refusal },
            None => Finished::Closed { stream },
        },
    }
}

/// What the service has done with requests.
#[derive(Default)]
struct Served {
    has_begun: AtomicBool,
    begun: Notify,
    /// The tunnel's, once a CONNECT is answered 200.
    opened: Mutex<Option<Opened>>,
}

impl Served {
    fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
        self.begun.notify_one();
    }

    fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }
}

/// Why HTTP is over on a connection.
enum Ended {
    Http(hyper::Result<()>),
    Stopped,
    Displaced,
}

/// The answer to a request that hyper could not read; `begun` when there are bytes of it. A connection that fell silent
/// between requests gets none.
fn last_refusal(error: &hyper::Error, begun: bool) -> Option<Refusal> {
    if error.is_parse_too_large() {
        Some(Refusal::HeaderTooLarge)
    } else if error.is_parse() {
        Some(Refusal::Malformed)
    } else if error.is_timeout() && begun {
        Some(Refusal::HeaderTimeout)
    } else {
        None
    }
}

/// One request, one answer. A CONNECT's connection to its target is left in `opened` for the tunnel.
///
/// Each await here and in `session` is of a call, not of a future in a variable: that one would have room twice, and all of it is
/// moved for each request.
async fn respond(
    worker: Arc<Worker>,
    limits: Arc<Limits>,
    client: Client,
    exchange: Exchange,
    served: Arc<Served>,
    request: Request<Incoming>,
) -> Result<Response<Answered<Body>>, Infallible> {
    let answering = exchange.begin().await;
    let version = request.version();
    let request = request.map(RequestBody::Http1);
    let mut response = match session::answer(&worker, &limits, client, &exchange, request).await {
        Answer::Tunnel(response, tunnel) => {
            *served.opened.lock() = Some(tunnel);
            exchange.keep();
            response
        }
        Answer::Refused(response) => response,
        Answer::Forwarded(response) => {
            exchange.stream();
            response
        }
    };
    *response.version_mut() = version; // one of HTTP/1.0 is the last: RFC 9112, section 9.3
    Ok(response.map(|body| answering.with(body)))
}
