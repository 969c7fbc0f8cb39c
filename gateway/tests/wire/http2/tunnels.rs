//! Every byte arrives, whatever becomes of the other tunnels of the connection.

use crate::support::http2::{Http2, Tunnel};
use crate::support::target::{Echo, Held};
use crate::support::{ISSUER, PATIENCE, Running};
use crate::tunnel::pattern;
use h2::Reason;
use h2::client::Builder;
use postern_proxy::http2::STREAM_WINDOW;
use postern_testkit::http2::{DATA, END_HEADERS, HEADERS, HELLO, fields, frame};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

async fn open(client: &mut Http2, target: &mut Held) -> (Tunnel, TcpStream) {
    let tunnel = client.tunnel(target.address).await;
    (tunnel, target.next().await)
}

/// Sends until nothing is taken any more, and returns how much was.
async fn fill(tunnel: &mut Tunnel) -> usize {
    let mut sent = 0;
    while let Ok(done) = timeout(Duration::from_millis(300), tunnel.send(&[7; 16 << 10])).await {
        done.unwrap();
        sent += 16 << 10;
        assert!(sent < 100 << 20, "nothing bounds what waits for a target");
    }
    sent
}

#[tokio::test]
async fn tunnels_share_a_connection_and_every_byte_arrives_both_ways() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Http2::connect(gateway.address).await;
    let mut tunnels = Vec::new();
    for seed in 0..4 {
        let (tunnel, far) = open(&mut client, &mut target).await;
        tunnels.push(tokio::spawn(both_ways(tunnel, far, seed)));
    }
    for tunnel in tunnels {
        timeout(PATIENCE, tunnel).await.unwrap().unwrap();
    }
    drop(client);
    gateway.emptied().await;
}

/// Each side ends its direction; the other direction stays open until its side ends it.
async fn both_ways(mut tunnel: Tunnel, far: TcpStream, seed: usize) {
    const MEGABYTES: usize = 3 << 20;
    let (up, down) = (pattern(MEGABYTES, seed), pattern(MEGABYTES, seed + 10));
    let (mut reader, mut writer) = far.into_split();
    let far_side = tokio::spawn({
        let (up, down) = (up.clone(), down.clone());
        async move {
            let mut got = Vec::new();
            reader.read_to_end(&mut got).await.unwrap();
            assert!(got == up, "{} bytes up", got.len());
            writer.write_all(&down).await.unwrap();
        }
    });
    tunnel.send(&up).await.unwrap();
    tunnel.end();
    assert!(tunnel.rest().await == down);
    far_side.await.unwrap();
}

/// The median time of thirty-two CONNECTs.
async fn time_to_open(client: &mut Http2, echo: &Echo) -> Duration {
    let mut times = Vec::new();
    for _ in 0..32 {
        let began = Instant::now();
        let mut tunnel = client.tunnel(echo.address).await;
        times.push(began.elapsed());
        tunnel.echo(b"open").await;
    }
    times.sort_unstable();
    times[times.len() / 2]
}

/// Both directions stall for 64 tunnels, 32 MiB each way: a connection's window that they could use up would be smaller.
#[tokio::test]
async fn stalled_tunnels_stop_no_other() {
    let (gateway, mut target, echo) = (Running::start().await, Held::start().await, Echo::start().await);
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let mut client = Http2::with(Builder::new().initial_connection_window_size(1 << 30), stream).await;
    let alone = time_to_open(&mut client, &echo).await;
    let mut stalled = Vec::new();
    for _ in 0..64 {
        let (mut tunnel, mut far) = open(&mut client, &mut target).await;
        tokio::spawn(async move {
            let _ = far.write_all(&vec![1; 8 << 20]).await; // the client reads none of it
            sleep(Duration::from_secs(3600)).await;
        });
        let window = vec![7; 64 << 10];
        for _ in 0..STREAM_WINDOW as usize / window.len() {
            timeout(PATIENCE, tunnel.send(&window)).await.unwrap().unwrap();
        }
        stalled.push(tunnel);
    }
    let crowded = time_to_open(&mut client, &echo).await;
    println!("a tunnel opens in {alone:?} alone, in {crowded:?} next to 64 that stall");
    let mut other = client.tunnel(echo.address).await;
    other.echo(&pattern(1 << 20, 3)).await;
    assert!(fill(&mut stalled[0]).await <= 16 << 20, "kernel buffers and one window");
    other.echo(b"still").await;
}

