//! What clients of HTTP/2 send, and what a target of HTTP/1.1 gets of it.

use super::{Cut, Got, One, assert_all, check, filled, same};
use crate::support::target::Echo;
use crate::support::{PATIENCE, Running};
use postern_testkit::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, HELLO, RST_STREAM, fields, frame, frames_of,
};
use postern_testkit::origin::Origin;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What becomes of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    /// The target's answer.
    Ok,
    /// A refusal of the gateway.
    Refused,
    /// A reset of the stream.
    Reset,
    /// The end of the connection: its client broke the compression that all streams share.
    Ended,
}
use Answer::{Ended, Ok, Refused, Reset};

/// The fields of a request beside its token; the data and the trailer fields that follow; the answer; what the target gets.
struct Row(Fields, &'static [&'static str], Fields, Answer, &'static [Got]);
type Fields = &'static [(&'static str, &'static str)];

const POST: Fields = &[(":method", "POST"), (":scheme", "http"), (":authority", "{target}"), (":path", "/1")];

/// Rows that begin with a POST.
const POSTS: &[Row] = &[
    Row(&[], &["x"], &[], Ok, &[One("x")]),
    // A length is held to the data, and to what HTTP/1.1 has.
    Row(&[("content-length", "1")], &["x"], &[], Ok, &[One("x")]),
    Row(&[("content-length", "2")], &["x", "y"], &[], Ok, &[One("xy")]),
    Row(&[("content-length", "2")], &["x"], &[], Reset, &[Cut]),
    Row(&[("content-length", "3")], &["GET /2 HTTP/1.1\r\nHost: y\r\n\r\n"], &[], Reset, &[Cut]),
    Row(&[("content-length", "1")], &["xGET /2 HTTP/1.1\r\nHost: y\r\n\r\n"], &[], Reset, &[Cut]),
    Row(&[("content-length", "1"), ("content-length", "1")], &["x"], &[], Ok, &[One("x")]),
    Row(&[("content-length", "1"), ("content-length", "2")], &["x"], &[], Reset, &[]),
    Row(&[("content-length", "1, 1")], &["x"], &[], Reset, &[]),
    Row(&[("content-length", "+1")], &["x"], &[], Reset, &[]),
    Row(&[("content-length", " 1")], &["x"], &[], Reset, &[]),
    Row(&[("content-length", "")], &[""], &[], Ok, &[One("")]),
    Row(&[("content-length", "9999999999999999999999")], &["x"], &[], Reset, &[]),
    Row(&[("content-length", "1"), ("transfer-encoding", "chunked")], &["x"], &[], Reset, &[]),
    // Data that looks like framing is data.
    Row(
        &[],
        &["0\r\n\r\nGET /2 HTTP/1.1\r\nHost: y\r\n\r\n"],
        &[],
        Ok,
        &[One("0\r\n\r\nGET /2 HTTP/1.1\r\nHost: y\r\n\r\n")],
    ),
    // Fields of one connection.
    Row(&[("transfer-encoding", "chunked")], &["0\r\n\r\n"], &[], Reset, &[]),
    Row(&[("transfer-encoding", "identity")], &["x"], &[], Reset, &[]),
    Row(&[("connection", "close")], &["x"], &[], Reset, &[]),
    Row(&[("connection", "x-mine")], &["x"], &[], Reset, &[]),
    Row(&[("proxy-connection", "close")], &["x"], &[], Reset, &[]),
    Row(&[("keep-alive", "5")], &["x"], &[], Reset, &[]),
    Row(&[("upgrade", "h2c")], &["x"], &[], Reset, &[]),
    Row(&[("te", "gzip")], &["x"], &[], Reset, &[]),
    Row(&[("te", "trailers")], &["x"], &[], Ok, &[One("x")]),
    // Line ends in names and values.
    Row(&[("x", "y\r\ntransfer-encoding: chunked")], &["0\r\n\r\n"], &[], Ended, &[]),
    Row(&[("x", "y\r")], &["x"], &[], Ended, &[]),
    Row(&[("x", "y\u{0}")], &["x"], &[], Ended, &[]),
    Row(&[("x: y\r\ntransfer-encoding", "chunked")], &["0\r\n\r\n"], &[], Ended, &[]),
    Row(&[("transfer-encoding ", "chunked")], &["0\r\n\r\n"], &[], Ended, &[]),
    Row(&[("Transfer-Encoding", "chunked")], &["0\r\n\r\n"], &[], Ended, &[]),
    Row(&[("x:", "y")], &["x"], &[], Ended, &[]),
    Row(&[("", "y")], &["x"], &[], Ended, &[]),
    // Pseudo-header fields where none belong.
    Row(&[(":path", "/2")], &["x"], &[], Reset, &[]),
    Row(&[(":status", "200")], &["x"], &[], Reset, &[]),
    Row(&[("x", "y"), (":path", "/2")], &["x"], &[], Reset, &[]),
    Row(&[(":protocol", "websocket")], &["x"], &[], Reset, &[]),
    // Trailer fields go no further.
    Row(&[], &["x"], &[("x", "y")], Ok, &[One("x")]),
    Row(&[], &["x"], &[("content-length", "9"), ("proxy-authorization", "z")], Ok, &[One("x")]),
    Row(&[], &["x"], &[(":path", "/2")], Ok, &[One("x")]),
    Row(&[], &["x"], &[("transfer-encoding", "chunked")], Reset, &[Cut]),
    Row(&[("content-length", "2")], &["x"], &[("x", "y")], Reset, &[Cut]),
    // Another Host.
    Row(&[("host", "{target}")], &["x"], &[], Ok, &[One("x")]),
    Row(&[("host", "elsewhere.example")], &["x"], &[], Refused, &[]),
    Row(&[("host", "{target}"), ("host", "{target}")], &["x"], &[], Refused, &[]),
    Row(&[("host", "")], &["x"], &[], Refused, &[]),
    // A second token.
    Row(&[("proxy-authorization", "{token}")], &["x"], &[], Refused, &[]),
];

