//! Ports of the loopback interface: some for servers that start later, some that refuse every connection or datagram, and the
//! connections to one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use tokio::net::TcpSocket;

/// Ports below those that the kernel assigns to connections and to listeners on port 0, even while nothing listens on them.
const UNASSIGNED: Range<u16> = 20_000..32_768;

/// Returns a port of 127.0.0.1 without a listener. No other test gets the port before this process ends.
pub fn free() -> u16 {
    loop {
        let port = rand::random_range(UNASSIGNED);
        // The servers use TCP only, so the same UDP port can be held as a lock that is visible to all processes.
        let Ok(held) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) else { continue };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            std::mem::forget(held);
            return port;
        }
    }
}

/// Returns a port of the loopback interface that refuses connections.
pub fn closed() -> SocketAddr {
    closed_at(Ipv4Addr::LOCALHOST)
}

/// Returns a port of this address that refuses connections. The port stays bound until the process ends, so that no other test
/// listens on it.
pub fn closed_at(address: Ipv4Addr) -> SocketAddr {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::V4(address), 0)).unwrap();
    let bound = socket.local_addr().unwrap();
    std::mem::forget(socket);
    bound
}

/// Returns a port of the loopback interface that is unreachable over UDP. As in [`closed_at`], no other test gets it.
pub fn closed_udp() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let bound = socket.local_addr().unwrap();
    // The kernel then gives it no datagrams but its own, and answers others as if it were not there.
    socket.connect(bound).unwrap();
    std::mem::forget(socket);
    bound
}

/// Counts the open connections to a port, by their client's end.
pub fn connections(port: u16) -> usize {
    connected("/proc/net/tcp", &format!(":{port:04X}"))
}

/// Counts the sockets of UDP that are connected to an address of IPv4.
pub fn udp_connections(to: SocketAddr) -> usize {
    let SocketAddr::V4(to) = to else { panic!("no IPv4") };
    let ip = u32::from_ne_bytes(to.ip().octets());
    connected("/proc/net/udp", &format!("{ip:08X}:{:04X}", to.port()))
}

fn connected(table: &str, to: &str) -> usize {
    let remote = format!("{to} 01 "); // 01: established
    let open = std::fs::read_to_string(table).unwrap();
    open.lines().filter(|line| line.contains(&remote)).count()
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
        let (closed, stranger) = (closed_udp(), UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        stranger.connect(closed).unwrap();
        assert_eq!(udp_connections(closed), 2, "its own and that of the stranger");
        stranger.send(b"anybody?").unwrap();
        assert_eq!(stranger.recv(&mut [0; 16]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
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