/// A frame of one byte takes ten on the wire and more in memory until its task has taken it.
#[tokio::test]
async fn two_hundred_thousand_frames_of_a_byte_arrive() {
    const FRAMES: usize = 200_000;
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let (authority, token) = (target.address.to_string(), ISSUER.authorization());
    let head = fields(&[(":method", "CONNECT"), (":authority", &authority), ("proxy-authorization", &token)]);
    stream.write_all(&[HELLO, &frame(HEADERS, END_HEADERS, 1, &head)].concat()).await.unwrap();
    let mut far = target.next().await;
    let (mut reader, mut writer) = stream.into_split();
    let reading =
        tokio::spawn(async move { while reader.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {} });
    let sending = tokio::spawn(async move {
        for _ in 0..FRAMES / 1000 {
            writer.write_all(&frame(DATA, 0, 1, b"x").repeat(1000)).await.unwrap();
        }
        writer
    });
    let mut got = vec![0; FRAMES];
    timeout(PATIENCE, far.read_exact(&mut got)).await.unwrap().unwrap();
    assert!(got.iter().all(|byte| *byte == b'x'));
    drop(sending.await.unwrap());
    reading.abort();
}

#[tokio::test]
async fn a_target_that_breaks_resets_its_stream_and_no_other() {
    let (gateway, mut target, echo) = (Running::start().await, Held::start().await, Echo::start().await);
    let mut client = Http2::connect(gateway.address).await;
    let mut other = client.tunnel(echo.address).await;
    let (mut tunnel, mut far) = open(&mut client, &mut target).await;
    far.write_all(b"half").await.unwrap();
    assert_eq!(tunnel.take(4).await, b"half");
    socket2::SockRef::from(&far).set_linger(Some(Duration::ZERO)).unwrap();
    drop(far);
    assert_eq!(tunnel.reset().await, Some(Reason::CONNECT_ERROR));
    other.echo(b"still").await;
}

#[tokio::test]
async fn a_stream_that_its_client_resets_breaks_its_target_and_no_other() {
    let (gateway, mut target, echo) = (Running::start().await, Held::start().await, Echo::start().await);
    let mut client = Http2::connect(gateway.address).await;
    let mut other = client.tunnel(echo.address).await;
    let (mut tunnel, mut far) = open(&mut client, &mut target).await;
    tunnel.send(b"half").await.unwrap();
    far.read_exact(&mut [0; 4]).await.unwrap();
    tunnel.send.send_reset(Reason::CANCEL);
    let read = timeout(PATIENCE, far.read(&mut [0])).await.unwrap();
    assert_eq!(read.map_err(|error| error.kind()), Err(std::io::ErrorKind::ConnectionReset));
    other.echo(b"still").await;
}

#[tokio::test]
async fn a_client_that_leaves_breaks_all_its_tunnels() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Http2::connect(gateway.address).await;
    let (_one, mut first) = open(&mut client, &mut target).await;
    let (_two, mut second) = open(&mut client, &mut target).await;
    client.driver.abort();
    for far in [&mut first, &mut second] {
        let read = timeout(PATIENCE, far.read(&mut [0])).await.unwrap();
        assert!(!matches!(read, Ok(1..)), "{read:?}");
    }
    gateway.emptied().await;
}

/// Bytes sent with the request, and before the target answers, arrive.
#[tokio::test]
async fn bytes_that_came_with_the_connect_arrive() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let mut client = Http2::connect(gateway.address).await;
    for length in [1, 1000, 40 << 10] {
        let early = pattern(length, 1);
        let mut sent = client.connect_with(echo.address, &[&ISSUER.authorization()]).await;
        sent.body.send_data(early.clone().into(), false).unwrap();
        let (answer, mut tunnel) = sent.opened().await;
        answer.assert_opened();
        assert!(tunnel.take(length).await == early);
    }
}
