//! The listening sockets of a gateway, and the start of listening. A gateway that cannot serve yet does not listen: a client retries a
//! refused connection, at this gateway or at another, but reports a 503 to its user.

use crate::gate::Served;
use postern_daemon::drain::Shutdown;
use postern_daemon::listen::{self, BindError};
use postern_daemon::readiness::{Gate, Readiness};
use socket2::{Domain, Protocol, Socket, Type};
use std::future::pending;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// State needed until clients are accepted.
pub(crate) struct Start {
    pub(crate) sockets: Sockets,
    /// `true` while the keys, and the store, can serve.
    pub(crate) served: [Served; 2],
    pub(crate) patience: Duration,
    pub(crate) gate: Gate,
    pub(crate) readiness: Readiness,
    pub(crate) shutdown: Shutdown,
    /// `true` once clients are accepted.
    pub(crate) listening: watch::Sender<bool>,
}

impl Start {
    /// Waits until the gateway can serve, for at most `patience`, then listens and sends a listener to each of `workers`. With
    /// zero `patience` the sockets already listen. Stops waiting if a drain begins first. Returns only if listening fails.
    pub(crate) async fn run(mut self, workers: Vec<oneshot::Sender<TcpListener>>) -> io::Error {
        let Some(ready) = self.wait().await else {
            drop(workers); // ends their wait for a listener
            return pending().await;
        };
        let address = self.sockets.address();
        if let Err(error) = self.sockets.listen() {
            return io::Error::other(error);
        }
        // Sending fails only for a worker that has drained.
        workers
            .into_iter()
            .zip(self.sockets.into_listeners())
            .for_each(|(worker, listener)| _ = worker.send(listener));
        self.gate.set_ready();
        self.listening.send_replace(true);
        if ready {
            tracing::info!("the gateway takes clients on {address}");
        } else {
            let missing = self.readiness.reasons().join("; ");
            tracing::warn!(
                "the gateway takes clients on {address} although it cannot serve them, for it has waited long enough \
                 (listen.patience); they are answered 503. {missing}"
            );
        }
        pending().await
    }

    /// Returns `true` if the gateway can serve before its patience ends, `None` if a drain begins first.
    async fn wait(&mut self) -> Option<bool> {
        if self.patience.is_zero() {
            return Some(true);
        }
        self.gate.set_not_ready("the gateway takes no clients before its keys and its store can serve them");
        tokio::select! {
            ready = timeout(self.patience, both(&mut self.served)) => Some(ready.is_ok()),
            () = self.shutdown.draining() => None,
        }
    }
}

/// Returns when both can serve at the same time.
async fn both(served: &mut [Served; 2]) {
    while !served.iter().all(|each| *each.borrow()) {
        for each in &mut *served {
            if each.wait_for(|served| *served).await.is_err() {
                return pending().await; // maintenance has ended, and with it the gateway
            }
        }
    }
}

/// Maximum connections that wait in the kernel until they are accepted.
const BACKLOG: i32 = 4096;

/// Sockets, one per worker, bound to one address but not listening yet: the kernel refuses a client, which tries another
/// gateway instead of getting a 503.
pub(crate) struct Sockets {
    what: &'static str,
    address: SocketAddr,
    sockets: Vec<Socket>,
    listening: bool,
}

impl Sockets {
    /// Binds the sockets; port 0 becomes the same free port for all. A socket that systemd passes already listens, and all
    /// workers accept from it.
    pub(crate) fn bind(what: &'static str, address: SocketAddr, workers: usize) -> Result<Self, BindError> {
        let failed = |source| BindError { what, address, source };
        if let Some(handed) = listen::handed::claim(address) {
            let shared = Socket::from(handed);
            answer_at_once(&shared).map_err(failed)?;
            let sockets: io::Result<_> = (0..workers).map(|_| shared.try_clone()).collect();
            return Ok(Self { what, address, sockets: sockets.map_err(failed)?, listening: true });
        }
        let (address, mut sockets) = if address.port() == 0 {
            // The first socket keeps the port: the kernel would give a port that nobody holds to another program.
            let first = socket(address, true).map_err(failed)?;
            (first.local_addr().map_err(failed)?.as_socket().unwrap_or(address), vec![first])
        } else {
            drop(alone(address).map_err(failed)?);
            (address, Vec::new())
        };
        let others: io::Result<Vec<_>> = (sockets.len()..workers).map(|_| socket(address, true)).collect();
        sockets.extend(others.map_err(failed)?);
        Ok(Self { what, address, sockets, listening: false })
    }

