//! Targets' answers, as clients of both versions get them: one answer with one meaning, a refusal, or a break.

use super::{assert_all, same};
use crate::support::client::find;
use crate::support::http2::Http2;
use crate::support::target::Held;
use crate::support::{ISSUER, PATIENCE, Running};
use http::Request;
use postern_testkit::strict;
use std::io::ErrorKind;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A client's view of the answer.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    /// An answer with this status and this body.
    Whole(u16, String),
    /// An answer that ends in a reset.
    Broken,
    /// Anything else, which is a failure.
    Unclear(String),
}

/// The method, what the target sends before it ends the connection, and the status and body that clients get; no status for a break.
struct Row(&'static str, &'static str, u16, &'static str);

const BROKEN: u16 = 0;
const REFUSED: u16 = 502;

const ROWS: &[Row] = &[
    // Two lengths.
    Row(
        "GET",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        200,
        "ok",
    ),
    Row(
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        200,
        "ok",
    ),
    Row("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", 200, "ok"),
    Row("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", 200, "ok"),
    Row("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: content-length\r\n\r\nok", 200, "ok"),
    Row("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 1\r\n\r\nok", REFUSED, ""),
    Row("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2, 1\r\n\r\nok", REFUSED, ""),
    Row("GET", "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok", REFUSED, ""),
    Row("GET", "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nok", REFUSED, ""),
    Row("GET", "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551617\r\n\r\nok", REFUSED, ""),
    // Codings that are not read here.
    Row("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok", REFUSED, ""),
    Row(
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        REFUSED,
        "",
    ),
    Row(
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        REFUSED,
        "",
    ),
    Row(
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        REFUSED,
        "",
    ),
    Row("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\nContent-Length: 2\r\n\r\nok", REFUSED, ""),
    Row("GET", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", REFUSED, ""),
    // A second answer, or a body where none is.
    Row(
        "GET",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        200,
        "ok",
    ),
    Row(
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\nevil",
        200,
        "ok",
    ),
    Row("GET", "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nevil", 204, ""),
    Row(
        "GET",
        "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nevil\r\n0\r\n\r\n",
        204,
        "",
    ),
    Row("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\nevil", 304, ""),
    Row("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", 200, ""),
    Row("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nevil\r\n0\r\n\r\n", 200, ""),
    Row("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 4, 5\r\n\r\nevil", 200, ""),
    Row(
        "GET",
        "HTTP/1.1 103 Early\r\nContent-Length: 4\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        200,
        "ok",
    ),
    Row("GET", "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nevil", REFUSED, ""),
    // Heads that are none.
    Row("GET", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nok", REFUSED, ""),
    Row("GET", "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok", 200, "ok"),
    Row("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 200, "ok"),
    Row("GET", "HTTP/1.1 200 OK\r\n Content-Length: 2\r\n\r\nok", REFUSED, ""),
    Row("GET", "HTTP/1.1 200 OK\r\nX: a\rContent-Length: 2\r\n\r\nok", REFUSED, ""),
    Row("GET", "HTTP/1.1 200 OK\r\nX: a\0\r\nContent-Length: 2\r\n\r\nok", REFUSED, ""),
    Row("GET", "HTTP/1.1 200 OK\r\nX\r\nContent-Length: 2\r\n\r\nok", REFUSED, ""),
    Row("GET", "HTTP/1.1 200 O\rK\r\nContent-Length: 2\r\n\r\nok", REFUSED, ""),
    Row("GET", "HTTP/1.1 099 OK\r\nContent-Length: 2\r\n\r\nok", REFUSED, ""),
    Row("GET", "HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\nok", REFUSED, ""),
    Row("GET", "HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok", REFUSED, ""),
    Row("GET", "ok", REFUSED, ""),
    Row("GET", "", REFUSED, ""),
    Row("GET", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 200, "ok"),
    Row("GET", "HTTP/1.0 200 OK\r\n\r\nok", 200, "ok"),
    // Bodies that break off.
    Row("GET", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", BROKEN, ""),
    Row("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", BROKEN, ""),
    Row(
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0x1\r\nx\r\n0\r\n\r\n",
        BROKEN,
        "",
    ),
    Row("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokx\r\n0\r\n\r\n", BROKEN, ""),
    // Trailer fields.
    Row(
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n",
        200,
        "ok",
    ),
    Row(
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nConnection: x\r\nTransfer-Encoding: x\r\nContent-Length: 9\r\n\r\n",
        200,
        "ok",
    ),
];

#[tokio::test]
async fn each_answer_has_one_meaning_or_is_refused() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut results = Vec::new();
    for Row(method, sent, status, body) in ROWS {
        let expected = match *status {
            BROKEN => Outcome::Broken,
            status => Outcome::Whole(status, (*body).to_owned()),
        };
        let url = format!("http://{}/", target.address);
        let (found, ()) = tokio::join!(over_http1(gateway.address, method, &url), answer(&mut target, sent));
        results.push((format!("{method} {sent:?}"), same(&found, &expected)));
        let (found, ()) = tokio::join!(over_http2(gateway.address, method, &url), answer(&mut target, sent));
        results.push((format!("{method} {sent:?} over HTTP/2"), same(&found, &expected)));
    }
    assert_all(results);
}

/// The target's side of one request.
async fn answer(target: &mut Held, sent: &str) {
    let (mut far, mut got) = (target.next().await, Vec::new());
    while find(&got, b"\r\n\r\n").is_none() {
        assert!(timeout(PATIENCE, far.read_buf(&mut got)).await.unwrap().unwrap() > 0);
    }
    far.write_all(sent.as_bytes()).await.unwrap();
    far.shutdown().await.unwrap();
    let _ = timeout(PATIENCE, far.read_to_end(&mut got)).await.unwrap(); // closing with bytes unread would reset it
}

async fn over_http1(gateway: SocketAddr, method: &str, url: &str) -> Outcome {
    let mut stream = TcpStream::connect(gateway).await.unwrap();
    let token = ISSUER.authorization();
    let fields = format!("Host: x\r\nConnection: close\r\nProxy-Authorization: {token}");
    stream.write_all(format!("{method} {url} HTTP/1.1\r\n{fields}\r\n\r\n").as_bytes()).await.unwrap();
    let mut said = Vec::new();
    match timeout(PATIENCE, stream.read_to_end(&mut said)).await.unwrap() {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => return Outcome::Broken,
        read => _ = read.unwrap(),
    }
    // Interim answers come before the one.
    while said.starts_with(b"HTTP/1.1 1") {
        let end = find(&said, b"\r\n\r\n").unwrap();
        if find(&said[..end].to_ascii_lowercase(), b"content-length").is_some() {
            return Outcome::Unclear(format!("{:?}", String::from_utf8_lossy(&said)));
        }
        said.drain(..end + 4);
    }
    match strict::answer(&said, method == "HEAD") {
        Ok(said) => whole(said.line[9..12].parse().unwrap(), said.body),
        Err(fault) => Outcome::Unclear(format!("{fault:?}: {:?}", String::from_utf8_lossy(&said))),
    }
}

async fn over_http2(gateway: SocketAddr, method: &str, url: &str) -> Outcome {
    let mut client = Http2::connect(gateway).await;
    let request =
        Request::builder().method(method).uri(url).header("proxy-authorization", ISSUER.authorization());
    match client.send(request.body(()).unwrap(), true).await.answer_or_reset().await {
        Ok(answer) => {
            let of_connection = ["connection", "transfer-encoding", "upgrade", "keep-alive", "trailer"];
            let lengths = answer.all("content-length");
            let is_clear = of_connection.iter().all(|name| answer.all(name).is_empty())
                && lengths.len() <= 1
                && lengths.iter().all(|length| length.bytes().all(|byte| byte.is_ascii_digit()));
            if is_clear { whole(answer.status, answer.body) } else { Outcome::Unclear(format!("{answer:?}")) }
        }
        Err(error) => {
            // The gateway's, and not of this client, which holds it to RFC 9113.
            if error.is_remote() { Outcome::Broken } else { Outcome::Unclear(error.to_string()) }
        }
    }
}

/// The body of a refusal is the gateway's own.
fn whole(status: u16, body: Vec<u8>) -> Outcome {
    Outcome::Whole(status, if status == REFUSED { String::new() } else { String::from_utf8(body).unwrap() })
}
