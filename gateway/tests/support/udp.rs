//! Streams of datagrams, and a target that sends them back.

use super::client::Answer;
use super::http2::{Http2, Sent, Tunnel};
use super::{ISSUER, PATIENCE};
use h2::ext::Protocol;
use http::{Method, Request, Version};
use postern_gateway::config::{Config, Ports, PortsWord};
use postern_proxy::target::Target;
use postern_proxy::udp::capsule::{Decoder, MAX_PAYLOAD, encode};
use postern_proxy::udp::template::Template;
use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::{ToSocketAddrs, UdpSocket};
use tokio::time::timeout;

pub(crate) fn any_port(config: &mut Config) {
    config.egress.udp = Ports::Word(PortsWord::Any);
}

/// Sends back every datagram.
pub(crate) async fn echo() -> SocketAddr {
    echo_at((Ipv4Addr::LOCALHOST, 0)).await
}

/// The same at another address.
pub(crate) async fn echo_at(address: impl ToSocketAddrs) -> SocketAddr {
    let socket = UdpSocket::bind(address).await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut room = vec![0; MAX_PAYLOAD];
        while let Ok((length, from)) = socket.recv_from(&mut room).await {
            let _ = socket.send_to(&room[..length], from).await; // a client may be gone
        }
    });
    address
}

pub(crate) fn path(target: impl Display) -> String {
    Template::default().expand(&Target::parse(&target.to_string(), None).unwrap())
}

/// A request of HTTP/1.1 for UDP to `target`, with these further lines.
pub(crate) fn upgrade(target: impl Display, lines: &str) -> String {
    let path = path(target);
    format!(
        "GET {path} HTTP/1.1\r\nHost: proxy.example\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\n{lines}\r\n"
    )
}

/// The line with a fresh token.
pub(crate) fn paid() -> String {
    format!("Proxy-Authorization: {}\r\n", ISSUER.authorization())
}

/// An extended CONNECT with these fields.
pub(crate) async fn ask(client: &mut Http2, path: &str, fields: &[(&str, &str)]) -> Sent {
    ask_for(client, "connect-udp", path, fields).await
}

pub(crate) async fn ask_for(client: &mut Http2, protocol: &str, path: &str, fields: &[(&str, &str)]) -> Sent {
    // The setting has no event.
    let announced = async {
        while !client.sender.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, announced).await.expect("the gateway does not announce extended CONNECT");
    let request = Request::builder()
        .version(Version::HTTP_2)
        .method(Method::CONNECT)
        .uri(format!("https://proxy.example{path}"))
        .header("capsule-protocol", "?1");
    let with = |request: http::request::Builder, field: &(&str, &str)| request.header(field.0, field.1);
    let mut request = fields.iter().fold(request, with).body(()).unwrap();
    request.extensions_mut().insert(Protocol::from(protocol));
    client.send(request, false).await
}

pub(crate) async fn open(client: &mut Http2, target: impl Display) -> Flow {
    let (answer, flow) = open_with(client, target, &ISSUER.authorization()).await;
    answer.assert_opened();
    assert_eq!(answer.value("capsule-protocol"), "?1");
    flow
}

/// The answer to a request with this token, and the stream.
pub(crate) async fn open_with(client: &mut Http2, target: impl Display, token: &str) -> (Answer, Flow) {
    let (answer, tunnel) = ask(client, &path(target), &[("proxy-authorization", token)]).await.opened().await;
    (answer, Flow { tunnel, decoder: Decoder::new(MAX_PAYLOAD), found: Vec::new() })
}

/// A stream of datagrams.
pub(crate) struct Flow {
    pub(crate) tunnel: Tunnel,
    decoder: Decoder,
    found: Vec<Vec<u8>>,
}

impl Flow {
    pub(crate) async fn send(&mut self, payload: &[u8]) {
        self.tunnel.send(&capsule(payload)).await.unwrap();
    }

    /// The next datagram; `None` at the stream's end.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        while self.found.is_empty() {
            let bytes = self.tunnel.next().await?.unwrap();
            let mut input = &bytes[..];
            while let Some(payload) = self.decoder.next(&mut input).unwrap() {
                self.found.push(payload.to_vec());
            }
        }
        Some(self.found.remove(0))
    }

    pub(crate) async fn echo(&mut self, payload: &[u8]) {
        self.send(payload).await;
        assert!(self.next().await.as_deref() == Some(payload));
    }
}

pub(crate) fn capsule(payload: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    encode(payload, &mut stream);
    stream
}
