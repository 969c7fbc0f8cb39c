//! Closing of a connection so that its client can read the last answer.

use http::StatusCode;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Time limit for a client to read the last answer and to close its side.
pub const LINGER: Duration = Duration::from_secs(2);

pub async fn part<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, answer: &[u8]) {
    // A failed write does not matter: the connection is closed anyway.
    let _ = timeout(LINGER, stream.write_all(answer)).await;
    leave(stream).await;
}

/// Closes the connection so that the client can read what was written: a close while the client still sends would reset the
/// connection and lose the answer (RFC 9112, section 9.6).
pub async fn leave<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let goodbye = async {
        stream.shutdown().await?;
        let mut unread = vec![0; 4096]; // on the heap: this future is part of every connection's memory
        while stream.read(&mut unread).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(LINGER, goodbye).await;
}

/// Builds the last answer on a connection without an HTTP server, as bytes; `retry_after` is in seconds.
pub fn last_answer(status: StatusCode, retry_after: Option<u64>, sentence: &str) -> Vec<u8> {
    let retry = retry_after.map_or_else(String::new, |seconds| format!("retry-after: {seconds}\r\n"));
    format!(
        "HTTP/1.1 {status}\r\n{retry}content-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{sentence}",
        sentence.len(),
    )
    .into_bytes()
}
