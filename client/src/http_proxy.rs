//! The HTTP proxy: CONNECT, and plain requests in absolute form.

use crate::answer::{self, Refusal};
use crate::body::{Body, boxed, full};
use crate::catalogue::AgentOutcome;
use crate::connections::Visitor;
use crate::forward::Kept;
use crate::own_pages::{self, Ends};
use crate::state::AgentState;
use bytes::Bytes;
use http::header::{HOST, HeaderMap, HeaderValue, PROXY_AUTHORIZATION};
use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use postern_daemon::client_stream::ClientStream;
use postern_daemon::exchange::Exchange;
use postern_daemon::places::Place;
use postern_proxy::headers::has_other_coding;
use postern_proxy::relay::Relay;
use postern_proxy::target::Target;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// How long a client may take for a request's header, and how long a connection may lie idle between requests.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest header, in bytes. Cookies make plain requests long.
const HEADER_LIMIT: usize = 32 * 1024;

/// Serves one client connection.
pub(crate) async fn serve(stream: TcpStream, visitor: Visitor, state: Arc<AgentState>) {
    let kept = Arc::new(Kept::default());
    let shutdown = state.shutdown.clone();
    let Visitor { place, exchange } = visitor;
    let Ok(ends) = Ends::of(&stream) else { return }; // it is gone already
    // A tunnel goes on in a task of its own.
    let place = Arc::new(Mutex::new(place));
    let gives_way = exchange.clone();
    let stream = ClientStream::new(stream, exchange.clone());
    let service = service_fn(move |request| {
        let (state, kept, exchange, place) = (state.clone(), kept.clone(), exchange.clone(), place.clone());
        async move {
            let work = respond(request, ends, state, &kept, &exchange, place);
            Ok::<_, Infallible>(exchange.answer(work).await)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new()) // without it the header timeout is silently off
        .header_read_timeout(HEADER_TIMEOUT)
        .half_close(true) // a client may send all it has and then only read
        .max_buf_size(HEADER_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let served = tokio::select! {
        served = &mut connection => served,
        () = gives_way.displaced() => return,
        () = shutdown.draining() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!("a client connection ended early: {error}"); // hyper's own words, without addresses
    }
}

async fn respond(
    mut request: Request<Incoming>,
    ends: Ends,
    state: Arc<AgentState>,
    kept: &Kept,
    exchange: &Exchange,
    place: Arc<Mutex<Place>>,
) -> Response<Body> {
    let uri = request.uri();
    let result = if brings_a_token(request.headers()) {
        Err(Refusal::ForGateway) // it stays unspent
    } else if request.method() == Method::CONNECT {
        let target = uri.authority().map_or("", |authority| authority.as_str());
        match Target::parse(target, None) {
            Ok(target) => {
                let upgrade = hyper::upgrade::on(&mut request);
                let opened = connect(&target, upgrade, state.clone(), place).await;
                opened.map(|()| {
                    exchange.keep();
                    Response::new(full(Bytes::new()))
                })
            }
            Err(error) => Err(error.into()),
        }
    } else if ends.are_meant_by(uri) {
        return own_pages::answer(&request, ends, &state).map(boxed);
    } else if uri.scheme_str() != Some("http") {
        state.count(AgentOutcome::BadRequest);
        let sentence = "Only http:// is forwarded in absolute form: use CONNECT for everything else";
        return answer::bad_request(sentence).map(boxed);
    } else if request.headers().get_all(HOST).iter().count() > 1 || has_other_coding(request.headers()) {
        state.count(AgentOutcome::BadRequest);
        let sentence = "A request has one Host field, and its body no other transfer coding than chunked";
        return answer::bad_request(sentence).map(boxed);
    } else {
        kept.forward(request, &state).await.inspect(|_| exchange.stream())
    };
    match result {
        Ok(response) => {
            state.count(AgentOutcome::Opened);
            response
        }
        Err(refusal) => {
            state.count(refusal.outcome());
            refusal.into_response().map(boxed)
        }
    }
}

/// Whether the client has a token of its own, and so takes this agent for a gateway.
fn brings_a_token(headers: &HeaderMap) -> bool {
    const SCHEME: &[u8] = b"PrivateToken";
    let is_token = |value: &HeaderValue| {
        value.as_bytes().get(..SCHEME.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
    };
    headers.get_all(PROXY_AUTHORIZATION).iter().any(is_token)
}

/// Opens the tunnel; the relay starts when hyper has sent the 200.
async fn connect(
    target: &Target,
    upgrade: OnUpgrade,
    state: Arc<AgentState>,
    place: Arc<Mutex<Place>>,
) -> Result<(), Refusal> {
    let tunnel = state.opener.open(target).await?;
    let shutdown = state.shutdown.clone();
    place.lock().keep();
    let received = tunnel.received();
    state.shutdown.tracker().spawn(async move {
        let _place = place;
        let relaying = async {
            let Ok(upgraded) = upgrade.await else { return };
            // It is the stream that `serve` put in; early bytes of the client come with it.
            let Ok(parts) = upgraded.downcast::<TokioIo<ClientStream<TcpStream>>>() else { return };
            Relay::new(parts.io.into_inner().into_inner(), tunnel, &parts.read_buf, None).await;
        };
        shutdown.until_stopped(received.keep_taking(relaying)).await;
    });
    Ok(())
}