/// Whole requests.
const REQUESTS: &[Row] = &[
    Row(
        &[(":method", "GET"), (":scheme", "http"), (":authority", "{target}"), (":path", "/")],
        &[],
        &[],
        Ok,
        &[One("")],
    ),
    Row(
        &[(":method", "GET"), (":scheme", "http"), (":authority", "{target}"), (":path", "/")],
        &["x"],
        &[],
        Ok,
        &[One("x")],
    ),
    Row(
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "{target}"),
            (":path", "/"),
            ("content-length", ""),
        ],
        &[""],
        &[],
        Ok,
        &[One("")],
    ),
    Row(
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "{target}"),
            (":path", "/"),
            ("content-length", "1"),
            ("content-length", "1"),
        ],
        &["x"],
        &[],
        Ok,
        &[One("x")],
    ),
    Row(
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "{target}"),
            (":path", "/ HTTP/1.1\r\nx: y"),
        ],
        &[],
        &[],
        Reset,
        &[],
    ),
    Row(
        &[(":method", "GET"), (":scheme", "http"), (":authority", "{target}"), (":path", "/ HTTP/1.1")],
        &[],
        &[],
        Reset,
        &[],
    ),
    Row(
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "{target}"),
            (":path", "http://elsewhere.example/"),
        ],
        &[],
        &[],
        Reset,
        &[],
    ),
    Row(
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "{target}"),
            (":path", "@elsewhere.example/"),
        ],
        &[],
        &[],
        Reset,
        &[],
    ),
    Row(
        &[(":method", "GET"), (":scheme", "http"), (":authority", "{target}"), (":path", "")],
        &[],
        &[],
        Reset,
        &[],
    ),
    Row(
        &[(":method", "GET"), (":scheme", "http"), (":authority", "{target}"), (":path", "?a")],
        &[],
        &[],
        Ok,
        &[One("")],
    ),
    Row(
        &[(":method", "GET"), (":scheme", "http"), (":authority", "{target}"), (":path", "#")],
        &[],
        &[],
        Ok,
        &[One("")],
    ),
    Row(
        &[
            (":method", "GET /2 HTTP/1.1\r\nx: y"),
            (":scheme", "http"),
            (":authority", "{target}"),
            (":path", "/"),
        ],
        &[],
        &[],
        Ended,
        &[],
    ),
    Row(
        &[(":method", "GET /2"), (":scheme", "http"), (":authority", "{target}"), (":path", "/")],
        &[],
        &[],
        Ended,
        &[],
    ),
    Row(
        &[(":method", ""), (":scheme", "http"), (":authority", "{target}"), (":path", "/")],
        &[],
        &[],
        Ended,
        &[],
    ),
    Row(
        &[
            (":method", "GET"),
            (":scheme", "http://elsewhere.example/?"),
            (":authority", "{target}"),
            (":path", "/"),
        ],
        &[],
        &[],
        Reset,
        &[],
    ),
    Row(
        &[(":method", "GET"), (":scheme", "https"), (":authority", "{target}"), (":path", "/")],
        &[],
        &[],
        Refused,
        &[],
    ),
    Row(
        &[(":method", "GET"), (":scheme", "http"), (":path", "/"), ("host", "{target}")],
        &[],
        &[],
        Refused,
        &[],
    ),
    Row(
        &[(":method", "GET"), (":scheme", "http"), (":authority", ""), (":path", "/"), ("host", "{target}")],
        &[],
        &[],
        Reset,
        &[],
    ),
    Row(
        &[(":method", "GET"), (":scheme", "http"), (":authority", "{target}\r\nx: y"), (":path", "/")],
        &[],
        &[],
        Reset,
        &[],
    ),
    Row(
        &[(":method", "GET"), (":scheme", "http"), (":authority", "{target}/2"), (":path", "/")],
        &[],
        &[],
        Reset,
        &[],
    ),
    Row(
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "elsewhere.example@{target}"),
            (":path", "/"),
        ],
        &[],
        &[],
        Refused,
        &[],
    ),
    Row(
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "{target}"),
            (":authority", "elsewhere.example"),
            (":path", "/"),
        ],
        &[],
        &[],
        Reset,
        &[],
    ),
    Row(
        &[
            (":method", "GET"),
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "{target}"),
            (":path", "/"),
        ],
        &[],
        &[],
        Reset,
        &[],
    ),
    // CONNECT has an authority and nothing else.
    Row(
        &[(":method", "CONNECT"), (":scheme", "http"), (":authority", "{target}"), (":path", "/")],
        &[],
        &[],
        Reset,
        &[],
    ),
    Row(
        &[
            (":method", "CONNECT"),
            (":scheme", "http"),
            (":authority", "{target}"),
            (":path", "/"),
            (":protocol", "websocket"),
        ],
        &[],
        &[],
        Reset,
        &[],
    ),
    Row(
        &[(":method", "CONNECT"), (":authority", "{target}"), ("host", "elsewhere.example")],
        &[],
        &[],
        Refused,
        &[],
    ),
    Row(
        &[(":method", "CONNECT"), (":authority", "{target}"), ("content-length", "1")],
        &["x"],
        &[],
        Refused,
        &[],
    ),
    Row(
        &[(":method", "CONNECT"), (":authority", "{target}"), ("content-length", "0")],
        &[""],
        &[],
        Refused,
        &[],
    ),
    Row(
        &[(":method", "CONNECT"), (":authority", "{target}"), ("transfer-encoding", "chunked")],
        &["0\r\n\r\n"],
        &[],
        Reset,
        &[],
    ),
    Row(&[(":method", "CONNECT"), (":authority", "{target}\r\nx: y")], &[], &[], Reset, &[]),
    Row(&[(":method", "CONNECT"), (":authority", "http://{target}/")], &[], &[], Reset, &[]),
];

