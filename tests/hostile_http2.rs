//! Clients and targets that flood a gateway, or an issuer, over HTTP/2: its memory stays within a bound for each, while other
//! clients can open and use tunnels, and are issued tokens.

use crate::support::daemon::{Daemon, gateway_config, issuer_config};
use crate::support::http2::{Connection, Tunnel};
use crate::support::process::resident;
use crate::support::{PATIENCE, target, tokens, udp};
use postern_testkit::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, HELLO, PING, PRIORITY, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, fields, frame, frames,
};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// KiB that a tunnel may take whose target does not read, and one whose client does not (`docs/operate/capacity.md`).
const DEAF: u64 = 1024;
const UNREAD: u64 = 256;
/// The same of what is not the tunnels': the connection, its requests, and what an allocator keeps.
const SLACK: u64 = 2048;
/// Time without progress after which a flood is over.
const STUCK: Duration = Duration::from_millis(150);

/// The target of an attacker's tunnels.
#[derive(Clone, Copy)]
enum To {
    /// To a target that reads and sends nothing.
    Deaf,
    /// To one that sends without end.
    Flood,
    Echo,
    /// To one of UDP that takes nothing: the kernel drops what its buffer does not hold.
    Udp,
}

/// The name; the tunnels that are opened first; what is sent over and over, by its number, and how often; the bound in KiB. Those
/// that take the most come last: an allocator keeps what one took for the next.
struct Attack(&'static str, (usize, To), fn(u32) -> Vec<u8>, u32, u64);

const FLOODS: &[Attack] = &[
    Attack("pings", (1, To::Echo), |_| frame(PING, 0, 0, &[0; 8]), 200_000, SLACK),
    Attack("settings", (1, To::Echo), |_| frame(SETTINGS, 0, 0, &[]), 200_000, SLACK),
    Attack("priorities", (1, To::Echo), |_| frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 9]), 200_000, SLACK),
    Attack("credit", (1, To::Echo), |_| frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]), 200_000, SLACK),
    Attack("data without a byte", (1, To::Echo), |_| frame(DATA, 0, 1, b""), 200_000, SLACK),
    Attack("a header without end", (1, To::Echo), endless, 1_000, SLACK),
    Attack("requests and resets", (0, To::Echo), reset, 20_000, SLACK),
    Attack("requests and resets next to a tunnel", (1, To::Echo), reset, 20_000, SLACK),
    Attack("requests, and their refusals unread", (0, To::Echo), ask, 20_000, SLACK),
    Attack("requests next to a tunnel, and their refusals unread", (1, To::Echo), ask, 20_000, SLACK),
    Attack(
        "data of a byte, to a deaf target",
        (1, To::Deaf),
        |_| frame(DATA, 0, 1, b"x"),
        200_000,
        DEAF + SLACK,
    ),
    Attack(
        "capsules in data of a byte",
        (1, To::Udp),
        |number| frame(DATA, 0, 1, &[[0, 2, 0, b'x'][number as usize % 4]]),
        200_000,
        DEAF + SLACK,
    ),
    Attack("windows that move, of 8 tunnels from floods", (8, To::Flood), moved, 50_000, 8 * UNREAD + SLACK),
];

/// The windows of all streams, none and as large as can be in turn.
fn moved(number: u32) -> Vec<u8> {
    let size = if number.is_multiple_of(2) { 0 } else { (1_u32 << 31) - 1 };
    frame(SETTINGS, 0, 0, &[&[0, 4][..], &size.to_be_bytes()].concat())
}

fn ask(number: u32) -> Vec<u8> {
    frame(
        HEADERS,
        END_HEADERS,
        stream(number),
        &fields(&[(":method", "CONNECT"), (":authority", "a.example:443")]),
    )
}

fn reset(number: u32) -> Vec<u8> {
    [ask(number), reset_of(number)].concat()
}

/// A stream that comes after those of the tunnels.
fn stream(number: u32) -> u32 {
    2 * number + 1001
}

fn endless(number: u32) -> Vec<u8> {
    let kind = if number == 0 { HEADERS } else { CONTINUATION };
    frame(kind, 0, 1001, &fields(&[("x", "y")]).repeat(50))
}

struct Stage {
    _home: TempDir,
    _issuer: Daemon,
    gateway: Daemon,
    tokens: Vec<String>,
    echo: SocketAddr,
    deaf: SocketAddr,
    flood: SocketAddr,
    udp: UdpSocket,
}

