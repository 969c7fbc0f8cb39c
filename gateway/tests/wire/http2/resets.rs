//! A client that gives a request up, for TCP or for UDP, at each point of its life: its token opens one tunnel at most, and none once a
//! 200 went out. Where the token was not spent yet, it is still good.
//!
//! Between the check and the spend a signature is verified, in one piece: no reset is seen there.

use crate::shared::shared;
use crate::support::http2::{Http2, Sent, Tunnel, connect_with};
use crate::support::target::{Deaf, Echo};
use crate::support::udp::{any_port, ask, capsule, path};
use crate::support::{ISSUER, PATIENCE, Running};
use h2::Reason;
use postern_config::ConfigDuration;
use postern_gateway::config::TransportKind;
use postern_testkit::memcached::Server;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::timeout;

/// The stage of a request at which its client gives it up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Point {
    /// It was just sent.
    Sent,
    /// This command of its token is on its way to the store.
    Before(&'static str),
    /// The store has answered it, and the gateway does not know yet.
    After(&'static str),
    /// The target takes no connection.
    Dialling,
    /// 200 is there.
    Opened,
}
use Point::{After, Before, Dialling, Opened};

/// The target's kind.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Tcp,
    Udp,
}

/// The way in which a client gives up.
#[derive(Clone, Copy, Debug)]
enum By {
    Reset,
    Leaving,
}

/// Each point, and whether the token is spent by then; `None` where both may be.
const POINTS: [(Point, Option<bool>); 7] = [
    (Point::Sent, None),
    (Before("get"), Some(false)),
    (After("get"), Some(false)),
    (Before("add"), Some(true)),
    (After("add"), Some(true)),
    (Dialling, Some(true)),
    (Opened, Some(true)),
];

#[tokio::test]
async fn a_token_whose_request_is_given_up_opens_one_tunnel_at_most() {
    for transport in [TransportKind::Pipelined, TransportKind::Pooled] {
        let (server, echo, deaf) = (Server::tcp(&[]), Echo::start().await, Deaf::start());
        let datagrams = Datagrams::bind().await;
        let gate = Gate::to(server.address::<String>().parse().unwrap()).await;
        let gateway = Running::start_with(|config| {
            shared(config, &server, |store| {
                store.transport = transport;
                store.addresses = vec![gate.address.to_string()];
            });
            config.limits.dial_timeout = ConfigDuration::hours(1);
            any_port(config);
        })
        .await;
        let other = Running::start_with(|config| shared(config, &server, |_| {})).await;
        let mut bystander = Http2::connect(other.address).await;
        for (point, is_spent) in POINTS {
            let ways = [By::Reset, By::Leaving].map(|by| [(Kind::Tcp, by), (Kind::Udp, by)]);
            for (kind, by) in ways.into_iter().flatten() {
                if (kind, point) == (Kind::Udp, Dialling) {
                    continue; // UDP has no handshake
                }
                println!("{transport:?} {kind:?} {point:?} {by:?}");
                let token = ISSUER.authorization();
                let mut client = Http2::connect(gateway.address).await;
                let mut tunnel = client.tunnel(echo.address).await;
                let before = echo.came().await;
                let target = if point == Dialling { deaf.address() } else { echo.address };
                gate.arm(point);
                let sent = match kind {
                    Kind::Tcp => client.connect_with(target, &[&token]).await,
                    Kind::Udp => {
                        let fields = [("proxy-authorization", &*token)];
                        let mut sent = ask(&mut client, &path(datagrams.address()), &fields).await;
                        sent.body.send_data(capsule(b"ahead of the answer").into(), false).unwrap();
                        sent
                    }
                };
                match point {
                    Before(_) | After(_) => gate.reached().await,
                    Dialling => {
                        gate.reached().await;
                        gate.open().await;
                        tunnel.echo(b"the gateway has turned to the target by then").await;
                    }
                    Point::Sent | Opened => {}
                }
                let opened = give_up(client, sent, point, by, &mut tunnel).await;
                if is_spent == Some(false) {
                    gateway.emptied().await; // else the check could go on before the gateway sees that the client left
                }
                gate.open().await;
                gateway.emptied().await;
                let (answer, again) = bystander.connect_with(echo.address, &[&token]).await.opened().await;
                match is_spent {
                    Some(true) => assert_eq!(answer.status, 407, "{answer:?}"),
                    Some(false) => assert_eq!(answer.status, 200, "{answer:?}"),
                    None => assert!(matches!(answer.status, 200 | 407), "{answer:?}"),
                }
                assert!(!opened || answer.status == 407, "{answer:?}");
                drop(again);
                let answer = bystander.ask(connect_with(echo.address, &[&token])).await;
                answer.assert_refused(407, "http_request_denied", "already spent");
                let came = echo.came().await - before + datagrams.came().await;
                assert!(came <= 1, "one token opened {came} tunnels");
            }
        }
    }
}

