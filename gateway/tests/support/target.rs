//! Targets of tunnels and requests.

use socket2::{Domain, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Reads a request's head, and nothing behind it.
pub(crate) async fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8(head).unwrap())
}

/// Sends back what it gets, and counts who came.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    came: Arc<AtomicUsize>,
    probes: AtomicUsize,
}

impl Echo {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, came) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counter = Arc::clone(&came);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let (mut reader, mut writer) = stream.split();
                    let _ = copy(&mut reader, &mut writer).await; // clients of some tests break off
                });
            }
        });
        Self { address, came, probes: AtomicUsize::new(0) }
    }

    /// Returns the number of connections so far. Makes another connection, to be sure that all before it have been counted.
    pub(crate) async fn came(&self) -> usize {
        let mut probe = TcpStream::connect(self.address).await.unwrap();
        probe.write_all(b"?").await.unwrap();
        probe.read_exact(&mut [0]).await.unwrap();
        let probes = self.probes.fetch_add(1, Ordering::SeqCst) + 1;
        self.came.load(Ordering::SeqCst) - probes
    }
}

/// A target whose connections the test holds itself.
pub(crate) struct Held {
    pub(crate) address: SocketAddr,
    accepted: mpsc::UnboundedReceiver<TcpStream>,
}

impl Held {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, accepted) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if sender.send(stream).is_err() {
                    return;
                }
            }
        });
        Self { address, accepted }
    }

    /// The target's end of the next connection.
    pub(crate) async fn next(&mut self) -> TcpStream {
        tokio::time::timeout(super::PATIENCE, self.accepted.recv()).await.unwrap().unwrap()
    }
}

/// A target that never accepts: the kernel has no room for one connection more.
#[allow(dead_code, reason = "of use to one of the binaries")]
pub(crate) struct Deaf {
    listener: Socket,
    _waiting: Vec<Socket>,
}

#[allow(dead_code, reason = "of use to one of the binaries")]
impl Deaf {
    pub(crate) fn start() -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let wait = |_| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None).unwrap();
            let _ = socket.connect(&address); // in progress
            socket
        };
        let _waiting = (0..4).map(wait).collect();
        Self { listener, _waiting }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap().as_socket().unwrap()
    }
}
