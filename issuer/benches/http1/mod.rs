//! An HTTP/1.1 client on raw bytes: its cost is small next to the issuer's.

use postern_token::{DIRECTORY_PATH, Directory};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// More than the head of an answer and a batch.
const BUFFER: usize = 64 * 1_024;

/// A connection that is kept.
pub struct Client {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Client {
    pub async fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, answer: vec![0; BUFFER] }
    }

    /// Sends a whole request and reads its answer: the status.
    pub async fn ask(&mut self, request: &[u8]) -> u16 {
        let Self { stream, answer } = self;
        stream.write_all(request).await.unwrap();
        let mut length = 0;
        let end = loop {
            length += stream.read(&mut answer[length..]).await.unwrap();
            if let Some(end) = answer[..length].windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
        };
        let body = content_length(&answer[..end]);
        stream.read_exact(&mut answer[length..end + body]).await.unwrap();
        str::from_utf8(&answer[9..12]).unwrap().parse().unwrap()
    }
}

/// A POST to the issuer, whose head has these lines, too.
pub fn post(media_type: &str, lines: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST /token-request HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {media_type}\r\n{lines}content-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

pub async fn directory_of(address: SocketAddr) -> Directory {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let get = format!("GET {DIRECTORY_PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n");
    stream.write_all(get.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    Directory::parse(&answer[body..]).unwrap()
}

fn content_length(head: &[u8]) -> usize {
    let head = str::from_utf8(head).unwrap().to_ascii_lowercase();
    let value = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    value.unwrap().trim().parse().unwrap()
}