    /// Listens: from now on the kernel accepts connections, and keeps them until a worker accepts them.
    pub(crate) fn listen(&mut self) -> Result<(), BindError> {
        let failed = |source| BindError { what: self.what, address: self.address, source };
        if !self.listening {
            // Another gateway may have bound the same address too, and listened first.
            drop(alone(self.address).map_err(failed)?);
            self.sockets.iter().try_for_each(|socket| socket.listen(BACKLOG)).map_err(failed)?;
            self.listening = true;
        }
        Ok(())
    }

    pub(crate) fn into_listeners(self) -> impl Iterator<Item = TcpListener> {
        self.sockets.into_iter().map(TcpListener::from)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Binds a socket that shares its port with no listening one. Sockets that share their port would also share it with those of
/// another gateway.
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

/// Sets TCP_NODELAY: answers are small and must not wait for a delayed acknowledgement (40 ms). Accepted connections inherit it
/// from the listening socket, which saves each of them a system call.
fn answer_at_once(listening: &Socket) -> io::Result<()> {
    listening.set_tcp_nodelay(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    struct Started {
        address: SocketAddr,
        keys: watch::Sender<bool>,
        store: watch::Sender<bool>,
        shutdown: Shutdown,
        listening: watch::Receiver<bool>,
        readiness: Readiness,
        task: tokio::task::JoinHandle<io::Error>,
        _workers: Vec<oneshot::Receiver<TcpListener>>,
    }

    fn start(address: SocketAddr, patience: Duration) -> Started {
        let ((keys, keys_served), (store, store_served)) = (watch::channel(false), watch::channel(false));
        let (listening, seen) = watch::channel(false);
        let (shutdown, readiness) = (Shutdown::new(), Readiness::new());
        let sockets = Sockets::bind("the gateway", address, 2).unwrap();
        let address = sockets.address();
        let start = Start {
            sockets,
            served: [keys_served, store_served],
            patience,
            gate: readiness.gate("listen"),
            readiness: readiness.clone(),
            shutdown: shutdown.clone(),
            listening,
        };
        let (give, workers): (Vec<_>, _) = (0..2).map(|_| oneshot::channel()).unzip();
        let task = tokio::spawn(start.run(give));
        Started { address, keys, store, shutdown, listening: seen, readiness, task, _workers: workers }
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn clients_are_refused_by_the_kernel_until_keys_and_store_can_serve() {
        let mut started = start(LOOPBACK, LONG);
        for (keys, store) in [(true, false), (false, true)] {
            started.keys.send_replace(keys);
            started.store.send_replace(store);
            tokio::time::sleep(Duration::from_millis(20)).await;
            let error = TcpStream::connect(started.address).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            assert_eq!(started.readiness.reasons().len(), 1);
        }
        started.keys.send_replace(true);
        started.listening.wait_for(|listening| *listening).await.unwrap();
        TcpStream::connect(started.address).unwrap();
        assert_eq!(started.readiness.reasons(), [""; 0]);
    }

    #[tokio::test]
    async fn after_its_patience_it_takes_clients_all_the_same() {
        let mut started = start(LOOPBACK, Duration::from_millis(50));
        started.listening.wait_for(|listening| *listening).await.unwrap();
        TcpStream::connect(started.address).unwrap();
    }

    #[tokio::test]
    async fn a_drain_ends_the_wait_and_nothing_listens_after_it() {
        let started = start(LOOPBACK, Duration::from_millis(50));
        started.shutdown.drain();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(TcpStream::connect(started.address).is_err() && !started.task.is_finished());
    }

    #[tokio::test]
    async fn of_two_that_wait_for_one_port_the_second_fails() {
        let first = start(LOOPBACK, LONG);
        let second = start(first.address, LONG);
        for started in [&first, &second] {
            started.keys.send_replace(true);
            started.store.send_replace(true);
        }
        let mut tasks = [first.task, second.task].into_iter().collect::<Vec<_>>();
        while tasks.iter().all(|task| !task.is_finished()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(tasks.iter().filter(|task| task.is_finished()).count(), 1, "one of the two has the port");
        let failed = tasks.swap_remove(tasks.iter().position(|task| task.is_finished()).unwrap());
        let error = failed.await.unwrap().to_string();
        assert!(
            error.contains("cannot open the gateway on") && error.contains("another program listens"),
            "{error}"
        );
    }
}
