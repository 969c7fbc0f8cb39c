//! Accepting connections: a thread a core, each with a runtime of its own and its own listening socket on the shared
//! address (SO_REUSEPORT), so that a connection stays on one core from its first byte to its last.
//!
//! `docs/decisions/runtime-shape.md` has the measurement behind this shape.

use crate::connection::{self, Worker};
use crate::deny::Refusal;
use crate::gateway::Core;
use postern_service::listen::{self, BindError, is_of_one_connection};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Connections that wait in the kernel until they are accepted.
const BACKLOG: i32 = 4096;
/// How long to leave the listener alone when accepting fails for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Opens one listening socket a worker on one address; port 0 becomes the same free port for all.
pub(crate) fn open(address: SocketAddr, workers: usize) -> Result<(SocketAddr, Vec<StdListener>), BindError> {
    let failed = |source| BindError { what: "the gateway", address, source };
    // Sockets that share a port would also share it with another gateway's: one that does not share finds out first.
    let bound = socket(address, false).and_then(|probe| probe.local_addr()).map_err(failed)?;
    let address = bound.as_socket().unwrap_or(address);
    let listeners = (0..workers).map(|_| {
        let socket = socket(address, true)?;
        socket.listen(BACKLOG)?;
        Ok(StdListener::from(socket))
    });
    Ok((address, listeners.collect::<io::Result<_>>().map_err(failed)?))
}

fn socket(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A worker's life: accept until the drain begins, then let what is open go on until the stop. A drain waits for
/// `accepting`: without it, one that finds no connection tracked would be over before the last ones are accepted.
pub(crate) async fn work(
    listener: StdListener,
    worker: Worker,
    accepting: TaskTrackerToken,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let worker = Arc::new(worker);
    let shutdown = worker.core.shutdown.clone();
    let mut draining = pin!(shutdown.draining());
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => admit(stream, &worker),
                Err(error) => pause(&error).await,
            },
            () = &mut draining => break,
        }
    }
    listen::waiting(listener)?.for_each(|stream| admit(stream, &worker));
    drop(accepting);
    shutdown.stopped().await;
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

fn admit(stream: TcpStream, worker: &Arc<Worker>) {
    let place = Place::take(Arc::clone(&worker.core));
    let (core, worker) = (Arc::clone(&worker.core), Arc::clone(worker));
    let limit = core.limits.connections;
    // So many clients at a time are told that there are too many; beyond that, silence is cheaper.
    if place.number > limit.saturating_add(limit / 8).saturating_add(16) {
        return;
    }
    let over = place.number > limit;
    let client = if core.recorder.names_clients() { stream.peer_addr().ok() } else { None };
    let shutdown = core.shutdown.clone();
    core.shutdown.tracker().spawn(async move {
        let _place = place;
        let _ = shutdown.until_stopped(serve(stream, client, worker, over)).await;
    });
}

async fn serve(stream: TcpStream, client: Option<SocketAddr>, worker: Arc<Worker>, over: bool) {
    let core = Arc::clone(&worker.core);
    let _open = core.recorder.connection_opened();
    // The answers are small and must not wait for an acknowledgement: the 40 ms story.
    let _ = stream.set_nodelay(true);
    let Some(tls) = &core.tls else {
        if over {
            core.recorder.turned_away(&Refusal::TooMany);
            return connection::part(stream, &Refusal::TooMany).await;
        }
        return connection::serve(stream, client, worker).await;
    };
    // Boxed twice, since a task has room for the largest of its futures: plain connections must not pay for TLS, nor TLS
    // for each place that its stream is handed to.
    let handshake = Box::pin(TlsAcceptor::from(Arc::clone(tls)).accept(stream));
    if let Ok(Ok(stream)) =
        timeout(core.limits.header_timeout.get(), handshake).await.map(|ok| ok.map(Box::new))
    {
        if over {
            core.recorder.turned_away(&Refusal::TooMany);
            return connection::part(stream, &Refusal::TooMany).await;
        }
        connection::serve(stream, client, worker).await;
    }
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

    /// What every open connection and every tunnel takes of memory, and most of them are idle most of the time.
    #[test]
    fn a_connection_takes_little_room() {
        assert!(room(serve) <= 2048, "{}", room(serve));
    }
}
