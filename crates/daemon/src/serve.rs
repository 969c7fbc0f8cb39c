//! One way to serve the connections of a listener: a place, the PROXY header of a load balancer, the rates of the source, TLS, and
//! an answer for each client that is turned away.
//!
//! An [`Endpoint`] has the limits and the answers of a daemon, and serves what passes these steps. [`h1`] and [`h2`] drive a
//! version of HTTP on it.

pub mod h1;
pub mod h2;

use crate::drain::Shutdown;
use crate::exchange::{Exchange, Patience};
use crate::farewell;
use crate::listen;
use crate::places::{self, Bounds, Leaving, NoPlace, Place, Places};
use crate::proxy_protocol::{self, Named, NoHeader};
use crate::rates::{AboveRate, Rates};
use crate::sources::Source;
use crate::tls::{self, Accepted, ListenerTls, ServerConfig};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// A listener of a daemon: its present limits, its answers to clients that are turned away, and the service of the others.
pub trait Endpoint: Send + Sync + 'static {
    /// `true` if a connection waits while all others are active, `false` if it is turned away.
    const WAITS: bool;
    /// `true` if a drain awaits PROXY headers and TLS handshakes in full, because a client may have sent a token behind them.
    /// Otherwise they have half a second.
    const AWAITS_HANDSHAKES: bool = false;

    fn parts(&self) -> Parts<'_>;

    /// Calls `read` with the present limits.
    fn with_limits<T>(&self, read: impl FnOnce(Limits<'_>) -> T) -> T;

    /// `true` if a connection from this address comes from a load balancer, and so begins with a PROXY header.
    fn is_balancer(&self, _address: IpAddr) -> bool {
        false
    }

    /// Returns the present TLS configurations; `None` for a listener without TLS.
    fn tls(&self) -> Option<ListenerTls> {
        None
    }

    /// Counts an open connection until the result is dropped.
    fn opened(&self) -> impl Send {}

    /// Records a connection that is turned away.
    fn record(&self, reason: TurnedAway);

    /// Returns the answer to a client that is turned away.
    fn answer(&self, reason: TurnedAway) -> Vec<u8>;

    /// Answers a client of which nothing was read, and closes its connection.
    fn turn_away(&self, stream: Accepted, reason: TurnedAway) -> impl Future<Output = ()> + Send {
        async move { farewell::part(stream, &self.answer(reason)).await }
    }

    /// Closes a connection in the middle of an answer, at once if the result is dropped. `is_read` is `false` if its client does
    /// not read.
    fn tear(&self, stream: Accepted, _is_read: bool) -> impl Future<Output = ()> + Send {
        async move { drop(stream) }
    }

    /// Serves a connection until its end or the stop.
    fn serve(&self, stream: Accepted, visitor: Visitor) -> impl Future<Output = ()> + Send;
}

/// State that all connections of a listener share.
pub struct Parts<'a> {
    pub places: &'a Places,
    pub rates: &'a Rates,
    pub shutdown: &'a Shutdown,
}

/// Limits of a listener, as of one reading of its configuration.
pub struct Limits<'a> {
    pub bounds: Bounds<'a>,
    /// Time limits on clients. A PROXY header and a TLS handshake have the time of an answer.
    pub patience: Patience,
}

/// State of a client's connection, without its stream.
pub struct Visitor {
    /// The client's address, or that of a load balancer for its own connections.
    pub address: SocketAddr,
    pub place: Place,
    pub exchange: Exchange,
}

/// Reason that a connection is not served, or not any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnedAway {
    NoPlace(NoPlace),
    /// Another connection needs the place.
    Displaced,
    /// The source makes too many TLS handshakes. Nothing is answered before a handshake.
    Handshakes,
    /// Too many requests of the source were refused.
    Refusals(AboveRate),
    /// The handshake shows no valid certificate of a client.
    Certificate,
    /// The bytes are no HTTP, or no PROXY header of a load balancer.
    Malformed,
    HeaderTooLarge,
    /// The header took too long, or the PROXY header did.
    HeaderTimeout,
}

