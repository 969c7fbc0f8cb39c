//! HTTP/2, plain and over TLS, and clients that make use of what it allows.

use crate::support::{Answer, REQUEST_TYPE, Running, account, certified, config, declare, post, rest};
use bytes::Bytes;
use h2::client::{self, ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::{HeaderMap, Method, Request};
use postern_config::ConfigDuration;
use postern_daemon::tls::{client_config, is_http2, offering_http2};
use postern_testkit::http2::{
    END_HEADERS, END_STREAM, GOAWAY, HEADERS, HELLO, PING, RST_STREAM, fields, frame, frames,
};
use postern_token::{ChallengeDigest, DIRECTORY_PATH, TokenResponse, TokenType};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

const SECOND: Duration = Duration::from_secs(1);
const CHALLENGE: &[u8] = b"a challenge";

/// A client's connection.
#[derive(Clone)]
struct Connection(SendRequest<Bytes>);

impl Connection {
    async fn to(issuer: &Running) -> Self {
        Self::over(issuer.connect().await, client::Builder::new()).await
    }

    async fn over<S>(stream: S, settings: client::Builder) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (requests, connection) = settings.handshake(stream).await.unwrap();
        tokio::spawn(connection);
        Self(requests)
    }

    async fn begin(&self, request: Request<()>, is_end: bool) -> (ResponseFuture, SendStream<Bytes>) {
        self.0.clone().ready().await.unwrap().send_request(request, is_end).unwrap()
    }

    async fn send(&self, request: Request<()>, body: &[u8]) -> Result<Received, h2::Error> {
        let (response, mut sending) = self.begin(request, body.is_empty()).await;
        if !body.is_empty() {
            sending.send_data(Bytes::copy_from_slice(body), true).unwrap();
        }
        Received::of(response).await
    }

    async fn get(&self, path: &str) -> Received {
        self.send(ask(Method::GET, path), b"").await.unwrap()
    }
}

/// A whole answer.
#[derive(Debug)]
struct Received {
    status: u16,
    fields: HeaderMap,
    body: Vec<u8>,
}

impl Received {
    async fn of(response: ResponseFuture) -> Result<Self, h2::Error> {
        let (head, mut incoming) = response.await?.into_parts();
        let mut body = Vec::new();
        while let Some(piece) = incoming.data().await {
            let piece = piece?;
            incoming.flow_control().release_capacity(piece.len())?;
            body.extend_from_slice(&piece);
        }
        Ok(Self { status: head.status.as_u16(), fields: head.headers, body })
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(|value| value.to_str().unwrap())
    }

    fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
}

fn ask(method: Method, path: &str) -> Request<()> {
    Request::builder().method(method).uri(format!("http://localhost{path}")).body(()).unwrap()
}

fn ask_for_token() -> Request<()> {
    let mut request = ask(Method::POST, "/token-request");
    request.headers_mut().insert("content-type", REQUEST_TYPE.parse().unwrap());
    request
}

#[tokio::test]
async fn many_tokens_are_signed_at_once_on_one_connection() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let (connection, key) = (Connection::to(&issuer).await, issuer.key().await);
    let mut minting = JoinSet::new();
    for _ in 0..50 {
        let (connection, (request, pending)) =
            (connection.clone(), key.request(ChallengeDigest::of(CHALLENGE)).unwrap());
        minting.spawn(async move {
            let answer = connection.send(ask_for_token(), &request.serialize()).await.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
            let response = TokenResponse::parse(TokenType::BlindRsa2048, &answer.body).unwrap();
            pending.finalize(&response).unwrap();
        });
    }
    minting.join_all().await;
}

#[tokio::test]
async fn answers_are_those_of_http_1_1() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let connection = Connection::to(&issuer).await;
    let (first, same) = (issuer.get("").await, connection.get(DIRECTORY_PATH).await);
    assert_eq!((same.status, &same.body), (200, &first.body));
    for field in ["content-type", "content-length", "cache-control", "etag"] {
        assert_eq!(same.field(field), first.field(field), "{field}");
    }
    assert!(same.field("date").is_some_and(|date| date.ends_with(" GMT")), "{same:?}");

    let mut known = ask(Method::GET, DIRECTORY_PATH);
    known.headers_mut().insert("if-none-match", first.field("etag").unwrap().parse().unwrap());
    let known = connection.send(known, b"").await.unwrap();
    assert_eq!((known.status, known.body.len(), known.field("content-length")), (304, 0, None));
    let head = connection.send(ask(Method::HEAD, DIRECTORY_PATH), b"").await.unwrap();
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.field("content-length"), first.field("content-length"));
    let post = connection.send(ask(Method::POST, DIRECTORY_PATH), b"").await.unwrap();
    assert_eq!((post.status, post.field("allow")), (405, Some("GET, HEAD")));
    let long = connection.send(ask_for_token(), &[0; 5_000]).await.unwrap();
    assert_eq!(long.status, 413, "{}", long.text());
}

