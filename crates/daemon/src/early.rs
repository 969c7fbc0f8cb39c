//! A connection of which something was read already, and whether that is HTTP/2.

use bytes::{Buf, Bytes};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

/// The bytes that begin a connection of an HTTP/2 client (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether a connection that began with `read`, which is no HTTP/1.1, is one of HTTP/2, as far as can be seen.
#[must_use]
pub fn is_http2(read: &[u8]) -> bool {
    !read.is_empty() && (read.starts_with(PREFACE) || PREFACE.starts_with(read))
}

/// Reads into `early` until it can be seen whether the client speaks HTTP/2: its preface at most, most often one read. The caller
/// sets the time limit. Cancel safe.
///
/// # Errors
/// The connection broke.
pub async fn begins_http2<S: AsyncRead + Unpin>(stream: &mut S, early: &mut Vec<u8>) -> io::Result<bool> {
    while early.len() < PREFACE.len() && PREFACE.starts_with(early) {
        let mut piece = [0; PREFACE.len()];
        let room = &mut piece[early.len()..];
        let read = stream.read(room).await?;
        if read == 0 {
            return Ok(false);
        }
        early.extend_from_slice(&room[..read]);
    }
    Ok(early == PREFACE)
}

/// A stream that brings what was read first.
#[derive(Debug)]
pub struct Early<S> {
    early: Bytes,
    stream: S,
}

impl<S> Early<S> {
    /// Brings `early`, and then what comes on `stream`.
    pub fn new(early: Bytes, stream: S) -> Self {
        Self { early, stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Early<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let length = self.early.len().min(buf.remaining());
        buf.put_slice(&self.early[..length]);
        self.early.advance(length);
        if self.early.is_empty() {
            self.early = Bytes::new(); // HTTP/1.1's read buffer
        }
        Poll::Ready(Ok(()))
    }
}

writes_through!(Early);
