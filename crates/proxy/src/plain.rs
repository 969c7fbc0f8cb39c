//! A target's answer to a plain `http://` request: how it is read, and what of it cannot be passed on.

use crate::answer_head::{AnswerStream, HeadLimit, LIMIT};
use crate::headers::{has_other_coding, remove_hop_by_hop};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body::Body;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};

/// The most fields of a message. A head's bytes are bounded, too.
pub const MOST_FIELDS: usize = 1000;

/// RFC 9209: what proxies on the way did.
const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
/// What the names of our own proxies in Proxy-Status begin with.
const OWN_NAME: &[u8] = b"postern";

/// Why a target's answer is not passed on. The sentences are for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerFault {
    /// The connection ended before the answer's head did.
    #[error("the target closed the connection before it had answered")]
    Closed,
    /// It is not HTTP.
    #[error("the target's answer is not valid HTTP/1.1")]
    Malformed,
    /// Its head has no end within the bound.
    #[error("the head of the target's answer has more than 1000 fields or 128 KiB")]
    TooLarge,
    /// Its body is in another transfer coding than chunked.
    #[error("the target's answer has another transfer coding than chunked")]
    Coding,
    /// Only a proxy may send a 407.
    #[error("the target asked for proxy credentials, as only a proxy may")]
    Credentials,
    /// The request to upgrade was not passed on.
    #[error("the target switched protocols, which it was not asked to do")]
    Switched,
}

impl AnswerFault {
    /// What became of an exchange that failed.
    #[must_use]
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

    /// The error type of RFC 9209, section 2.3.
    #[must_use]
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

/// Speaks HTTP/1.1 with a target over `stream`, which `limit` bounds.
///
/// # Errors
/// [`AnswerFault::Closed`].
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
        // RFC 9112, section 5.1: a proxy removes it.
        .allow_spaces_after_header_name_in_responses(true);
    http.handshake(TokioIo::new(AnswerStream::new(stream, limit))).await.map_err(|_| AnswerFault::Closed)
}

/// Makes a target's answer one that may be passed on: without what is about its connection, and what only our proxies may say.
///
/// # Errors
/// [`AnswerFault`], if it may not.
pub fn check<B>(response: &mut Response<B>) -> Result<(), AnswerFault> {
    match response.status() {
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => return Err(AnswerFault::Credentials),
        StatusCode::SWITCHING_PROTOCOLS => return Err(AnswerFault::Switched),
        _ if has_other_coding(response.headers()) => return Err(AnswerFault::Coding),
        _ => clean(response.headers_mut()),
    }
    Ok(())
}

/// Removes what concerns the connection to the target alone, and what a target says in our name.
pub fn clean(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
    remove_own_status(headers);
}

/// A target may say what proxies on its side did, but not what ours did: a client would throw good tokens away.
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
