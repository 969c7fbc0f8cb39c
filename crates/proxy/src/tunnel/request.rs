//! A CONNECT over HTTP/1.1.

use super::answer::{Head, HeadError, read_head};
use super::{Io, Received, Tunnel};
use bytes::BytesMut;
use tokio::io::AsyncWriteExt;

/// A proxy's answer over HTTP/1.1.
#[derive(Debug)]
pub struct Asked {
    /// The head of the answer.
    pub head: Head,
    /// What came after it: the tunnel's first bytes, or those of a refusal's body.
    pub rest: BytesMut,
    /// The connection.
    pub tunnel: Tunnel,
}

/// Asks for a tunnel to `authority` in one write, with this value of Proxy-Authorization, and reads the answer's head.
///
/// # Errors
/// When there is no answer.
pub async fn ask(
    mut io: Box<dyn Io>,
    received: Received,
    authority: &str,
    authorization: Option<&str>,
) -> Result<Asked, HeadError> {
    let asking = async {
        // A gateway that answers before it has read everything closes its side: read the answer even so.
        let written = match io.write_all(&request(authority, authorization)).await {
            Ok(()) => io.flush().await,
            Err(error) => Err(error),
        };
        let mut rest = BytesMut::new();
        match (read_head(&mut io, &mut rest).await, written) {
            (Ok(head), _) => Ok((head, rest)),
            (Err(HeadError::Broken(_)), Err(error)) => Err(HeadError::Broken(error.to_string())),
            (Err(error), _) => Err(error),
        }
    };
    let (head, rest) = received.keep_taking(asking).await?;
    Ok(Asked { head, rest, tunnel: Tunnel::alone(io, received) })
}

/// Nothing in it comes from the client but the target.
fn request(authority: &str, authorization: Option<&str>) -> Vec<u8> {
    let mut request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n");
    if let Some(authorization) = authorization {
        request.push_str("Proxy-Authorization: ");
        request.push_str(authorization);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    request.into_bytes()
}
