//! Programs that use SOCKS5's UDP ASSOCIATE (RFC 1928, section 7), and targets of UDP.

use super::{PATIENCE, in_time, proxy};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, ToSocketAddrs, UdpSocket};
use tokio::time::timeout;

/// Time for an answer, after which a datagram is sent again.
const AGAIN: Duration = Duration::from_secs(10);

/// Associates a program at this address, which announces this port. Returns its TCP connection and the agent's socket; fails with
/// the reply's code.
pub async fn associate(
    source: Ipv4Addr,
    port: u16,
    agent: SocketAddr,
) -> Result<(BufReader<TcpStream>, SocketAddr), u8> {
    let mut control = proxy::dial_from(source, agent).await.unwrap();
    let asking = async {
        control.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0]).await?;
        control.write_all(&port.to_be_bytes()).await?;
        let mut answer = [0; 12];
        control.read_exact(&mut answer).await?;
        Ok(answer)
    };
    let answer = in_time(asking).await.unwrap();
    let [5, 0, 5, reply, 0, 1, a, b, c, d, high, low] = answer else { panic!("{answer:?}") };
    let relay = SocketAddr::from((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])));
    if reply == 0 { Ok((control, relay)) } else { Err(reply) }
}

/// A program with an association.
pub struct Program {
    pub control: BufReader<TcpStream>,
    pub socket: UdpSocket,
    /// The agent's socket.
    pub relay: SocketAddr,
    /// Number of the last echo.
    last: u32,
}

impl Program {
    pub async fn of(agent: SocketAddr) -> Self {
        Self::at(Ipv4Addr::LOCALHOST, agent).await
    }

    /// One at this address.
    pub async fn at(source: Ipv4Addr, agent: SocketAddr) -> Self {
        let socket = UdpSocket::bind((source, 0)).await.unwrap();
        Self::with(socket, 0, agent).await.unwrap()
    }

    /// One that announces this port; fails with the reply's code.
    pub async fn with(socket: UdpSocket, port: u16, agent: SocketAddr) -> Result<Self, u8> {
        let SocketAddr::V4(own) = socket.local_addr().unwrap() else { panic!("no IPv4") };
        let (control, relay) = associate(*own.ip(), port, agent).await?;
        Ok(Self { control, socket, relay, last: 0 })
    }

    pub async fn send(&self, address: &[u8], payload: &[u8]) {
        self.socket.send_to(&datagram(address, payload), self.relay).await.unwrap();
    }

    /// Sends a payload of this size to an echo until it comes back from there. Packets may be lost on a busy machine.
    pub async fn echo(&mut self, address: &[u8], size: usize) {
        self.last += 1;
        let mut payload = self.last.to_be_bytes().to_vec();
        payload.resize(size.max(4), 7);
        let (sent, mut room, began) = (datagram(address, &payload), vec![0; 1 << 16], Instant::now());
        while began.elapsed() < PATIENCE {
            self.socket.send_to(&sent, self.relay).await.unwrap();
            let found = async {
                loop {
                    let (length, from) = self.socket.recv_from(&mut room).await.unwrap();
                    assert_eq!(from, self.relay);
                    // A late answer to one of before is another.
                    if room[..length] == sent {
                        return;
                    }
                }
            };
            if timeout(AGAIN, found).await.is_ok() {
                return;
            }
        }
        panic!("no answer from {address:?}");
    }
}

pub fn datagram(address: &[u8], payload: &[u8]) -> Vec<u8> {
    [&[0, 0, 0][..], address, payload].concat()
}

/// The address of a target as SOCKS writes it.
pub fn v4(target: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(target) = target else { panic!("no IPv4") };
    [&[1][..], &target.ip().octets(), &target.port().to_be_bytes()].concat()
}

pub fn name(name: &str, port: u16) -> Vec<u8> {
    [&[3, u8::try_from(name.len()).unwrap()][..], name.as_bytes(), &port.to_be_bytes()].concat()
}

/// Sends back every datagram.
pub async fn echo() -> SocketAddr {
    echo_at((Ipv4Addr::LOCALHOST, 0)).await
}

/// The same at another address, the first that can be had.
pub async fn echo_at(addresses: impl ToSocketAddrs) -> SocketAddr {
    let socket = UdpSocket::bind(addresses).await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut room = vec![0; 1 << 16];
        while let Ok((length, from)) = socket.recv_from(&mut room).await {
            let _ = socket.send_to(&room[..length], from).await; // it may be gone
        }
    });
    address
}
