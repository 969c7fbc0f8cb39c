//! UDP ASSOCIATE (RFC 1928) in the agent: a program's datagrams through CONNECT-UDP, over both versions of HTTP.

use crate::support::admin::{Metrics, metrics_when};
use crate::support::daemon::{Daemon, client_config, gateway_config, issuer_config};
use crate::support::tls::Authority;
use crate::support::{PATIENCE, eventually, in_time, proxy};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

/// Time for an answer, after which a datagram is sent again.
const AGAIN: Duration = Duration::from_secs(10);
/// Time in which an agent sends one token for a target that fails.
const PAUSE: Duration = Duration::from_secs(5);

/// The way from the agent to the gateway.
#[derive(Clone, Copy, Debug)]
enum Way {
    Plain,
    /// HTTP/1.1 over TLS.
    Tls,
    Http2,
}

/// An issuer, a gateway and an agent.
struct Stage {
    _home: TempDir,
    _issuer: Daemon,
    gateway: Daemon,
    gateway_file: PathBuf,
    agent: Daemon,
}

impl Stage {
    async fn start(way: Way) -> Self {
        Self::with(way, "udp = \"any\"\n", "").await
    }

    /// One with these lines in `[egress]` of the gateway, and in `[listen]` of the agent.
    async fn with(way: Way, egress: &str, listen: &str) -> Self {
        let home = TempDir::new().unwrap();
        let authority = Authority::new(home.path());
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let tls = if let Way::Plain = way { String::new() } else { authority.section() };
        let gateway_file = gateway_config(home.path(), &issuer.http(), "", "1s", &(egress.to_owned() + &tls));
        let gateway = Daemon::ready("gateway", &gateway_file).await;
        let (url, tunnels) = match way {
            Way::Plain => (gateway.http(), ""),
            Way::Tls => (gateway.https(), "tunnels = 1\n"),
            Way::Http2 => (gateway.https(), ""),
        };
        let file = client_config(home.path(), &url, &issuer.http(), Some(&authority.ca));
        edit(&file, "[gateway]\n", &format!("[gateway]\n{tunnels}"));
        edit(&file, "[listen]\n", &format!("[listen]\n{listen}"));
        let agent = Daemon::ready("client", &file).await;
        Self { _home: home, _issuer: issuer, gateway, gateway_file, agent }
    }

    async fn program(&self) -> Program {
        Program::of(self.agent.address).await
    }

    /// Returns the number of streams that the gateway has opened, once the agent counts as many tokens and answers.
    async fn opened(&self) -> u64 {
        eventually("gateway and agent agree", || async {
            let opened = Metrics::of(self.gateway.admin).await.requests("opened");
            let agent = Metrics::of(self.agent.admin).await;
            let agree = agent.agent_requests("opened") == opened && tokens(&agent, "opened") == opened;
            agree.then_some(opened)
        })
        .await
    }

    /// Waits until the gateway has as many streams.
    async fn has_streams(&self, count: u64) {
        metrics_when(self.gateway.admin, &format!("{count} streams"), |metrics| {
            metrics.value("postern_udp_tunnels_open") == count
        })
        .await;
    }

    async fn dropped(&self, count: u64) {
        metrics_when(self.agent.admin, &format!("{count} datagrams are dropped"), |metrics| {
            metrics.value("postern_agent_udp_dropped_total") >= count
        })
        .await;
    }
}

fn edit(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(file, text.replacen(from, to, 1)).unwrap();
}

fn tokens(agent: &Metrics, fate: &str) -> u64 {
    agent.value(&format!("postern_agent_tokens_total{{fate=\"{fate}\",hop=\"last\"}}"))
}

/// A program with an association.
struct Program {
    control: TcpStream,
    socket: UdpSocket,
    /// The agent's socket.
    relay: SocketAddr,
    /// Number of the last echo.
    last: u32,
}

impl Program {
    async fn of(agent: SocketAddr) -> Self {
        let (socket, control) = (UdpSocket::bind("127.0.0.1:0").await.unwrap(), ask(agent, 0).await);
        let (relay, control) = control.unwrap();
        assert_eq!(relay.ip(), agent.ip());
        Self { control, socket, relay, last: 0 }
    }

    async fn send(&self, address: &[u8], payload: &[u8]) {
        self.socket.send_to(&datagram(address, payload), self.relay).await.unwrap();
    }

