//! A client of HTTP/2.

use super::client::Answer;
use super::{ISSUER, PATIENCE};
use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{Method, Request, Response, Version};
use std::fmt::Display;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A connection.
pub(crate) struct Http2 {
    pub(crate) sender: SendRequest<Bytes>,
    /// It ends with the connection.
    pub(crate) driver: JoinHandle<Result<(), h2::Error>>,
}

impl Http2 {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap()).await
    }

    pub(crate) async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        Self::with(&Builder::new(), stream).await
    }

    pub(crate) async fn with(
        settings: &Builder,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Self {
        let (sender, connection) = settings.handshake(stream).await.unwrap();
        Self { sender, driver: tokio::spawn(connection) }
    }

    /// Sends a request's head, as soon as the other side allows a stream more.
    pub(crate) async fn send(&mut self, request: Request<()>, is_end: bool) -> Sent {
        let mut sender = timeout(PATIENCE, self.sender.clone().ready()).await.unwrap().unwrap();
        let (response, body) = sender.send_request(request, is_end).unwrap();
        Sent { response, body }
    }

    /// A CONNECT with these values of Proxy-Authorization.
    pub(crate) async fn connect_with(&mut self, target: impl Display, authorizations: &[&str]) -> Sent {
        self.send(connect_with(target, authorizations), false).await
    }

    /// A tunnel, with a fresh token.
    pub(crate) async fn tunnel(&mut self, target: impl Display) -> Tunnel {
        let sent = self.connect_with(target, &[&ISSUER.authorization()]).await;
        let (answer, tunnel) = sent.opened().await;
        answer.assert_opened();
        tunnel
    }

    /// The answer to a request without a body.
    pub(crate) async fn ask(&mut self, request: Request<()>) -> Answer {
        self.send(request, true).await.answer().await
    }

    /// Returns when the connection has ended.
    pub(crate) async fn ended(self) -> Result<(), h2::Error> {
        let Self { sender, driver } = self;
        let ended = timeout(PATIENCE, driver).await.expect("the connection does not end").unwrap();
        drop(sender);
        ended
    }
}

/// A CONNECT as HTTP/2 has it (RFC 9113, section 8.5).
pub(crate) fn connect_with(target: impl Display, authorizations: &[&str]) -> Request<()> {
    let request = Request::builder().version(Version::HTTP_2).method(Method::CONNECT).uri(target.to_string());
    let with = |request: http::request::Builder, value: &&str| request.header("proxy-authorization", *value);
    authorizations.iter().fold(request, with).body(()).unwrap()
}

/// A request that waits for its answer.
pub(crate) struct Sent {
    pub(crate) response: h2::client::ResponseFuture,
    pub(crate) body: SendStream<Bytes>,
}

impl Sent {
    async fn head(self) -> Result<(Answer, Tunnel), h2::Error> {
        let response = timeout(PATIENCE, self.response).await.expect("no answer came in time")?;
        let (answer, receive) = answer(response);
        Ok((answer, Tunnel { send: self.body, receive }))
    }

    /// The answer's head, and the stream.
    pub(crate) async fn opened(self) -> (Answer, Tunnel) {
        self.head().await.unwrap()
    }

    /// The whole answer.
    pub(crate) async fn answer(self) -> Answer {
        self.answer_or_reset().await.unwrap()
    }

    /// The whole answer, or how the stream or its connection ended.
    pub(crate) async fn answer_or_reset(self) -> Result<Answer, h2::Error> {
        let (mut answer, mut rest) = self.head().await?;
        while let Some(bytes) = rest.next().await {
            answer.body.extend_from_slice(&bytes?);
        }
        Ok(answer)
    }
}

fn answer(response: Response<RecvStream>) -> (Answer, RecvStream) {
    let (head, body) = response.into_parts();
    let fields = head.headers.iter();
    let headers =
        fields.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    (Answer { status: head.status.as_u16(), headers, body: Vec::new() }, body)
}

/// A stream that was answered.
pub(crate) struct Tunnel {
    pub(crate) send: SendStream<Bytes>,
    pub(crate) receive: RecvStream,
}

impl Tunnel {
    /// Sends as the other side takes it.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), h2::Error> {
        let mut left = Bytes::copy_from_slice(bytes);
        while !left.is_empty() {
            self.send.reserve_capacity(left.len());
            let granted = std::future::poll_fn(|cx| self.send.poll_capacity(cx)).await;
            let granted = granted.ok_or_else(|| h2::Error::from(Reason::STREAM_CLOSED))??;
            self.send.send_data(left.split_to(granted.min(left.len())), false)?;
        }
        Ok(())
    }

    pub(crate) fn end(&mut self) {
        self.send.send_data(Bytes::new(), true).unwrap();
    }

    /// The next bytes; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, h2::Error>> {
        let bytes = timeout(PATIENCE, self.receive.data()).await.expect("no byte came in time")?;
        if let Ok(bytes) = &bytes {
            let _ = self.receive.flow_control().release_capacity(bytes.len());
        }
        Some(bytes)
    }

    /// Exactly this number of bytes.
    pub(crate) async fn take(&mut self, length: usize) -> Vec<u8> {
        let mut taken = Vec::new();
        while taken.len() < length {
            taken.extend_from_slice(&self.next().await.expect("the stream ended").unwrap());
        }
        assert_eq!(taken.len(), length);
        taken
    }

    /// Everything until the other side ends.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let mut taken = Vec::new();
        while let Some(bytes) = self.next().await {
            taken.extend_from_slice(&bytes.unwrap());
        }
        taken
    }

    /// Sends and gets it back.
    pub(crate) async fn echo(&mut self, bytes: &[u8]) {
        self.send(bytes).await.unwrap();
        assert_eq!(self.take(bytes.len()).await, bytes);
    }

    /// Returns the reason of the stream's reset.
    pub(crate) async fn reset(&mut self) -> Option<Reason> {
        loop {
            match self.next().await? {
                Ok(_) => {}
                Err(error) => return error.reason(),
            }
        }
    }
}