impl Stage {
    /// One thread of the gateway serves everything: attackers and others are on the same one.
    async fn start(tokens: usize) -> Self {
        let home = TempDir::new().unwrap();
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let config = gateway_config(home.path(), &issuer.http(), "", "1s", "udp = \"any\"\n");
        let text = std::fs::read_to_string(&config).unwrap().replacen("workers = 8", "workers = 1", 1);
        std::fs::write(&config, text).unwrap();
        let gateway = Daemon::ready("gateway", &config).await;
        let tokens = tokens::mint(&issuer.http(), &gateway.http(), tokens);
        let (echo, deaf, flood) = (target::echo().await, held(false).await, held(true).await);
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        Self { _home: home, _issuer: issuer, gateway, tokens, echo, deaf, flood, udp }
    }

    fn address(&self, to: To) -> SocketAddr {
        match to {
            To::Deaf => self.deaf,
            To::Flood => self.flood,
            To::Echo => self.echo,
            To::Udp => self.udp.local_addr().unwrap(),
        }
    }

    fn memory(&self) -> u64 {
        resident(self.gateway.process.id())
    }

    /// An attacker's connection, whose tunnels are open, and of which nothing is read from then on.
    async fn attacker(&mut self, tunnels: usize, to: To) -> TcpStream {
        let mut stream = TcpStream::connect(self.gateway.address).await.unwrap();
        let mut sent = HELLO.to_vec();
        // As much credit as there can be, so that nothing but the gateway bounds what waits.
        sent.extend(frame(SETTINGS, 0, 0, &[&[0, 4][..], &((1_u32 << 31) - 1).to_be_bytes()].concat()));
        sent.extend(frame(WINDOW_UPDATE, 0, 0, &((1_u32 << 31) - 65_536).to_be_bytes()));
        for number in 0..u32::try_from(tunnels).unwrap() {
            let (target, token) = (self.address(to), self.tokens.pop().unwrap());
            let (authority, path) = (target.to_string(), udp::path(target));
            let mut head = vec![(":method", "CONNECT"), (":authority", &*authority)];
            if let To::Udp = to {
                head.extend([(":protocol", "connect-udp"), (":scheme", "https"), (":path", &*path)]);
            }
            head.push(("proxy-authorization", &*token));
            sent.extend(frame(HEADERS, END_HEADERS, 2 * number + 1, &fields(&head)));
        }
        stream.write_all(&sent).await.unwrap();
        let mut said = Vec::new();
        while frames(&said).iter().filter(|(kind, _)| *kind == HEADERS).count() < tunnels {
            assert!(timeout(PATIENCE, stream.read_buf(&mut said)).await.unwrap().unwrap() > 0);
        }
        stream
    }
}

