//! The admin listener over real sockets.

use postern_daemon::admin::catalogue::{LINK_DURATION, LinkKind, METRICS};
use postern_daemon::admin::live::{Live, Section, Show};
use postern_daemon::admin::{Admin, ProcessContext};
use postern_daemon::drain::Shutdown;
use postern_daemon::readiness::Readiness;
use postern_telemetry::catalogue::ADDRESS;
use postern_telemetry::metrics;
use socket2::SockRef;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

struct Running {
    address: SocketAddr,
    readiness: Readiness,
    shutdown: Shutdown,
    live: Live,
    served: JoinHandle<()>,
}

async fn start() -> Running {
    let process = ProcessContext::default();
    let exporter = metrics::install(&[METRICS]).unwrap();
    let admin = Admin::bind(([127, 0, 0, 1], 0).into(), &process, exporter).await.unwrap();
    let address = admin.local_addr();
    let served = tokio::spawn(admin.serve());
    let ProcessContext { readiness, shutdown, live, .. } = process;
    Running { address, readiness, shutdown, live, served }
}

/// Sends raw bytes and reads until the server closes.
async fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let answer =
        exchange(address, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
            .await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn ready_says_what_is_missing_until_nothing_is() {
    let admin = start().await;
    assert_eq!(get(admin.address, "/readyz").await, (200, "ready\n".to_owned()));

    let keys = admin.readiness.gate("keys");
    let store = admin.readiness.gate("store");
    assert_eq!(get(admin.address, "/readyz").await, (503, "keys: starting\nstore: starting\n".to_owned()));
    store.set_ready();
    keys.set_not_ready("no key yet: the issuer's directory has not answered");
    let expected = "keys: no key yet: the issuer's directory has not answered\n".to_owned();
    assert_eq!(get(admin.address, "/readyz").await, (503, expected));
    keys.set_ready();
    assert_eq!(get(admin.address, "/readyz").await, (200, "ready\n".to_owned()));

    // It can be watched through the drain, and ends with it.
    let open = admin.shutdown.tracker().token();
    admin.shutdown.drain();
    assert_eq!(get(admin.address, "/readyz").await, (503, "draining\n".to_owned()));
    assert_eq!(get(admin.address, "/livez").await.0, 200);
    drop(open);
    admin.shutdown.wait(Duration::from_secs(60)).await;
    admin.served.await.unwrap();
    assert!(TcpStream::connect(admin.address).await.is_err());
}

#[tokio::test]
async fn metrics_are_there() {
    let admin = start().await;
    let labels = [(LinkKind::LABEL, LinkKind::Store.as_str()), (ADDRESS.name, "10.0.0.1:11211")];
    ::metrics::histogram!(LINK_DURATION, &labels).record(0.041);
    let (status, body) = get(admin.address, "/metrics").await;
    assert_eq!(status, 200);
    for line in [
        "# HELP postern_link_duration_seconds Response time over a link.",
        "# TYPE postern_link_duration_seconds histogram",
        "postern_link_duration_seconds_bucket{link=\"store\",address=\"10.0.0.1:11211\",le=\"0.038\"} 0",
        "postern_link_duration_seconds_bucket{link=\"store\",address=\"10.0.0.1:11211\",le=\"0.042\"} 1",
        "postern_link_duration_seconds_count{link=\"store\",address=\"10.0.0.1:11211\"} 1",
        &format!("postern_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")),
    ] {
        assert!(body.lines().any(|found| found == line), "{line}\nis not in\n{body}");
    }
}

