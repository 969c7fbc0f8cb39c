//! The HTTP proxy: CONNECT, plain requests in absolute form, and UDP by `Upgrade: connect-udp` (RFC 9298, section 3.2), whose capsules
//! go on to the gateway unchanged.

use crate::catalogue::AgentOutcome;
use crate::front::answer::{Body, HEADER_LIMIT, Refusal, boxed, full};
use crate::front::forward::{ForwardError, KeptTunnels};
use crate::front::own_pages::{self, ConnectionEnds};
use crate::front::state::{AgentState, UDP_IDLE};
use crate::hop::tunnel::OpenError;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, HeaderMap, HeaderValue, PROXY_AUTHORIZATION};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use parking_lot::Mutex;
use postern_daemon::exchange::Exchange;
use postern_daemon::serve::Visitor;
use postern_daemon::serve::h1::{Ended, Finished, Unanswered, builder, drive_http1};
use postern_daemon::tls::Accepted;
use postern_proxy::headers::{announces_body, forwards_left, has_other_coding, host};
use postern_proxy::plain::MOST_FIELDS;
use postern_proxy::relay::Relay;
use postern_proxy::target::Target;
use postern_proxy::tunnel::Tunnel;
use postern_proxy::udp::template::{RequestFault, Template, target_of};
use postern_proxy::udp::{is_upgrade, set_upgraded};
use postern_token::header::{AuthorizationError, Presentation, parse_authorization};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// Time limit for a request's header, and for an idle connection between requests.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);

/// A tunnel that the connection becomes.
enum Opened {
    Tcp(Tunnel),
    Udp(UdpStream),
}

/// Serves one client connection, which may become a tunnel; its first request asks for one if `asks_for_tunnel`.
pub(crate) async fn serve(stream: TcpStream, asks_for_tunnel: bool, visitor: Visitor, state: &AgentState) {
    let Ok(ends) = ConnectionEnds::of(&stream) else { return }; // the client is gone already
    let Visitor { mut place, exchange, .. } = visitor;
    // Boxed, so the memory of HTTP is freed before the tunnel begins.
    match Box::pin(requests(stream, asks_for_tunnel, ends, &exchange, state)).await {
        (Finished { stream: Accepted::Left(stream), early, ended: Ended::Closed }, Some(opened)) => {
            place.keep();
            match opened {
                Opened::Tcp(tunnel) => {
                    let received = tunnel.received();
                    let relay = Relay::new(stream, tunnel, &early, None);
                    state.shutdown.until_stopped(received.keep_taking(relay)).await;
                }
                // Boxed: most tunnels are of TCP, and should not have the size of this future.
                Opened::Udp(udp) => {
                    _ = state.shutdown.until_stopped(Box::pin(udp.relay(stream, &early, state))).await;
                }
            }
        }
        (finished, _) => finished.end(state, &place, &exchange).await,
    }
}

/// Answers requests until one of them opens a tunnel, which it returns, the connection ends, or the stop comes.
async fn requests(
    stream: TcpStream,
    asks_for_tunnel: bool,
    ends: ConnectionEnds,
    exchange: &Exchange,
    state: &AgentState,
) -> (Finished, Option<Opened>) {
    let (kept, opened) = (KeptTunnels::default(), Mutex::new(None));
    let mut http = builder(HEADER_TIMEOUT, HEADER_LIMIT);
    // A client may finish sending and then only read; one that does so before its tunnel opens has hung up.
    http.half_close(!asks_for_tunnel);
    // In lower case, a target would recognise requests of an agent.
    http.max_headers(MOST_FIELDS).preserve_header_case(true);
    let answer = |request: Request<Incoming>| {
        let (kept, opened) = (&kept, &opened);
        async move {
            let (answering, version) = (exchange.begin().await, request.version());
            let mut response = respond(request, ends, state, kept, exchange, opened).await?;
            *response.version_mut() = version; // an HTTP/1.0 answer is the last: RFC 9112, section 9.3
            Ok::<_, Unanswered>(response.map(|body| answering.with(body)))
        }
    };
    let finished = drive_http1(state, &http, Accepted::Left(stream), exchange, answer).await;
    (finished, opened.into_inner())
}

