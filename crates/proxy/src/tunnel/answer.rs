//! Reading of a proxy's answer: a head of limited size and, for refusals, a body that explains.
//!
//! hyper's client is unsuitable: it discards an answer that arrives before the request is written, and a gateway with too many
//! connections sends its 503 that way. This module reads such an answer, with its `Retry-After`.

use bytes::{Buf, BytesMut};
use http::StatusCode;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Largest head that is read, in bytes.
const HEAD_LIMIT: usize = 32 * 1024;
/// Maximum size of all interim answers (1xx) before the answer, in bytes.
pub(super) const INTERIM_LIMIT: usize = 8 * 1024;
/// Maximum number of header fields in a head.
const FIELD_LIMIT: usize = 100;
/// First bytes of a TLS alert of any version (RFC 8446, section 5.1).
const TLS_ALERT: [u8; 2] = [21, 3];
/// Maximum number of bytes of a body that are read.
pub const BODY_LIMIT: usize = 64 * 1024;

/// Status and header fields of an answer.
#[derive(Debug)]
pub struct Head {
    /// The status of the answer: no interim one (1xx), but 101 after a request to upgrade.
    pub status: StatusCode,
    pub headers: HeaderMap,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    #[error("{0}")]
    Broken(String),
    #[error("{0}")]
    Grammar(String),
    #[error("it serves TLS; write https:// in place of http://")]
    Tls,
    #[error("the header is longer than {HEAD_LIMIT} bytes")]
    TooLarge,
    #[error("more than {INTERIM_LIMIT} bytes of interim answers (1xx) came, and no answer")]
    NoEnd,
}

/// Reads one head, and leaves the data after it in `buffer`. Interim answers (1xx) are skipped, [`INTERIM_LIMIT`] bytes at most;
/// 101 is the answer to a request that `upgrades`.
pub(super) async fn read_head(
    io: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    upgrades: bool,
) -> Result<Head, HeadError> {
    let mut interim = 0;
    loop {
        let held = buffer.len();
        match parse_head(buffer)? {
            Some(head) if upgrades && head.status == StatusCode::SWITCHING_PROTOCOLS => return Ok(head),
            Some(head) if head.status.is_informational() => {
                interim += held - buffer.len();
                if interim > INTERIM_LIMIT {
                    return Err(HeadError::NoEnd);
                }
            }
            Some(head) => return Ok(head),
            None if buffer.len() > HEAD_LIMIT => return Err(HeadError::TooLarge),
            None => match io.read_buf(buffer).await {
                Ok(0) if buffer.is_empty() => {
                    return Err(HeadError::Broken("it closed without an answer".to_owned()));
                }
                Ok(0) => return Err(HeadError::Broken("its answer was cut off".to_owned())),
                Ok(_) => {}
                Err(error) => return Err(HeadError::Broken(error.to_string())),
            },
        }
    }
}

/// Removes a head from `buffer`; `None` while it is incomplete.
fn parse_head(buffer: &mut BytesMut) -> Result<Option<Head>, HeadError> {
    if buffer.starts_with(&TLS_ALERT) {
        return Err(HeadError::Tls); // before the parser, which waits: an alert is shorter than a version
    }
    if !buffer.is_empty() && TLS_ALERT.starts_with(buffer) {
        return Ok(None); // no HTTP head begins with these bytes
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELD_LIMIT];
    let mut response = httparse::Response::new(&mut fields);
    let length = match response.parse(buffer) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(HeadError::Grammar(error.to_string())),
    };
    if length > HEAD_LIMIT {
        return Err(HeadError::TooLarge);
    }
    let grammar = |error: http::Error| HeadError::Grammar(error.to_string());
    let status =
        StatusCode::from_u16(response.code.unwrap_or_default()).map_err(|error| grammar(error.into()))?;
    let mut headers = HeaderMap::new();
    for field in response.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|error| grammar(error.into()))?;
        let value = HeaderValue::from_bytes(field.value).map_err(|error| grammar(error.into()))?;
        headers.append(name, value);
    }
    buffer.advance(length);
    Ok(Some(Head { status, headers }))
}

/// Reads the body of `head` into `body`, [`BODY_LIMIT`] bytes at most; `buffer` holds the data received so far. The body ends as
/// its framing defines (RFC 9112, section 6.3), or without an error where the data ends.
pub async fn read_body(
    io: &mut (impl AsyncRead + Unpin),
    head: &Head,
    buffer: &mut BytesMut,
    body: &mut BytesMut,
) {
    if head.headers.contains_key(TRANSFER_ENCODING) {
        return read_chunks(io, buffer, body).await;
    }
    let length = head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    take(io, buffer, body, length.unwrap_or(usize::MAX)).await;
}

