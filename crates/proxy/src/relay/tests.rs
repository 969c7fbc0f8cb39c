//! Delivery of every byte in both directions, and an end for every tunnel.

mod spliced;

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::net::TcpStream;

const LONG: Duration = Duration::from_secs(600);

fn tunnel(early: &[u8], idle: Duration) -> (DuplexStream, DuplexStream, tokio::task::JoinHandle<Relayed>) {
    // Small pipes, so that writers are often full.
    let (client, front) = duplex(100);
    let (target, back) = duplex(100);
    let relay = Relay::new(front, back, early, Some(idle));
    (client, target, tokio::spawn(relay))
}

#[tokio::test]
async fn every_byte_arrives_both_ways_also_after_a_half_close() {
    let (mut client, mut target, relay) = tunnel(b"early ", LONG);
    let up: Vec<u8> = (0..300_000_u32).map(|n| n as u8).collect();
    let down: Vec<u8> = (0..200_000_u32).map(|n| (n / 3) as u8).collect();
    let client_side = async {
        client.write_all(&up).await.unwrap();
        client.shutdown().await.unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        got
    };
    let target_side = async {
        let mut got = Vec::new();
        target.read_to_end(&mut got).await.unwrap();
        target.write_all(&down).await.unwrap(); // after the client's end: the other direction still works
        target.shutdown().await.unwrap();
        got
    };
    let (client_got, target_got) = tokio::join!(client_side, target_side);
    assert!(client_got == down && target_got == [b"early ".as_slice(), &up].concat());
    let relayed = relay.await.unwrap();
    assert_eq!(relayed.ended, TunnelEnd::Finished);
    assert_eq!((relayed.up, relayed.down), (300_006, 200_000));
}

#[tokio::test]
async fn bytes_are_counted_while_the_tunnel_is_open() {
    let meter = Arc::new(Meter::apart());
    let ((mut client, front), (mut target, back)) = (duplex(100), duplex(100));
    let relay = tokio::spawn(Relay::new(front, back, b"early", Some(LONG)).metered(&meter));
    target.write_all(b"answer").await.unwrap();
    client.read_exact(&mut [0; 6]).await.unwrap();
    target.read_exact(&mut [0; 5]).await.unwrap();
    while (meter.up.total(), meter.down.total()) != (5, 6) {
        tokio::task::yield_now().await;
    }
    assert!(!relay.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_silent_tunnel_is_closed_and_a_slow_one_is_not() {
    let (mut client, mut target, relay) = tunnel(b"", Duration::from_secs(10));
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(9)).await;
        client.write_all(b"x").await.unwrap();
        let mut byte = [0];
        target.read_exact(&mut byte).await.unwrap();
    }
    assert!(!relay.is_finished());
    let relayed = relay.await.unwrap();
    assert_eq!((relayed.ended, relayed.up), (TunnelEnd::Idle, 5));
}

/// The first second's worth passes at once and the rest at its rate, separately for each direction.
#[tokio::test(start_paused = true)]
async fn a_paced_tunnel_lets_through_so_many_bytes_a_second_each_way() {
    const RATE: usize = 10_000;
    let ((mut client, front), (mut target, back)) = (duplex(1 << 20), duplex(1 << 20));
    tokio::spawn(Relay::new(front, back, b"", Some(LONG)).paced(Some(RATE as u64)));
    let began = Instant::now();
    let bytes = vec![7; 4 * RATE];
    client.write_all(&bytes).await.unwrap();
    target.write_all(&bytes).await.unwrap();
    let (mut up, mut down) = (vec![0; 4 * RATE], vec![0; 4 * RATE]);
    client.read_exact(&mut down[..RATE]).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 0);
    let (read_up, read_down) = tokio::join!(target.read_exact(&mut up), client.read_exact(&mut down[RATE..]));
    assert!(read_up.is_ok() && read_down.is_ok() && up == bytes && down == bytes);
    let took = began.elapsed().as_millis();
    assert!((3_000..3_400).contains(&took), "{took} ms");
    // Half a minute of silence earns no more than one second's worth.
    tokio::time::sleep(Duration::from_secs(30)).await;
    let began = Instant::now();
    client.write_all(&bytes[..2 * RATE]).await.unwrap();
    target.read_exact(&mut up[..2 * RATE]).await.unwrap();
    assert!((1_000..1_400).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_side_that_breaks_off_ends_the_tunnel() {
    let (mut client, target, relay) = tunnel(b"", LONG);
    drop(target);
    // The target's end is passed on, and writing to it fails.
    let _ = client.write_all(&[0; 1000]).await;
    assert_eq!(relay.await.unwrap().ended, TunnelEnd::Broken);
}

#[tokio::test]
async fn what_came_before_a_break_is_still_delivered() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connecting = tokio::net::TcpStream::connect(listener.local_addr().unwrap());
    let (back, accepted) = tokio::join!(connecting, listener.accept());
    let (mut client, front) = duplex(100);
    let relay = tokio::spawn(Relay::new(front, back.unwrap(), b"an upload that nobody reads", None));
    let (mut target, _) = accepted.unwrap();
    target.readable().await.unwrap();
    target.write_all(b"refused").await.unwrap();
    drop(target); // with unread bytes: a reset
    // The upload continues and breaks; the answer still arrives.
    let _ = client.write_all(&[0; 10_000]).await;
    let mut got = Vec::new();
    client.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, b"refused");
    assert_eq!(relay.await.unwrap().ended, TunnelEnd::Broken);
}

/// Returns the two ends of a TCP connection.
async fn tcp() -> (TcpStream, TcpStream) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connecting = TcpStream::connect(listener.local_addr().unwrap());
    let (near, accepted) = tokio::join!(connecting, listener.accept());
    (near.unwrap(), accepted.unwrap().0)
}