/// Accepts connections until `end`, and then those that already wait. `name` is the listener's in the log; `tracker` tracks the
/// connections.
pub async fn accept<E: Endpoint>(
    endpoint: Arc<E>,
    (name, listener): (&str, TcpListener),
    tracker: &TaskTracker,
    end: impl Future<Output = ()>,
) -> io::Result<()> {
    let (places, mut end) = (endpoint.parts().places, pin!(end));
    loop {
        let next = async {
            places.settled(endpoint.with_limits(|limits| limits.bounds.connections)).await;
            listener.accept().await
        };
        tokio::select! {
            accepted = next => match accepted {
                Ok(accepted) => admit(&endpoint, accepted, tracker).await,
                Err(error) => listen::pause(name, &error).await,
            },
            () = &mut end => break,
        }
    }
    // Closes the listener before any of them waits for a place.
    let waiting: Vec<_> = listen::waiting(listener)?.collect();
    for accepted in waiting {
        admit(&endpoint, accepted, tracker).await;
    }
    Ok(())
}

/// Gives a connection a place and a task, or an answer.
async fn admit<E: Endpoint>(
    endpoint: &Arc<E>,
    (stream, from): (TcpStream, SocketAddr),
    tracker: &TaskTracker,
) {
    let client = (!endpoint.is_balancer(from.ip())).then_some(from);
    let exchange = Exchange::new(endpoint.with_limits(|limits| limits.patience));
    let take = || {
        let (places, ip) = (endpoint.parts().places, client.map(|client| client.ip()));
        endpoint.with_limits(|limits| places.take(ip, limits.bounds, &exchange))
    };
    let placed = if E::WAITS { places::wait(take).await } else { take() };
    let placed = match placed {
        Ok(place) => Ok(place),
        Err(no_place) => match leave(&**endpoint, no_place) {
            Some(leaving) => Err((no_place, leaving)),
            None => return,
        },
    };
    let endpoint = Arc::clone(endpoint);
    // Apart: a task has the size of its future, and few connections come from a load balancer or are turned away.
    match (client, placed) {
        (None, placed) => tracker.spawn(named_connection(endpoint, (stream, from), exchange, placed)),
        (_, Ok(place)) => {
            tracker.spawn(connection(endpoint, stream, Visitor { address: from, place, exchange }))
        }
        (_, Err((no_place, leaving))) => tracker.spawn(async move {
            let source = source(&*endpoint, client);
            turn_away(&*endpoint, stream, source, TurnedAway::NoPlace(no_place), &exchange).await;
            drop(leaving);
        }),
    };
}

/// Grants the right to answer a client without a place. Otherwise it is only recorded.
fn leave<E: Endpoint>(endpoint: &E, no_place: NoPlace) -> Option<Leaving> {
    let connections = endpoint.with_limits(|limits| limits.bounds.connections);
    let leaving = endpoint.parts().places.leave(connections);
    if leaving.is_none() {
        endpoint.record(TurnedAway::NoPlace(no_place));
    }
    leaving
}

/// Serves a connection from a load balancer, whose PROXY header names the client, or turns it away after that header.
async fn named_connection<E: Endpoint>(
    endpoint: Arc<E>,
    (mut stream, from): (TcpStream, SocketAddr),
    exchange: Exchange,
    mut placed: Result<Place, (NoPlace, Leaving)>,
) {
    let Some(named) = named(&*endpoint, &mut stream, &exchange).await else { return };
    if let (Some(client), Ok(place)) = (named, &mut placed) {
        let attributed = endpoint.with_limits(|limits| place.attribute(client.ip(), limits.bounds.sources));
        if let Err(no_place) = attributed {
            drop(placed);
            let Some(leaving) = leave(&*endpoint, no_place) else { return };
            placed = Err((no_place, leaving));
        }
    }
    match placed {
        Ok(place) => {
            let address = named.unwrap_or(from);
            connection(endpoint, stream, Visitor { address, place, exchange }).await;
        }
        Err((no_place, _leaving)) => {
            let source = source(&*endpoint, named);
            turn_away(&*endpoint, stream, source, TurnedAway::NoPlace(no_place), &exchange).await;
        }
    }
}

/// Returns the source of a client; `None` if it is exempt or unknown.
fn source<E: Endpoint>(endpoint: &E, client: Option<SocketAddr>) -> Option<Source> {
    client.and_then(|client| endpoint.with_limits(|limits| limits.bounds.sources.source(client.ip())))
}

