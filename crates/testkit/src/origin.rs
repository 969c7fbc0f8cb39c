//! An origin server that records every byte it receives.

use crate::strict::{self, Fault};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Maximum wait for the end of all connections.
const PATIENCE: Duration = Duration::from_secs(20);
/// Answer to each request, and to bytes that are no request.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A server that answers each request that [`strict`] can parse, answers once bytes that can never become one, and reads until
/// its client disconnects.
#[derive(Debug)]
pub struct Origin {
    /// Address on which it listens.
    pub address: SocketAddr,
    connections: Arc<Mutex<Vec<Connection>>>,
    changed: watch::Receiver<()>,
}

#[derive(Debug)]
struct Connection {
    peer: SocketAddr,
    got: Vec<u8>,
    is_over: bool,
}

impl Origin {
    /// Starts a server on a free port of the loopback interface.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::<Mutex<Vec<Connection>>>::default();
        let (change, changed) = watch::channel(());
        let kept = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                let index = {
                    let mut connections = kept.lock().unwrap_or_else(PoisonError::into_inner);
                    connections.push(Connection { peer, got: Vec::new(), is_over: false });
                    connections.len() - 1
                };
                let (kept, change) = (Arc::clone(&kept), change.clone());
                tokio::spawn(async move {
                    serve(stream, index, &kept).await;
                    kept.lock().unwrap_or_else(PoisonError::into_inner)[index].is_over = true;
                    change.send_replace(());
                });
            }
        });
        Self { address, connections, changed }
    }

    /// Waits until all connections are over. Returns the bytes received on each, in the order of acceptance, without empty ones.
    pub async fn seen(&mut self) -> Vec<Vec<u8>> {
        // The probe is accepted after all earlier connections.
        let probe = TcpStream::connect(self.address).await.unwrap().local_addr().unwrap();
        let all_over = async {
            loop {
                {
                    let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
                    let has_come = connections.iter().any(|one| one.peer == probe);
                    if has_come && connections.iter().all(|one| one.is_over) {
                        // Connections without a byte are probes, or were dialled for a client that left.
                        let got = connections.iter().map(|one| one.got.clone());
                        return got.filter(|got| !got.is_empty()).collect();
                    }
                }
                self.changed.changed().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, all_over).await.expect("a connection stays open")
    }
}

async fn serve(mut stream: TcpStream, index: usize, connections: &Mutex<Vec<Connection>>) {
    let (mut got, mut answered) = (Vec::new(), 0);
    loop {
        match stream.read_buf(&mut got).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        connections.lock().unwrap_or_else(PoisonError::into_inner)[index].got.clone_from(&got);
        let (whole, fault) = strict::requests(&got);
        let due = whole.len() + usize::from(matches!(fault, Some(Fault::Ambiguous(_))));
        if stream.write_all(&ANSWER.repeat(due.saturating_sub(answered))).await.is_err() {
            return;
        }
        answered = due.max(answered);
    }
}
