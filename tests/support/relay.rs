//! A TCP relay in front of a store or a gateway, whose connections can be cut, which can be closed, and which can hold replies back.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// A port that leads to the servers, each connection to the next one. Runs on its own thread.
pub struct Relay {
    port: u16,
    connections: Arc<Mutex<Connections>>,
    /// Milliseconds that each reply is held back.
    hold: Arc<AtomicU64>,
    /// Connections that have come.
    came: Arc<AtomicU64>,
    _end: oneshot::Sender<()>,
}

/// Under one lock: a connection that is let through is seen by whoever closes the relay after it.
#[derive(Default)]
struct Connections {
    open: Vec<AbortHandle>,
    /// `true` if none is let through.
    is_closed: bool,
}

impl Connections {
    fn cut(&mut self) {
        self.open.drain(..).for_each(|connection| connection.abort());
    }
}

impl Relay {
    pub fn to(servers: &[u16]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (end, ended) = oneshot::channel();
        let connections = Arc::<Mutex<Connections>>::default();
        let (shared, servers) = (Arc::clone(&connections), servers.to_vec());
        let hold = Arc::<AtomicU64>::default();
        let holds = Arc::clone(&hold);
        let came = Arc::<AtomicU64>::default();
        let coming = Arc::clone(&came);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let accepting = async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                for server in servers.iter().cycle() {
                    let (near, _) = listener.accept().await.unwrap();
                    let mut connections = shared.lock().unwrap();
                    if connections.is_closed {
                        continue;
                    }
                    coming.fetch_add(1, Ordering::AcqRel);
                    let far = SocketAddr::from((Ipv4Addr::LOCALHOST, *server));
                    connections.open.retain(|connection| !connection.is_finished());
                    connections.open.push(tokio::spawn(relay(near, far, Arc::clone(&holds))).abort_handle());
                }
            };
            runtime.block_on(async {
                tokio::select! { _ = ended => {}, () = accepting => {} }
            });
        });
        Self { port, connections, hold, came, _end: end }
    }

    /// Returns the number of connections that were passed on.
    pub fn came(&self) -> u64 {
        self.came.load(Ordering::Acquire)
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Closes the connections that are open now, whatever is on its way.
    pub fn cut(&self) {
        self.connections.lock().unwrap().cut();
    }

    /// The same, and lets none through until [`Relay::open`].
    pub fn close(&self) {
        let mut connections = self.connections.lock().unwrap();
        connections.is_closed = true;
        connections.cut();
    }

    /// Passes each reply on so much later, from now on.
    pub fn hold_replies(&self, time: Duration) {
        self.hold.store(u64::try_from(time.as_millis()).unwrap(), Ordering::Release);
    }

    pub fn open(&self) {
        self.connections.lock().unwrap().is_closed = false;
    }
}

async fn relay(mut near: TcpStream, server: SocketAddr, hold: Arc<AtomicU64>) {
    let Ok(mut far) = TcpStream::connect(server).await else { return };
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let ((mut asks, mut is_told), (mut answers, mut is_asked)) = (near.split(), far.split());
    let up = async {
        tokio::io::copy(&mut asks, &mut is_asked).await?;
        is_asked.shutdown().await
    };
    let down = async {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let length = answers.read(&mut bytes).await?;
            if length == 0 {
                return is_told.shutdown().await;
            }
            match hold.load(Ordering::Acquire) {
                0 => {}
                milliseconds => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
            }
            is_told.write_all(&bytes[..length]).await?;
        }
    };
    let _ = tokio::try_join!(up, down); // either may go away
}
