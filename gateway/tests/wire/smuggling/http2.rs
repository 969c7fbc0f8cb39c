//! Requests of HTTP/2 clients, and what an HTTP/1.1 target gets of them.

mod rows;

use super::{assert_all, check, filled, same};
use crate::support::target::Echo;
use crate::support::{PATIENCE, Running};
use postern_testkit::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, HELLO, RST_STREAM, fields, frame, frames_of,
};
use postern_testkit::origin::Origin;
use rows::Answer::{self, Ended, Ok, Refused, Reset};
use rows::{Fields, POST, POSTS, REQUESTS, Row};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

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

/// Sends a row's request on stream 3, next to a tunnel on stream 1, which must carry its own bytes and no others.
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

/// Returns whether the bystander's bytes are back and the row's stream was answered or reset.
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

/// Reads until `wanted` holds of the bytes read, or the connection ends.
async fn until(stream: &mut TcpStream, said: &mut Vec<u8>, wanted: impl Fn(&[u8]) -> bool) {
    while !wanted(said) {
        match timeout(PATIENCE, stream.read_buf(said)).await.unwrap() {
            Result::Ok(1..) => {}
            _ => return,
        }
    }
}