/// Reads the PROXY header and returns the client that it names. `None` if the header is invalid or takes too long, the
/// connection closes, or another one needs the place.
async fn named<E: Endpoint>(endpoint: &E, stream: &mut TcpStream, exchange: &Exchange) -> Option<Named> {
    let _open = endpoint.opened();
    let reading = proxy_protocol::read(stream, endpoint.with_limits(|limits| limits.patience.answer));
    let reason = tokio::select! {
        read = before_request(endpoint, reading) => match read? {
            Ok(named) => return Some(named),
            Err(NoHeader::Closed) => return None,
            Err(NoHeader::Malformed) => TurnedAway::Malformed,
            Err(NoHeader::Late) => TurnedAway::HeaderTimeout,
        },
        () = exchange.displaced() => TurnedAway::Displaced,
    };
    endpoint.record(reason);
    None
}

/// Serves a connection that has a place, until the stop at the latest.
pub async fn connection<E: Endpoint>(endpoint: Arc<E>, stream: TcpStream, visitor: Visitor) {
    let _open = endpoint.opened();
    let (source, exchange) = (visitor.place.source(), &visitor.exchange);
    let may_ask =
        endpoint.with_limits(|limits| endpoint.parts().rates.request(source, limits.bounds.sources));
    if let Err(above) = may_ask {
        let reason = TurnedAway::Refusals(above);
        // Boxed: few connections come here, and every one would have the size of this future.
        return Box::pin(turn_away(&*endpoint, stream, source, reason, exchange)).await;
    }
    let tls = endpoint.tls().map(|tls| tls.serving);
    let Some(stream) = secured(&*endpoint, stream, tls, source, exchange).await else { return };
    endpoint.serve(stream, visitor).await;
}

/// Returns the stream after its TLS handshake, if there is to be one. `None` if the handshake fails or takes too long, its source
/// makes too many, or another connection needs the place.
async fn secured<E: Endpoint>(
    endpoint: &E,
    stream: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    source: Option<Source>,
    exchange: &Exchange,
) -> Option<Accepted> {
    let Some(tls) = tls else { return Some(Accepted::Left(stream)) };
    // Boxed twice (once by `before_request`), because a task has the size of its largest future: plain connections must not pay
    // for TLS, nor TLS connections for each move of the stream.
    let rates = endpoint.parts().rates;
    if endpoint.with_limits(|limits| rates.handshake(source, limits.bounds.sources)).is_err() {
        endpoint.record(TurnedAway::Handshakes);
        return None;
    }
    let patience = endpoint.with_limits(|limits| limits.patience.answer);
    let failed = tokio::select! {
        shaken = before_request(endpoint, timeout(patience, tls::accept(&tls, stream))) => match shaken? {
            Ok(Ok(stream)) => return Some(Accepted::Right(Box::new(stream))),
            Ok(Err(error)) => error,
            Err(late) => late.into(),
        },
        () = exchange.displaced() => {
            endpoint.record(TurnedAway::Displaced);
            return None;
        }
    };
    tracing::debug!("a TLS handshake failed: {failed}");
    if tls::is_client_refused(&failed) {
        endpoint.record(TurnedAway::Certificate);
    }
    None
}

/// Runs a step before the first request; `None` if the stop or a drain ends it. The step is boxed.
fn before_request<E: Endpoint, F: Future>(endpoint: &E, step: F) -> impl Future<Output = Option<F::Output>> {
    let (shutdown, step) = (endpoint.parts().shutdown, Box::pin(step));
    async move {
        if E::AWAITS_HANDSHAKES {
            shutdown.until_stopped(step).await
        } else {
            shutdown.before_request(step).await
        }
    }
}

/// Answers a client before any request, unless another connection needs the place.
async fn turn_away<E: Endpoint>(
    endpoint: &E,
    stream: TcpStream,
    source: Option<Source>,
    reason: TurnedAway,
    exchange: &Exchange,
) {
    endpoint.record(reason);
    let parting = async {
        let tls = endpoint.tls().map(|tls| tls.refusing);
        if let Some(stream) = secured(endpoint, stream, tls, source, exchange).await {
            endpoint.turn_away(stream, reason).await;
        }
    };
    tokio::select! {
        _ = endpoint.parts().shutdown.until_stopped(parting) => {}
        () = exchange.displaced() => {}
    }
}
