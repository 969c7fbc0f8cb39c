//! Bytes both ways, until both sides are done.

use bytes::Bytes;
use std::io;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, split};
use tokio::time::timeout;

/// How long one direction may go on after the other one broke. A broken direction often means a dead connection, but
/// what has already arrived the other way is still to be delivered.
const AFTER_BREAK: Duration = Duration::from_secs(10);

/// Relays until both directions have ended. `early` has been read from `client` before. The end of one direction is
/// passed on as a half-close; the other one goes on.
pub(crate) async fn relay<C, T>(client: C, early: Bytes, tunnel: T)
where
    C: AsyncRead + AsyncWrite,
    T: AsyncRead + AsyncWrite,
{
    let (client_read, client_write) = split(client);
    let (tunnel_read, tunnel_write) = split(tunnel);
    let early = io::Cursor::new(early);
    let mut up = pin!(one_way(early.chain(client_read), tunnel_write));
    let mut down = pin!(one_way(tunnel_read, client_write));
    // How a direction ended is nobody's business here: both ends see it on their own connection.
    tokio::select! {
        ended = &mut up => finish(ended, down).await,
        ended = &mut down => finish(ended, up).await,
    }
}

async fn finish(first: io::Result<()>, second: impl Future<Output = io::Result<()>>) {
    let _ = match first {
        Ok(()) => second.await,
        Err(_) => timeout(AFTER_BREAK, second).await.unwrap_or(Ok(())),
    };
}

async fn one_way(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    copy(&mut from, &mut to).await?;
    to.shutdown().await
}