async fn respond(
    request: Request<Incoming>,
    ends: ConnectionEnds,
    state: &AgentState,
    kept: &KeptTunnels,
    exchange: &Exchange,
    opened: &Mutex<Option<Opened>>,
) -> Result<Response<Body>, Unanswered> {
    let (head, body) = request.into_parts();
    let is_udp = is_upgrade(&head);
    let is_transition = is_udp || head.method == Method::CONNECT;
    if !is_udp && head.method != Method::CONNECT && ends.are_meant_by(&head.uri) {
        let request = Request::from_parts(head, body);
        return Ok(own_pages::answer(&request, ends, state).map(boxed));
    }
    let answered = match check(&head) {
        Err(refusal) => Err(refusal.into()),
        Ok(()) if is_udp => upgrade(&head, state, exchange, opened).await.map_err(Into::into),
        Ok(()) if head.method == Method::CONNECT => {
            connect(&head, state, exchange, opened).await.map_err(Into::into)
        }
        Ok(()) => {
            let request = Request::from_parts(head, body);
            kept.forward(request, exchange, state).await.inspect(|_| exchange.stream())
        }
    };
    match answered {
        Ok(response) => {
            state.count(AgentOutcome::Opened);
            Ok(response)
        }
        Err(ForwardError::Refused(refusal)) => {
            state.count(refusal.outcome());
            let mut response = refusal.into_response().map(boxed);
            if is_transition {
                // The program may have sent bytes for the tunnel already, which must not be read as a request (RFC 9931).
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        }
        Err(ForwardError::Lost) => {
            state.count(AgentOutcome::TargetFailed);
            Err(Unanswered)
        }
    }
}

/// Returns `true` if the client presents a token, even a malformed one: it takes this agent for a gateway. One for UDP may
/// present it as to an origin.
fn brings_a_token(headers: &HeaderMap, is_udp: bool) -> bool {
    let is_token = |value: &HeaderValue| match parse_authorization(value.as_bytes()) {
        Ok(presented) => matches!(presented, Presentation::Token(_)),
        Err(error) => !matches!(error, AuthorizationError::Grammar(_)), // of any scheme
    };
    let as_to_origin = is_udp.then(|| headers.get_all(AUTHORIZATION)).into_iter().flatten();
    headers.get_all(PROXY_AUTHORIZATION).iter().chain(as_to_origin).any(is_token)
}

/// Refuses requests that are not for a proxy or are ambiguous.
fn check(head: &Parts) -> Result<(), Refusal> {
    let is_udp = is_upgrade(head);
    if brings_a_token(&head.headers, is_udp) {
        return Err(OpenError::ForGateway.into()); // the token stays unspent
    }
    let is_connect = head.method == Method::CONNECT;
    let sentence = if is_connect && head.uri.scheme().is_some() {
        "CONNECT takes host:port, and no URL"
    } else if is_connect && announces_body(head) {
        "A CONNECT request has no body"
    } else if !is_connect && !is_udp && head.uri.scheme_str() != Some("http") {
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

/// Opens the tunnel, which begins when hyper has sent the 200.
async fn connect(
    head: &Parts,
    state: &AgentState,
    exchange: &Exchange,
    opened: &Mutex<Option<Opened>>,
) -> Result<Response<Body>, Refusal> {
    let target = head.uri.authority().map_or("", |authority| authority.as_str());
    let tunnel = state.opener.open(&Target::parse(target, None)?).await?;
    *opened.lock() = Some(Opened::Tcp(tunnel));
    exchange.keep();
    Ok(Response::new(full(Bytes::new())))
}

/// Opens the stream of UDP, which begins when hyper has sent the 101.
async fn upgrade(
    head: &Parts,
    state: &AgentState,
    exchange: &Exchange,
    opened: &Mutex<Option<Opened>>,
) -> Result<Response<Body>, Refusal> {
    *opened.lock() = Some(Opened::Udp(UdpStream::open(head, state).await?));
    exchange.keep();
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    set_upgraded(response.headers_mut());
    Ok(response)
}

/// A stream of UDP to one target.
struct UdpStream {
    tunnel: Tunnel,
    target: Target,
    opened: Instant,
}

impl UdpStream {
    async fn open(head: &Parts, state: &AgentState) -> Result<Self, Refusal> {
        let target = target(head, state)?;
        let tunnel = state.opener.open(&target).await?;
        Ok(Self { tunnel, target, opened: Instant::now() })
    }

    /// Relays capsules until a side ends, or none come for a while. `early` has those that came with the request.
    async fn relay(self, client: TcpStream, early: &[u8], state: &AgentState) {
        let Self { tunnel, target, opened } = self;
        let _open = state.answers.udp_opened();
        let received = tunnel.received();
        let mut relay = Relay::new(client, tunnel, early, Some(UDP_IDLE)).ending_together();
        received.keep_taking(&mut relay).await;
        if !relay.has_client_ended() {
            state.opener.failed.udp_ended(&target, opened);
        }
    }
}

fn target(head: &Parts, state: &AgentState) -> Result<Target, Refusal> {
    if state.limit.udp_targets() == 0 {
        return Err(Refusal::UdpOff);
    }
    target_of(head, [&Template::default()]).map_err(|fault| match fault {
        RequestFault::Content => Refusal::Request(
            "A request for UDP has no Content-Length, Content-Type or Transfer-Encoding (RFC 9297, section 3.2)",
        ),
        RequestFault::Path => Refusal::Request(
            "The path names no target for UDP: use /.well-known/masque/udp/{target_host}/{target_port}/ (RFC 9298)",
        ),
        RequestFault::Target(error) => Refusal::Target(error),
    })
}
