//! Tunnels: every byte arrives, both ways, whichever side stops sending first.

use crate::support::client::{Client, connect};
use crate::support::target::{Echo, Held};
use crate::support::{PATIENCE, Running};
use postern_config::ConfigDuration;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const MEGABYTES: usize = 5 << 20;

pub(crate) fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|n| ((n * 31 + seed) >> 3) as u8).collect()
}

/// Less than a tunnel's limits, and more than anything takes: what takes longer did not end by itself.
const AT_ONCE: Duration = Duration::from_secs(5);

async fn open(gateway: &Running, target: &mut Held) -> (Client, TcpStream) {
    let mut client = Client::connect(gateway.address).await;
    client.send(connect(target.address)).await;
    client.answer().await.assert_opened();
    (client, target.next().await)
}

#[tokio::test]
async fn bytes_that_came_with_the_connect_arrive() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    // More than one read of the gateway's, so that some of them are in HTTP's buffer and some are not.
    for length in [1, 100, 8 << 10, 100 << 10] {
        let early = pattern(length, length);
        let mut client = Client::connect(gateway.address).await;
        client.send([connect(echo.address).as_bytes(), &early].concat()).await;
        client.answer().await.assert_opened();
        assert!(client.take(length).await == early, "{length} early bytes");
        client.send("and later ones").await;
        assert_eq!(client.take(14).await, b"and later ones");
    }
}

/// Both sides see a break, since neither is done.
#[tokio::test]
async fn a_tunnel_ends_with_its_lifetime_although_bytes_move() {
    let mut target = Held::start().await;
    let gateway =
        Running::start_with(|config| config.limits.tunnel_lifetime = Some(ConfigDuration::millis(700))).await;
    let (mut client, mut far) = open(&gateway, &mut target).await;
    let ended = async {
        while far.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, ended).await.unwrap();
    let end = timeout(PATIENCE, client.stream.read_to_end(&mut Vec::new())).await.unwrap();
    assert_eq!(end.map_err(|error| error.kind()), Err(std::io::ErrorKind::ConnectionReset));
    gateway.emptied().await;
}

#[tokio::test]
async fn a_tunnel_goes_no_faster_than_its_rate() {
    let echo = Echo::start().await;
    let gateway =
        Running::start_with(|config| config.limits.tunnel_rate = Some(postern_config::Size::kib(64))).await;
    let mut client = Client::connect(gateway.address).await;
    client.send(connect(echo.address)).await;
    client.answer().await.assert_opened();
    let (began, bytes) = (Instant::now(), pattern(192 << 10, 3));
    let (mut reader, mut writer) = client.stream.split();
    let mut got = vec![0; bytes.len()];
    let (sent, received) = tokio::join!(writer.write_all(&bytes), reader.read_exact(&mut got));
    assert!(sent.is_ok() && received.is_ok() && got == bytes);
    assert!(began.elapsed() >= Duration::from_millis(1900), "{:?}", began.elapsed());
}

#[tokio::test]
async fn after_the_clients_end_the_targets_bytes_still_arrive() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let (mut client, mut far) = open(&gateway, &mut target).await;
    let (up, down) = (pattern(MEGABYTES, 1), pattern(MEGABYTES, 2));
    let client_side = async {
        client.send(&up).await;
        client.stream.shutdown().await.unwrap();
        client.rest().await
    };
    let target_side = async {
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.unwrap(); // ends although the tunnel stays open the other way
        far.write_all(&down).await.unwrap();
        drop(far);
        got
    };
    let (client_got, target_got) =
        timeout(PATIENCE, async { tokio::join!(client_side, target_side) }).await.unwrap();
    assert!(client_got == down && target_got == up);
    gateway.emptied().await;
}

#[tokio::test]
async fn after_the_targets_end_the_clients_bytes_still_arrive() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let (mut client, mut far) = open(&gateway, &mut target).await;
    let (up, down) = (pattern(MEGABYTES, 3), pattern(MEGABYTES, 4));
    let target_side = async {
        far.write_all(&down).await.unwrap();
        far.shutdown().await.unwrap();
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.unwrap();
        got
    };
    let client_side = async {
        let got = client.rest().await;
        client.send(&up).await;
        client.stream.shutdown().await.unwrap();
        got
    };
    let (target_got, client_got) =
        timeout(PATIENCE, async { tokio::join!(target_side, client_side) }).await.unwrap();
    assert!(client_got == down && target_got == up);
    gateway.emptied().await;
}