#[tokio::test]
async fn a_request_has_one_host_and_an_open_issuer_none_but_this_machine() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let connection = Connection::to(&issuer).await;
    let of_host = |authority: &str, host: Option<&str>| {
        let uri = format!("http://{authority}{DIRECTORY_PATH}");
        let mut request = Request::builder().uri(uri).body(()).unwrap();
        host.into_iter().for_each(|host| _ = request.headers_mut().insert("host", host.parse().unwrap()));
        request
    };
    let cases = [
        (of_host("localhost", None), 200),
        (of_host("127.0.0.1", Some("127.0.0.1")), 200),
        (of_host("issuer.example", None), 421),
        (of_host("issuer.example", Some("issuer.example")), 421),
        (of_host("localhost", Some("issuer.example")), 400),
        (of_host("issuer.example", Some("localhost")), 400),
    ];
    for (request, expected) in cases {
        let case = format!("{request:?}");
        assert_eq!(connection.send(request, b"").await.unwrap().status, expected, "{case}");
    }
}

#[tokio::test]
async fn it_is_spoken_over_tls_by_agreement_and_nowhere_once_it_is_switched_off() {
    let directory = tempfile::tempdir().unwrap();
    let tls = certified(directory.path());
    let trusted = offering_http2(client_config(tls.certificate.as_deref()).unwrap());
    let connector = TlsConnector::from(trusted);
    for is_on in [true, false] {
        let mut config = config(directory.path());
        config.listen.http2 = is_on;
        config.tls = Some(tls.clone());
        let issuer = Running::start(config).await;
        let name = "localhost".try_into().unwrap();
        let stream = connector.connect(name, issuer.connect().await).await.unwrap();
        assert_eq!(is_http2(stream.get_ref().1), is_on);
        if is_on {
            let connection = Connection::over(stream, client::Builder::new()).await;
            assert_eq!(connection.get(DIRECTORY_PATH).await.status, 200);
        }
        issuer.stop().await;
    }
    let mut config = config(directory.path());
    config.listen.http2 = false;
    let issuer = Running::start(config).await;
    let mut stream = issuer.connect().await;
    stream.write_all(HELLO).await.unwrap();
    assert!(rest(&mut stream).await.starts_with(b"HTTP/1.1 400")); // as the gateway does
    assert_eq!(issuer.get("").await.status, 200);
}

#[tokio::test]
async fn a_preface_in_pieces_is_one_and_what_only_looks_like_one_is_http_1_1() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let mut stream = issuer.connect().await;
    for piece in HELLO.chunks(5) {
        stream.write_all(piece).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut first = [0; 9];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(first[3], 4, "SETTINGS");
    for other in ["PRI * HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", "P"] {
        let mut stream = issuer.connect().await;
        stream.write_all(other.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(answer.is_empty() || Answer::parse(&answer).status >= 400, "{other}");
    }
    let post = issuer.exchange(&post("", b"")).await; // begins as the preface does
    assert_eq!(post.status, 422);
}

#[tokio::test]
async fn a_client_that_takes_nothing_gets_a_reset_and_its_place_is_free_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.limits.connections = NonZeroUsize::new(2).unwrap();
    config.limits.header_timeout = ConfigDuration::millis(300);
    let issuer = Running::start(config).await;
    let mut settings = client::Builder::new();
    settings.initial_window_size(0);
    let connection = Connection::over(issuer.connect().await, settings).await;
    let answer = timeout(10 * SECOND, connection.send(ask(Method::GET, DIRECTORY_PATH), b"")).await.unwrap();
    assert_eq!(answer.unwrap_err().reason(), Some(Reason::CANCEL));
    assert_eq!(issuer.get("").await.status, 200);
}

#[tokio::test]
async fn answers_that_are_not_taken_give_way() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.limits.connections = NonZeroUsize::new(4).unwrap();
    config.limits.header_timeout = ConfigDuration::minutes(5); // it is not what frees the places
    let issuer = Running::start(config).await;
    let mut settings = client::Builder::new();
    settings.initial_window_size(0);
    let deaf = Connection::over(issuer.connect().await, settings).await;
    let mut unread = Vec::new();
    for _ in 0..3 {
        unread.push(deaf.begin(ask(Method::GET, DIRECTORY_PATH), true).await.0.await.unwrap());
    }
    for _ in 0..5 {
        assert_eq!(timeout(10 * SECOND, issuer.get("")).await.unwrap().status, 200);
    }
    let first = unread.remove(0).into_body().data().await.unwrap();
    assert_eq!(first.unwrap_err().reason(), Some(Reason::CANCEL));
}

