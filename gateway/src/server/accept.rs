//! Accepting connections: a thread a core, each with a runtime of its own and a listening socket of its own on each shared
//! address, so that a connection stays on one core from its first byte to its last.
//!
//! `docs/decisions/runtime-shape.md` has the measurement behind this shape.

use crate::request::answer::refused_raw;
use crate::request::deny::Refusal;
use crate::request::peer::Peer;
use crate::server::{Visitor, connection};
use crate::state::{Core, Generation, Worker};
use postern_daemon::exchange::{Exchange, Patience};
use postern_daemon::farewell::part;
use postern_daemon::listen;
use postern_daemon::places::{Bounds, NoPlace};
use postern_daemon::proxy_protocol::{self, Named, NoHeader};
use postern_daemon::sources::Source;
use postern_daemon::tls::{self, Accepted, Bounded, ListenerTls, ServerConfig, TlsStream};
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// How long connections have to end after the stop, and how often to poll for it.
const ENDING: Duration = Duration::from_secs(1);
const ENDING_TICK: Duration = Duration::from_millis(1);

/// Whom a listener is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listener {
    /// Everyone: each request needs a token.
    Clients,
    /// The operator's other gateways, by the certificates that they show.
    Peers,
}

impl Listener {
    /// Its name in errors.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Clients => "the gateway",
            Self::Peers => "the gateway's listener for peers",
        }
    }

    /// Where the connections of balancers begin with a PROXY header.
    fn is_balancer(self, from: SocketAddr, generation: &Generation) -> bool {
        self == Self::Clients && generation.balancers.has(from.ip())
    }

    fn tls(self, generation: &Generation) -> Option<&ListenerTls> {
        match self {
            Self::Clients => generation.tls.as_ref(),
            Self::Peers => generation.peers.as_ref(),
        }
    }
}

/// A worker's listeners.
pub(crate) struct Listening {
    /// The one for clients, once there is one.
    pub(crate) clients: oneshot::Receiver<StdListener>,
    /// The one for peers, which need neither keys nor the store.
    pub(crate) peers: Option<StdListener>,
}

/// A worker's life: accept until the drain begins, then let what is open go on until the stop. A drain waits for `accepting`:
/// without it, one that finds no connection tracked would be over before the last ones are accepted.
pub(crate) async fn work(
    listening: Listening,
    worker: Worker,
    accepting: TaskTrackerToken,
) -> io::Result<()> {
    let worker = Arc::new(worker);
    let shutdown = worker.core.shutdown.clone();
    let Listening { clients, peers } = listening;
    let clients = async {
        match clients.await {
            Ok(listener) => accept(listener, Listener::Clients, &worker).await,
            Err(_) => Ok(()), // the drain began first
        }
    };
    let peers = async {
        match peers {
            Some(listener) => accept(listener, Listener::Peers, &worker).await,
            None => Ok(()),
        }
    };
    tokio::try_join!(clients, peers)?;
    drop(accepting);
    shutdown.stopped().await;
    // With this runtime end its connections, wherever they are. Those that are cut end by themselves in a moment, and
    // in a way that their clients can distinguish from an orderly end.
    let ending = async {
        while Arc::strong_count(&worker) > 1 {
            sleep(ENDING_TICK).await;
        }
    };
    let _ = timeout(ENDING, ending).await;
    Ok(())
}

/// Accepts until the drain begins, and then what waits.
async fn accept(listener: StdListener, whose: Listener, worker: &Arc<Worker>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut draining = pin!(worker.core.shutdown.draining());
    loop {
        let next = async {
            let connections = worker.core.settings.limits.load().connections;
            worker.core.places.settled(connections).await;
            listener.accept().await
        };
        tokio::select! {
            accepted = next => match accepted {
                Ok(accepted) => accept_connection(accepted, whose, worker),
                Err(error) => listen::pause(whose.name(), &error).await,
            },
            () = &mut draining => break,
        }
    }
    listen::waiting(listener)?.for_each(|accepted| accept_connection(accepted, whose, worker));
    Ok(())
}

fn accept_connection((stream, from): (TcpStream, SocketAddr), whose: Listener, worker: &Arc<Worker>) {
    let core = Arc::clone(&worker.core);
    let limits = core.settings.limits.load();
    let patience = Patience { answer: limits.header_timeout.get(), stream: limits.idle_timeout.get() };
    let (exchange, connections) = (Exchange::new(patience), limits.connections);
    let through_balancer = whose.is_balancer(from, &core.generation.load());
    let source = (!through_balancer).then_some(from.ip());
    let refusal = match core.places.take(source, Bounds { connections, sources: &limits.source }, &exchange) {
        Ok(place) => {
            let client = core.recorder.names_clients().then_some(from);
            let (visitor, worker) = (Visitor { client, place, exchange, peer: None }, Arc::clone(worker));
            if through_balancer {
                core.shutdown.tracker().spawn(serve_named(stream, visitor, worker));
            } else {
                core.shutdown.tracker().spawn(serve(stream, visitor, whose, worker));
            }
            return;
        }
        Err(NoPlace::Source) => Refusal::SourceLimit,
        Err(NoPlace::Full) => Refusal::TooMany,
    };
    let Some(leaving) = core.places.leave(connections) else {
        return core.recorder.turned_away(&refusal);
    };
    let refused = Arc::clone(&core);
    core.shutdown.tracker().spawn(async move {
        refuse((stream, from), whose, &refusal, &exchange, &refused).await;
        drop(leaving);
    });
}

