//! Plain `http://` requests in absolute form, to a small HTTP target that shows what it received.

use crate::support::client::{Client, find};
use crate::support::target::Held;
use crate::support::{ISSUER, Running};
use postern_config::ConfigDuration;
use postern_testkit::dialogue::{self, Proxy};
use postern_testkit::ports;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request line and fields, with a fresh token.
fn request(method: &str, url: &str, fields: &str) -> String {
    let token = ISSUER.authorization();
    format!("{method} {url} HTTP/1.1\r\nHost: wrong.example\r\nProxy-Authorization: {token}\r\n{fields}\r\n")
}

/// Reads from the target's side up to and with `end`.
async fn received(far: &mut TcpStream, end: &str) -> String {
    let mut got = Vec::new();
    while find(&got, end.as_bytes()).is_none() {
        let read = tokio::time::timeout(crate::support::PATIENCE, far.read_buf(&mut got)).await;
        assert!(read.unwrap().unwrap() > 0, "{:?}", String::from_utf8_lossy(&got));
    }
    String::from_utf8(got).unwrap()
}

fn url(target: SocketAddr, path: &str) -> String {
    format!("http://{target}{path}")
}

/// The target sends interim answers for as long as they are read. Nothing but the gateway's own limit ends it.
#[tokio::test]
async fn a_target_that_sends_interim_answers_without_end_is_502() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Client::connect(gateway.address).await;
    client.send(request("GET", &url(target.address, "/"), "")).await;
    let mut far = target.next().await;
    received(&mut far, "\r\n\r\n").await;
    let sending = tokio::spawn(async move {
        let interim = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n".repeat(100);
        while far.write_all(&interim).await.is_ok() {}
    });
    let mut answer = client.answer().await;
    while answer.status == 103 {
        answer = client.answer().await;
    }
    answer.assert_refused(502, "http_response_header_section_size", "128 KiB");
    tokio::time::timeout(crate::support::PATIENCE, sending).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_target_that_switches_protocols_is_502() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Client::connect(gateway.address).await;
    client.send(request("GET", &url(target.address, "/"), "Connection: upgrade\r\nUpgrade: x\r\n")).await;
    let mut far = target.next().await;
    received(&mut far, "\r\n\r\n").await;
    far.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(client.answer().await.status, 502);
}

#[tokio::test]
async fn what_concerns_this_hop_is_taken_out_and_the_rest_arrives() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Client::connect(gateway.address).await;
    let fields = "Accept: */*\r\nCookie: a=b\r\nConnection: X-Mine, keep-alive\r\nX-Mine: 1\r\nKeep-Alive: 5\r\n\
                  Proxy-Connection: keep-alive\r\nTE: trailers\r\nTrailer: X-T\r\nUpgrade: websocket\r\n\
                  Proxy-Authenticate: x\r\nVia: 1.0 before\r\n";
    client.send(request("GET", &url(target.address, "/a%0d%0ab?q=1"), fields)).await;
    let mut far = target.next().await;
    let got = received(&mut far, "\r\n\r\n").await;
    assert!(got.starts_with("GET /a%0d%0ab?q=1 HTTP/1.1\r\n"), "{got}");
    let got = got.to_lowercase();
    assert_eq!(got.matches("host:").count(), 1);
    for wanted in [&format!("host: {}\r\n", target.address), "accept: */*\r\n", "cookie: a=b\r\n"] {
        assert!(got.contains(wanted), "{got}");
    }
    let via = got.lines().filter(|line| line.starts_with("via: ")).collect::<Vec<_>>().join(", ");
    assert!(via.ends_with("1.1 postern") && via.contains("1.0 before"), "{via}");
    for gone in ["privatetoken", "proxy-", "x-mine", "keep-alive", "trailer", "upgrade", "websocket", "wrong"]
    {
        assert!(!got.contains(gone), "{gone} in {got}");
    }
    far.write_all(
        b"HTTP/1.1 203 Fine\r\nConnection: X-Theirs\r\nX-Theirs: 1\r\nKeep-Alive: 5\r\nProxy-Authenticate: Basic\r\n\
          Content-Length: 2\r\nX-Kept: 1\r\n\r\nok",
    )
    .await
    .unwrap();
    let answer = client.answer().await;
    assert_eq!((answer.status, &answer.body[..]), (203, &b"ok"[..]));
    assert_eq!((answer.value("x-kept"), answer.value("via")), ("1", "1.1 postern"));
    for gone in ["x-theirs", "keep-alive", "proxy-authenticate", "connection"] {
        assert!(answer.all(gone).is_empty(), "{answer:?}");
    }
}