    /// Sends a payload of this size to an echo until it comes back from there. Packets may be lost on a busy machine.
    async fn echo(&mut self, address: &[u8], size: usize) {
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

/// Requests an association from this port; returns the agent's socket, or the reply's code.
async fn ask(agent: SocketAddr, port: u16) -> Result<(SocketAddr, TcpStream), u8> {
    let mut stream = TcpStream::connect(agent).await.unwrap();
    let asking = async {
        stream.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0]).await?;
        stream.write_all(&port.to_be_bytes()).await?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    };
    let answer = in_time(asking).await.unwrap();
    let [5, 0, 5, reply, 0, 1, a, b, c, d, high, low] = answer else { panic!("{answer:?}") };
    let relay = SocketAddr::from((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])));
    if reply == 0 { Ok((relay, stream)) } else { Err(reply) }
}

fn datagram(address: &[u8], payload: &[u8]) -> Vec<u8> {
    [&[0, 0, 0][..], address, payload].concat()
}

/// The address of a target as SOCKS writes it.
fn v4(target: SocketAddr) -> Vec<u8> {
    [&[1, 127, 0, 0, 1][..], &target.port().to_be_bytes()].concat()
}

fn name(name: &str, port: u16) -> Vec<u8> {
    [&[3, u8::try_from(name.len()).unwrap()][..], name.as_bytes(), &port.to_be_bytes()].concat()
}

/// Sends back every datagram.
async fn echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut room = vec![0; 1 << 16];
        while let Ok((length, from)) = socket.recv_from(&mut room).await {
            let _ = socket.send_to(&room[..length], from).await; // it may be gone
        }
    });
    address
}

