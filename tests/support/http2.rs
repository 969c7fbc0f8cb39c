//! A client of HTTP/2: several tunnels on one connection.

use super::in_time;
use super::proxy::{self, Head};
use super::udp::path;
use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::ext::Protocol;
use h2::{RecvStream, SendStream};
use http::{Method, Request, Version};
use std::fmt::Write;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A connection to a gateway. Clones share it.
#[derive(Clone)]
pub struct Connection(SendRequest<Bytes>);

/// A stream that was answered 200.
pub struct Tunnel {
    send: SendStream<Bytes>,
    receive: RecvStream,
}

impl Connection {
    pub async fn to(gateway: SocketAddr) -> io::Result<Self> {
        Self::with(&Builder::new(), gateway).await
    }

    /// One whose window as a whole is no limit.
    pub async fn wide(gateway: SocketAddr) -> io::Result<Self> {
        Self::with(Builder::new().initial_connection_window_size(1 << 30), gateway).await
    }

    /// One of a client at this address.
    pub async fn at(source: Ipv4Addr, gateway: SocketAddr) -> io::Result<Self> {
        Self::over(&Builder::new(), proxy::dial_from(source, gateway).await?.into_inner()).await
    }

    async fn with(settings: &Builder, gateway: SocketAddr) -> io::Result<Self> {
        Self::over(settings, proxy::dial(gateway).await?.into_inner()).await
    }

    async fn over(settings: &Builder, stream: TcpStream) -> io::Result<Self> {
        let opening = async {
            let (sender, connection) = settings.handshake(stream).await.map_err(io::Error::other)?;
            tokio::spawn(connection); // how it ends shows in its streams
            sender.ready().await.map(Self).map_err(io::Error::other)
        };
        in_time(opening).await
    }

    /// A CONNECT with this value of Proxy-Authorization: the head of the answer, and the tunnel if it is a 200.
    pub async fn connect(&self, target: &str, authorization: &str) -> io::Result<(Head, Option<Tunnel>)> {
        let request = Request::builder().version(Version::HTTP_2).method(Method::CONNECT).uri(target);
        let request =
            request.header("proxy-authorization", authorization).body(()).map_err(io::Error::other)?;
        self.ask(request).await
    }

    /// An extended CONNECT for datagrams (RFC 9298, section 3.4).
    pub async fn udp(&self, target: SocketAddr, authorization: &str) -> io::Result<(Head, Option<Tunnel>)> {
        let request = Request::builder().version(Version::HTTP_2).method(Method::CONNECT);
        let request =
            request.uri(format!("https://proxy.example{}", path(target))).header("capsule-protocol", "?1");
        let request = request.extension(Protocol::from_static("connect-udp"));
        let request =
            request.header("proxy-authorization", authorization).body(()).map_err(io::Error::other)?;
        let announced = async {
            while !self.0.is_extended_connect_protocol_enabled() {
                tokio::task::yield_now().await; // the setting has no event
            }
            Ok(())
        };
        in_time(announced).await?;
        self.ask(request).await
    }

    async fn ask(&self, request: Request<()>) -> io::Result<(Head, Option<Tunnel>)> {
        let asking = async {
            let mut sender = self.0.clone().ready().await.map_err(io::Error::other)?;
            let (response, send) = sender.send_request(request, false).map_err(io::Error::other)?;
            let (head, receive) = response.await.map_err(io::Error::other)?.into_parts();
            let mut fields = String::new();
            for (name, value) in &head.headers {
                let _ = writeln!(fields, "{name}: {}", String::from_utf8_lossy(value.as_bytes()));
            }
            let status = head.status.as_u16();
            Ok((Head { status, fields }, (status == 200).then_some(Tunnel { send, receive })))
        };
        in_time(asking).await
    }
}

impl Tunnel {
    /// Sends until nothing is taken for so long; how many bytes were.
    pub async fn fill(&mut self, stuck: Duration) -> io::Result<usize> {
        let mut sent = 0;
        loop {
            self.send.reserve_capacity(16 << 10);
            let granted = poll_fn(|cx| self.send.poll_capacity(cx));
            let Ok(granted) = timeout(stuck, granted).await else { return Ok(sent) };
            let granted = granted.ok_or(io::ErrorKind::BrokenPipe)?.map_err(io::Error::other)?;
            self.send.send_data(vec![7; granted].into(), false).map_err(io::Error::other)?;
            sent += granted;
        }
    }

    /// Sends as the other side takes it.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut left = Bytes::copy_from_slice(bytes);
        while !left.is_empty() {
            self.send.reserve_capacity(left.len());
            let granted = in_time(async {
                let granted = poll_fn(|cx| self.send.poll_capacity(cx)).await;
                granted.ok_or(io::ErrorKind::BrokenPipe)?.map_err(io::Error::other)
            });
            let granted = granted.await?;
            self.send.send_data(left.split_to(granted.min(left.len())), false).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Sends a few bytes to an echo and reads them back.
    pub async fn echoes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let echoing = async {
            self.send.send_data(Bytes::copy_from_slice(bytes), false).map_err(io::Error::other)?;
            let mut back = Vec::new();
            while back.len() < bytes.len() {
                let some = self.receive.data().await.ok_or(io::ErrorKind::UnexpectedEof)?;
                let some = some.map_err(io::Error::other)?;
                let _ = self.receive.flow_control().release_capacity(some.len()); // it fails for a stream that is over
                back.extend_from_slice(&some);
            }
            if back == bytes { Ok(()) } else { Err(io::Error::other("other bytes came back")) }
        };
        in_time(echoing).await
    }
}
