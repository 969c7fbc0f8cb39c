//! The HTTP proxy: CONNECT, and plain requests in absolute form.

use crate::catalogue::AgentOutcome;
use crate::front::answer::{Body, Refusal, boxed, full};
use crate::front::forward::{ForwardError, KeptTunnels};
use crate::front::own_pages::{self, ConnectionEnds};
use crate::front::state::{Admission, AgentState};
use crate::hop::tunnel::OpenError;
use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue, PROXY_AUTHORIZATION};
use http::request::Parts;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use postern_daemon::answers_only::AnswersOnly;
use postern_daemon::client_stream::ClientStream;
use postern_daemon::exchange::Exchange;
use postern_daemon::farewell::{LINGER, leave, part};
use postern_daemon::places::Place;
use postern_proxy::headers::{announces_body, forwards_left, has_other_coding, host};
use postern_proxy::plain::MOST_FIELDS;
use postern_proxy::relay::Relay;
use postern_proxy::reset::{self, Reset};
use postern_proxy::target::Target;
use postern_token::header::{AuthorizationError, Presentation, parse_authorization};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// Time limit for a request's header, and for an idle connection between requests.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of a header, in bytes. Cookies make plain requests long.
const HEADER_LIMIT: usize = 32 * 1024;

/// A closed connection without an answer: the client reacts as to a server that closed it.
#[derive(Debug, thiserror::Error)]
#[error("the target closed the connection that the request was sent on")]
struct Unanswered;