async fn assert_each_target_costs_one_token(way: Way) {
    let (stage, first, second) = (Stage::start(way).await, echo().await, echo().await);
    let mut program = stage.program().await;
    for size in [4, 62, 63, 1200, 9000, 65_497] {
        program.echo(&v4(first), size).await;
    }
    assert_eq!(stage.opened().await, 1);
    for size in [4, 1200] {
        program.echo(&name("localhost", second.port()), size).await;
        program.echo(&v4(first), size).await;
    }
    assert_eq!(stage.opened().await, 2);
    stage.has_streams(2).await;
    // The streams end with the connection, and only that of this program.
    let mut other = stage.program().await;
    other.echo(&v4(first), 4).await;
    assert_eq!(stage.opened().await, 3);
    drop(program.control);
    stage.has_streams(1).await;
    other.echo(&v4(first), 4).await;
    drop(other.control);
    stage.has_streams(0).await;
    assert_eq!(stage.opened().await, 3);
    for daemon in [stage.agent, stage.gateway] {
        daemon.process.terminate().assert_stopped();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http2_each_target_costs_one_token() {
    assert_each_target_costs_one_token(Way::Http2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http1_each_target_costs_one_token() {
    assert_each_target_costs_one_token(Way::Plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http1_in_tls_each_target_costs_one_token() {
    assert_each_target_costs_one_token(Way::Tls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fragments_and_datagrams_of_others_are_dropped() {
    let (stage, target, other) = (Stage::start(Way::Http2).await, echo().await, echo().await);
    let mut program = stage.program().await;
    program.echo(&v4(target), 4).await;
    let mut fragment = datagram(&v4(other), b"a part");
    fragment[2] = 1;
    program.socket.send_to(&fragment, program.relay).await.unwrap();
    program.socket.send_to(&[0, 0, 0, 1, 127], program.relay).await.unwrap();
    program.send(&[2, 0, 0], b"no such type").await;
    stage.dropped(3).await;
    for source in ["127.0.0.1:0", "127.0.0.2:0"] {
        let stranger = UdpSocket::bind(source).await.unwrap();
        stranger.send_to(&datagram(&v4(other), b"mine"), program.relay).await.unwrap();
    }
    stage.dropped(5).await;
    program.echo(&v4(target), 4).await;
    assert_eq!(stage.opened().await, 1);

    // A port that was announced counts from the first datagram on.
    let announced = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (relay, control) = ask(stage.agent.address, announced.local_addr().unwrap().port()).await.unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    stranger.send_to(&datagram(&v4(target), b"mine"), relay).await.unwrap();
    stage.dropped(6).await;
    assert_eq!(stage.opened().await, 1);
    Program { control, socket: announced, relay, last: 0 }.echo(&v4(target), 4).await;
    assert_eq!(stage.opened().await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_limit_the_target_that_was_silent_for_longest_ends() {
    let stage = Stage::with(Way::Http2, "udp = \"any\"\n", "udp_targets = 2\n").await;
    let [first, second, third] = [v4(echo().await), v4(echo().await), v4(echo().await)];
    let mut program = stage.program().await;
    for target in [&first, &second, &first, &third, &first] {
        program.echo(target, 4).await;
    }
    stage.has_streams(2).await;
    assert_eq!(stage.opened().await, 3);
    program.echo(&second, 4).await;
    program.echo(&first, 4).await;
    assert_eq!(stage.opened().await, 4);
    stage.has_streams(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_is_refused_is_tried_once_in_a_while_and_nothing_comes_back() {
    let (stage, target) = (Stage::with(Way::Http2, "", "").await, echo().await);
    let (program, began) = (stage.program().await, Instant::now());
    program.send(&v4(target), b"to a port that is not 443").await;
    metrics_when(stage.agent.admin, "the gateway refuses", |metrics| {
        metrics.agent_requests("target_failed") == 1
    })
    .await;
    for sent in 0..50 {
        program.send(&v4(target), b"again").await;
        stage.dropped(sent + 2).await;
    }
    let metrics = Metrics::of(stage.agent.admin).await;
    let most = 1 + began.elapsed().as_secs() / PAUSE.as_secs();
    assert!(tokens(&metrics, "target_failed") <= most, "{} tokens", tokens(&metrics, "target_failed"));
    let gateway = Metrics::of(stage.gateway.admin).await;
    assert_eq!((gateway.requests("opened"), gateway.requests("already_spent")), (0, 0));
    assert!(program.socket.try_recv(&mut [0; 16]).is_err(), "something came back");
}

/// The system reports each datagram to such a port, which ends its stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_is_unreachable_costs_a_token_only_once_in_a_while() {
    let stage = Stage::start(Way::Http2).await;
    let closed = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (program, began) = (stage.program().await, Instant::now());
    for sent in 0..50 {
        program.send(&v4(closed), b"anybody?").await;
        if sent == 0 {
            metrics_when(stage.gateway.admin, "a stream", |metrics| metrics.requests("opened") >= 1).await;
        }
        stage.has_streams(0).await;
    }
    let opened = stage.opened().await;
    let most = 1 + began.elapsed().as_secs() / PAUSE.as_secs();
    assert!(opened <= most, "{opened} tokens in {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_of_the_gateway_the_next_datagrams_open_a_new_stream() {
    for way in [Way::Http2, Way::Plain] {
        let Stage { _home, _issuer, gateway, gateway_file, agent } = Stage::start(way).await;
        let (target, mut program) = (v4(echo().await), Program::of(agent.address).await);
        program.echo(&target, 4).await;
        edit(&gateway_file, "address = \"127.0.0.1:0\"", &format!("address = \"{}\"", gateway.address));
        gateway.process.kill();
        let gateway = Daemon::ready("gateway", &gateway_file).await;
        program.echo(&target, 4).await;
        assert!(Metrics::of(gateway.admin).await.requests("opened") >= 1, "{way:?}");
        assert_eq!(Metrics::of(gateway.admin).await.requests("already_spent"), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_an_association_without_a_stream_and_waits_for_others() {
    let (stage, target, other) = (Stage::start(Way::Http2).await, echo().await, echo().await);
    let (mut idle, mut busy) = (stage.program().await, stage.program().await);
    busy.echo(&v4(target), 4).await;
    stage.agent.process.signal("TERM");
    assert_eq!(in_time(idle.control.read(&mut [0])).await.unwrap(), 0);
    busy.echo(&v4(target), 4).await;
    // It was sent before the echo, and opens no stream.
    busy.send(&v4(other), b"a new target").await;
    busy.echo(&v4(target), 4).await;
    assert_eq!(Metrics::of(stage.gateway.admin).await.requests("opened"), 1);
    drop(busy);
    stage.agent.process.ended().assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_targets_the_command_is_not_supported() {
    let stage = Stage::with(Way::Plain, "udp = \"any\"\n", "udp_targets = 0\n").await;
    assert_eq!(ask(stage.agent.address, 0).await.err(), Some(7));
    let mut stream = proxy::dial(stage.agent.address).await.unwrap();
    let target = crate::support::target::echo().await;
    assert_eq!(proxy::socks(&mut stream, "127.0.0.1", target.port()).await.unwrap(), 0);
}
