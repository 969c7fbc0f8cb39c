//! Accepting connections: a thread a core, each with a runtime of its own and its own listening socket on the shared
//! address (SO_REUSEPORT), so that a connection stays on one core from its first byte to its last.
//!
//! `docs/decisions/runtime-shape.md` has the measurement behind this shape.

use crate::request::answer::refused_raw;
use crate::request::deny::Refusal;
use crate::server::connection::{self, Visitor};
use crate::state::{Core, Worker};
use postern_daemon::exchange::{Exchange, Patience};
use postern_daemon::farewell::part;
use postern_daemon::listen::{self, BindError};
use postern_daemon::places::{Bounds, NoPlace};
use postern_daemon::proxy_protocol::{self, Named, NoHeader};
use postern_daemon::sources::Source;
use postern_daemon::tls::{self, Bounded, ServerConfig, TlsStream};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Connections that wait in the kernel until they are accepted.
const BACKLOG: i32 = 4096;
/// How long connections have to end after the stop, and how often to poll for it.
const ENDING: Duration = Duration::from_secs(1);
const ENDING_TICK: Duration = Duration::from_millis(1);

/// The sockets of a gateway, a worker each, bound to one address but not listening yet: a client is refused by the
/// kernel and tries another gateway, rather than being answered 503.
pub(crate) struct Sockets {
    address: SocketAddr,
    sockets: Vec<Socket>,
    listening: bool,
}

impl Sockets {
    /// Binds them; port 0 becomes the same free port for all. A socket that systemd handed over listens already, and all
    /// workers accept from it.
    pub(crate) fn bind(address: SocketAddr, workers: usize) -> Result<Self, BindError> {
        let failed = |source| BindError { what: WHAT, address, source };
        if let Some(handed) = listen::handed::claim(address) {
            let shared = Socket::from(handed);
            answer_at_once(&shared).map_err(failed)?;
            let sockets: io::Result<_> = (0..workers).map(|_| shared.try_clone()).collect();
            return Ok(Self { address, sockets: sockets.map_err(failed)?, listening: true });
        }
        let bound = alone(address).map_err(failed)?;
        let address = bound.local_addr().map_err(failed)?.as_socket().unwrap_or(address);
        drop(bound);
        let sockets: io::Result<_> = (0..workers).map(|_| socket(address, true)).collect();
        Ok(Self { address, sockets: sockets.map_err(failed)?, listening: false })
    }

    /// Listens: from now on the kernel accepts, and keeps clients until a worker takes them.
    pub(crate) fn listen(&mut self) -> Result<(), BindError> {
        let failed = |source| BindError { what: WHAT, address: self.address, source };
        if !self.listening {
            // Another gateway may have bound the same address meanwhile and listened first.
            drop(alone(self.address).map_err(failed)?);
            self.sockets.iter().try_for_each(|socket| socket.listen(BACKLOG)).map_err(failed)?;
            self.listening = true;
        }
        Ok(())
    }

    /// A listener for each worker.
    pub(crate) fn into_listeners(self) -> impl Iterator<Item = StdListener> {
        self.sockets.into_iter().map(StdListener::from)
    }