/// Serves one client connection.
pub(crate) async fn serve(stream: TcpStream, admission: Admission, state: Arc<AgentState>) {
    let kept = Arc::new(KeptTunnels::default());
    let shutdown = state.shutdown.clone();
    let Admission { place, exchange } = admission;
    let Ok(ends) = ConnectionEnds::of(&stream) else { return }; // it is gone already
    // A tunnel goes on in a task of its own.
    let place = Arc::new(Mutex::new(place));
    let (answers, gives_way) = (state.clone(), exchange.clone());
    let stream = AnswersOnly::new(ClientStream::new(stream, exchange.clone()), exchange.clone());
    let service = service_fn(move |request| {
        let (state, kept, exchange, place) = (state.clone(), kept.clone(), exchange.clone(), place.clone());
        async move {
            let (answering, version) = (exchange.begin().await, request.version());
            let mut response = respond(request, ends, state, &kept, &exchange, place).await?;
            *response.version_mut() = version; // one of HTTP/1.0 is the last: RFC 9112, section 9.3
            Ok::<_, Unanswered>(response.map(|body| answering.with(body)))
        }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new()) // without it the header timeout is silently off
        .header_read_timeout(HEADER_TIMEOUT)
        .half_close(true) // a client may send all it has and then only read
        .max_buf_size(HEADER_LIMIT)
        .max_headers(MOST_FIELDS)
        .preserve_header_case(true) // in lower case, a target would know requests of an agent
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let served = tokio::select! {
        served = &mut connection => served,
        () = gives_way.displaced() => return,
        () = shutdown.draining() => {
            std::pin::Pin::new(&mut connection).graceful_shutdown();
            (&mut connection).await
        }
    };
    // Nothing is left of one that became a tunnel.
    let Some(parts) = connection.into_parts() else { return };
    let stream = parts.io.into_inner().into_inner().into_inner();
    let Err(error) = served else { return leave(stream).await };
    tracing::debug!("a client connection ended early: {error}"); // hyper's own words, without addresses
    match last_refusal(&error).filter(|_| gives_way.is_idle()) {
        Some(refusal) => {
            answers.count(refusal.outcome());
            part(stream, &refusal.into_bytes()).await;
        }
        // A client that reads to the end must not take this for the end of an answer.
        None if !gives_way.is_idle() && !is_unanswered(&error) => {
            reset::delivered(&stream, LINGER).await;
            stream.reset();
        }
        None => leave(stream).await,
    }
}

fn is_unanswered(error: &hyper::Error) -> bool {
    error.source().is_some_and(|cause| cause.is::<Unanswered>())
}

/// Chooses the answer to a request that hyper could not read.
fn last_refusal(error: &hyper::Error) -> Option<Refusal> {
    const MALFORMED: &str = "This is no request of HTTP/1.1. In a URL, \", <, >, ` and what is not ASCII are written with a percent \
                             sign (RFC 3986, section 2.1)";
    if error.is_parse_too_large() {
        Some(Refusal::HeaderTooLarge)
    } else {
        error.is_parse().then_some(Refusal::Request(MALFORMED))
    }
}

async fn respond(
    request: Request<Incoming>,
    ends: ConnectionEnds,
    state: Arc<AgentState>,
    kept: &KeptTunnels,
    exchange: &Exchange,
    place: Arc<Mutex<Place>>,
) -> Result<Response<Body>, Unanswered> {
    if request.method() != Method::CONNECT && ends.are_meant_by(request.uri()) {
        return Ok(own_pages::answer(&request, ends, &state).map(boxed));
    }
    let (head, body) = request.into_parts();
    let answered = match check(&head) {
        Err(refusal) => Err(refusal.into()),
        Ok(()) if head.method == Method::CONNECT => {
            connect(Request::from_parts(head, body), state.clone(), exchange, place).await.map_err(Into::into)
        }
        Ok(()) => {
            let request = Request::from_parts(head, body);
            kept.forward(request, exchange, &state).await.inspect(|_| exchange.stream())
        }
    };
    match answered {
        Ok(response) => {
            state.count(AgentOutcome::Opened);
            Ok(response)
        }
        Err(ForwardError::Refused(refusal)) => {
            state.count(refusal.outcome());
            Ok(refusal.into_response().map(boxed))
        }
        Err(ForwardError::Lost) => {
            state.count(AgentOutcome::TargetFailed);
            Err(Unanswered)
        }
    }
}

/// Tells whether the client presents a token of its own, even a malformed one: it takes this agent for a gateway.
fn brings_a_token(headers: &HeaderMap) -> bool {
    let is_token = |value: &HeaderValue| match parse_authorization(value.as_bytes()) {
        Ok(presented) => matches!(presented, Presentation::Token(_)),
        Err(error) => !matches!(error, AuthorizationError::Grammar(_)), // of whatever scheme
    };
    headers.get_all(PROXY_AUTHORIZATION).iter().any(is_token)
}

/// Refuses requests that are not for a proxy or are ambiguous.
fn check(head: &Parts) -> Result<(), Refusal> {
    if brings_a_token(&head.headers) {
        return Err(OpenError::ForGateway.into()); // it stays unspent
    }
    let is_connect = head.method == Method::CONNECT;
    let sentence = if is_connect && head.uri.scheme().is_some() {
        "CONNECT takes host:port, and no URL"
    } else if is_connect && announces_body(head) {
        "A CONNECT request has no body"
    } else if !is_connect && head.uri.scheme_str() != Some("http") {
        "Only http:// is forwarded in absolute form: use CONNECT for everything else"
    } else if host(head).is_err() {
        "A request of HTTP/1.1 has one Host field, with a host or nothing in it (RFC 9112, section 3.2)"
    } else if has_other_coding(&head.headers) {
        "The body of a request has no other transfer coding than chunked"
    } else if forwards_left(head) == Some(0) {
        return Err(Refusal::LastHop);
    } else {
        return Ok(());
    };
    Err(Refusal::Request(sentence))
}

/// Opens the tunnel; the relay starts when hyper has sent the 200.
async fn connect(
    mut request: Request<Incoming>,
    state: Arc<AgentState>,
    exchange: &Exchange,
    place: Arc<Mutex<Place>>,
) -> Result<Response<Body>, Refusal> {
    let target = request.uri().authority().map_or("", |authority| authority.as_str());
    let target = Target::parse(target, None)?;
    let upgrade = hyper::upgrade::on(&mut request);
    let tunnel = state.opener.open(&target).await?;
    let shutdown = state.shutdown.clone();
    place.lock().keep();
    let received = tunnel.received();
    state.shutdown.tracker().spawn(async move {
        let _place = place;
        let relaying = async {
            let Ok(upgraded) = upgrade.await else { return };
            // It is the stream that `serve` put in; early bytes of the client come with it.
            let Ok(parts) = upgraded.downcast::<TokioIo<AnswersOnly<ClientStream<TcpStream>>>>() else {
                return;
            };
            let stream = parts.io.into_inner().into_inner().into_inner();
            Relay::new(stream, tunnel, &parts.read_buf, None).await;
        };
        shutdown.until_stopped(received.keep_taking(relaying)).await;
    });
    exchange.keep();
    Ok(Response::new(full(Bytes::new())))
}
