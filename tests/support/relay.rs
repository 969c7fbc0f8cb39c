//! A TCP relay in front of a store, whose connections can be cut, and which can be closed.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// A port that leads to the servers, each connection to the next one. Runs on a thread of its own.
pub struct Relay {
    port: u16,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    closed: Arc<AtomicBool>,
    _end: oneshot::Sender<()>,
}

impl Relay {
    pub fn to(servers: &[u16]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (end, ended) = oneshot::channel();
        let connections = Arc::new(Mutex::new(Vec::new()));
        let (open, servers) = (Arc::clone(&connections), servers.to_vec());
        let closed = Arc::new(AtomicBool::new(false));
        let refuse = Arc::clone(&closed);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let accepting = async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                for server in servers.iter().cycle() {
                    let (near, _) = listener.accept().await.unwrap();
                    if refuse.load(Ordering::Acquire) {
                        continue;
                    }
                    let far = SocketAddr::from((Ipv4Addr::LOCALHOST, *server));
                    let mut open = open.lock().unwrap();
                    open.retain(|connection: &AbortHandle| !connection.is_finished());
                    open.push(tokio::spawn(relay(near, far)).abort_handle());
                }
            };
            runtime.block_on(async {
                tokio::select! { _ = ended => {}, () = accepting => {} }
            });
        });
        Self { port, connections, closed, _end: end }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Closes the connections that are open now, whatever is on its way.
    pub fn cut(&self) {
        self.connections.lock().unwrap().drain(..).for_each(|connection| connection.abort());
    }

    /// The same, and lets none through until [`Relay::open`].
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.cut();
    }

    pub fn open(&self) {
        self.closed.store(false, Ordering::Release);
    }
}

async fn relay(mut near: TcpStream, server: SocketAddr) {
    if let Ok(mut far) = TcpStream::connect(server).await {
        near.set_nodelay(true).unwrap();
        far.set_nodelay(true).unwrap();
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await; // either may go away
    }
}
