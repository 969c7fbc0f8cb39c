//! Requests of HTTP/1.1 clients.

use super::{Cut, Got, One, Raw, assert_all, check, filled, same};
use crate::support::client::{Client, connect};
use crate::support::target::Echo;
use crate::support::{PATIENCE, Running};
use postern_testkit::origin::Origin;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A client's bytes, sent in one piece before it ends its sending side; the statuses of all answers; what the target gets.
struct Row(&'static str, &'static [u16], &'static [Got]);

/// Rows that begin a POST with a token: the fields and what comes after them.
const POSTS: &[Row] = &[
    // Two lengths: the chunks count, and the connection is over (RFC 9112, section 6.1).
    Row(
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\nGET http://{target}/2 HTTP/1.1\r\n\r\n",
        &[200],
        &[One("x")],
    ),
    Row(
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n1\r\nx\r\n0\r\n\r\nGET http://{target}/2 HTTP/1.1\r\n\r\n",
        &[200],
        &[One("x")],
    ),
    Row(
        "Content-Length: 50\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nPOST http://{target}/2 HTTP/1.1\r\nHost: x\r\n\r\n",
        &[200],
        &[One("")],
    ),
    Row("Content-Length: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row(
        "Transfer-Encoding: chunked\r\nConnection: transfer-encoding\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        &[200],
        &[One("x")],
    ),
    // A coding that one reader takes for chunked and another one not.
    Row("Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding: identity, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding: chunked, identity\r\n\r\n1\r\nx\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding: chunked, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding: chunked;q=1\r\n\r\n1\r\nx\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding:\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding: chunked\x0b\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding: chunk\r\n ed\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding\r\n: chunked\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row(" Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row("X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row("X: y\0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding:\tCHUNKED \r\n\r\n1\r\nx\r\n0\r\n\r\n", &[200], &[One("x")]),
    Row("X: y\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", &[200], &[One("x")]),
    // Several lengths, and what is none.
    Row("Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", &[200], &[One("x")]),
    Row("Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy", &[400], &[]),
    Row("Content-Length: 1\r\ncontent-length: 0\r\n\r\nx", &[400], &[]),
    Row("Content-Length: 1, 1\r\n\r\nx", &[400], &[]),
    Row("Content-Length: +1\r\n\r\nx", &[400], &[]),
    Row("Content-Length: -1\r\n\r\nx", &[400], &[]),
    Row("Content-Length: 0x1\r\n\r\nx", &[400], &[]),
    Row("Content-Length: 1 1\r\n\r\nx", &[400], &[]),
    Row("Content-Length:\r\n\r\nx", &[400], &[]),
    Row("Content-Length: 18446744073709551617\r\n\r\nx", &[400], &[]),
    Row("Content-Length : 1\r\n\r\nx", &[400], &[]),
    Row("Content-Length: 1\r\nConnection: content-length\r\n\r\nx", &[200], &[One("x")]),
    Row("Content-Length: 2\r\n\r\nx", &[400], &[Cut]),
    // Bytes after a body are another request, which needs its own token.
    Row(
        "Content-Length: 1\r\n\r\nxPOST http://{target}/2 HTTP/1.1\r\nHost: x\r\n\r\n",
        &[200, 407],
        &[One("x")],
    ),
    Row(
        "Content-Length: 1\r\n\r\nxPOST http://{target}/2 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\nContent-Length: 1\r\n\r\ny",
        &[200, 200],
        &[One("x"), One("y")],
    ),
    Row("\r\nPOST http://{target}/2 HTTP/1.1\r\nHost: x\r\n\r\n", &[200, 407], &[One("")]),
    Row(
        "Content-Length: 1\r\n\r\nx\r\n\r\nPOST http://{target}/2 HTTP/1.1\r\nHost: x\r\n\r\n",
        &[200, 407],
        &[One("x")],
    ),
    Row(
        "Content-Length: 1\r\nConnection: close\r\n\r\nxGET http://{target}/2 HTTP/1.1\r\nHost: x\r\n\r\n",
        &[200],
        &[One("x")],
    ),
    // Chunks: extensions and trailer fields go no further, and what is malformed breaks off.
    Row("Transfer-Encoding: chunked\r\n\r\n1;a=b\r\nx\r\n0\r\n\r\n", &[200], &[One("x")]),
    Row("Transfer-Encoding: chunked\r\n\r\n001 \r\nx\r\n0;\"\r\n\r\n", &[200], &[One("x")]),
    Row(
        "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nHost: y\r\nProxy-Authorization: z\r\n\r\n",
        &[200],
        &[One("x")],
    ),
    Row("Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n1\r\nx\r\n0\r\nX: y\r\n\r\n", &[200], &[One("x")]),
    Row("Transfer-Encoding: chunked\r\n\r\n1;a\nb\r\nx\r\n0\r\n\r\n", &[400], &[Cut]),
    Row("Transfer-Encoding: chunked\r\n\r\n1;a\rb\r\nx\r\n0\r\n\r\n", &[400], &[Cut]),
    Row("Transfer-Encoding: chunked\r\n\r\n0x1\r\nx\r\n0\r\n\r\n", &[400], &[Cut]),
    Row("Transfer-Encoding: chunked\r\n\r\n+1\r\nx\r\n0\r\n\r\n", &[400], &[Cut]),
    Row("Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n", &[400], &[Cut]),
    Row("Transfer-Encoding: chunked\r\n\r\n 1\r\nx\r\n0\r\n\r\n", &[400], &[Cut]),
    Row("Transfer-Encoding: chunked\r\n\r\n;a\r\nx\r\n0\r\n\r\n", &[400], &[Cut]),
    Row("Transfer-Encoding: chunked\r\n\r\n1 1\r\nx\r\n0\r\n\r\n", &[400], &[Cut]),
    Row("Transfer-Encoding: chunked\r\n\r\n10000000000000001\r\nx\r\n0\r\n\r\n", &[400], &[Cut]),
    Row("Transfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n", &[400], &[Cut]),
    Row("Transfer-Encoding: chunked\r\n\r\n1\rx\r\n0\r\n\r\n", &[400], &[Cut]),
    Row("Transfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n", &[400], &[Cut]),
    Row("Transfer-Encoding: chunked\r\n\r\n1\r\nx\n0\r\n\r\n", &[400], &[Cut]),
    Row("Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\n\n", &[400], &[Cut]),
    Row("Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX\0: y\r\n\r\n", &[400], &[Cut]),
    Row("Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", &[400], &[Cut]),
    // Fields that are none.
    Row(": y\r\n\r\n", &[400], &[]),
    Row("X\r\n\r\n", &[400], &[]),
    Row("X Y: z\r\n\r\n", &[400], &[]),
    Row("X(: z\r\n\r\n", &[400], &[]),
    Row("\u{e9}: z\r\n\r\n", &[400], &[]),
    Row("X: a\r\n b\r\n\r\n", &[400], &[]),
    Row("X: a\r\n\tb\r\n\r\n", &[400], &[]),
    Row("X: a\x7fb\r\n\r\n", &[400], &[]),
    // A proxy's own fields, which the next server could misread.
    Row("Connection: host, cookie, x\r\nCookie: a\r\nX: y\r\n\r\n", &[200], &[One("")]),
    Row(
        "Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n\r\n",
        &[200],
        &[One("")],
    ),
    Row("Host: elsewhere.example\r\n\r\n", &[400], &[]),
    Row("Proxy-Authorization: Basic eA==\r\n\r\n", &[200], &[One("")]),
    Row("Proxy-Authorization: {token}\r\n\r\n", &[400], &[]),
];

/// Whole requests.
const REQUESTS: &[Row] = &[
    // The request line names the target, whatever Host contains.
    Row(
        "GET http://{target}/ HTTP/1.1\r\nHost: elsewhere.example\r\nProxy-Authorization: {token}\r\n\r\n",
        &[200],
        &[One("")],
    ),
    Row(
        "GET http://{target}/ HTTP/1.1\r\nHost: a\r\nHost: b\r\nProxy-Authorization: {token}\r\n\r\n",
        &[400],
        &[],
    ),
    Row("GET http://{target}/ HTTP/1.1\r\nProxy-Authorization: {token}\r\n\r\n", &[400], &[]),
    Row(
        "GET http://{target}@elsewhere.example/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\n",
        &[400],
        &[],
    ),
    Row(
        "GET http://elsewhere.example@{target}/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\n",
        &[400],
        &[],
    ),
    Row(
        "GET http://{target}\\@elsewhere.example/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\n",
        &[400],
        &[],
    ),
    Row(
        "GET http://{target}#@elsewhere.example/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\n",
        &[200],
        &[One("")],
    ),
    Row(
        "GET http://{target}?@elsewhere.example/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\n",
        &[200],
        &[One("")],
    ),
    Row("GET / HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: {token}\r\n\r\n", &[400], &[]),
    Row("GET {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: {token}\r\n\r\n", &[400], &[]),
    Row("connect {target} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\n", &[400], &[]),
    Row("CONNECT http://{target}/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\n", &[400], &[]),
    Row("GET http://{target}/ HTTP/1.1 \r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\n", &[400], &[]),
    Row("GET http://{target}/ HTTP/1.1\rHost: x\r\nProxy-Authorization: {token}\r\n\r\n", &[400], &[]),
    Row("GET\thttp://{target}/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\n", &[400], &[]),
    Row(
        "GET http://{target}/a HTTP/1.1\r\n b HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\n",
        &[400],
        &[],
    ),
    Row("GET http://{target}/ HTTP/2.0\r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\n", &[400], &[]),
    Row("GET http://{target}/ HTTP/1.10\r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\n", &[400], &[]),
    Row(
        "POST http://{target}/ HTTP/1.0\r\nHost: x\r\nProxy-Authorization: {token}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        &[400],
        &[],
    ),
    // Methods whose body a server may not expect.
    Row(
        "GET http://{target}/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\nContent-Length: 1\r\n\r\nx",
        &[200],
        &[One("x")],
    ),
    Row(
        "GET http://{target}/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        &[200],
        &[One("x")],
    ),
    Row(
        "X-Y http://{target}/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        &[200],
        &[One("x")],
    ),
    // CONNECT has no body, and what follows it is the tunnel's, or another request.
    Row(
        "CONNECT {target} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\nContent-Length: 1\r\n\r\nx",
        &[400],
        &[],
    ),
    Row(
        "CONNECT {target} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        &[400],
        &[],
    ),
    Row(
        "CONNECT {target} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\nGET /tunnelled HTTP/1.1\r\nHost: y\r\n\r\n",
        &[200, 200],
        &[Raw("GET /tunnelled HTTP/1.1\r\nHost: y\r\n\r\n")],
    ),
    Row(
        "CONNECT {target} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\n\r\nCONNECT {target} HTTP/1.1\r\n\r\n",
        &[200, 200],
        &[Raw("CONNECT {target} HTTP/1.1\r\n\r\n")],
    ),
    Row(
        "CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\nGET http://{target}/2 HTTP/1.1\r\nHost: x\r\n\r\n",
        &[407], // RFC 9931: the rest may be another party's bytes for the tunnel
        &[],
    ),
];

#[tokio::test]
async fn each_request_has_one_meaning_or_none() {
    let gateway = Running::start().await;
    run(&gateway).await;
}

/// Runs all rows while another client has a tunnel.
pub(super) async fn run(gateway: &Running) {
    let echo = Echo::start().await;
    let mut bystander = Client::connect(gateway.address).await;
    bystander.send(connect(echo.address)).await;
    bystander.answer().await.assert_opened();
    let posts = POSTS.iter().map(|Row(rest, statuses, got)| {
        let begun = "POST http://{target}/1 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {token}\r\n";
        (begun.to_owned() + rest, statuses, got)
    });
    let requests = REQUESTS.iter().map(|Row(sent, statuses, got)| ((*sent).to_owned(), statuses, got));
    let mut results = Vec::new();
    for (sent, statuses, got) in posts.chain(requests) {
        let mut origin = Origin::start().await;
        let said = said(gateway.address, &filled(&sent, origin.address)).await;
        let result =
            same(&&all_statuses(&said)[..], statuses).and(check(&origin.seen().await, got, origin.address));
        results.push((format!("{sent:?}"), result));
        bystander.send("mine").await;
        assert_eq!(bystander.take(4).await, b"mine", "{sent:?}");
    }
    assert_all(results);
    bystander.stream.shutdown().await.unwrap();
    bystander.closed_silently().await;
}

/// All that a client hears that sends this and ends its side; a reset may end it.
async fn said(gateway: SocketAddr, sent: &str) -> Vec<u8> {
    let (mut stream, mut said) = (TcpStream::connect(gateway).await.unwrap(), Vec::new());
    stream.write_all(sent.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let read = timeout(PATIENCE, stream.read_to_end(&mut said)).await;
    let _ = read.unwrap_or_else(|_| panic!("{sent:?} is not answered"));
    said
}

/// The statuses of the answers in `said`, by their status lines: no body holds one.
fn all_statuses(said: &[u8]) -> Vec<u16> {
    let said = String::from_utf8_lossy(said);
    said.split("HTTP/1.1 ").skip(1).filter_map(|answer| answer.split(' ').next()?.parse().ok()).collect()
}
