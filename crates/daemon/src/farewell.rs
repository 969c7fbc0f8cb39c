//! Ending a connection so that its client can read the last answer.

use http::StatusCode;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// How long a client may take to read the last answer and to close its side.
pub const LINGER: Duration = Duration::from_secs(2);

/// Writes the answer, then closes the connection.
pub async fn part<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, answer: &[u8]) {
    // A failed write does not matter: the connection is closed anyway.
    let _ = timeout(LINGER, stream.write_all(answer)).await;
    leave(stream).await;
}

/// Closes the connection so that the client can read what was written: closing while the client still sends would reset
/// the connection, and the answer would be lost (RFC 9112, section 9.6).
pub async fn leave<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let goodbye = async {
        stream.shutdown().await?;
        let mut unread = vec![0; 4096]; // not in this future: every connection would keep room for it to its end
        while stream.read(&mut unread).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(LINGER, goodbye).await;
}

/// "400 Bad Request", as bytes, for connections that no HTTP server has.
#[must_use]
pub fn bad_request(sentence: &str) -> Vec<u8> {
    answer(StatusCode::BAD_REQUEST, "", sentence)
}

/// "Try again in `seconds`", as bytes, for connections that no HTTP server has.
#[must_use]
pub fn later(status: StatusCode, seconds: u64, sentence: &str) -> Vec<u8> {
    answer(status, &format!("retry-after: {seconds}\r\n"), sentence)
}

/// The last answer on a connection; `fields` end with their lines.
fn answer(status: StatusCode, fields: &str, sentence: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\n{fields}content-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{sentence}",
        sentence.len(),
    )
    .into_bytes()
}