#[tokio::test]
async fn a_client_that_ends_before_the_200_still_gets_everything() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    for early in [&b""[..], b"question"] {
        let mut client = Client::connect(gateway.address).await;
        client.send([connect(target.address).as_bytes(), early].concat()).await;
        client.stream.shutdown().await.unwrap();
        let mut far = target.next().await;
        let mut question = Vec::new();
        timeout(PATIENCE, far.read_to_end(&mut question)).await.unwrap().unwrap();
        assert_eq!(question, early);
        far.write_all(b"answer").await.unwrap();
        drop(far);
        client.head().await.assert_opened();
        assert_eq!(client.rest().await, b"answer");
    }
    gateway.emptied().await;
}

#[tokio::test]
async fn both_ways_at_once() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let mut client = Client::connect(gateway.address).await;
    client.send(connect(echo.address)).await;
    client.answer().await.assert_opened();
    let sent = pattern(3 * MEGABYTES, 5);
    let (mut reader, mut writer) = client.stream.split();
    let mut got = Vec::new();
    let writing = async {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let (_, read) = tokio::join!(writing, timeout(PATIENCE, reader.read_to_end(&mut got)));
    read.unwrap().unwrap();
    assert!(got == sent);
}

#[tokio::test]
async fn a_silent_tunnel_is_closed_after_the_idle_timeout_and_not_before() {
    const IDLE: Duration = Duration::from_millis(500);
    let mut target = Held::start().await;
    let gateway = Running::start_with(|config| config.limits.idle_timeout = ConfigDuration(IDLE)).await;
    // When the last byte was sent, so before the gateway moved it.
    let mut last = Instant::now();
    let (mut client, mut far) = open(&gateway, &mut target).await;
    let mut moves = 0;
    while moves < 4 {
        tokio::time::sleep(IDLE / 2).await; // 4 of these are beyond it
        let sent = Instant::now();
        client.send("x").await;
        if matches!(far.read(&mut [0]).await, Ok(1)) {
            (moves, last) = (moves + 1, sent);
        } else {
            // This machine was busy for longer than the limit, so the tunnel was silent, too.
            assert!(last.elapsed() >= IDLE, "closed {:?} after a byte", last.elapsed());
            (moves, last) = (0, Instant::now());
            (client, far) = open(&gateway, &mut target).await;
        }
    }
    client.closed_silently().await;
    assert!(last.elapsed() >= Duration::from_millis(450), "{:?}", last.elapsed());
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    gateway.emptied().await;
}

#[tokio::test]
async fn a_target_that_resets_ends_the_tunnel() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let (mut client, far) = open(&gateway, &mut target).await;
    socket2::SockRef::from(&far).set_linger(Some(Duration::ZERO)).unwrap();
    drop(far);
    timeout(AT_ONCE, client.is_reset()).await.unwrap();
    timeout(AT_ONCE, gateway.emptied()).await.unwrap();
}

#[tokio::test]
async fn a_client_that_resets_ends_the_tunnel() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let (client, mut far) = open(&gateway, &mut target).await;
    socket2::SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    let ended = timeout(AT_ONCE, far.read(&mut [0])).await.unwrap();
    assert!(ended.is_err(), "half an upload must not look like all of it");
    timeout(AT_ONCE, gateway.emptied()).await.unwrap();
}

/// Two small writes, then an answer to both: what Nagle's algorithm and a delayed acknowledgement make 40 ms of.
async fn exchange(asking: &mut TcpStream, answering: &mut TcpStream) -> Duration {
    let started = Instant::now();
    asking.write_all(b"a").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await; // so that they do not arrive as one
    asking.write_all(b"b").await.unwrap();
    answering.read_exact(&mut [0; 2]).await.unwrap();
    answering.write_all(b"c").await.unwrap();
    asking.read_exact(&mut [0]).await.unwrap();
    started.elapsed()
}

/// The 40 ms story: a tunnel must not hold small writes back for an acknowledgement.
#[tokio::test]
async fn small_messages_are_not_delayed() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let (mut client, mut far) = open(&gateway, &mut target).await;
    client.stream.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let (mut up, mut down) = (Duration::MAX, Duration::MAX);
    for round in 0..40 {
        let (there, back) =
            (exchange(&mut client.stream, &mut far).await, exchange(&mut far, &mut client.stream).await);
        // A young connection acknowledges at once; the delays come later.
        if round >= 20 {
            (up, down) = (up.min(there), down.min(back));
        }
    }
    assert!(up < Duration::from_millis(30) && down < Duration::from_millis(30), "{up:?} {down:?}");
}