/// A connection through a load balancer, whose PROXY header names the client.
async fn serve_named(mut stream: TcpStream, mut visitor: Visitor, worker: Arc<Worker>) {
    let core = Arc::clone(&worker.core);
    let Some(named) = named(&mut stream, &visitor.exchange, &core).await else { return };
    if let Some(client) = named {
        visitor.client = core.recorder.names_clients().then_some(client);
        let limits = core.settings.limits.load_full();
        if visitor.place.attribute(client.ip(), &limits.source).is_err() {
            let Visitor { place, exchange, .. } = visitor;
            drop(place);
            let Some(_leaving) = core.places.leave(limits.connections) else {
                return core.recorder.turned_away(&Refusal::SourceLimit);
            };
            let source = limits.source.source(client.ip());
            let refusal = Refusal::SourceLimit;
            return turn_away(stream, source, Listener::Clients, &refusal, &exchange, &core).await;
        }
    }
    serve(stream, visitor, Listener::Clients, worker).await;
}

/// Whom the PROXY header names, unless it is none, takes too long, or another connection needs the place.
async fn named(stream: &mut TcpStream, exchange: &Exchange, core: &Core) -> Option<Named> {
    let _open = core.recorder.connection_opened();
    let header_timeout = core.settings.limits.load().header_timeout.get();
    let reading = core.shutdown.until_stopped(proxy_protocol::read(stream, header_timeout));
    let refusal = tokio::select! {
        read = reading => match read? {
            Ok(named) => return Some(named),
            Err(NoHeader::Closed) => return None,
            Err(NoHeader::Malformed) => Refusal::Malformed,
            Err(NoHeader::Late) => Refusal::HeaderTimeout,
        },
        () = exchange.displaced() => Refusal::Displaced,
    };
    core.recorder.turned_away(&refusal);
    None
}

/// Ends with the stop at the latest.
async fn serve(stream: TcpStream, mut visitor: Visitor, whose: Listener, worker: Arc<Worker>) {
    let core = Arc::clone(&worker.core);
    let _open = core.recorder.connection_opened();
    let source = visitor.place.source();
    if let Err(refusal) = core.may_ask(source, &core.settings.limits.load()) {
        // Boxed, for few come here and every connection has this room.
        return Box::pin(turn_away(stream, source, whose, &refusal, &visitor.exchange, &core)).await;
    }
    let tls = whose.tls(&core.generation.load()).map(|tls| Arc::clone(&tls.serving));
    let Some(tls) = tls else {
        // Without TLS nobody is a peer.
        return if whose == Listener::Clients {
            connection::serve(Accepted::Left(stream), visitor, worker).await
        };
    };
    let Some(stream) = handshake(stream, tls, source, &visitor.exchange, &core).await else { return };
    if whose == Listener::Peers {
        let Some(peer) = Peer::shown_by(&stream) else { return };
        visitor.peer = Some(peer);
        visitor.place.keep(); // its clients have paid
    }
    connection::serve(Accepted::Right(stream), visitor, worker).await;
}

/// The stream after its TLS handshake, unless that fails, takes too long, its source makes too many, or another connection
/// needs the place.
async fn handshake(
    stream: TcpStream,
    tls: Arc<ServerConfig>,
    source: Option<Source>,
    exchange: &Exchange,
    core: &Core,
) -> Option<Box<TlsStream<Bounded<TcpStream>>>> {
    // Boxed twice (`until_stopped` does), since a task has room for the largest of its futures: plain connections must
    // not pay for TLS, nor TLS for each place that its stream is handed to.
    let limits = core.settings.limits.load_full();
    if core.rates.handshake(source, &limits.source).is_err() {
        core.recorder.turned_away(&Refusal::SourceHandshakes);
        return None;
    }
    let handshake = tls::accept(&tls, stream);
    let handshake = core.shutdown.until_stopped(timeout(limits.header_timeout.get(), handshake));
    tokio::select! {
        shaken = handshake => match shaken?.ok()? {
            Ok(stream) => Some(Box::new(stream)),
            Err(error) => {
                if tls::is_client_refused(&error) {
                    core.recorder.turned_away(&Refusal::ClientCertificate);
                }
                None
            }
        },
        () = exchange.displaced() => {
            core.recorder.turned_away(&Refusal::Displaced);
            None
        }
    }
}

/// Answers a client that got no place.
async fn refuse(
    (mut stream, from): (TcpStream, SocketAddr),
    whose: Listener,
    refusal: &Refusal,
    exchange: &Exchange,
    core: &Core,
) {
    let through_balancer = whose.is_balancer(from, &core.generation.load());
    let client = if through_balancer { named(&mut stream, exchange, core).await } else { Some(Some(from)) };
    let Some(client) = client else { return };
    let source = client.and_then(|client| core.settings.limits.load().source.source(client.ip()));
    turn_away(stream, source, whose, refusal, exchange, core).await;
}

/// Says why, before any request, unless another connection needs the place.
async fn turn_away(
    stream: TcpStream,
    source: Option<Source>,
    whose: Listener,
    refusal: &Refusal,
    exchange: &Exchange,
    core: &Core,
) {
    core.recorder.turned_away(refusal);
    let answer = refused_raw(refusal);
    let tls = whose.tls(&core.generation.load()).map(|tls| Arc::clone(&tls.refusing));
    let parting = async {
        match tls {
            None => _ = part(stream, &answer).await,
            Some(tls) => {
                if let Some(stream) = handshake(stream, tls, source, exchange, core).await {
                    part(stream, &answer).await;
                }
            }
        }
    };
    tokio::select! {
        _ = core.shutdown.until_stopped(parting) => {}
        () = exchange.displaced() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room<A, B, C, D, F: Future>(_: impl FnOnce(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    /// The memory of every open connection and every tunnel. Most of them are idle most of the time.
    #[test]
    fn a_connection_takes_little_room() {
        assert!(room(serve) <= 2048, "{}", room(serve));
    }
}
