//! The requests, what becomes of each, and what its target gets.

use super::super::{Cut, Got, One};

/// The outcome of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Answer {
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

/// The fields of a request besides its token; the data and the trailer fields that follow; the answer; what the target gets.
pub(super) struct Row(
    pub(super) Fields,
    pub(super) &'static [&'static str],
    pub(super) Fields,
    pub(super) Answer,
    pub(super) &'static [Got],
);
pub(super) type Fields = &'static [(&'static str, &'static str)];

pub(super) const POST: Fields =
    &[(":method", "POST"), (":scheme", "http"), (":authority", "{target}"), (":path", "/1")];

/// Rows that begin with a POST.
pub(super) const POSTS: &[Row] = &[
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
    // White space at the ends of a value (RFC 9113, section 8.2.1).
    Row(&[("x", " y")], &["x"], &[], Reset, &[]),
    Row(&[("x", "y\t")], &["x"], &[], Reset, &[]),
    Row(&[], &["x"], &[("x", "y ")], Refused, &[Cut]),
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
pub(super) const REQUESTS: &[Row] = &[
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
        &[(":method", "OPTIONS"), (":scheme", "http"), (":authority", "{target}"), (":path", "*")],
        &[],
        &[],
        Ok,
        &[One("")],
    ),
    Row(
        &[(":method", "GET"), (":scheme", "http"), (":authority", "{target}"), (":path", "*")],
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
    // Extended CONNECT is announced (RFC 8441), for UDP alone.
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
        Refused,
        &[],
    ),
    // A request for UDP without a path, with an empty one, without a scheme, and with GET (RFC 9298, section 3.4).
    Row(
        &[
            (":method", "CONNECT"),
            (":scheme", "http"),
            (":authority", "{target}"),
            (":protocol", "connect-udp"),
        ],
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
            (":path", ""),
            (":protocol", "connect-udp"),
        ],
        &[],
        &[],
        Reset,
        &[],
    ),
    Row(
        &[
            (":method", "CONNECT"),
            (":authority", "{target}"),
            (":path", "/.well-known/masque/udp/192.0.2.1/443/"),
            (":protocol", "connect-udp"),
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
            (":path", "/.well-known/masque/udp/192.0.2.1/443/"),
            (":protocol", "connect-udp"),
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
