//! The listening sockets of a gateway: one per worker on each address, so the kernel spreads connections over them
//! (SO_REUSEPORT).

use postern_daemon::listen::{self, BindError};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};

/// Maximum connections that wait in the kernel until they are accepted.
const BACKLOG: i32 = 4096;

/// Sockets, one per worker, bound to one address but not listening yet: the kernel refuses a client, which tries another
/// gateway instead of getting a 503.
pub(crate) struct Sockets {
    /// Name in error messages.
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
        let bound = alone(address).map_err(failed)?;
        let address = bound.local_addr().map_err(failed)?.as_socket().unwrap_or(address);
        drop(bound);
        let sockets: io::Result<_> = (0..workers).map(|_| socket(address, true)).collect();
        Ok(Self { what, address, sockets: sockets.map_err(failed)?, listening: false })
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