    /// The bound address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The listener's name in errors.
const WHAT: &str = "the gateway";

/// A socket that shares its port with no other that listens: sockets that do would share it with another gateway's,
/// too.
fn alone(address: SocketAddr) -> io::Result<Socket> {
    socket(address, false)
}

fn socket(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    answer_at_once(&socket)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Answers are small and must not wait for a delayed acknowledgement (40 ms). Connections inherit it from the socket they
/// are accepted from, which saves each of them a system call.
fn answer_at_once(listening: &Socket) -> io::Result<()> {
    listening.set_tcp_nodelay(true)
}

/// A worker's listener, once there is one.
pub(crate) type Listening = oneshot::Receiver<StdListener>;

/// A worker's life: wait for its listener, accept until the drain begins, then let what is open go on until the stop. A
/// drain waits for `accepting`: without it, one that finds no connection tracked would be over before the last ones are
/// accepted.
pub(crate) async fn work(
    listening: Listening,
    worker: Worker,
    accepting: TaskTrackerToken,
) -> io::Result<()> {
    let worker = Arc::new(worker);
    let shutdown = worker.core.shutdown.clone();
    // The sender is dropped if the drain begins first: nothing was accepted, so there is nothing to wait for.
    let Ok(listener) = listening.await else { return Ok(()) };
    let listener = TcpListener::from_std(listener)?;
    let mut draining = pin!(shutdown.draining());
    loop {
        let next = async {
            let connections = worker.core.settings.limits.load().connections;
            worker.core.places.settled(connections).await;
            listener.accept().await
        };
        tokio::select! {
            accepted = next => match accepted {
                Ok((stream, from)) => accept_connection(stream, from, &worker),
                Err(error) => listen::pause(WHAT, &error).await,
            },
            () = &mut draining => break,
        }
    }
    listen::waiting(listener)?.for_each(|(stream, from)| accept_connection(stream, from, &worker));
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

fn accept_connection(stream: TcpStream, from: SocketAddr, worker: &Arc<Worker>) {
    let core = Arc::clone(&worker.core);
    let limits = core.settings.limits.load();
    let patience = Patience { answer: limits.header_timeout.get(), stream: limits.idle_timeout.get() };
    let (exchange, connections) = (Exchange::new(patience), limits.connections);
    let through_balancer = core.generation.load().balancers.has(from.ip());
    let source = (!through_balancer).then_some(from.ip());
    let refusal = match core.places.take(source, Bounds { connections, sources: &limits.source }, &exchange) {
        Ok(place) => {
            let client = core.recorder.names_clients().then_some(from);
            let (visitor, worker) = (Visitor { client, place, exchange }, Arc::clone(worker));
            if through_balancer {
                core.shutdown.tracker().spawn(serve_named(stream, visitor, worker));
            } else {
                core.shutdown.tracker().spawn(serve(stream, visitor, worker));
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
        refuse(stream, from, &refusal, &exchange, &refused).await;
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
            return turn_away(stream, source, &Refusal::SourceLimit, &exchange, &core).await;
        }
    }
    serve(stream, visitor, worker).await;
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
async fn serve(stream: TcpStream, visitor: Visitor, worker: Arc<Worker>) {
    let core = Arc::clone(&worker.core);
    let _open = core.recorder.connection_opened();
    let source = visitor.place.source();
    if let Err(refusal) = core.may_ask(source, &core.settings.limits.load()) {
        // Boxed, for few come here and every connection has this room.
        return Box::pin(turn_away(stream, source, &refusal, &visitor.exchange, &core)).await;
    }
    let tls = core.generation.load().tls.as_ref().map(|tls| Arc::clone(&tls.serving));
    let Some(tls) = tls else {
        return connection::serve(stream, visitor, worker).await;
    };
    if let Some(stream) = handshake(stream, tls, source, &visitor.exchange, &core).await {
        connection::serve(stream, visitor, worker).await;
    }
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
    mut stream: TcpStream,
    from: SocketAddr,
    refusal: &Refusal,
    exchange: &Exchange,
    core: &Core,
) {
    let through_balancer = core.generation.load().balancers.has(from.ip());
    let client = if through_balancer { named(&mut stream, exchange, core).await } else { Some(Some(from)) };
    let Some(client) = client else { return };
    let source = client.and_then(|client| core.settings.limits.load().source.source(client.ip()));
    turn_away(stream, source, refusal, exchange, core).await;
}

/// Says why, before any request, unless another connection needs the place.
async fn turn_away(
    stream: TcpStream,
    source: Option<Source>,
    refusal: &Refusal,
    exchange: &Exchange,
    core: &Core,
) {
    core.recorder.turned_away(refusal);
    let answer = refused_raw(refusal);
    let tls = core.generation.load().tls.as_ref().map(|tls| Arc::clone(&tls.refusing));
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

    fn room<A, B, C, F: Future>(_: impl FnOnce(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    /// The memory of every open connection and every tunnel. Most of them are idle most of the time.
    #[test]
    fn a_connection_takes_little_room() {
        assert!(room(serve) <= 2048, "{}", room(serve));
    }
}
