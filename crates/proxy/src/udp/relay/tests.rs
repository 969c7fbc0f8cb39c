use super::turn::{PACKET, READ};
use super::*;
use crate::udp::capsule::{Decoder, MAX_PAYLOAD, encode};
use std::future::poll_fn;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::UdpSocket;
use tokio::time::Instant;

/// Returns a relay, its client's end with room for `room` bytes, its target, and the address that the target answers to.
async fn relay(room: usize) -> (UdpRelay<DuplexStream>, DuplexStream, UdpSocket) {
    let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let datagrams = Datagrams::connect(target.local_addr().unwrap(), None).unwrap();
    let (near, far) = duplex(room);
    let mut first = Vec::new();
    encode(b"first", &mut first);
    let mut relay = UdpRelay::new(near, datagrams, &first, Duration::from_secs(600), &DatagramMeter::apart());
    let received = async {
        let (_, from) = target.recv_from(&mut [0; 16]).await.unwrap();
        target.connect(from).await.unwrap();
    };
    tokio::select! {
        () = received => {}
        relayed = &mut relay => panic!("{relayed:?}"),
    }
    (relay, far, target)
}

/// Polls a relay once.
async fn turn(relay: &mut UdpRelay<DuplexStream>) {
    let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut *relay).poll(cx))).await;
    assert!(polled.is_pending());
    tokio::task::yield_now().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_costs_one_burst_and_then_gets_whole_datagrams() {
    let (mut relay, mut client, target) = relay(1000).await;
    for _ in 0..2000 {
        let _ = target.send(&[7; 1200]).await; // what the kernel does not take is lost
        turn(&mut relay).await;
        assert!(relay.down.pending.capacity() <= KEPT + 2 * 1204, "{}", relay.down.pending.capacity());
    }
    let reading = async {
        let (mut decoder, mut room, mut found) = (Decoder::new(MAX_PAYLOAD), [0; 1000], 0);
        while found < 10 {
            let read = client.read(&mut room).await.unwrap();
            let mut input = &room[..read];
            while let Some(payload) = decoder.next(&mut input).unwrap() {
                assert_eq!(payload, [7; 1200]);
                found += 1;
            }
        }
    };
    tokio::select! {
        () = reading => {}
        relayed = &mut relay => panic!("{relayed:?}"),
    }
}

/// An empty datagram is three bytes of a capsule, and a system call.
#[tokio::test]
async fn a_turn_makes_few_system_calls_however_small_the_datagrams_are() {
    let (mut relay, mut client, _target) = relay(READ).await;
    client.write_all(&[0, 1, 0].repeat(READ / 3)).await.unwrap();
    let (began, mut most) = (relay.meter.up.total(), 0);
    while relay.meter.up.total() - began < 1000 {
        let before = relay.meter.up.total();
        turn(&mut relay).await;
        most = most.max(relay.meter.up.total() - before);
    }
    assert!(most <= 132, "{most} datagrams");
}

#[tokio::test]
async fn a_rate_also_limits_datagrams_without_bytes() {
    let (relay, mut client, target) = relay(READ).await;
    let mut relay = relay.paced(Some(1000 * PACKET as u64));
    tokio::time::pause();
    client.write_all(&[0, 1, 0].repeat(5000)).await.unwrap();
    let (up, down) = (relay.meter.up.total(), relay.meter.down.total());
    for second in 1..4 {
        for _ in 0..500 {
            for _ in 0..3 {
                let _ = target.send(&[]).await; // the kernel drops what the relay does not receive
            }
            turn(&mut relay).await;
        }
        for sent in [relay.meter.up.total() - up, relay.meter.down.total() - down] {
            assert!((500 * second..=1100 * second).contains(&sent), "{sent} within {second} s");
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn a_datagram_longer_than_what_is_kept_is_completed() {
    let (mut relay, mut client, target) = relay(1000).await;
    let long = vec![9; 65_507];
    target.send(&long).await.unwrap();
    target.send(b"after").await.unwrap();
    let reading = async {
        let mut head = [0; 6];
        client.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; long.len()];
        client.read_exact(&mut payload).await.unwrap();
        assert!(payload == long);
    };
    tokio::select! {
        () = reading => {}
        relayed = &mut relay => panic!("{relayed:?}"),
    }
}

#[tokio::test]
async fn an_idle_relay_has_no_buffer() {
    let (mut relay, mut client, target) = relay(64 << 10).await;
    target.send(&[7; 1200]).await.unwrap();
    let mut room = [0; 1204];
    tokio::select! {
        read = client.read_exact(&mut room) => assert_eq!(read.unwrap(), 1204),
        relayed = &mut relay => panic!("{relayed:?}"),
    }
    turn(&mut relay).await;
    assert_eq!((relay.down.pending.capacity(), relay.up.unsent.capacity()), (0, 0));
    assert!(size_of_val(&relay) <= 640, "{}", size_of_val(&relay));
}

#[tokio::test]
async fn the_clients_end_is_answered_by_one() {
    let (relay, mut client, _target) = relay(1000).await;
    client.shutdown().await.unwrap();
    let relayed = relay.await;
    assert_eq!((relayed.ended, relayed.up), (TunnelEnd::Finished, 5));
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_silent_relay_ends_after_its_time() {
    let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let datagrams = Datagrams::connect(target.local_addr().unwrap(), None).unwrap();
    let (near, _far) = duplex(1000);
    let began = Instant::now();
    let relayed =
        UdpRelay::new(near, datagrams, &[], Duration::from_secs(120), &DatagramMeter::apart()).await;
    assert_eq!((relayed.ended, began.elapsed().as_secs()), (TunnelEnd::Idle, 120));
}