#[tokio::test]
async fn each_of_several_requests_on_one_connection_pays_with_its_own_token() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Client::connect(gateway.address).await;
    for n in 0..3 {
        let once = request("GET", &url(target.address, "/"), "");
        client.send(&once).await;
        let mut far = target.next().await;
        received(&mut far, "\r\n\r\n").await;
        far.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{n}").as_bytes()).await.unwrap();
        assert_eq!(client.answer().await.body, n.to_string().as_bytes());
        client.send(&once).await;
        client.answer().await.assert_refused(407, "http_request_denied", "token already spent");
    }
}

#[tokio::test]
async fn an_answer_is_passed_on_while_it_is_still_coming() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Client::connect(gateway.address).await;
    client.send(request("GET", &url(target.address, "/stream"), "")).await;
    let mut far = target.next().await;
    received(&mut far, "\r\n\r\n").await;
    far.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n").await.unwrap();
    assert_eq!(client.head().await.value("transfer-encoding"), "chunked");
    assert_eq!(client.take(8).await, b"3\r\none\r\n"); // before the rest was sent
    far.write_all(b"3\r\ntwo\r\n0\r\n\r\n").await.unwrap();
    assert_eq!(client.take(13).await, b"3\r\ntwo\r\n0\r\n\r\n");
}

#[tokio::test]
async fn uploads_with_a_length_and_in_chunks_arrive_whole() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Client::connect(gateway.address).await;
    client.send(request("POST", &url(target.address, "/up"), "Content-Length: 9\r\n") + "some ").await;
    let mut far = target.next().await;
    let got = received(&mut far, "some ").await; // passed on before the end of it is there
    assert!(got.to_lowercase().contains("content-length: 9\r\n"), "{got}");
    client.send("body").await;
    received(&mut far, "body").await;
    far.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    assert_eq!(client.answer().await.status, 200);

    let chunked = request("PUT", &url(target.address, "/up"), "Transfer-Encoding: chunked\r\n");
    client.send(chunked + "4\r\nsome\r\n5\r\n body\r\n0\r\n\r\n").await;
    let mut far = target.next().await;
    let got = received(&mut far, "0\r\n\r\n").await;
    let (head, body) = got.split_once("\r\n\r\n").unwrap();
    assert!(head.to_lowercase().contains("transfer-encoding: chunked"), "{head}");
    let text: String = body.split("\r\n").skip(1).step_by(2).collect();
    assert_eq!(text, "some body");
    far.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    assert_eq!(client.answer().await.status, 200);
}

/// Two lengths for one body are how requests are smuggled (RFC 9112, section 11.2).
#[tokio::test]
async fn of_a_length_and_chunks_only_the_chunks_go_on() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    for fields in [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
    ] {
        let mut client = Client::connect(gateway.address).await;
        client.send(request("POST", &url(target.address, "/"), fields) + "4\r\nsome\r\n0\r\n\r\n").await;
        let mut far = target.next().await;
        let got = received(&mut far, "0\r\n\r\n").await.to_lowercase();
        assert!(got.contains("transfer-encoding: chunked") && !got.contains("content-length"), "{got}");
    }
}