async fn read_chunks(io: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut, body: &mut BytesMut) {
    loop {
        match httparse::parse_chunk_size(buffer) {
            Ok(httparse::Status::Complete((_, 0))) | Err(_) => return,
            Ok(httparse::Status::Complete((start, size))) => {
                buffer.advance(start);
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                if !take(io, buffer, body, size).await || !take(io, buffer, &mut BytesMut::new(), 2).await {
                    return;
                }
            }
            Ok(httparse::Status::Partial) => {
                if buffer.len() > HEAD_LIMIT || !matches!(io.read_buf(buffer).await, Ok(1..)) {
                    return;
                }
            }
        }
    }
}

/// Moves `length` bytes to `body`. Returns `false` if the data ends earlier or the body is full.
async fn take(
    io: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    body: &mut BytesMut,
    mut length: usize,
) -> bool {
    while length > 0 {
        if buffer.is_empty() && !matches!(io.read_buf(buffer).await, Ok(1..)) {
            return false;
        }
        let room = BODY_LIMIT - body.len();
        let part = length.min(buffer.len()).min(room);
        if part == 0 {
            return false;
        }
        body.extend_from_slice(&buffer.split_to(part));
        length -= part;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &[u8]) -> Result<(Head, String, Vec<u8>), HeadError> {
        let mut io = tokio_test_io(bytes);
        let mut buffer = BytesMut::new();
        let head = read_head(&mut io, &mut buffer, false).await?;
        let mut body = BytesMut::new();
        read_body(&mut io, &head, &mut buffer, &mut body).await;
        Ok((head, String::from_utf8(body.to_vec()).unwrap(), buffer.to_vec()))
    }

    /// Delivers one byte at a time, so that every boundary occurs.
    fn tokio_test_io(bytes: &[u8]) -> impl AsyncRead + Unpin + use<> {
        let (mut near, far) = tokio::io::duplex(1);
        let bytes = bytes.to_vec();
        tokio::spawn(async move { tokio::io::AsyncWriteExt::write_all(&mut near, &bytes).await });
        far
    }

    #[tokio::test]
    async fn bodies_end_where_their_framing_says() {
        let (head, body, _) = read(b"HTTP/1.1 403 No\r\nContent-Length: 5\r\n\r\nhello").await.unwrap();
        assert_eq!((head.status.as_u16(), body.as_str()), (403, "hello"));
        let chunked =
            b"HTTP/1.1 502 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n";
        assert_eq!(read(chunked).await.unwrap().1, "hello");
        assert_eq!(read(b"HTTP/1.0 503 No\r\n\r\nto the end").await.unwrap().1, "to the end");
        assert_eq!(read(b"HTTP/1.1 502 No\r\nContent-Length: 50\r\n\r\ncut").await.unwrap().1, "cut");
    }

    #[tokio::test]
    async fn interim_answers_are_skipped() {
        let (head, body, _) = read(b"HTTP/1.1 103 Hm\r\nA: b\r\n\r\nHTTP/1.1 403 No\r\n\r\nx").await.unwrap();
        assert_eq!((head.status.as_u16(), body.as_str()), (403, "x"));
        let many = [b"HTTP/1.1 103 Hm\r\nA: b\r\n\r\n".repeat(400), b"HTTP/1.1 403 No\r\n\r\nx".to_vec()];
        assert!(matches!(read(&many.concat()).await, Err(HeadError::NoEnd)));
    }

    #[tokio::test]
    async fn an_upgrade_is_an_answer_only_where_one_was_requested() {
        let bytes = b"HTTP/1.1 103 Hm\r\n\r\nHTTP/1.1 101 Yes\r\n\r\nHTTP/1.1 200 OK\r\n\r\n";
        for (upgrades, status) in [(true, 101), (false, 200)] {
            let head = read_head(&mut tokio_test_io(bytes), &mut BytesMut::new(), upgrades).await.unwrap();
            assert_eq!(head.status.as_u16(), status);
        }
    }

    #[tokio::test]
    async fn what_is_no_head_is_refused() {
        assert!(matches!(read(b"SSH-2.0-x\r\n\r\n").await, Err(HeadError::Grammar(_))));
        assert!(matches!(read(&[21, 3, 3, 0, 2, 2, 50]).await, Err(HeadError::Tls)));
        assert!(matches!(read(b"").await, Err(HeadError::Broken(_))));
        assert!(matches!(read(b"HTTP/1.1 200 OK\r\nA: ").await, Err(HeadError::Broken(_))));
        let endless = [b"HTTP/1.1 200 OK\r\nA: ".to_vec(), vec![b'a'; HEAD_LIMIT + 1]].concat();
        assert!(matches!(read(&endless).await, Err(HeadError::TooLarge)));
    }
}
