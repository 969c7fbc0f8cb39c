//! Accepting connections: a thread a core, each with a runtime of its own and its own listening socket on the shared
//! address (SO_REUSEPORT), so that a connection stays on one core from its first byte to its last.
//!
//! `docs/decisions/runtime-shape.md` has the measurement behind this shape.

use crate::request::deny::Refusal;
use crate::server::connection;
use crate::state::{Core, Worker};
use postern_daemon::listen::{self, BindError, is_of_one_connection};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Connections that wait in the kernel until they are accepted.
const BACKLOG: i32 = 4096;
/// How long connections have to end after the stop, and how often to poll for it.
const ENDING: Duration = Duration::from_secs(1);
const ENDING_TICK: Duration = Duration::from_millis(1);
/// How long to leave the listener alone when accepting fails for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The sockets of a gateway, a worker each, bound to one address but not listening yet: a client is refused by the
/// kernel and tries another gateway, rather than being answered 503.
pub(crate) struct Sockets {
    address: SocketAddr,
    sockets: Vec<Socket>,
    listening: bool,
}

impl Sockets {
    /// Binds them; port 0 becomes the same free port for all.
    pub(crate) fn bind(address: SocketAddr, workers: usize) -> Result<Self, BindError> {
        let failed = |source| BindError { what: WHAT, address, source };
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
    socket.bind(&address.into())?;
    Ok(socket)
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
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => accept_connection(stream, &worker),
                Err(error) => pause(&error).await,
            },
            () = &mut draining => break,
        }
    }
    listen::waiting(listener)?.for_each(|stream| accept_connection(stream, &worker));
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

/// Errors of one connection pass by themselves; lack of descriptors or memory lasts, and must not become a busy loop.
async fn pause(error: &io::Error) {
    if !is_of_one_connection(error) {
        tracing::warn!(%error, "the gateway cannot accept a connection; it tries again. If this goes on, raise \
            the limit of open files (ulimit -n, LimitNOFILE)");
        sleep(ACCEPT_PAUSE).await;
    }
}

fn accept_connection(stream: TcpStream, worker: &Arc<Worker>) {
    let place = Place::take(Arc::clone(&worker.core));
    let (core, worker) = (Arc::clone(&worker.core), Arc::clone(worker));
    let limit = core.settings.limits.load().connections;
    // A bounded number of clients gets an answer that there are too many; above it, closing without one is cheaper.
    if place.number > limit.saturating_add(limit / 8).saturating_add(16) {
        return;
    }
    let over = place.number > limit;
    let client = if core.recorder.names_clients() { stream.peer_addr().ok() } else { None };
    core.shutdown.tracker().spawn(async move {
        let _place = place;
        serve(stream, client, worker, over).await;
    });
}

/// Ends with the stop at the latest.
async fn serve(stream: TcpStream, client: Option<SocketAddr>, worker: Arc<Worker>, over: bool) {
    let core = Arc::clone(&worker.core);
    let _open = core.recorder.connection_opened();
    // Answers are small and must not wait for a delayed acknowledgement (40 ms).
    let _ = stream.set_nodelay(true);
    let Some(tls) = &core.tls else {
        if over {
            return turn_away(stream, &core).await;
        }
        return connection::serve(stream, client, worker).await;
    };
    // Boxed twice (`until_stopped` does), since a task has room for the largest of its futures: plain connections must
    // not pay for TLS, nor TLS for each place that its stream is handed to.
    let header_timeout = core.settings.limits.load().header_timeout.get();
    let handshake = TlsAcceptor::from(Arc::clone(tls)).accept(stream);
    let handshake = core.shutdown.until_stopped(timeout(header_timeout, handshake));
    if let Some(Ok(Ok(stream))) = handshake.await.map(|ended| ended.map(|ok| ok.map(Box::new))) {
        if over {
            return turn_away(stream, &core).await;
        }
        connection::serve(stream, client, worker).await;
    }
}

async fn turn_away<S: AsyncRead + AsyncWrite + Unpin>(stream: S, core: &Core) {
    core.recorder.turned_away(&Refusal::TooMany);
    core.shutdown.until_stopped(connection::part(stream, &Refusal::TooMany)).await;
}

/// One of the gateway's connections, counted over all workers.
struct Place {
    core: Arc<Core>,
    number: usize,
}

impl Place {
    fn take(core: Arc<Core>) -> Self {
        let number = core.connections.fetch_add(1, Ordering::Relaxed) + 1;
        Self { core, number }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.core.connections.fetch_sub(1, Ordering::Relaxed);
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
