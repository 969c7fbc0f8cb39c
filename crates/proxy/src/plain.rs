//! Reading and checking of a target's answer to a plain `http://` request.

use crate::headers::{has_other_coding, remove_hop_by_hop};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body::Body;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum number of fields of a message. The bytes of a head are bounded separately.
pub const MOST_FIELDS: usize = 1000;
/// Maximum number of bytes before the end of an answer's head, interim answers included. hyper skips any number of interim answers
/// (1xx), so a target could use them to keep a core busy for as long as its answer is awaited.
const LIMIT: usize = 128 * 1024;

/// Reports of the proxies on the path (RFC 9209).
const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
/// Text by which entries of Postern's own proxies in Proxy-Status are recognised.
const OWN_NAME: &[u8] = b"postern";

/// Reasons not to pass on a target's answer. The messages are for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerFault {
    #[error("the target closed the connection before it had answered")]
    Closed,
    #[error("the target's answer is not valid HTTP/1.1")]
    Malformed,
    #[error("the head of the target's answer has more than 1000 fields or 128 KiB")]
    TooLarge,
    #[error("the target's answer has another transfer coding than chunked")]
    Coding,
    #[error("the target asked for proxy credentials, as only a proxy may")]
    Credentials,
    #[error("the target switched protocols, which it was not asked to do")]
    Switched,
}

impl AnswerFault {
    /// Returns the fault of an exchange that failed.
    pub fn of(error: &hyper::Error) -> Self {
        let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        let is_endless = cause.is_some_and(|cause| cause.kind() == io::ErrorKind::InvalidData);
        if error.is_parse_too_large() || is_endless {
            Self::TooLarge
        } else if error.is_parse() {
            Self::Malformed
        } else {
            Self::Closed
        }
    }

    /// Returns the error type of RFC 9209, section 2.3.
    pub const fn error(self) -> &'static str {
        match self {
            Self::Closed => "connection_terminated",
            Self::Malformed | Self::Credentials => "http_protocol_error",
            Self::TooLarge => "http_response_header_section_size",
            Self::Coding => "http_response_transfer_coding",
            Self::Switched => "http_upgrade_failed",
        }
    }
}

/// Begins HTTP/1.1 with a target over `stream`, whose heads `limit` bounds.
pub async fn handshake<S, B>(
    stream: S,
    limit: HeadLimit,
) -> Result<(SendRequest<B>, Connection<TokioIo<AnswerStream<S>>, B>), AnswerFault>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut http = Builder::new();
    http.max_buf_size(LIMIT)
        .max_headers(MOST_FIELDS)
        .preserve_header_case(true)
        // RFC 9112, section 5.1: a proxy removes these spaces.
        .allow_spaces_after_header_name_in_responses(true);
    http.handshake(TokioIo::new(AnswerStream::new(stream, limit))).await.map_err(|_| AnswerFault::Closed)
}

/// Checks that a target's answer may be passed on, and removes fields about its connection and in the name of our proxies.
pub fn check<B>(response: &mut Response<B>) -> Result<(), AnswerFault> {
    match response.status() {
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => return Err(AnswerFault::Credentials),
        StatusCode::SWITCHING_PROTOCOLS => return Err(AnswerFault::Switched),
        _ if has_other_coding(response.headers()) => return Err(AnswerFault::Coding),
        _ => clean(response.headers_mut()),
    }
    Ok(())
}

/// Removes the fields about the connection to the target, and those that the target sent in the name of our proxies.
pub fn clean(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
    remove_own_status(headers);
}

/// Removes reports of our proxies, which only those may send: a client would discard valid tokens.
fn remove_own_status(headers: &mut HeaderMap) {
    let is_own = |value: &HeaderValue| {
        value.as_bytes().to_ascii_lowercase().windows(OWN_NAME.len()).any(|part| part == OWN_NAME)
    };
    if !headers.get_all(PROXY_STATUS).iter().any(is_own) {
        return;
    }
    let kept: Vec<HeaderValue> =
        headers.get_all(PROXY_STATUS).iter().filter(|value| !is_own(value)).cloned().collect();
    headers.remove(PROXY_STATUS);
    kept.into_iter().for_each(|value| _ = headers.append(PROXY_STATUS, value));
}

#[derive(Debug)]
pub struct AnswerStream<S> {
    stream: S,
    left: HeadLimit,
}

/// The number of bytes that may still be read. Clones share it.
#[derive(Clone, Debug)]
pub struct HeadLimit(Arc<AtomicUsize>);

impl HeadLimit {
    /// Creates the limit of a stream that begins with the head of an answer.
    pub fn begun() -> Self {
        Self(Arc::new(AtomicUsize::new(LIMIT)))
    }

    /// Restarts the limit before a request is sent: the next bytes belong to its answer's head.
    pub fn begin(&self) {
        self.0.store(LIMIT, Ordering::Relaxed);
    }

    /// Lifts the limit once the head is complete: the body has none.
    pub fn end(&self) {
        self.0.store(usize::MAX, Ordering::Relaxed);
    }

    fn take(&self, count: usize) {
        let less = |left| (left != usize::MAX).then(|| usize::saturating_sub(left, count));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn is_used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl<S> AnswerStream<S> {
    /// Limits reads of `stream` to the bytes in `left`.
    pub fn new(stream: S, left: HeadLimit) -> Self {
        Self { stream, left }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AnswerStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // hyper has examined all bytes read before, and the end of the head was not among them.
        if self.left.is_used_up() {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the answer has no end of its head",
            )));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.left.take(buffer.filled().len() - before);
        read
    }
}

postern_daemon::writes_through!(AnswerStream);