/// A target that reads nothing and sends nothing, or sends without end.
async fn held(floods: bool) -> SocketAddr {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap(); // what the kernel took would not wait at the gateway
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let listener = socket.listen(1024).unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                while floods && stream.write_all(&[7; 1 << 16]).await.is_ok() {}
                std::future::pending::<()>().await;
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_take_bounded_memory_and_harm_no_other_tunnel() {
    run(FLOODS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnels_that_their_client_does_not_read_take_bounded_memory_and_harm_no_other() {
    run(&[Attack(
        "64 tunnels from floods, all unread",
        (64, To::Flood),
        |_| Vec::new(),
        0,
        64 * UNREAD + SLACK,
    )])
    .await;
}

/// These clients read what they get, and send as much as they are given credit for: what the kernel takes does not wait here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnels_that_their_target_does_not_read_take_bounded_memory_and_harm_no_other() {
    const TUNNELS: usize = 16;
    let mut stage = Stage::start(TUNNELS + 3).await;
    let (shared, other) =
        (Connection::to(stage.gateway.address).await, Connection::to(stage.gateway.address).await);
    let (shared, other) = (shared.unwrap(), other.unwrap());
    let mut bystander = tunnel(&mut stage, &other).await;
    let mut filling = JoinSet::new();
    for _ in 0..TUNNELS {
        let (head, tunnel) =
            shared.connect(&stage.deaf.to_string(), &stage.tokens.pop().unwrap()).await.unwrap();
        let mut tunnel = tunnel.unwrap_or_else(|| panic!("{head:?}"));
        filling.spawn(async move { tunnel.fill(STUCK).await.map(|sent| (sent, tunnel)) });
    }
    let (before, mut peak, mut full) = (stage.memory(), 0, Vec::new());
    while full.len() < TUNNELS {
        bystander.echoes(b"still").await.unwrap();
        peak = stage.memory().max(peak);
        full.extend(filling.try_join_next().map(|filled| filled.unwrap().unwrap()));
    }
    tunnel(&mut stage, &other).await;
    tunnel(&mut stage, &shared).await;
    let (sent, took) = (full.iter().map(|(sent, _)| sent >> 10).max(), peak.saturating_sub(before));
    let bound = TUNNELS as u64 * DEAF + SLACK;
    println!(
        "{took:>6} KiB of {bound:>6}: {TUNNELS} tunnels to deaf targets, all full, {sent:?} KiB at most were sent on one"
    );
    assert!(took <= bound, "{took} KiB");
}

async fn run(attacks: &[Attack]) {
    let needed = 1 + attacks.iter().map(|Attack(_, (tunnels, _), ..)| tunnels + 1).sum::<usize>();
    let mut stage = Stage::start(needed).await;
    let other = Connection::to(stage.gateway.address).await.unwrap();
    let mut bystander = tunnel(&mut stage, &other).await;
    for Attack(name, (tunnels, to), piece, pieces, bound) in attacks {
        let before = stage.memory();
        let stream = stage.attacker(*tunnels, *to).await;
        let flooding = tokio::spawn(flood(stream, (0..*pieces).flat_map(piece).collect()));
        let (mut peak, mut grown) = (before, Instant::now());
        while !flooding.is_finished() || grown.elapsed() < STUCK {
            bystander.echoes(b"still").await.unwrap();
            let now = stage.memory();
            if now > peak {
                (peak, grown) = (now, Instant::now());
            }
        }
        bystander = tunnel(&mut stage, &other).await;
        println!("{:>6} KiB of {bound:>6}: {name}", peak - before);
        assert!(peak - before <= *bound, "{name}: {} KiB, and {bound} are the bound", peak - before);
        drop(flooding.await.unwrap());
    }
}

/// A name, bytes that are sent to an issuer again and again, and the number of times.
type Flood = (&'static str, fn(u32) -> Vec<u8>, u32);

const FLOODS_OF_REQUESTS: &[Flood] = &[
    ("pings", |_| frame(PING, 0, 0, &[0; 8]), 200_000),
    ("settings", |_| frame(SETTINGS, 0, 0, &[]), 200_000),
    ("priorities", |_| frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 9]), 200_000),
    ("a header without end", endless, 1_000),
    ("requests and resets", |number| [post(number), reset_of(number)].concat(), 20_000),
    (
        "requests, and their answers unread",
        |number| [post(number), body(number, END_STREAM)].concat(),
        20_000,
    ),
    ("bodies without end", |number| [post(number), body(number, 0)].concat(), 20_000),
    ("data of a byte", |number| if number == 0 { post(0) } else { frame(DATA, 0, stream(0), b"x") }, 200_000),
];

fn post(number: u32) -> Vec<u8> {
    let head =
        [(":method", "POST"), (":scheme", "http"), (":path", "/token-request"), (":authority", "127.0.0.1")];
    frame(HEADERS, END_HEADERS, stream(number), &fields(&head))
}

fn body(number: u32, flags: u8) -> Vec<u8> {
    frame(DATA, flags, stream(number), &[7; 300])
}

fn reset_of(number: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream(number), &[0, 0, 0, 8])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_at_an_issuer_take_bounded_memory_and_others_get_tokens() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let config = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let gateway = Daemon::ready("gateway", &config).await;
    tokens::mint(&issuer.http(), &gateway.http(), 10);
    for (name, piece, pieces) in FLOODS_OF_REQUESTS {
        let before = resident(issuer.process.id());
        let mut stream = TcpStream::connect(issuer.address).await.unwrap();
        let no_credit = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
        stream.write_all(&[HELLO, &no_credit].concat()).await.unwrap();
        let flooding = tokio::spawn(flood(stream, (0..*pieces).flat_map(piece).collect()));
        let (mut peak, mut grown) = (before, Instant::now());
        while !flooding.is_finished() || grown.elapsed() < STUCK {
            tokio::task::block_in_place(|| tokens::mint(&issuer.http(), &gateway.http(), 1));
            let now = resident(issuer.process.id());
            if now > peak {
                (peak, grown) = (now, Instant::now());
            }
        }
        println!("{:>6} KiB of {SLACK:>6}: {name}", peak - before);
        assert!(peak - before <= SLACK, "{name}: {} KiB, and {SLACK} are the bound", peak - before);
        drop(flooding.await.unwrap());
    }
}

/// Sends until the gateway takes no more, or ends the connection. Nothing of it is read.
async fn flood(mut stream: TcpStream, bytes: Vec<u8>) -> TcpStream {
    for part in bytes.chunks(16 << 10) {
        if !matches!(timeout(STUCK, stream.write_all(part)).await, Ok(Ok(()))) {
            break;
        }
    }
    stream
}

/// A tunnel of a client that harms nothing.
async fn tunnel(stage: &mut Stage, connection: &Connection) -> Tunnel {
    let (echo, token) = (stage.echo.to_string(), stage.tokens.pop().unwrap());
    let (head, tunnel) = connection.connect(&echo, &token).await.unwrap();
    let mut tunnel = tunnel.unwrap_or_else(|| panic!("{head:?}"));
    tunnel.echoes(b"open").await.unwrap();
    tunnel
}