/// RFC 9110 and 9112, as the agent is held to them.
#[tokio::test]
async fn what_a_proxy_owes_plain_http() {
    let gateway = Running::start().await;
    let admission = || format!("Proxy-Authorization: {}\r\n", ISSUER.authorization());
    let proxy = Proxy { address: gateway.address, admission };
    dialogue::hold(proxy, dialogue::rows()).await;
    // Without a token the target gets no request, and the client no 100.
    let fields = "Host: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n";
    let answer =
        Client::ask(gateway.address, format!("POST http://a.example/ HTTP/1.1\r\n{fields}\r\n")).await;
    answer.assert_refused(407, "http_request_denied", "no token");
}

#[tokio::test]
async fn a_client_that_still_uploads_can_read_its_refusal() {
    let gateway = Running::start().await;
    let body = vec![b'x'; 8 << 20];
    for fields in ["Connection: close\r\n", ""] {
        let mut client = Client::connect(gateway.address).await;
        let head = format!(
            "POST http://a.example/ HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {}\r\n\r\n",
            body.len()
        );
        client.send(head).await;
        client.send(&body).await; // a reset would fail here
        client.answer().await.assert_refused(407, "http_request_denied", "no token");
    }
}

/// A slow transfer is not idle: an upload, and the answer that waits for it.
#[tokio::test]
async fn a_slow_upload_that_moves_is_no_silence_of_the_target() {
    let idle = Duration::from_millis(1500);
    let gateway =
        Running::start_with(|config| config.limits.idle_timeout = ConfigDuration::millis(1500)).await;
    let mut target = Held::start().await;
    let mut client = Client::connect(gateway.address).await;
    client.send(request("POST", &url(target.address, "/up"), "Content-Length: 16\r\n")).await;
    let mut far = target.next().await;
    let began = Instant::now();
    for _ in 0..16 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        client.send("x").await;
    }
    assert!(began.elapsed() > 2 * idle);
    received(&mut far, &"x".repeat(16)).await;
    far.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    assert_eq!(client.answer().await.body, b"ok");
}

/// The answer blames the client's body, not the target.
#[tokio::test]
async fn a_clients_broken_or_stalled_body_is_its_own_fault() {
    let gateway =
        Running::start_with(|config| config.limits.idle_timeout = ConfigDuration::millis(300)).await;
    let mut target = Held::start().await;
    let chunked = |url: String| request("POST", &url, "Transfer-Encoding: chunked\r\n");
    for (body, status, details) in [
        ("zz\r\nsome\r\n", 400, "the request's body is not valid or broke off"),
        ("4\r\nsome", 408, "the request's body did not arrive in time"),
    ] {
        let mut client = Client::connect(gateway.address).await;
        client.send(chunked(url(target.address, "/up")) + body).await;
        let _far = target.next().await;
        client.answer().await.assert_refused(status, "http_request_error", details);
    }
}

/// RFC 9112, section 6.3: a length next to chunks would end the answer early for a client that believes the length.
#[tokio::test]
async fn of_an_answers_length_and_chunks_only_the_chunks_go_on() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Client::connect(gateway.address).await;
    client.send(request("GET", &url(target.address, "/"), "")).await;
    let mut far = target.next().await;
    received(&mut far, "\r\n\r\n").await;
    let answer =
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    far.write_all(answer).await.unwrap();
    let head = client.head().await;
    assert_eq!((head.value("transfer-encoding"), head.all("content-length")), ("chunked", vec![]));
    assert_eq!(client.take(15).await, b"5\r\nhello\r\n0\r\n\r\n");
}

