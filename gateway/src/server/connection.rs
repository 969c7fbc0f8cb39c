//! One client connection: requests, one after the other, until one of them becomes a tunnel.
//!
//! The driver of the HTTP version (`h1`) gives the stream back when a CONNECT was answered 200, and the same task goes
//! on as the tunnel. So a tunnel costs one task, and nothing is handed between tasks.

use crate::request::deny::Refusal;
use crate::request::tunnel::TunnelLimits;
use crate::request::{answer, tunnel};
use crate::server::h1::{self, Finished};
use crate::state::Worker;
use postern_proxy::reset::{self, Reset};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// How long a client may take to read the last answer and to close its side.
const LINGER: Duration = Duration::from_secs(2);

/// Serves a connection to its end, or to the stop. `client` is known only where the access log names it.
pub(crate) async fn serve<S>(stream: S, client: Option<SocketAddr>, worker: Arc<Worker>)
where
    S: AsyncRead + AsyncWrite + Reset + Unpin + Send + 'static,
{
    let (shutdown, limits) = (&worker.core.shutdown, worker.core.settings.limits.load_full());
    // Boxed, so that the room HTTP needs is given back before the tunnel begins. Not cut off from here: an answer that
    // is being given has to end in a reset.
    match Box::pin(h1::requests(stream, client, Arc::clone(&limits), Arc::clone(&worker))).await {
        Finished::Tunnel { stream, early, opened } => {
            let of_tunnel = TunnelLimits::of(&limits);
            drop(limits);
            let tunnel = tunnel::run(stream, opened, early, &of_tunnel, &worker.core.recorder);
            shutdown.until_stopped(tunnel).await;
        }
        Finished::Owed { stream, refusal } => {
            worker.core.recorder.turned_away(&refusal);
            shutdown.until_stopped(part(stream, &refusal)).await;
        }
        // A client that reads until the end must not take this for the end of the body, so reset, but deliver what was
        // written.
        Finished::Torn { stream } => {
            shutdown.until_stopped(reset::delivered(&stream, LINGER)).await;
            stream.reset();
        }
        Finished::Closed { stream } => _ = shutdown.until_stopped(leave(stream)).await,
    }
}

/// Writes the answer, then closes the connection.
pub(crate) async fn part<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, refusal: &Refusal) {
    // A failed write does not matter: the connection is closed anyway.
    let _ = timeout(LINGER, stream.write_all(&answer::refused_raw(refusal))).await;
    leave(stream).await;
}

/// Closes the connection so that the client can read the answer: closing while the client still sends would reset the
/// connection, and the answer would be lost (RFC 9112, section 9.6).
async fn leave<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let goodbye = async {
        stream.shutdown().await?;
        let mut unread = vec![0; 4096]; // not in this future: every connection would keep room for it to its end
        while stream.read(&mut unread).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = timeout(LINGER, goodbye).await;
}