/// Gives the request up, and returns whether it was answered 200 before. A reset ends no other tunnel of the connection.
async fn give_up(client: Http2, mut sent: Sent, point: Point, by: By, tunnel: &mut Tunnel) -> bool {
    let mut opened = false;
    if point == Opened {
        opened =
            timeout(PATIENCE, &mut sent.response).await.unwrap().is_ok_and(|answer| answer.status() == 200);
        assert!(opened);
    }
    match by {
        By::Reset => {
            sent.body.send_reset(Reason::CANCEL);
            tunnel.echo(b"still").await;
        }
        By::Leaving => {}
    }
    client.driver.abort();
    opened
}

/// A target of UDP, to which each stream sends one datagram.
struct Datagrams(UdpSocket);

impl Datagrams {
    async fn bind() -> Self {
        Self(UdpSocket::bind("127.0.0.1:0").await.unwrap())
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// Returns the number of datagrams since the last call. All that were sent before this one's own have arrived before it.
    async fn came(&self) -> usize {
        let (own, mut came, mut room) = (self.address(), 0, [0; 64]);
        self.0.send_to(b"?", own).await.unwrap();
        while self.0.recv_from(&mut room).await.unwrap().1 != own {
            came += 1;
        }
        came
    }
}

/// A way to the store that holds a command about a token, or the reply to it.
struct Gate {
    address: SocketAddr,
    held: Arc<watch::Sender<Held>>,
}

#[derive(Clone, Copy)]
enum Held {
    /// Everything passes.
    Nothing,
    /// This is to be held.
    Armed(Point),
    /// It is.
    Reached,
    /// It goes on, and the server's answer to it has not come yet.
    Released,
}

impl Gate {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let held = Arc::new(watch::Sender::new(Held::Nothing));
        let state = Arc::clone(&held);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(pass(near, server, Arc::clone(&state)));
            }
        });
        Self { address, held }
    }

    fn arm(&self, point: Point) {
        self.held.send_replace(match point {
            Dialling => Held::Armed(After("add")), // what it is on the way to
            point => Held::Armed(point),
        });
    }

    async fn reached(&self) {
        let mut held = self.held.subscribe();
        timeout(PATIENCE, held.wait_for(|held| matches!(held, Held::Reached))).await.unwrap().unwrap();
    }

    /// Lets all pass, and waits until the server has answered what was held: a gateway that gave a spend up does not wait for that.
    async fn open(&self) {
        self.held.send_modify(|held| {
            *held = if matches!(held, Held::Reached) { Held::Released } else { Held::Nothing };
        });
        let mut held = self.held.subscribe();
        timeout(PATIENCE, held.wait_for(|held| matches!(held, Held::Nothing))).await.unwrap().unwrap();
    }
}

/// Passes a connection's bytes on, both ways, unless they are to be held.
async fn pass(near: TcpStream, server: SocketAddr, held: Arc<watch::Sender<Held>>) -> io::Result<()> {
    let far = TcpStream::connect(server).await?;
    let ((mut from_near, mut to_near), (mut from_far, mut to_far)) = (near.into_split(), far.into_split());
    let (hold, is_asked, is_held) = (&held, &AtomicBool::new(false), &AtomicBool::new(false));
    let waiting = async || {
        is_held.store(true, Ordering::SeqCst);
        hold.send_replace(Held::Reached);
        let _ = hold.subscribe().wait_for(|held| matches!(held, Held::Released)).await;
    };
    let up = async {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let read = from_near.read(&mut bytes).await?;
            let text = String::from_utf8_lossy(&bytes[..read]);
            // The watch over marks writes more at once.
            let commands =
                text.lines().filter(|line| line.starts_with("get ") || line.starts_with("add ")).count();
            let of_token = |verb: &str| text.starts_with(&format!("{verb} |")) && commands <= 3;
            let point = *hold.borrow();
            match point {
                Held::Armed(Before(verb)) if of_token(verb) => waiting().await,
                Held::Armed(After(verb)) if of_token(verb) => is_asked.store(true, Ordering::SeqCst),
                _ => {}
            }
            if read == 0 {
                to_far.shutdown().await?;
                return std::future::pending().await; // the server has not answered all yet
            }
            to_far.write_all(&bytes[..read]).await?;
        }
    };
    let down = async {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let read = from_far.read(&mut bytes).await?;
            if is_asked.swap(false, Ordering::SeqCst) {
                waiting().await;
            }
            let is_released = matches!(*hold.borrow(), Held::Released);
            if is_released && is_held.swap(false, Ordering::SeqCst) {
                hold.send_replace(Held::Nothing);
            }
            if read == 0 {
                return io::Result::Ok(());
            }
            to_near.write_all(&bytes[..read]).await?;
        }
    };
    tokio::select! { ended = up => ended, ended = down => ended }
}
