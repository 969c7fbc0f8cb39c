//! Clients of a listener: behind a load balancer, and without end.

use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Longer than a listener takes to cut off a client that does not read.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns PROXY headers, version 1 and 2, for the client 192.0.2.`last` with port 4000.
pub fn proxy_headers(last: u8) -> [Vec<u8>; 2] {
    let v2 = [b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02", &[last][..], b"\x0a\0\0\x01\x0f\xa0\x01\xbb"];
    [format!("PROXY TCP4 192.0.2.{last} 10.0.0.1 4000 443\r\n").into_bytes(), v2.concat()]
}

/// Sends `request` again and again, and returns when the other side has cut the connection.
pub async fn flood_until_cut(mut stream: impl AsyncWrite + Unpin, request: &str) {
    let flood = request.repeat(64);
    let flooding = async { while stream.write_all(flood.as_bytes()).await.is_ok() {} };
    assert!(timeout(PATIENCE, flooding).await.is_ok(), "it is still connected");
}
