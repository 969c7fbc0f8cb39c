//! A tunnel through another proxy, from the client's side: a CONNECT over HTTP/1.1 on a separate connection ([`ask`]), or on an
//! HTTP/2 connection that tunnels share ([`Lines`]), and the bytes of both. A tunnel for UDP carries [capsules](crate::udp).

mod answer;
mod line;
mod shared;

pub use answer::{BODY_LIMIT, Head, HeadError, read_body};
pub use line::{Io, Received};
pub use shared::{Joined, Lines, Made, OnDrain, Seat, Sharing, Vigil};

use crate::http2::{Http2Stream, Inbox};
use crate::reset::Reset;
use crate::udp::{self, PROTOCOL};
use answer::read_head;
use bytes::{Buf, Bytes, BytesMut};
use http::HeaderName;
use line::Taken;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

/// An open tunnel. Reads return first the bytes that came with the answer, then those of the connection.
pub struct Tunnel {
    early: Bytes,
    io: Box<dyn Io>,
    received: Received,
    _taken: Option<Taken>,
    _held: Option<Box<dyn Send + Sync>>,
}

impl Tunnel {
    /// Creates a tunnel on a connection that it does not share. The task that reads the tunnel must keep taking `received`.
    pub fn alone(io: Box<dyn Io>, received: Received) -> Self {
        Self { early: Bytes::new(), io, received, _taken: None, _held: None }
    }

    /// Returns the tunnel with `early`, bytes that came together with the answer.
    #[must_use]
    pub fn after(self, early: Bytes) -> Self {
        Self { early, ..self }
    }

    fn shared(stream: Http2Stream, inbox: Inbox, taken: Taken) -> Self {
        let received = Received::shared(inbox, &taken);
        Self { early: Bytes::new(), io: Box::new(stream), received, _taken: Some(taken), _held: None }
    }

    /// Returns the received data, which the task that reads the tunnel must keep taking.
    pub fn received(&self) -> Received {
        self.received.clone()
    }

    /// Returns the tunnel, which holds `held` until it is dropped, such as its place in a count.
    #[must_use]
    pub fn holding(self, held: impl Send + Sync + 'static) -> Self {
        Self { _held: Some(Box::new(held)), ..self }
    }
}

impl Reset for Tunnel {
    fn inner(&self) -> Option<&dyn Reset> {
        Some(&self.io)
    }

    fn socket(&self) -> Option<&TcpStream> {
        if self.early.is_empty() { self.io.socket() } else { None }
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let length = self.early.len().min(buf.remaining());
        buf.put_slice(&self.early[..length]);
        self.early.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// A request for a tunnel. Only the authority comes from the client.
#[derive(Clone, Debug)]
pub struct Connect<'a> {
    /// Target of the tunnel; for UDP, the proxy itself.
    pub authority: &'a str,
    /// Path that names a target of UDP (RFC 9298, section 2); `None` for TCP.
    pub udp: Option<&'a str>,
    pub authorization: Option<&'a str>,
    pub more: Option<(HeaderName, &'a str)>,
}

impl Connect<'_> {
    /// Returns `true` if this answer opens the tunnel. Its further bytes are the tunnel's, whatever the length fields contain (RFC
    /// 9110, section 9.3.6).
    pub fn is_opened_by(&self, head: &Head, is_http2: bool) -> bool {
        match self.udp {
            None => head.status.is_success(),
            Some(_) => udp::is_opened(head.status, &head.headers, is_http2),
        }
    }
}

/// A proxy's answer over HTTP/1.1.
pub struct Asked {
    pub head: Head,
    /// Data after the head: the tunnel's first bytes, or those of a refusal's body.
    pub rest: BytesMut,
    pub tunnel: Tunnel,
}

/// Requests a tunnel in one write, and reads the answer's head.
pub async fn ask(mut io: Box<dyn Io>, received: Received, connect: &Connect<'_>) -> Result<Asked, HeadError> {
    let asking = async {
        // A gateway that answers before it has read everything closes its side: the answer is read even if the write fails.
        let written = match io.write_all(&request(connect)).await {
            Ok(()) => io.flush().await,
            Err(error) => Err(error),
        };
        let mut rest = BytesMut::new();
        match (read_head(&mut io, &mut rest, connect.udp.is_some()).await, written) {
            (Ok(head), _) => Ok((head, rest)),
            (Err(HeadError::Broken(_)), Err(error)) => Err(HeadError::Broken(error.to_string())),
            (Err(error), _) => Err(error),
        }
    };
    let (head, rest) = received.keep_taking(asking).await?;
    Ok(Asked { head, rest, tunnel: Tunnel::alone(io, received) })
}

fn request(connect: &Connect<'_>) -> Vec<u8> {
    let Connect { authority, udp, authorization, more } = connect;
    let mut request = match udp {
        None => format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n"),
        // RFC 9298, section 3.2.
        Some(path) => format!(
            "GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\
             Capsule-Protocol: ?1\r\n"
        ),
    };
    if let Some(authorization) = authorization {
        request.push_str("Proxy-Authorization: ");
        request.push_str(authorization);
        request.push_str("\r\n");
    }
    if let Some((name, value)) = more {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    request.into_bytes()
}
