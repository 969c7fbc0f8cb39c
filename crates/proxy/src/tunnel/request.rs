//! A CONNECT over HTTP/1.1.

use super::Tunnel;
use super::answer::{Head, HeadError, read_head};
use super::line::{Io, Received};
use bytes::BytesMut;
use http::HeaderName;
use tokio::io::AsyncWriteExt;

/// A request for a tunnel. Nothing in it comes from the client but the authority.
#[derive(Clone, Debug)]
pub struct Connect<'a> {
    /// Where the tunnel goes.
    pub authority: &'a str,
    /// The value of Proxy-Authorization.
    pub authorization: Option<&'a str>,
    /// Another field.
    pub more: Option<(HeaderName, &'a str)>,
}

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

/// Asks for a tunnel in one write, and reads the answer's head.
///
/// # Errors
/// When there is no answer.
pub async fn ask(mut io: Box<dyn Io>, received: Received, connect: &Connect<'_>) -> Result<Asked, HeadError> {
    let asking = async {
        // A gateway that answers before it has read everything closes its side: read the answer even so.
        let written = match io.write_all(&request(connect)).await {
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

fn request(connect: &Connect<'_>) -> Vec<u8> {
    let Connect { authority, authorization, more } = connect;
    let mut request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n");
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
