//! Datagrams of each size, alone and in bursts, up to what the path takes (RFC 9298, section 5); and their packets' heads.

use crate::support::http2::Http2;
use crate::support::udp::{any_port, capsule, echo, echo_at, open};
use crate::support::{PATIENCE, Running};
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{IoSliceMut, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// Largest payload of a packet of IPv6 through the loopback interface, whose MTU is 64 KiB: less the heads of IPv6 and UDP. One of IPv4
/// is never larger.
const LOOPBACK: usize = (64 << 10) - 40 - 8;
/// Largest payload that RFC 9298 lets a capsule have. The kernel sends it in two fragments, unless it is told not to.
const MOST: usize = 65_527;

/// A fragmented datagram would come back whole.
#[tokio::test]
async fn what_the_path_takes_only_in_fragments_is_dropped() {
    let gateway = Running::start_with(any_port).await;
    let target = echo_at((Ipv6Addr::LOCALHOST, 0)).await;
    let mut client = Http2::connect(gateway.address).await;
    let mut flow = open(&mut client, target).await;
    for size in [LOOPBACK + 1, MOST] {
        flow.echo(&vec![1; LOOPBACK]).await;
        flow.send(&vec![2; size]).await;
        flow.echo(&[3; 1200]).await;
        // In one burst with others.
        let sent = [vec![4; 1200], vec![5; size], vec![6; size], vec![7; 1200]];
        flow.tunnel
            .send(&sent.iter().flat_map(|payload| capsule(payload)).collect::<Vec<_>>())
            .await
            .unwrap();
        for payload in [&sent[0], &sent[3]] {
            assert!(flow.next().await.as_ref() == Some(payload), "{size}");
        }
    }
}

#[tokio::test]
async fn many_datagrams_of_one_burst_arrive_one_by_one_in_their_order() {
    let (gateway, target) = (Running::start_with(any_port).await, echo().await);
    let mut client = Http2::connect(gateway.address).await;
    let mut flow = open(&mut client, target).await;
    for round in 0..20_u8 {
        let sizes = [1200, 1200, 1200, 700, 1200, 1200, 0, 0, 5, 5];
        let sent: Vec<Vec<u8>> = sizes.iter().zip(0..).map(|(&size, at)| vec![round ^ at; size]).collect();
        let stream: Vec<u8> = sent.iter().flat_map(|payload| capsule(payload)).collect();
        flow.tunnel.send(&stream).await.unwrap();
        for payload in sent {
            assert!(flow.next().await == Some(payload), "round {round}");
        }
    }
}

/// A target that sees ECN, and marks what it sends.
struct Marked {
    socket: UdpSocket,
    state: UdpSocketState,
}

impl Marked {
    async fn bind(address: IpAddr) -> Self {
        let socket = UdpSocket::bind((address, 0)).await.unwrap();
        let state = UdpSocketState::new(UdpSockRef::from(&socket)).unwrap();
        Self { socket, state }
    }

    /// The mark of the next datagram, and who sent it.
    async fn receive(&self) -> (Option<EcnCodepoint>, SocketAddr) {
        let (mut room, mut metas) = ([0; 64], [RecvMeta::default()]);
        let mut rooms = [IoSliceMut::new(&mut room)];
        let received = self.socket.async_io(Interest::READABLE, || {
            self.state.recv(UdpSockRef::from(&self.socket), &mut rooms, &mut metas)
        });
        timeout(PATIENCE, received).await.unwrap().unwrap();
        (metas[0].ecn, metas[0].addr)
    }

    async fn send(&self, to: SocketAddr, ecn: EcnCodepoint) {
        let transmit = Transmit {
            destination: to,
            ecn: Some(ecn),
            contents: b"marked",
            segment_size: None,
            src_ip: None,
        };
        let sent = self
            .socket
            .async_io(Interest::WRITABLE, || self.state.try_send(UdpSockRef::from(&self.socket), &transmit));
        sent.await.unwrap();
    }
}

/// RFC 9298, section 6.2: the stream carries no marks, so the network must not be told that it does.
#[tokio::test]
async fn marks_of_congestion_are_ignored_and_none_is_set() {
    let gateway = Running::start_with(any_port).await;
    let mut client = Http2::connect(gateway.address).await;
    for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let target = Marked::bind(address).await;
        // The test would see a mark.
        target.send(target.socket.local_addr().unwrap(), EcnCodepoint::Ect0).await;
        assert_eq!(target.receive().await.0, Some(EcnCodepoint::Ect0));
        let mut flow = open(&mut client, target.socket.local_addr().unwrap()).await;
        flow.send(b"first").await;
        for ecn in [EcnCodepoint::Ect0, EcnCodepoint::Ect1, EcnCodepoint::Ce] {
            let (sent, gateway) = target.receive().await;
            assert_eq!(sent, None, "{address}");
            target.send(gateway, ecn).await;
            assert_eq!(flow.next().await.unwrap(), b"marked");
            flow.send(b"next").await;
        }
    }
}

/// "Don't Fragment" is in the packet's head alone.
#[tokio::test]
#[ignore = "needs root, for a raw socket"]
async fn a_packet_of_ipv4_must_not_be_fragmented() {
    let target = SocketAddr::from((Ipv4Addr::new(127, 92, 98, 1), 0)); // no other test's packets
    let mut packets = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).unwrap();
    packets.bind(&target.into()).unwrap();
    packets.set_read_timeout(Some(PATIENCE)).unwrap();
    let gateway = Running::start_with(any_port).await;
    let mut client = Http2::connect(gateway.address).await;
    let mut flow = open(&mut client, echo_at(target).await).await;
    for size in [1, 1200, 1472, 9000] {
        flow.echo(&vec![1; size]).await;
        let mut head = vec![0; 65_535];
        let length = packets.read(&mut head).unwrap();
        assert_eq!(length, 20 + 8 + size);
        // RFC 791, section 3.1: the flags begin the seventh byte; the second is DSCP and ECN.
        assert_eq!((head[6] >> 5, head[1]), (0b010, 0), "{:x?}", &head[..20]);
    }
}