#[tokio::test]
async fn a_connection_without_requests_is_closed_after_a_while() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.limits.header_timeout = ConfigDuration::millis(300);
    let issuer = Running::start(config).await;
    for is_used in [false, true] {
        let began = Instant::now();
        let mut stream = issuer.connect().await;
        stream.write_all(HELLO).await.unwrap();
        if is_used {
            let head = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "localhost")];
            let head = frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields(&head));
            stream.write_all(&head).await.unwrap();
        }
        let heard = rest(&mut stream).await;
        assert!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
        assert!(frames(&heard).iter().any(|(kind, _)| *kind == GOAWAY), "{heard:?}");
    }
}

#[tokio::test]
async fn a_drain_lets_a_request_finish_and_closes_the_connection() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let (connection, key) = (Connection::to(&issuer).await, issuer.key().await);
    let (request, pending) = key.request(ChallengeDigest::of(CHALLENGE)).unwrap();
    let body = Bytes::copy_from_slice(&request.serialize());
    let (response, mut sending) = connection.begin(ask_for_token(), false).await;
    sending.send_data(body.slice(..100), false).unwrap();
    connection.get(DIRECTORY_PATH).await; // so the other request has arrived
    let stopping = tokio::spawn(issuer.stop());
    tokio::time::sleep(Duration::from_millis(50)).await;
    sending.send_data(body.slice(100..), true).unwrap();
    let answer = Received::of(response).await.unwrap();
    pending.finalize(&TokenResponse::parse(TokenType::BlindRsa2048, &answer.body).unwrap()).unwrap();
    stopping.await.unwrap();
}

#[tokio::test]
async fn slow_bodies_give_way_and_a_request_without_a_place_is_503() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.limits.connections = NonZeroUsize::new(2).unwrap();
    config.limits.body_timeout = ConfigDuration::minutes(5); // it is not what frees the place
    let issuer = Running::start(config).await;
    let connection = Connection::to(&issuer).await;
    let (slow, _sending) = connection.begin(ask_for_token(), false).await;
    assert_eq!(connection.get(DIRECTORY_PATH).await.status, 200);
    let answer = Received::of(slow).await.unwrap();
    assert_eq!((answer.status, answer.field("retry-after")), (503, Some("1")), "{}", answer.text());
    assert!(answer.text().contains("another connection needed its place"), "{}", answer.text());
}

#[tokio::test]
async fn a_connection_that_takes_the_only_place_is_503() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.limits.connections = NonZeroUsize::MIN;
    let issuer = Running::start(config).await;
    let answer = Connection::to(&issuer).await.get(DIRECTORY_PATH).await;
    assert_eq!((answer.status, answer.field("retry-after")), (503, Some("1")), "{}", answer.text());
    assert!(answer.text().contains("as many requests as it may"), "{}", answer.text());
}

#[tokio::test]
async fn requests_that_are_reset_count_against_their_source() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    declare(&config, &[account("one", "k-1", "10/1d")]);
    config.limits.source.refusals_burst = 50;
    config.limits.source.refusals = 1;
    config.limits.source.exempt = Vec::new();
    let issuer = Running::start(config).await;
    let mut stream = issuer.connect().await;
    let head = [(":method", "POST"), (":scheme", "http"), (":path", "/token-request"), (":authority", "a")];
    stream.write_all(HELLO).await.unwrap();
    assert_eq!(issuer.get("").await.status, 200);
    for some in (1..200).collect::<Vec<u32>>().chunks(20) {
        let resets = some.iter().flat_map(|number| {
            let (id, cancel) = (2 * number - 1, 8_u32.to_be_bytes());
            [frame(HEADERS, END_HEADERS, id, &fields(&head)), frame(RST_STREAM, 0, id, &cancel)].concat()
        });
        stream.write_all(&resets.collect::<Vec<_>>()).await.unwrap();
        // Answered when all of them were read.
        stream.write_all(&frame(PING, 0, 0, &[0; 8])).await.unwrap();
        let mut heard = Vec::new();
        while !frames(&heard).iter().any(|(kind, _)| *kind == PING) {
            assert_ne!(stream.read_buf(&mut heard).await.unwrap(), 0, "{heard:?}");
        }
    }
    assert_eq!(issuer.get("").await.status, 429);
}
