//! The shapes of a command: how many writes it is made of, whether the kernel may hold a segment back, and who waits.

use crate::rig::{self, Server};
use memcache_async::ascii::Protocol;
use postern_spend::memcached::{Client, Memcached, Transport};
use postern_spend::{Epoch, Hint, Spend, SpendStore};
use postern_token::UnixSeconds;
use std::future::Future;
use std::io::{Read, Write};
use std::pin::Pin;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter};
use tokio::net::TcpStream;

type Later<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// One way to send a command.
pub(crate) struct Shape {
    pub name: &'static str,
    /// Sends for each command.
    pub sends: &'static str,
    pub connect: fn(&Server) -> Later<'_, Box<dyn Connection>>,
}

/// A connection that sends commands in one way.
pub(crate) trait Connection {
    /// One command, or the pair that makes up the shape, up to the reply.
    fn command(&mut self) -> Later<'_, ()>;
}

pub(crate) static SHAPES: [Shape; 15] = [
    Shape {
        name: "get in three writes, Nagle (the story)",
        sends: "3",
        connect: |server| Pieces::get(server, false),
    },
    Shape { name: "add in three writes, Nagle", sends: "3", connect: |server| Pieces::add(server, false) },
    Shape { name: "memcache-async add, bare, Nagle", sends: "3", connect: MemcacheAsync::bare },
    Shape {
        name: "memcache-async noreply set, then get, BufWriter, Nagle",
        sends: "2",
        connect: MemcacheAsync::buffered_after_noreply,
    },
    Shape { name: "memcache-async get, BufWriter, Nagle", sends: "1", connect: MemcacheAsync::buffered_get },
    Shape { name: "memcache-async add, BufWriter, Nagle", sends: "1", connect: MemcacheAsync::buffered_add },
    Shape { name: "get in three writes, nodelay", sends: "3", connect: |server| Pieces::get(server, true) },
    Shape { name: "add in three writes, nodelay", sends: "3", connect: |server| Pieces::add(server, true) },
    Shape { name: "Postern pooled, get", sends: "1", connect: |server| Ours::get(server, rig::pooled()) },
    Shape { name: "Postern pooled, add", sends: "1", connect: |server| Ours::add(server, rig::pooled()) },
    Shape {
        name: "Postern pipelined, get",
        sends: "1",
        connect: |server| Ours::get(server, rig::pipelined()),
    },
    Shape {
        name: "Postern pipelined, add",
        sends: "1",
        connect: |server| Ours::add(server, rig::pipelined()),
    },
    Shape { name: "one write on the same runtime, add", sends: "1", connect: |server| Pieces::whole(server) },
    Shape { name: "blocking ping-pong, get: the floor", sends: "1", connect: Blocking::get },
    Shape { name: "blocking ping-pong, add: the floor", sends: "1", connect: Blocking::add },
];

const VALUE: &str = "abcdefghijklmnopqrstuv";

fn get() -> [String; 3] {
    ["get ".to_owned(), rig::next_name(), "\r\n".to_owned()]
}

fn add() -> [String; 3] {
    [format!("add {} 0 0 {}\r\n", rig::next_name(), VALUE.len()), VALUE.to_owned(), "\r\n".to_owned()]
}

async fn connect(server: &Server, nodelay: bool) -> TcpStream {
    let stream = TcpStream::connect(server.address()).await.unwrap();
    stream.set_nodelay(nodelay).unwrap();
    stream
}

/// A command in pieces on a bare stream, or in one.
struct Pieces {
    stream: TcpStream,
    command: fn() -> [String; 3],
    reply: &'static str,
    whole: bool,
}

impl Pieces {
    fn get(server: &Server, nodelay: bool) -> Later<'_, Box<dyn Connection>> {
        Self::open(server, nodelay, false, get, "END\r\n")
    }

    fn add(server: &Server, nodelay: bool) -> Later<'_, Box<dyn Connection>> {
        Self::open(server, nodelay, false, add, "STORED\r\n")
    }

    fn whole(server: &Server) -> Later<'_, Box<dyn Connection>> {
        Self::open(server, true, true, add, "STORED\r\n")
    }

    fn open<'a>(
        server: &'a Server,
        nodelay: bool,
        whole: bool,
        command: fn() -> [String; 3],
        reply: &'static str,
    ) -> Later<'a, Box<dyn Connection>> {
        Box::pin(async move {
            let stream = connect(server, nodelay).await;
            Box::new(Self { stream, command, reply, whole }) as Box<dyn Connection>
        })
    }
}

impl Connection for Pieces {
    fn command(&mut self) -> Later<'_, ()> {
        Box::pin(async move {
            let pieces = (self.command)();
            if self.whole {
                self.stream.write_all(pieces.concat().as_bytes()).await.unwrap();
            } else {
                for piece in pieces {
                    self.stream.write_all(piece.as_bytes()).await.unwrap();
                }
            }
            let mut reply = [0; 16];
            let reply = &mut reply[..self.reply.len()];
            self.stream.read_exact(reply).await.unwrap();
            assert_eq!(reply, self.reply.as_bytes());
        })
    }
}

