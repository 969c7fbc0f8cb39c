//! Datagrams of each size, alone and in bursts, up to what the path takes (RFC 9298, section 5).

use crate::support::Running;
use crate::support::http2::Http2;
use crate::support::udp::{any_port, capsule, echo, echo_at, open};
use std::net::Ipv6Addr;

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
