//! Where tunnels and requests go.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Sends back what it gets, and counts who came.
pub struct Echo {
    pub address: SocketAddr,
    pub came: Arc<AtomicUsize>,
}

impl Echo {
    pub async fn start() -> Self {
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
        Self { address, came }
    }

    pub fn came(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }
}

/// A target whose connections the test holds itself.
pub struct Held {
    pub address: SocketAddr,
    accepted: mpsc::UnboundedReceiver<TcpStream>,
}

impl Held {
    pub async fn start() -> Self {
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
    pub async fn next(&mut self) -> TcpStream {
        tokio::time::timeout(super::PATIENCE, self.accepted.recv()).await.unwrap().unwrap()
    }
}

/// A port that refuses: it was free a moment ago.
pub async fn refusing() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}
