//! Accepts connections: one thread per core, each with a separate runtime and a separate listening socket on each shared
//! address, so a connection stays on one thread from its first byte to its last.
//!
//! Measurements: `docs/decisions/runtime-shape.md`.

use crate::request::answer::refused_raw;
use crate::request::deny::Refusal;
use crate::request::peer::Peer;
use crate::server::connection;
use crate::state::Worker;
use postern_daemon::exchange::Patience;
use postern_daemon::places::{Bounds, NoPlace};
use postern_daemon::serve::{self, Endpoint, Limits, Parts, TurnedAway, Visitor};
use postern_daemon::tls::{Accepted, ListenerTls};
use postern_proxy::reset;
use std::io;
use std::net::{IpAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Maximum time for connections to end after the stop, and polling interval for their end.
const ENDING: Duration = Duration::from_secs(1);
const ENDING_TICK: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listener {
    /// Any client: each request needs a token.
    Clients,
    /// The operator's other gateways, identified by their certificates.
    Peers,
}

impl Listener {
    /// Returns the name in error messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Clients => "the gateway",
            Self::Peers => "the gateway's listener for peers",
        }
    }
}

/// Runs a worker: accepts until the drain begins, then serves open connections until the stop. The listener for clients is sent
/// once the gateway listens; that for peers needs neither keys nor the store. A drain waits for `accepting`:
/// otherwise a drain without tracked connections would end before the last ones are accepted.
pub(crate) async fn work(
    clients: oneshot::Receiver<StdListener>,
    peers: Option<StdListener>,
    worker: Worker,
    accepting: TaskTrackerToken,
) -> io::Result<()> {
    let worker = Arc::new(worker);
    let shutdown = worker.core.shutdown.clone();
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
    // The end of this runtime ends its connections at any point. Connections that the stop cuts off end shortly by themselves,
    // in a way that clients can distinguish from an orderly end.
    let ending = async {
        while Arc::strong_count(&worker) > 1 {
            sleep(ENDING_TICK).await;
        }
    };
    let _ = timeout(ENDING, ending).await;
    Ok(())
}

async fn accept(listener: StdListener, whose: Listener, worker: &Arc<Worker>) -> io::Result<()> {
    let endpoint = Arc::new(WorkerListener { whose, worker: Arc::clone(worker) });
    let listener = TcpListener::from_std(listener)?;
    let shutdown = &worker.core.shutdown;
    serve::accept(endpoint, (whose.name(), listener), shutdown.tracker(), shutdown.draining()).await
}

struct WorkerListener {
    whose: Listener,
    worker: Arc<Worker>,
}

impl Endpoint for WorkerListener {
    const WAITS: bool = false; // a client that is refused can try another gateway
    const AWAITS_HANDSHAKES: bool = true;

    fn parts(&self) -> Parts<'_> {
        let core = &self.worker.core;
        Parts { places: &core.places, rates: &core.rates, shutdown: &core.shutdown }
    }

    fn with_limits<T>(&self, read: impl FnOnce(Limits<'_>) -> T) -> T {
        let limits = &self.worker.core.generation.load().settings.limits;
        let patience = Patience { answer: limits.header_timeout.get(), stream: limits.idle_timeout.get() };
        read(Limits { bounds: Bounds { connections: limits.connections, sources: &limits.source }, patience })
    }

    fn is_balancer(&self, address: IpAddr) -> bool {
        self.whose == Listener::Clients && self.worker.core.generation.load().settings.balancers.has(address)
    }

    fn tls(&self) -> Option<ListenerTls> {
        let generation = self.worker.core.generation.load();
        match self.whose {
            Listener::Clients => generation.tls.clone(),
            Listener::Peers => generation.peers.clone(),
        }
    }

    fn opened(&self) -> impl Send {
        self.worker.core.recorder.connection_opened()
    }

    fn record(&self, reason: TurnedAway) {
        self.worker.core.turned_away(&reason.into());
    }

    fn answer(&self, reason: TurnedAway) -> Vec<u8> {
        refused_raw(&reason.into())
    }

    fn tear(&self, stream: Accepted, is_read: bool) -> impl Future<Output = ()> + Send {
        reset::tear(stream, is_read)
    }

    async fn serve(&self, stream: Accepted, mut visitor: Visitor) {
        let mut peer = None;
        if self.whose == Listener::Peers {
            peer = Peer::shown_by(&stream);
            if peer.is_none() {
                return;
            }
            visitor.place.keep(); // a peer's clients have paid
        }
        connection::serve(self, stream, visitor, peer, &self.worker).await;
    }
}

impl From<TurnedAway> for Refusal {
    fn from(reason: TurnedAway) -> Self {
        match reason {
            TurnedAway::NoPlace(NoPlace::Full) => Self::TooMany,
            TurnedAway::NoPlace(NoPlace::Source) => Self::SourceLimit,
            TurnedAway::Handshakes => Self::SourceHandshakes,
            TurnedAway::Refusals(above) => Self::SourceRefusals(above),
            TurnedAway::Certificate => Self::ClientCertificate,
            TurnedAway::Displaced => Self::Displaced,
            TurnedAway::Malformed => Self::Malformed,
            TurnedAway::HeaderTooLarge => Self::HeaderTooLarge,
            TurnedAway::HeaderTimeout => Self::HeaderTimeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room<A, B, C, F: Future>(_: impl FnOnce(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    /// Bounds the memory of every open connection and every tunnel, most of which are idle most of the time.
    #[test]
    fn a_connection_takes_little_room() {
        let room = room(serve::connection::<WorkerListener>);
        assert!(room <= 2048, "{room}");
    }
}