/// The crate of the story, as it comes.
enum MemcacheAsync {
    Bare(Protocol<TcpStream>),
    Get(Protocol<BufWriter<TcpStream>>),
    Add(Protocol<BufWriter<TcpStream>>),
    GetAfterNoreply(Protocol<BufWriter<TcpStream>>),
}

impl MemcacheAsync {
    fn bare(server: &Server) -> Later<'_, Box<dyn Connection>> {
        Box::pin(async {
            Box::new(Self::Bare(Protocol::new(connect(server, false).await))) as Box<dyn Connection>
        })
    }

    fn buffered_get(server: &Server) -> Later<'_, Box<dyn Connection>> {
        Self::buffered(server, Self::Get)
    }

    fn buffered_add(server: &Server) -> Later<'_, Box<dyn Connection>> {
        Self::buffered(server, Self::Add)
    }

    fn buffered_after_noreply(server: &Server) -> Later<'_, Box<dyn Connection>> {
        Self::buffered(server, Self::GetAfterNoreply)
    }

    fn buffered(
        server: &Server,
        kind: fn(Protocol<BufWriter<TcpStream>>) -> Self,
    ) -> Later<'_, Box<dyn Connection>> {
        Box::pin(async move {
            let protocol = Protocol::new(BufWriter::new(connect(server, false).await));
            Box::new(kind(protocol)) as Box<dyn Connection>
        })
    }
}

impl Connection for MemcacheAsync {
    fn command(&mut self) -> Later<'_, ()> {
        Box::pin(async move {
            match self {
                Self::Bare(protocol) => {
                    protocol.add(rig::next_name(), VALUE.as_bytes(), 0).await.unwrap();
                }
                Self::Add(protocol) => {
                    protocol.add(rig::next_name(), VALUE.as_bytes(), 0).await.unwrap();
                }
                Self::Get(protocol) => {
                    protocol.get(rig::next_name()).await.unwrap_err();
                }
                Self::GetAfterNoreply(protocol) => {
                    protocol.set(rig::next_name(), VALUE.as_bytes(), 0).await.unwrap();
                    protocol.get(rig::next_name()).await.unwrap_err();
                }
            }
        })
    }
}

/// The store's client, as the gateway uses it.
struct Ours {
    client: Client,
    epoch: Epoch,
    now: UnixSeconds,
    spends: bool,
    _store: Memcached,
}

impl Ours {
    fn get(server: &Server, transport: Transport) -> Later<'_, Box<dyn Connection>> {
        Self::open(server, transport, false)
    }

    fn add(server: &Server, transport: Transport) -> Later<'_, Box<dyn Connection>> {
        Self::open(server, transport, true)
    }

    /// A pool has one connection here, so that each command follows another on the same.
    fn open(server: &Server, mut transport: Transport, spends: bool) -> Later<'_, Box<dyn Connection>> {
        if let Transport::Pooled { size, .. } = &mut transport {
            *size = 1;
        }
        Box::pin(async move {
            let store = server.store(transport);
            let (client, epoch) = rig::begun(&store).await;
            Box::new(Self { client, epoch, now: UnixSeconds::now(), spends, _store: store })
                as Box<dyn Connection>
        })
    }
}

impl Connection for Ours {
    fn command(&mut self) -> Later<'_, ()> {
        Box::pin(async move {
            let key = rig::next_key();
            if self.spends {
                assert_eq!(self.client.spend(&key, &self.epoch, self.now).await, Ok(Spend::Admitted));
            } else {
                assert_eq!(self.client.check(&key, &self.epoch).await, Ok(Hint::NotFound));
            }
        })
    }
}

/// No runtime: a write and a read.
struct Blocking {
    stream: std::net::TcpStream,
    command: fn() -> [String; 3],
    reply: &'static str,
}

impl Blocking {
    fn get(server: &Server) -> Later<'_, Box<dyn Connection>> {
        Self::open(server, get, "END\r\n")
    }

    fn add(server: &Server) -> Later<'_, Box<dyn Connection>> {
        Self::open(server, add, "STORED\r\n")
    }

    fn open<'a>(
        server: &'a Server,
        command: fn() -> [String; 3],
        reply: &'static str,
    ) -> Later<'a, Box<dyn Connection>> {
        Box::pin(async move {
            let stream = std::net::TcpStream::connect(server.address()).unwrap();
            stream.set_nodelay(true).unwrap();
            Box::new(Self { stream, command, reply }) as Box<dyn Connection>
        })
    }
}

impl Connection for Blocking {
    fn command(&mut self) -> Later<'_, ()> {
        Box::pin(async move {
            self.stream.write_all((self.command)().concat().as_bytes()).unwrap();
            let mut reply = [0; 16];
            let reply = &mut reply[..self.reply.len()];
            self.stream.read_exact(reply).unwrap();
            assert_eq!(reply, self.reply.as_bytes());
        })
    }
}
