//! The rows: what each RFC requires, in the order of its sections.

use Step::{Arrive, Body, Closed, End, Get, Lacks, Say, Send};
use std::sync::LazyLock;

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Step {
    /// The client sends this.
    Send(String),
    /// The target gets this head: all of its lines, in their order.
    Arrive(&'static str),
    /// The target gets these bytes next.
    Body(&'static str),
    /// The target says this.
    Say(String),
    /// The target ends its connection.
    End,
    /// The client gets a head next, which begins with the first of these and contains the others.
    Get(&'static [&'static str]),
    /// The client gets no head with this in it: a part of the last one.
    Lacks(&'static str),
    /// The client's connection ends without another byte.
    Closed,
}

/// A name, and what happens.
pub type Row = (&'static str, Vec<Step>);

fn send(text: impl Into<String>) -> Step {
    Send(text.into())
}

fn say(text: impl Into<String>) -> Step {
    Say(text.into())
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const EXPECTING: &str = "POST http://{target}/ HTTP/1.1\r\nHost: x\r\n{admission}Content-Length: 4\r\nExpect: 100-continue\r\n\r\n";
const ARRIVED: &str =
    "POST / HTTP/1.1\r\nHost: {target}\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
const GET: &str = "GET http://{target}/ HTTP/1.1\r\nHost: x\r\n{admission}\r\n";
const GOT: &str = "GET / HTTP/1.1\r\nHost: {target}\r\n\r\n";

/// The rows that hold at every proxy of ours.
#[must_use]
pub fn rows() -> Vec<Row> {
    let mut rows = expectations();
    rows.extend(interim());
    rows.extend(answers());
    rows.extend(targets());
    rows
}

/// RFC 9110, section 10.1.1: no 100 but the target's.
fn expectations() -> Vec<Row> {
    vec![
        (
            "a final answer to an expectation comes before any 100",
            vec![
                send(EXPECTING),
                Arrive(ARRIVED),
                say("HTTP/1.1 307 Elsewhere\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n"),
                Get(&["HTTP/1.1 307 ", "Location: /b"]),
            ],
        ),
        (
            "the target's 100 is passed on, and the body then",
            vec![
                send(EXPECTING),
                Arrive(ARRIVED),
                say("HTTP/1.1 100 Continue\r\n\r\n"),
                Get(&["HTTP/1.1 100 "]),
                send("body"),
                Body("body"),
                say(OK),
                Get(&["HTTP/1.1 200 "]),
            ],
        ),
        (
            "a body that its client sends at once goes on, also where the target never says 100",
            vec![
                send(EXPECTING),
                send("body"),
                Arrive(ARRIVED),
                Body("body"),
                Get(&["HTTP/1.1 100 "]),
                say(OK),
                Get(&["HTTP/1.1 200 "]),
            ],
        ),
        (
            "a client of HTTP/1.0 expects nothing",
            vec![
                send(
                    "POST http://{target}/ HTTP/1.0\r\nHost: x\r\n{admission}Content-Length: 4\r\nExpect: 100-continue\r\n\r\nbody",
                ),
                Arrive("POST / HTTP/1.1\r\nHost: {target}\r\nContent-Length: 4\r\n\r\n"),
                Body("body"),
                say("HTTP/1.1 103 Early Hints\r\n\r\n"),
                say(OK),
                Get(&["HTTP/1.0 200 "]),
            ],
        ),
    ]
}

/// RFC 9110, section 15.2: interim answers are passed on.
fn interim() -> Vec<Row> {
    vec![
        (
            "interim answers come when the target gives them, in their order",
            vec![
                send(GET),
                Arrive(GOT),
                say("HTTP/1.1 102 Processing\r\n\r\n"),
                Get(&["HTTP/1.1 102 "]),
                say(
                    "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nConnection: x\r\nX: y\r\n\r\nHTTP/1.1 103 Early Hints\r\nProxy-Status: postern; error=http_request_denied\r\n\r\n",
                ),
                Get(&["HTTP/1.1 103 ", "link: </a.css>; rel=preload"]),
                Lacks("x: y"),
                Get(&["HTTP/1.1 103 "]),
                Lacks("denied"),
                say(OK),
                Get(&["HTTP/1.1 200 "]),
            ],
        ),
        (
            "interim answers and the final one may come at once",
            vec![
                send(EXPECTING),
                Arrive(ARRIVED),
                say(
                    "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n",
                ),
                Get(&["HTTP/1.1 103 ", "link: <a>"]),
                Get(&["HTTP/1.1 401 "]),
            ],
        ),
        (
            "a 100 that nobody waits for is one, too",
            vec![
                send(GET),
                Arrive(GOT),
                say("HTTP/1.1 100 Continue\r\n\r\n"),
                Get(&["HTTP/1.1 100 "]),
                say(OK),
                Get(&["HTTP/1.1 200 "]),
            ],
        ),
    ]
}

fn many(count: usize) -> String {
    (0..count).map(|n| format!("X-{n}: y\r\n")).collect()
}

/// What of an answer is passed on, and what it is called if it is not.
fn answers() -> Vec<Row> {
    let refused = |said: String, ends: bool, error: &'static [&'static str]| {
        let mut steps = vec![send(GET), Arrive(GOT), Say(said)];
        steps.extend(ends.then_some(End));
        steps.push(Get(error));
        steps
    };
    vec![
        (
            "the space before a colon goes (RFC 9112, section 5.1)",
            vec![
                send(GET),
                Arrive(GOT),
                say("HTTP/1.1 200 OK\r\nExpires : 0\r\nContent-Length \t: 0\r\n\r\n"),
                Get(&["HTTP/1.1 200 ", "Expires: 0\r\n", "Content-Length: 0\r\n"]),
            ],
        ),
        (
            "an answer has as many fields as it has",
            vec![
                send(GET),
                Arrive(GOT),
                say(format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{}\r\n", many(500))),
                Get(&["HTTP/1.1 200 ", "X-499: y\r\n"]),
            ],
        ),
        (
            "a head without an end",
            refused(
                format!("HTTP/1.1 200 OK\r\n{}\r\n", many(1001)),
                false,
                &["HTTP/1.1 502 ", "error=http_response_header_section_size;"],
            ),
        ),
        (
            "what is not HTTP",
            refused(
                "220 smtp.example\r\n".into(),
                false,
                &["HTTP/1.1 502 ", "error=http_protocol_error;", "is not valid HTTP/1.1"],
            ),
        ),
        ("nothing", refused(String::new(), true, &["HTTP/1.1 502 ", "error=connection_terminated;"])),
        (
            "half a head",
            refused("HTTP/1.1 200 OK\r\nX".into(), true, &["HTTP/1.1 502 ", "error=connection_terminated;"]),
        ),
        (
            "a coding",
            refused(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n".into(),
                false,
                &["HTTP/1.1 502 ", "error=http_response_transfer_coding;"],
            ),
        ),
        (
            "a 407, which would make the client give its credentials to the target",
            refused(
                "HTTP/1.1 407 No\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n".into(),
                false,
                &["HTTP/1.1 502 ", "error=http_protocol_error;", "proxy credentials"],
            ),
        ),
        (
            "a protocol that nobody asked for",
            refused(
                "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n".into(),
                false,
                &["HTTP/1.1 502 ", "error=http_upgrade_failed;"],
            ),
        ),
        (
            "nobody but a proxy speaks for it",
            vec![
                send(GET),
                Arrive(GOT),
                say(
                    "HTTP/1.1 503 No\r\nProxy-Status: Postern; error=http_request_denied\r\nProxy-Status: postern-agent\r\nProxy-Status: cache\r\nContent-Length: 0\r\n\r\n",
                ),
                Get(&["HTTP/1.1 503 ", "Proxy-Status: cache\r\n"]),
                Lacks("ostern;"),
                Lacks("agent"),
            ],
        ),
    ]
}

/// RFC 9112, section 3, and RFC 9110, section 7.
fn targets() -> Vec<Row> {
    let passed = |sent: &'static str, arrives: &'static str| {
        vec![send(sent), Arrive(arrives), say(OK), Get(&["HTTP/1.1 200 "])]
    };
    let refused = |sent: &'static str, answer: &'static [&'static str]| vec![send(sent), Get(answer)];
    const UNREADABLE: &[&str] =
        &["HTTP/1.1 400 ", "Proxy-Status: postern", "percent sign", "Content-Length: "];
    vec![
        (
            "fields keep their order, and Host its place",
            passed(
                "GET http://{target}/a?b HTTP/1.1\r\nUser-Agent: z\r\nProxy-Connection: keep-alive\r\nHost: wrong\r\n{admission}X-b: 1\r\nTE: trailers\r\nAccept: */*\r\nConnection: x-hop\r\nX-Hop: 1\r\nx-B: 2\r\nDNT: 1\r\n\r\n",
                "GET /a?b HTTP/1.1\r\nUser-Agent: z\r\nHost: {target}\r\nX-b: 1\r\nx-B: 2\r\nAccept: */*\r\nDNT: 1\r\n\r\n",
            ),
        ),
        ("a request has as many fields as it has", {
            static SENT: LazyLock<String> = LazyLock::new(|| {
                format!("GET http://{{target}}/ HTTP/1.1\r\nHost: x\r\n{{admission}}{}\r\n", many(200))
            });
            static ARRIVES: LazyLock<String> =
                LazyLock::new(|| format!("GET / HTTP/1.1\r\nHost: {{target}}\r\n{}\r\n", many(200)));
            passed(&SENT, &ARRIVES)
        }),
        (
            "a client of HTTP/1.0 without Host",
            vec![
                send("GET http://{target}/ HTTP/1.0\r\nAccept: */*\r\n{admission}\r\n"),
                Arrive("GET / HTTP/1.1\r\nhost: {target}\r\nAccept: */*\r\n\r\n"),
                say(OK),
                Get(&["HTTP/1.0 200 "]),
            ],
        ),
        (
            "a client of HTTP/1.0 gets one answer (RFC 9112, section 9.3)",
            vec![
                send("GET http://{target}/ HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n{admission}\r\n"),
                Arrive(GOT),
                say(OK),
                Get(&["HTTP/1.0 200 "]),
                Closed,
            ],
        ),
        (
            "chunks keep their field's place",
            vec![
                send(
                    "PUT http://{target}/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n{admission}X: y\r\n\r\n1\r\nx\r\n0\r\n\r\n",
                ),
                Arrive("PUT / HTTP/1.1\r\nHost: {target}\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n"),
                Body("1\r\nx\r\n0\r\n\r\n"),
                say(OK),
                Get(&["HTTP/1.1 200 "]),
            ],
        ),
        (
            "OPTIONS of a path",
            passed(
                "OPTIONS http://{target}/ HTTP/1.1\r\nHost: x\r\n{admission}\r\n",
                "OPTIONS / HTTP/1.1\r\nHost: {target}\r\n\r\n",
            ),
        ),
        (
            "Max-Forwards of OPTIONS and TRACE counts down",
            passed(
                "OPTIONS http://{target}/ HTTP/1.1\r\nHost: x\r\nMax-Forwards: 10\r\nX: y\r\n{admission}\r\n",
                "OPTIONS / HTTP/1.1\r\nHost: {target}\r\nMax-Forwards: 9\r\nX: y\r\n\r\n",
            ),
        ),
        (
            "that of another method does not",
            passed(
                "GET http://{target}/ HTTP/1.1\r\nHost: x\r\nMax-Forwards: 0\r\n{admission}\r\n",
                "GET / HTTP/1.1\r\nHost: {target}\r\nMax-Forwards: 0\r\n\r\n",
            ),
        ),
        (
            "OPTIONS ends here",
            refused(
                "OPTIONS http://{target}/ HTTP/1.1\r\nHost: x\r\nMax-Forwards: 0\r\n\r\n",
                &["HTTP/1.1 403 ", "error=http_request_denied;", "Max-Forwards"],
            ),
        ),
        (
            "TRACE ends here",
            refused(
                "TRACE http://{target}/ HTTP/1.1\r\nHost: x\r\nMax-Forwards: 0\r\n\r\n",
                &["HTTP/1.1 403 ", "error=http_request_denied;", "Max-Forwards"],
            ),
        ),
        (
            "no Host",
            refused(
                "GET http://{target}/ HTTP/1.1\r\n\r\n",
                &["HTTP/1.1 400 ", "error=http_request_error;", "Host field"],
            ),
        ),
        (
            "a Host that is none",
            refused(
                "CONNECT {target} HTTP/1.1\r\nHost: a b\r\n\r\n",
                &["HTTP/1.1 400 ", "error=http_request_error;", "Host field"],
            ),
        ),
        ("a < in a path", refused("GET http://{target}/< HTTP/1.1\r\nHost: x\r\n\r\n", UNREADABLE)),
        ("a ` in a path", refused("GET http://{target}/` HTTP/1.1\r\nHost: x\r\n\r\n", UNREADABLE)),
        ("a \" in a query", refused("GET http://{target}/?\" HTTP/1.1\r\nHost: x\r\n\r\n", UNREADABLE)),
        (
            "CONNECT of a URL",
            refused(
                "CONNECT http://{target}/ HTTP/1.1\r\nHost: x\r\n\r\n",
                &["HTTP/1.1 400 ", "error=http_request_error;"],
            ),
        ),
        (
            "CONNECT with a body",
            refused(
                "CONNECT {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nlost?",
                &["HTTP/1.1 400 ", "error=http_request_error;", "no body"],
            ),
        ),
        (
            "a field line that is none",
            refused(
                "GET http://{target}/ HTTP/1.1\r\nHost: x\r\nX : y\r\n\r\n",
                &["HTTP/1.1 400 ", "Proxy-Status: postern"],
            ),
        ),
    ]
}
