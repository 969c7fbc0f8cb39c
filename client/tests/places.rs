//! The limit of programs' connections: which connection gives way, and the answer to those without a place.

use crate::proxy::socks;
use crate::support::*;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const PLACES: usize = 4;

async fn world() -> World {
    World::with(|config| config.listen.connections = PLACES).await
}

/// A connection that sent this, and no more.
async fn idle(world: &World, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(world.agent.address).await.unwrap();
    stream.write_all(sent).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_do_nothing_give_way_to_requests() {
    let (world, target) = (world().await, echo().await.to_string());
    let mut held = Vec::new();
    let association = [5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0];
    // Nothing, a byte of HTTP, the greeting of SOCKS, an association without a datagram, a request that is answered.
    let answered = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for sent in [&b""[..], b"G", b"\x05\x01\x00", &association, answered] {
        for _ in 0..2 * PLACES {
            held.push(idle(&world, sent).await);
        }
        let mut answer = world.connect(&target).await;
        assert_eq!(answer.status, 200, "while connections that sent {sent:?} are open");
        expect_echo(&mut answer.stream).await;
    }
    for mut stream in held.drain(..held.len() - PLACES) {
        // A reset is an end, too. Without a place it would come after ten seconds, or a minute.
        let ended = timeout(Duration::from_secs(5), stream.read_to_end(&mut Vec::new())).await;
        assert!(ended.is_ok(), "who gives way is closed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnels_keep_their_places_and_others_read_that_there_is_none() {
    let (world, target) = (world().await, echo().await);
    let mut tunnels = Vec::new();
    for _ in 0..PLACES / 2 {
        tunnels.push(world.connect(&target.to_string()).await.stream);
        let address = [&[1][..], &[127, 0, 0, 1]].concat();
        let (reply, stream) = socks(world.agent.address, &address, target.port()).await;
        assert_eq!(reply, 0);
        tunnels.push(stream);
    }
    let refused = world.connect(&target.to_string()).await;
    assert_eq!(refused.status, 503, "{}", refused.head);
    assert!(field(&refused.head, "retry-after").is_some(), "{}", refused.head);
    assert!(refused.body.contains("[listen] connections") && refused.body.contains("No token was sent"));
    let address = [&[1][..], &[127, 0, 0, 1]].concat();
    assert_eq!(socks(world.agent.address, &address, target.port()).await.0, 1);
    for tunnel in &mut tunnels {
        expect_echo(tunnel).await;
    }
    // A place comes back with the end of each kind of tunnel.
    for _ in 0..2 {
        let mut ended = tunnels.remove(0);
        ended.shutdown().await.unwrap();
        assert_eq!(timeout(HANG, ended.read(&mut [0])).await.unwrap().unwrap(), 0);
        drop(ended);
        let again = async {
            loop {
                let answer = world.connect(&target.to_string()).await;
                if answer.status == 200 {
                    return answer.stream;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tunnels.push(timeout(HANG, again).await.expect("the place is free again"));
    }
    assert_eq!(world.gateway.tokens().len(), PLACES + 2, "who is refused sends no token");
}
