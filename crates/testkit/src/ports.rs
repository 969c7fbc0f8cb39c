//! Ports of the loopback interface: some for servers that start later, some that refuse every connection.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use tokio::net::TcpSocket;

/// Below those that the kernel assigns, to listeners on port 0 and to connections, also while nothing listens.
const UNASSIGNED: Range<u16> = 20_000..32_768;

/// A port of 127.0.0.1 on which nothing listens yet, or again. No other test gets it before the process ends.
pub fn free() -> u16 {
    loop {
        let port = rand::random_range(UNASSIGNED);
        // The servers use TCP only, so that the same port of UDP can be held for all processes to see.
        let Ok(held) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) else { continue };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            std::mem::forget(held);
            return port;
        }
    }
}

/// A port of the loopback interface that refuses connections.
pub fn closed() -> SocketAddr {
    closed_at(Ipv4Addr::LOCALHOST)
}

/// A port of this address that refuses connections. It stays bound until the process ends, so that no other test listens
/// on it.
pub fn closed_at(address: Ipv4Addr) -> SocketAddr {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::V4(address), 0)).unwrap();
    let bound = socket.local_addr().unwrap();
    std::mem::forget(socket);
    bound
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::io::ErrorKind;
    use std::net::TcpStream;

    #[test]
    fn a_closed_port_refuses() {
        let refused = TcpStream::connect(closed()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_free_port_is_given_once_and_can_be_listened_on_again_and_again() {
        let ports: HashSet<_> = (0..100).map(|_| free()).collect();
        assert_eq!(ports.len(), 100);
        for port in ports {
            (0..2).for_each(|_| drop(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap()));
        }
    }
}
