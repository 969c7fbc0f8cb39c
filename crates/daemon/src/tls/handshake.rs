//! A TLS handshake with a client that may send only a bounded amount before it completes. A client that speaks HTTP without TLS
//! gets an explanation.

use super::acme;
use super::client_auth::is_client_refused;
use crate::farewell::{last_answer, leave, part};
use http::StatusCode;
use rustls::ServerConfig;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// A client's connection, plain or over TLS: one type for both, so that the HTTP versions are compiled once.
pub type Accepted = Either<TcpStream, Box<TlsStream<Bounded<TcpStream>>>>;

/// Maximum number of bytes that a client may send before its handshake completes. A ClientHello with post-quantum key shares has
/// 2 kB, a client's certificate chain seldom more than 8 kB; rustls would keep a message of 64 KiB until its end.
const MOST: usize = 16 << 10;

/// Performs the handshake with a client.
///
/// # Errors
/// Those of rustls; [`io::ErrorKind::InvalidData`] for a client that sends more than 16 KiB before the handshake completes, or
/// speaks HTTP without TLS; [`io::ErrorKind::ConnectionAborted`] for an authority's validation of a name, which sends no data
/// (RFC 8737, section 3).
pub async fn accept<S>(config: &Arc<ServerConfig>, stream: S) -> io::Result<TlsStream<Bounded<S>>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let is_spent = Arc::new(AtomicBool::default());
    let bounded = Bounded { stream, left: Some(Left { bytes: MOST, is_spent: Arc::clone(&is_spent) }) };
    let mut accepting = pin!(TlsAcceptor::from(Arc::clone(config)).accept(bounded).into_fallible());
    let accepted = poll_fn(|cx| match accepting.as_mut().poll(cx) {
        Poll::Pending if is_spent.load(Ordering::Relaxed) => {
            Poll::Ready(Err((io::Error::new(io::ErrorKind::InvalidData, "an endless TLS handshake"), None)))
        }
        accepted => accepted.map_err(|(error, stream)| (error, Some(stream))),
    })
    .await;
    let mut stream = match accepted {
        Ok(stream) => stream,
        Err((error, stream)) => {
            match stream {
                Some(Bounded { stream, .. }) if is_plain_http(&error) => {
                    let sentence = "This port speaks TLS: use https://\n";
                    part(stream, &last_answer(StatusCode::BAD_REQUEST, None, sentence)).await;
                }
                // The client has sent a request already: a close now would reset the connection, and the alert would be lost.
                Some(Bounded { stream, .. }) if is_client_refused(&error) => leave(stream).await,
                _ => {}
            }
            return Err(error);
        }
    };
    stream.get_mut().0.left = None;
    if stream.get_ref().1.alpn_protocol() == Some(acme::ALPN) {
        return Err(io::Error::new(
            io::ErrorKind::ConnectionAborted,
            "an authority that has seen what it came for",
        ));
    }
    Ok(stream)
}

/// The first bytes are those of an HTTP request.
#[derive(Debug, thiserror::Error)]
#[error("HTTP without TLS")]
struct PlainHttp;

fn is_plain_http(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<PlainHttp>())
}

/// The stream under TLS, with a bound on reads during the handshake.
#[derive(Debug)]
pub struct Bounded<S> {
    stream: S,
    /// Remaining bound; `None` after the handshake, which ends it.
    left: Option<Left>,
}

#[derive(Debug)]
struct Left {
    bytes: usize,
    /// `true` once a read found no bytes left.
    is_spent: Arc<AtomicBool>,
}

impl<S> Bounded<S> {
    pub fn get_ref(&self) -> &S {
        &self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, left } = &mut *self;
        let Some(left) = left else { return Pin::new(stream).poll_read(cx, buf) };
        if left.bytes == 0 {
            // Not an error yet: the last bytes may have been the end of the handshake, and data after it.
            left.is_spent.store(true, Ordering::Relaxed);
            return Poll::Pending;
        }
        let mut piece = ReadBuf::new(buf.initialize_unfilled_to(left.bytes.min(buf.remaining())));
        ready!(Pin::new(stream).poll_read(cx, &mut piece))?;
        // An HTTP method begins with a capital letter, but no TLS record with a byte above 24. A balancer's PROXY header is not a
        // request.
        let is_http =
            |first: &[u8]| first.first().is_some_and(u8::is_ascii_uppercase) && !first.starts_with(b"PROXY");
        if left.bytes == MOST && is_http(piece.filled()) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, PlainHttp)));
        }
        let read = piece.filled().len();
        buf.advance(read);
        left.bytes -= read;
        Poll::Ready(Ok(()))
    }
}

writes_through!(Bounded);