#[tokio::test]
async fn a_scraper_that_prefers_open_metrics_gets_it() {
    let admin = start().await;
    let of = async |accept: &str| {
        let request = format!(
            "GET /metrics HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\nconnection: close\r\n\r\n"
        );
        exchange(admin.address, &request).await
    };
    let open = of("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5").await;
    assert!(
        open.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
        "{open}"
    );
    assert!(
        open.ends_with("\n# EOF\n") && open.contains("\n# TYPE postern_log_lines_left_out counter\n"),
        "{open}"
    );
    let plain = of("*/*").await;
    assert!(plain.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{plain}");
    assert!(plain.contains("\n# TYPE postern_log_lines_left_out_total counter\n"), "{plain}");
}

#[tokio::test]
async fn anything_else_is_refused() {
    let admin = start().await;
    let (status, index) = get(admin.address, "/").await;
    assert_eq!(status, 200);
    assert!(index.starts_with("<!doctype html>") && !index.contains("/*SCRIPT*/"), "{index}");
    assert_eq!(get(admin.address, "/livez").await, (200, "live\n".to_owned()));
    assert_eq!(get(admin.address, "/metrics?a=b").await.0, 200);
    let (status, list) = get(admin.address, "/nothing").await;
    assert!(status == 404 && list.contains("/metrics"), "{list}");

    let post = "POST /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let answer = exchange(admin.address, post).await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert!(answer.contains("allow: GET, HEAD\r\n"), "{answer}");

    let head =
        exchange(admin.address, "HEAD /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");

    assert!(exchange(admin.address, "nonsense\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
}

/// A web page whose name leads to loopback must not read it.
#[tokio::test]
async fn on_loopback_only_this_machines_own_names_are_answered() {
    let admin = start().await;
    for (host, status) in [
        ("127.0.0.1:9090", "200"),
        ("[::1]:9090", "200"),
        ("localhost", "200"),
        ("Localhost", "200"),
        ("up.localHost:9090", "200"),
        ("rebound.example:9090", "421"),
        ("localhost.example", "421"),
        ("", "421"),
        ("a b", "421"),
    ] {
        let request = format!("GET /metrics HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = exchange(admin.address, &request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host:?}: {answer}");
    }
}

/// hyper's header timeout is silently off when no timer is given: only a real wait shows that it is on.
#[tokio::test]
async fn a_header_that_never_ends_is_cut_off() {
    let admin = start().await;
    let cut =
        tokio::time::timeout(Duration::from_secs(30), exchange(admin.address, "GET /livez HTTP/1.1\r\nho"));
    let answer = cut.await.expect("the connection is still open after 30 s");
    assert!(!answer.contains("200"), "{answer}");
}

#[tokio::test]
async fn clients_that_never_read_their_answers_are_cut_off() {
    let admin = start().await;
    let flood = "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(64);
    let mut flooding = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let socket = TcpSocket::new_v4().unwrap();
        // Buffers are full after few answers: on the loopback interface the server's would take megabytes.
        socket.set_recv_buffer_size(4096).unwrap();
        SockRef::from(&socket).set_tcp_mss(536).unwrap();
        let (mut stream, flood) = (socket.connect(admin.address).await.unwrap(), flood.clone());
        flooding.spawn(async move { while stream.write_all(flood.as_bytes()).await.is_ok() {} });
    }
    let cut = tokio::time::timeout(Duration::from_secs(60), flooding.join_all()).await;
    assert!(cut.is_ok(), "clients that never read are still connected");
    assert_eq!(get(admin.address, "/readyz").await.0, 200);
}

#[tokio::test]
async fn slow_headers_give_way_to_whole_requests() {
    let admin = start().await;
    let mut slow = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(admin.address).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nho").await.unwrap();
        slow.push(stream);
    }
    let asking = async {
        for _ in 0..20 {
            assert_eq!(get(admin.address, "/readyz").await.0, 200);
        }
    };
    let asked = tokio::time::timeout(Duration::from_secs(4), asking).await;
    assert!(asked.is_ok(), "not answered before the slow headers ran out of time");
}

/// Connections are bounded: the one that has been idle for longest makes room for the next.
#[tokio::test]
async fn idle_connections_more_than_the_limit_are_closed() {
    let admin = start().await;
    let mut idle = Vec::new();
    for _ in 0..65 {
        let mut stream = TcpStream::connect(admin.address).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        heard(&mut stream, "live\n").await; // served, and kept alive
        idle.push(stream);
    }
    let ended = tokio::time::timeout(Duration::from_secs(4), idle[0].read(&mut [0; 1])).await;
    assert_eq!(ended.expect("it is closed before the header timeout").unwrap(), 0);
    idle[1].write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    heard(&mut idle[1], "live\n").await;
}

/// Reads from a stream until it has sent `wanted`.
async fn heard(stream: &mut TcpStream, wanted: &str) -> String {
    heard_when(stream, wanted, |said| said.contains(wanted)).await
}

/// Reads from a stream until `is_wanted` holds for what it has sent.
async fn heard_when(stream: &mut TcpStream, what: &str, is_wanted: impl Fn(&str) -> bool) -> String {
    let mut said = String::new();
    let listening = async {
        while !is_wanted(&said) {
            let mut bytes = [0; 4096];
            let read = stream.read(&mut bytes).await.unwrap();
            assert!(read > 0, "the stream ended after {said:?}");
            said.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    };
    let heard = tokio::time::timeout(Duration::from_secs(30), listening).await;
    assert!(heard.is_ok(), "{what:?} is not in {said:?}");
    said
}

#[tokio::test]
async fn the_live_page_streams_what_the_daemons_show() {
    let admin = start().await;
    let mut asked = 0;
    admin.live.add(move || {
        asked += 1;
        Section::new("test", "A test").tile("Asked", Show::Count, f64::from(asked))
    });
    admin.live.add(|| Section::new("checks", "What comes first"));
    let gate = admin.readiness.gate("store");
    gate.set_not_ready("one <b>reason</b>");
    admin.live.start(admin.readiness.clone(), admin.shutdown.clone()).unwrap();

    let mut streams = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(admin.address).await.unwrap();
        stream.write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        streams.push(stream);
    }
    // A stream that is served late begins with a later snapshot.
    let is_third = |said: &str| {
        let values = said.split("\"value\":").skip(1).filter_map(|rest| rest.split(',').next());
        values.filter_map(|value| value.parse::<f64>().ok()).any(|value| value >= 3.0)
    };
    for stream in &mut streams {
        let said = heard_when(stream, "the third snapshot", is_third).await;
        assert!(
            said.contains("content-type: text/event-stream") && said.contains("event: history\n"),
            "{said}"
        );
        assert!(
            said.contains("\"state\":\"not_ready\",\"reasons\":[\"store: one <b>reason</b>\"]"),
            "{said}"
        );
    }
    gate.set_ready();
    heard(&mut streams[0], "\"state\":\"ready\"").await;
    let (status, latest) = get(admin.address, "/live.json").await;
    assert_eq!(status, 200);
    let latest: serde_json::Value = serde_json::from_str(&latest).unwrap();
    assert_eq!(latest["sections"][0]["title"], "What comes first");
    assert_eq!(latest["sections"][1]["title"], "A test");
    // Scrapers still get connections while watchers hold theirs, and a stop ends the streams.
    assert_eq!(get(admin.address, "/livez").await.0, 200);
    admin.shutdown.stop();
    admin.served.await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(30), streams[1].read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "the stream is open after the stop");
}

#[tokio::test]
async fn watchers_are_bounded() {
    let admin = start().await;
    let mut streams = Vec::new();
    for number in 0..50 {
        let mut stream = TcpStream::connect(admin.address).await.unwrap();
        stream.write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        heard(&mut stream, if number < 48 { "HTTP/1.1 200 " } else { "HTTP/1.1 503 " }).await;
        streams.push(stream);
    }
    assert_eq!(get(admin.address, "/metrics").await.0, 200);
    streams.drain(..40);
    // The places of those that went away are given back, as soon as the server has noticed.
    let again = async {
        loop {
            let mut stream = TcpStream::connect(admin.address).await.unwrap();
            stream.write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
            if heard(&mut stream, "\r\n").await.starts_with("HTTP/1.1 200 ") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), again).await.unwrap();
}
