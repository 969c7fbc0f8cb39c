//! A client that sends bytes as they are and reads what comes.

use super::proxy_status::{self, ProxyStatus};
use super::{ISSUER, PATIENCE};
use postern_token::header::Challenge;
use postern_token::{Mark, TokenChallenge};
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

pub(crate) struct Client<S = TcpStream> {
    pub(crate) stream: S,
    /// Bytes that were read beyond the last answer.
    pub(crate) unread: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap())
    }

    /// A client whose socket holds no more than a few hundred KiB of an answer that it does not read.
    pub(crate) async fn connect_narrow(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(1 << 16).unwrap();
        Self::over(socket.connect(address).await.unwrap())
    }

    /// Connects, sends, reads one answer.
    pub(crate) async fn ask(address: SocketAddr, request: impl AsRef<[u8]>) -> Answer {
        let mut client = Self::connect(address).await;
        client.send(request).await;
        client.answer().await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub(crate) fn over(stream: S) -> Self {
        Self { stream, unread: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// The next answer, its body included. The 200 to a CONNECT has none.
    pub(crate) async fn answer(&mut self) -> Answer {
        let mut answer = self.head().await;
        let length = answer.all("content-length").first().map(|text| text.parse::<usize>().unwrap());
        answer.body = match length {
            Some(length) => self.take(length).await,
            None if answer.value("transfer-encoding") == "chunked" => self.chunks().await,
            None if answer.status == 200 && answer.value("connection") == "close" => self.rest().await,
            None => Vec::new(),
        };
        answer
    }

    /// The next answer's head, and no more: for HEAD, 204, 304 and 100.
    pub(crate) async fn head(&mut self) -> Answer {
        loop {
            if let Some(end) = find(&self.unread, b"\r\n\r\n") {
                let head: Vec<u8> = self.unread.drain(..end + 4).collect();
                return Answer::parse(std::str::from_utf8(&head).unwrap());
            }
            assert!(
                self.fill().await > 0,
                "the connection ended: {:?}",
                String::from_utf8_lossy(&self.unread)
            );
        }
    }

    /// Exactly this number of bytes.
    pub(crate) async fn take(&mut self, length: usize) -> Vec<u8> {
        while self.unread.len() < length {
            assert!(
                self.fill().await > 0,
                "the connection ended after {} of {length} bytes",
                self.unread.len()
            );
        }
        self.unread.drain(..length).collect()
    }

    /// Everything until the other side closes.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        while self.fill().await > 0 {}
        std::mem::take(&mut self.unread)
    }

    /// Asserts that the other side closes without another byte.
    pub(crate) async fn closed_silently(&mut self) {
        let rest = self.rest().await;
        assert!(rest.is_empty(), "{:?}", String::from_utf8_lossy(&rest));
    }

    /// Asserts that the connection is reset without another byte: what came was not all.
    pub(crate) async fn is_reset(&mut self) {
        let read = timeout(PATIENCE, self.stream.read(&mut [0])).await.unwrap();
        assert_eq!(read.map_err(|error| error.kind()), Err(std::io::ErrorKind::ConnectionReset));
        assert!(self.unread.is_empty(), "{:?}", String::from_utf8_lossy(&self.unread));
    }

    /// Returns whether the connection ends without another byte, by a close or by a reset.
    pub(crate) async fn is_ended(&mut self) -> bool {
        let read = timeout(PATIENCE, self.stream.read(&mut [0])).await.unwrap();
        matches!(read.map_err(|error| error.kind()), Ok(0) | Err(std::io::ErrorKind::ConnectionReset))
    }

    async fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            while find(&self.unread, b"\r\n").is_none() {
                assert!(self.fill().await > 0, "the connection ended within a chunked body");
            }
            let end = find(&self.unread, b"\r\n").unwrap();
            let line: Vec<u8> = self.unread.drain(..end + 2).collect();
            let size = usize::from_str_radix(std::str::from_utf8(&line[..end]).unwrap(), 16).unwrap();
            body.extend_from_slice(&self.take(size + 2).await[..size]);
            if size == 0 {
                return body;
            }
        }
    }

    async fn fill(&mut self) -> usize {
        timeout(PATIENCE, self.stream.read_buf(&mut self.unread))
            .await
            .expect("no byte came in time")
            .unwrap()
    }
}

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    fn parse(head: &str) -> Self {
        let mut lines = head.trim_end_matches("\r\n").split("\r\n");
        let mut status_line = lines.next().unwrap().splitn(3, ' ');
        assert!(matches!(status_line.next(), Some("HTTP/1.1" | "HTTP/1.0")), "{head}");
        let status = status_line.next().unwrap().parse().unwrap();
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        });
        Self { status, headers: headers.collect(), body: Vec::new() }
    }

    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_str()).collect()
    }

    /// The one value of a field; empty when it is not there.
    pub(crate) fn value(&self, name: &str) -> &str {
        let all = self.all(name);
        assert!(all.len() <= 1, "{name}: {all:?}");
        all.first().copied().unwrap_or_default()
    }

    pub(crate) fn proxy_status(&self) -> ProxyStatus {
        proxy_status::parse(self.value("proxy-status"))
    }

    /// Everything that every refusal owes: a Proxy-Status that parses, with the right error type and the details, a
    /// body that repeats them and has what to do next, a challenge with 407 and only there, Retry-After with 429 and 503.
    pub(crate) fn assert_refused(&self, status: u16, error: &str, details: &str) {
        assert_eq!(self.status, status, "{self:?}");
        let said = self.proxy_status();
        assert_eq!((said.proxy.as_str(), said.error.as_deref()), ("postern", Some(error)), "{self:?}");
        let found = said.details.unwrap();
        assert!(found.contains(details), "{found:?} does not contain {details:?}");
        assert_eq!(self.value("content-type"), "text/plain; charset=utf-8");
        assert!(self.all("capsule-protocol").is_empty(), "a refusal carries no capsules: {self:?}");
        let body = std::str::from_utf8(&self.body).unwrap().replace('…', "...");
        let (what, advice) = body.split_once('\n').unwrap();
        assert!(what.to_lowercase().starts_with(&found.to_lowercase()), "{body:?} is not about {found:?}");
        assert!(advice.trim_end().ends_with('.') && advice.ends_with('\n'), "{body:?}");
        match status {
            407 => self.assert_challenge(),
            _ => assert!(self.all("proxy-authenticate").is_empty()),
        }
        match status {
            429 => assert!(self.value("retry-after").parse::<u64>().unwrap() >= 1, "{self:?}"),
            503 => assert_eq!(self.value("retry-after"), "1"),
            _ => assert_eq!(self.value("retry-after"), ""),
        }
    }

    fn assert_challenge(&self) {
        let challenges = Challenge::parse_all(self.value("proxy-authenticate").as_bytes()).unwrap();
        let [one] = &challenges[..] else { panic!("{challenges:?}") };
        let asked = TokenChallenge::parse(&one.bytes).unwrap();
        assert_eq!(asked.issuer_name(), "issuer.example");
        assert!(Mark::of_challenge(&asked, "proxy.example").is_some(), "{asked:?}");
        assert_eq!(one.token_key.as_deref(), Some(ISSUER.public_key()));
        assert_eq!(one.max_age, Some(600));
        assert!(self.all("www-authenticate").is_empty());
    }

    /// The 200 of a CONNECT: no length, no body (RFC 9110, section 9.3.6).
    pub(crate) fn assert_opened(&self) {
        assert_eq!(self.status, 200, "{self:?}");
        assert_eq!(self.proxy_status().proxy, "postern");
        for field in ["content-length", "content-type", "transfer-encoding"] {
            assert!(self.all(field).is_empty(), "{self:?}");
        }
    }
}

/// A CONNECT with these values of Proxy-Authorization.
pub(crate) fn connect_with(target: impl std::fmt::Display, authorizations: &[&str]) -> String {
    let fields: String =
        authorizations.iter().map(|value| format!("Proxy-Authorization: {value}\r\n")).collect();
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{fields}\r\n")
}

/// A request without a token whose refusal keeps the connection: that of a CONNECT ends it (RFC 9931).
pub(crate) const NO_TOKEN: &str = "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n";

/// A CONNECT with a fresh token.
pub(crate) fn connect(target: impl std::fmt::Display) -> String {
    connect_with(target, &[&ISSUER.authorization()])
}

pub(crate) fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
