//! Ports that refuse every connection.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use tokio::net::TcpSocket;

/// A port of the loopback interface that refuses connections.
pub fn port() -> SocketAddr {
    port_at(Ipv4Addr::LOCALHOST)
}

/// A port of this address that refuses connections. It stays bound until the process ends, so that no other test listens
/// on it.
pub fn port_at(address: Ipv4Addr) -> SocketAddr {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::V4(address), 0)).unwrap();
    let bound = socket.local_addr().unwrap();
    std::mem::forget(socket);
    bound
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_closed_port_refuses() {
        let refused = std::net::TcpStream::connect(super::port()).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }
}