#[tokio::test]
async fn each_stream_is_one_request_or_none() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let posts = POSTS.iter().map(|row| ([POST, row.0].concat(), row));
    let requests = REQUESTS.iter().map(|row| (row.0.to_vec(), row));
    let mut results = Vec::new();
    for (head, Row(_, data, trailers, answer, got)) in posts.chain(requests) {
        let mut origin = Origin::start().await;
        let sent = request(&head, data, trailers, origin.address);
        let found = exchange(gateway.address, echo.address, &sent).await;
        let result = same(&found, answer).and(check(&origin.seen().await, got, origin.address));
        results.push((format!("{head:?} {data:?} {trailers:?}"), result));
    }
    assert_all(results);
}

/// Sends a row's request on stream 3, beside a tunnel of stream 1, which must carry its own bytes and no others.
async fn exchange(gateway: SocketAddr, echo: SocketAddr, sent: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(gateway).await.unwrap();
    let bystander = block(&[(":method", "CONNECT"), (":authority", "{target}"), TOKEN], echo);
    stream.write_all(&[HELLO, &frame(HEADERS, END_HEADERS, 1, &bystander)].concat()).await.unwrap();
    let mut said = Vec::new();
    until(&mut stream, &mut said, |said| !frames_of(said, 1).is_empty()).await;
    stream.write_all(&[sent, &frame(DATA, 0, 1, b"mine")].concat()).await.unwrap();
    let has_ended = |said: &[u8]| frames_of(said, 0).iter().any(|(kind, _)| *kind == GOAWAY);
    until(&mut stream, &mut said, |said| is_done(said) || has_ended(said)).await;
    let echoed = data(&said, 1);
    if !is_done(&said) {
        assert!(has_ended(&said) && b"mine".starts_with(&echoed[..]), "{said:?}");
        return Ended;
    }
    assert_eq!(echoed, b"mine");
    let row = frames_of(&said, 3);
    match row.first() {
        _ if row.iter().any(|(kind, _)| *kind == RST_STREAM) => Reset,
        Some((HEADERS, [0x88, ..])) => Ok, // :status 200, as the static table has it
        _ => Refused,
    }
}

