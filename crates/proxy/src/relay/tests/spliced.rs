//! The same tests with tunnels whose bytes go through a pipe: splice(2) after the first 256 KiB.

use super::*;
use crate::relay::pipe;
use socket2::SockRef;

/// Far more than is copied first, and than sockets hold.
const MUCH: usize = 16 << 20;

fn bytes(seed: usize) -> Vec<u8> {
    (seed..seed + MUCH).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect()
}

/// Sends MUCH in both directions at once through a relay; each side ends its direction after that. Returns the number of spliced
/// bytes.
async fn exchange(rate: Option<u64>) -> usize {
    let ((mut client, front), (mut target, back)) = (tcp().await, tcp().await);
    let before = pipe::spliced();
    let relay = tokio::spawn(Relay::new(front, back, b"early ", Some(LONG)).paced(rate));
    let (up, down) = (bytes(1), bytes(7));
    let (mut from_relay, mut to_relay) = client.split();
    let (mut from_client, mut to_client) = target.split();
    let (mut got_up, mut got_down) = (Vec::new(), Vec::new());
    let send_up = async {
        to_relay.write_all(&up).await.unwrap();
        to_relay.shutdown().await.unwrap();
    };
    let send_down = async {
        to_client.write_all(&down).await.unwrap();
        to_client.shutdown().await.unwrap();
    };
    let read = async {
        tokio::try_join!(from_client.read_to_end(&mut got_up), from_relay.read_to_end(&mut got_down)).unwrap()
    };
    tokio::join!(send_up, send_down, read);
    assert!(got_up == [b"early ", &up[..]].concat() && got_down == down);
    let relayed = relay.await.unwrap();
    assert_eq!(
        (relayed.ended, relayed.up, relayed.down),
        (TunnelEnd::Finished, MUCH as u64 + 6, MUCH as u64)
    );
    pipe::spliced() - before
}

#[tokio::test]
async fn every_byte_arrives_through_pipes_and_without_a_pipe_by_copies() {
    assert!(exchange(None).await > MUCH / 2);
    assert_eq!(exchange(Some(1 << 40)).await, 0, "a tunnel that is paced is copied");
    pipe::forbid(true);
    assert_eq!(exchange(None).await, 0);
    pipe::forbid(false);
    assert!(exchange(None).await > MUCH / 2);
}

/// A splice never passes urgent data; a read does.
#[tokio::test]
async fn urgent_data_does_not_stop_a_tunnel() {
    let ((mut client, front), (mut target, back)) = (tcp().await, tcp().await);
    let relay = tokio::spawn(Relay::new(front, back, b"", Some(LONG)));
    let sent = bytes(3);
    let send = async {
        for piece in sent.chunks(MUCH / 8) {
            target.write_all(piece).await.unwrap();
            while SockRef::from(&target).send_out_of_band(b"!").is_err() {
                target.writable().await.unwrap();
                tokio::task::yield_now().await;
            }
        }
        target.shutdown().await.unwrap();
    };
    let ((), (got, ended)) = tokio::join!(send, end_of(&mut client));
    assert_eq!(ended, None);
    // Urgent bytes overtaken by later ones become ordinary data, so some may be among the others.
    assert!((MUCH..=MUCH + 8).contains(&got.len()), "{}", got.len());
    client.shutdown().await.unwrap();
    assert_eq!(relay.await.unwrap().ended, TunnelEnd::Finished);
}

/// Sends until nothing moves, because the sockets and the pipe are full.
async fn fill(stream: &mut TcpStream) {
    let piece = [7; 1 << 16];
    while let Ok(sent) = tokio::time::timeout(Duration::from_millis(100), stream.write(&piece)).await {
        sent.unwrap();
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_ends_a_tunnel_by_silence() {
    let ((_client, front), (mut target, back)) = (tcp().await, tcp().await);
    let relay = tokio::spawn(Relay::new(front, back, b"", Some(Duration::from_millis(300))));
    fill(&mut target).await;
    assert_eq!(relay.await.unwrap().ended, TunnelEnd::Idle);
}

#[tokio::test]
async fn a_cut_tunnel_resets_both_sides_and_leaves_nothing_to_the_next() {
    let ((mut client, front), (mut target, back)) = (tcp().await, tcp().await);
    let relay = tokio::spawn(Relay::new(front, back, b"", Some(LONG)));
    fill(&mut target).await;
    relay.abort();
    assert_eq!(end_of(&mut client).await.1, RESET);
    assert_eq!(end_of(&mut target).await, (Vec::new(), RESET));
    exchange(None).await;
}