/// Reads a stream to its end: returns the data, and the error after it, if any.
async fn end_of(stream: &mut TcpStream) -> (Vec<u8>, Option<io::ErrorKind>) {
    let mut got = Vec::new();
    let ended = stream.read_to_end(&mut got).await;
    (got, ended.err().map(|error| error.kind()))
}

const RESET: Option<io::ErrorKind> = Some(io::ErrorKind::ConnectionReset);

#[tokio::test]
async fn a_relay_that_is_cut_resets_both_sides() {
    let ((mut client, front), (mut target, back)) = (tcp().await, tcp().await);
    let relay = tokio::spawn(Relay::new(front, back, b"", Some(LONG)));
    target.write_all(b"12 of 30 lines").await.unwrap();
    client.read_exact(&mut [0; 14]).await.unwrap();
    relay.abort();
    assert_eq!(end_of(&mut client).await, (Vec::new(), RESET));
    assert_eq!(end_of(&mut target).await, (Vec::new(), RESET));
}

#[tokio::test]
async fn a_direction_that_was_whole_keeps_its_end_when_the_other_is_cut() {
    let ((mut client, front), (mut target, back)) = (tcp().await, tcp().await);
    let relay = tokio::spawn(Relay::new(front, back, b"", Some(LONG)));
    target.write_all(b"all of it").await.unwrap();
    target.shutdown().await.unwrap();
    assert_eq!(end_of(&mut client).await, (b"all of it".to_vec(), None));
    client.write_all(b"half of").await.unwrap();
    target.read_exact(&mut [0; 7]).await.unwrap();
    relay.abort();
    assert_eq!(end_of(&mut target).await, (Vec::new(), RESET));
}

/// A megabyte is in buffers when the target breaks: the client reads it slowly, receives all of it, and then the reset.
#[tokio::test]
async fn a_target_that_is_reset_is_a_reset_to_the_client_after_what_came() {
    let ((mut client, front), (mut target, back), meter) =
        (tcp().await, tcp().await, Arc::new(Meter::apart()));
    let relay = tokio::spawn(Relay::new(front, back, b"", Some(LONG)).metered(&meter));
    let sent = vec![7; 1 << 20];
    target.write_all(&sent).await.unwrap();
    // Reset as soon as the relay has passed everything on: a reset discards what the relay's socket has not read yet.
    while meter.down.total() < 1 << 20 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    target.set_zero_linger().unwrap();
    drop(target);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (got, ended) = end_of(&mut client).await;
    assert_eq!((got.len(), ended), (sent.len(), RESET));
    assert_eq!(relay.await.unwrap().ended, TunnelEnd::Broken);
}

#[tokio::test]
async fn both_sides_done_is_an_end_and_no_reset() {
    let ((mut client, front), (mut target, back)) = (tcp().await, tcp().await);
    let relay = tokio::spawn(Relay::new(front, back, b"", Some(LONG)));
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(end_of(&mut target).await, (b"question".to_vec(), None));
    target.write_all(b"answer").await.unwrap();
    drop(target);
    assert_eq!(relay.await.unwrap().ended, TunnelEnd::Finished);
    assert_eq!(end_of(&mut client).await, (b"answer".to_vec(), None));
}

/// A side that has been reset; a silent one shows it only to a writer.
struct Broken {
    is_silent: bool,
}

impl Reset for Broken {
    fn reset(&self) {}

    fn is_delivered(&self) -> bool {
        true
    }
}

impl AsyncRead for Broken {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_silent { Poll::Pending } else { Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())) }
    }
}

impl AsyncWrite for Broken {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_side_that_was_reset_ends_the_tunnel_at_once() {
    let (_client, front) = duplex(100);
    let started = Instant::now();
    let broken = || Broken { is_silent: false };
    let down = Relay::new(front, broken(), b"", Some(LONG)).await;
    let (_target, back) = duplex(100);
    let up = Relay::new(broken(), back, b"", Some(LONG)).await;
    assert_eq!((down.ended, up.ended), (TunnelEnd::Broken, TunnelEnd::Broken));
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn directions_that_end_together_do_so_in_order_and_after_what_was_read() {
    for is_of_client in [true, false] {
        let (mut client, front) = duplex(100);
        let (mut target, back) = duplex(100);
        let relay = tokio::spawn(Relay::new(front, back, b"", Some(LONG)).ending_together());
        let (one, other) = if is_of_client { (&mut client, &mut target) } else { (&mut target, &mut client) };
        let sending = async {
            one.write_all(&[7; 1000]).await.unwrap();
            one.shutdown().await.unwrap();
        };
        let mut got = Vec::new();
        tokio::join!(sending, async { other.read_to_end(&mut got).await.unwrap() });
        // Its own side has ended, although the other one sent no end.
        assert_eq!((got.len(), one.read(&mut [0]).await.unwrap()), (1000, 0));
        let relayed = relay.await.unwrap();
        assert_eq!((relayed.ended, relayed.up + relayed.down), (TunnelEnd::Finished, 1000));
    }
}

#[tokio::test(start_paused = true)]
async fn directions_that_end_together_wait_for_nothing_after_a_break() {
    for (is_together, limit) in [(true, Duration::ZERO), (false, AFTER_BREAK)] {
        let (_client, front) = duplex(100);
        let relay = Relay::new(front, Broken { is_silent: true }, b"early", Some(LONG));
        let relay = if is_together { relay.ending_together() } else { relay };
        let began = Instant::now();
        assert_eq!(relay.await.ended, TunnelEnd::Broken);
        assert_eq!(began.elapsed().as_secs(), limit.as_secs());
    }
}