/// Whether the bystander's bytes are back and the row's stream was answered or reset.
fn is_done(said: &[u8]) -> bool {
    let is_reset = frames_of(said, 3).iter().any(|(kind, _)| *kind == RST_STREAM);
    data(said, 1).len() >= 4 && (is_reset || !data(said, 3).is_empty())
}

fn data(said: &[u8], stream: u32) -> Vec<u8> {
    let frames = frames_of(said, stream);
    frames.into_iter().filter(|(kind, _)| *kind == DATA).flat_map(|(_, data)| data.to_vec()).collect()
}

/// A request with a token; the last of its frames ends the stream.
fn request(head: &[(&str, &str)], data: &[&str], trailers: Fields, target: SocketAddr) -> Vec<u8> {
    let head = block(&[head, &[TOKEN]].concat(), target);
    let end = |is_end| if is_end { END_STREAM } else { 0 };
    let mut sent = frame(HEADERS, end(data.is_empty()), 3, &head[..1]); // the rest of the field in a CONTINUATION
    sent.extend(frame(CONTINUATION, END_HEADERS, 3, &head[1..]));
    let count = data.len();
    for (index, data) in data.iter().enumerate() {
        let is_end = trailers.is_empty() && index + 1 == count;
        sent.extend(frame(DATA, end(is_end), 3, data.as_bytes()));
    }
    if !trailers.is_empty() {
        sent.extend(frame(HEADERS, END_HEADERS | END_STREAM, 3, &block(trailers, target)));
    }
    sent
}

const TOKEN: (&str, &str) = ("proxy-authorization", "{token}");

/// A field block.
fn block(lines: &[(&str, &str)], target: SocketAddr) -> Vec<u8> {
    let lines: Vec<_> = lines.iter().map(|(name, value)| (*name, filled(value, target))).collect();
    fields(&lines.iter().map(|(name, value)| (*name, &value[..])).collect::<Vec<_>>())
}

/// Reads until `wanted` holds of what was said, or the connection ends.
async fn until(stream: &mut TcpStream, said: &mut Vec<u8>, wanted: impl Fn(&[u8]) -> bool) {
    while !wanted(said) {
        match timeout(PATIENCE, stream.read_buf(said)).await.unwrap() {
            Result::Ok(1..) => {}
            _ => return,
        }
    }
}