/// Only the gateway speaks for the gateway: a target's words would make clients throw good tokens away.
#[tokio::test]
async fn a_target_cannot_speak_for_the_gateway() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Client::connect(gateway.address).await;
    client.send(request("GET", &url(target.address, "/"), "")).await;
    let mut far = target.next().await;
    received(&mut far, "\r\n\r\n").await;
    let forged = "Proxy-Status: Postern; error=http_request_denied; details=\"token already spent\"\r\n";
    let fields = format!("{forged}Proxy-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\n\r\n");
    far.write_all(format!("HTTP/1.1 407 Proxy Authentication Required\r\n{fields}").as_bytes())
        .await
        .unwrap();
    client.answer().await.assert_refused(502, "http_protocol_error", "asked for proxy credentials");

    let mut client = Client::connect(gateway.address).await;
    client.send(request("GET", &url(target.address, "/"), "")).await;
    let mut far = target.next().await;
    received(&mut far, "\r\n\r\n").await;
    let cached = "Proxy-Status: cache.example; error=connection_timeout\r\n";
    far.write_all(format!("HTTP/1.1 503 No\r\n{cached}{fields}").as_bytes()).await.unwrap();
    let answer = client.answer().await;
    assert_eq!(
        (answer.status, answer.all("proxy-status")),
        (503, vec!["cache.example; error=connection_timeout"])
    );
}

#[tokio::test]
async fn answers_without_a_body_end_where_they_end() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Client::connect(gateway.address).await;
    for (method, head, status) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", 200),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n", 204),
        ("GET", "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 9\r\n\r\n", 304),
        ("DELETE", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200),
    ] {
        client.send(request(method, &url(target.address, "/"), "")).await;
        let mut far = target.next().await;
        assert!(received(&mut far, "\r\n\r\n").await.starts_with(method));
        far.write_all(head.as_bytes()).await.unwrap();
        let answer = client.head().await;
        assert_eq!(answer.status, status);
        assert!(client.unread.is_empty());
        if method == "HEAD" {
            assert_eq!(answer.value("content-length"), "1000");
        }
    }
    // HEAD without a token: the same fields, and no body that would be taken for the next answer.
    client.send(format!("HEAD {} HTTP/1.1\r\nHost: x\r\n\r\n", url(target.address, "/"))).await;
    let head = client.head().await;
    assert_eq!(head.status, 407);
    client.send(request("GET", "http://a.example:0/", "")).await;
    client.answer().await.assert_refused(400, "http_request_error", "port");
}

#[tokio::test]
async fn other_forms_and_schemes_are_400() {
    let gateway = Running::start().await;
    for (line, details) in [
        ("GET / HTTP/1.1", "forward proxy, not a web server"),
        ("OPTIONS * HTTP/1.1", "forward proxy, not a web server"),
        ("GET https://a.example/ HTTP/1.1", "only http:// URLs are forwarded"),
        ("GET ftp://a.example/ HTTP/1.1", "only http:// URLs are forwarded"),
        ("GET a.example:80 HTTP/1.1", ""),
        ("GET http://user:password@a.example/ HTTP/1.1", "user name"),
        ("GET http://a.example:99999/ HTTP/1.1", ""),
    ] {
        let answer = Client::ask(gateway.address, format!("{line}\r\nHost: x\r\n\r\n")).await;
        println!("{line}");
        answer.assert_refused(400, "http_request_error", details);
    }
}

#[tokio::test]
async fn a_target_that_fails_is_502_or_504() {
    let mut target = Held::start().await;
    let gateway =
        Running::start_with(|config| config.limits.idle_timeout = ConfigDuration::millis(300)).await;
    let mut client = Client::connect(gateway.address).await;
    client.send(request("GET", &url(ports::closed(), "/"), "")).await;
    client.answer().await.assert_refused(502, "connection_refused", "refused");
    client.send(request("GET", &url(target.address, "/"), "")).await;
    let _silent = target.next().await;
    client.answer().await.assert_refused(504, "http_response_timeout", "in time");
    drop(client);
    gateway.emptied().await;
    // An answer that breaks off within its body is seen to break off.
    let gateway = Running::start().await;
    let mut client = Client::connect(gateway.address).await;
    client.send(request("GET", &url(target.address, "/"), "")).await;
    let mut far = target.next().await;
    received(&mut far, "\r\n\r\n").await;
    far.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n").await.unwrap();
    assert_eq!(client.head().await.status, 200);
    assert_eq!(client.take(9).await, b"4\r\nsome\r\n");
    drop(far);
    client.is_reset().await; // without the last chunk
    gateway.emptied().await;
}
