//! Plain `http://` requests.

use crate::support::client::find;
use crate::support::http2::{Http2, Sent};
use crate::support::target::{Deaf, Echo, Held};
use crate::support::{ISSUER, PATIENCE, Running};
use bytes::Bytes;
use h2::client::Builder;
use http::{Method, Request};
use postern_config::ConfigDuration;
use postern_testkit::dialogue::{Step, rows};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

async fn received(far: &mut TcpStream, end: &str) -> String {
    let mut got = Vec::new();
    while find(&got, end.as_bytes()).is_none() {
        let read = timeout(PATIENCE, far.read_buf(&mut got)).await.unwrap().unwrap();
        assert!(read > 0, "{:?}", String::from_utf8_lossy(&got));
    }
    String::from_utf8(got).unwrap()
}

fn post(target: &Held) -> http::request::Builder {
    Request::post(format!("http://{}/a?b", target.address))
        .header("proxy-authorization", ISSUER.authorization())
}

#[tokio::test]
async fn a_request_and_its_answer_pass() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Http2::connect(gateway.address).await;
    let request = post(&target)
        .header("host", target.address.to_string())
        .header("cookie", "a=b")
        .header("cookie", "c=d")
        .header("te", "trailers");
    let mut sent = client.send(request.body(()).unwrap(), false).await;
    sent.body.send_data(Bytes::from_static(b"hello"), false).unwrap();
    let mut far = target.next().await;
    let got = received(&mut far, "hello").await.to_ascii_lowercase();
    assert!(got.starts_with("post /a?b http/1.1\r\n"), "{got}");
    for field in ["cookie: a=b; c=d\r\n", "transfer-encoding: chunked\r\n", "via: 2.0 postern\r\n"] {
        assert_eq!(got.matches(field).count(), 1, "{field} in {got}");
    }
    assert_eq!(got.matches("\r\nhost: ").count(), 1, "{got}");
    assert!(!got.contains("proxy-authorization") && !got.contains("\r\nte:"), "{got}");
    sent.body.send_data(Bytes::new(), true).unwrap();
    received(&mut far, "0\r\n\r\n").await;
    let answer =
        "HTTP/1.1 201 Created\r\nKeep-Alive: 5\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nworld";
    far.write_all(answer.as_bytes()).await.unwrap();
    let answer = sent.answer().await;
    assert_eq!((answer.status, &answer.body[..], answer.value("via")), (201, &b"world"[..], "1.1 postern"));
    assert!(answer.all("keep-alive").is_empty() && answer.all("connection").is_empty(), "{answer:?}");
}

#[tokio::test]
async fn a_length_is_kept_and_an_answer_without_one_ends_where_its_connection_does() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Http2::connect(gateway.address).await;
    let mut sent = client.send(post(&target).header("content-length", "5").body(()).unwrap(), false).await;
    sent.body.send_data(Bytes::from_static(b"hello"), true).unwrap();
    let mut far = target.next().await;
    let got = received(&mut far, "hello").await;
    assert!(got.contains("content-length: 5\r\n") && !got.contains("transfer-encoding"), "{got}");
    far.write_all(b"HTTP/1.1 200 OK\r\n\r\nuntil the end").await.unwrap();
    drop(far);
    assert_eq!(sent.answer().await.body, b"until the end");
}

/// As over HTTP/1.1: what was paid for may be read slowly.
#[tokio::test]
async fn an_answer_arrives_whole_although_its_client_pauses() {
    const LENGTH: usize = 12 << 20;
    let mut target = Held::start().await;
    let gateway =
        Running::start_with(|config| config.limits.header_timeout = ConfigDuration::millis(300)).await;
    let request = post(&target).body(()).unwrap(); // takes a while, which is the gateway's header timeout
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let mut settings = Builder::new();
    settings.initial_window_size(1 << 24).initial_connection_window_size(1 << 24);
    let (mut sender, mut connection) = settings.handshake::<_, Bytes>(stream).await.unwrap();
    let (response, body) = sender.send_request(request, true).unwrap();
    let reached = async {
        let mut far = target.next().await;
        received(&mut far, "\r\n\r\n").await;
        far
    };
    let mut far = tokio::select! { far = reached => far, _ = &mut connection => panic!("it ended") };
    far.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n").as_bytes()).await.unwrap();
    let sending = tokio::spawn(async move { far.write_all(&vec![7; LENGTH]).await.map(|()| far) });
    tokio::time::sleep(Duration::from_millis(1200)).await; // and nothing reads the connection
    tokio::spawn(connection);
    let sent = Sent { response, body };
    assert_eq!(sent.answer().await.body.len(), LENGTH);
    sending.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_target_that_switches_protocols_is_502() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Http2::connect(gateway.address).await;
    let sent = client.send(post(&target).body(()).unwrap(), true).await;
    let mut far = target.next().await;
    received(&mut far, "\r\n\r\n").await;
    far.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(sent.answer().await.status, 502);
}

/// The target accepts the connection late: the body is longer than what a connection may bring without a token.
#[tokio::test]
async fn a_body_ahead_of_its_target_stops_no_tunnel() {
    let (gateway, echo, deaf) = (Running::start().await, Echo::start().await, Deaf::start());
    let mut client = Http2::connect(gateway.address).await;
    let mut tunnel = client.tunnel(echo.address).await;
    let request = Request::post(format!("http://{}/", deaf.address()))
        .header("proxy-authorization", ISSUER.authorization())
        .body(())
        .unwrap();
    let mut sent = client.send(request, false).await;
    sent.body.send_data(Bytes::from_static(&[7; 200 << 10]), false).unwrap();
    let first = timeout(Duration::from_secs(5), tunnel.echo(&[1; 1000])).await;
    assert!(first.is_ok(), "a tunnel waits for another stream's target");
}

#[tokio::test]
async fn an_answer_that_breaks_off_ends_in_a_reset() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Http2::connect(gateway.address).await;
    let sent = client.send(post(&target).body(()).unwrap(), true).await;
    let mut far = target.next().await;
    received(&mut far, "\r\n\r\n").await;
    far.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await.unwrap();
    drop(far);
    assert!(sent.answer_or_reset().await.unwrap_err().is_reset());
}

/// RFC 9110, sections 10.1.1 and 15.2: the target's answers arrive in order, and no 100 but its own.
#[tokio::test]
async fn interim_answers_are_the_targets() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let mut client = Http2::connect(gateway.address).await;
    for is_wanted in [true, false] {
        let request = post(&target).header("expect", "100-continue").body(()).unwrap();
        let mut sent = client.send(request, false).await;
        let mut far = target.next().await;
        let got = received(&mut far, "\r\n\r\n").await;
        assert!(got.contains("expect: 100-continue\r\n"), "{got}");
        far.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\nConnection: x\r\nX: y\r\n\r\n")
            .await
            .unwrap();
        let interim = async |sent: &mut Sent| {
            let interim = std::future::poll_fn(|cx| sent.response.poll_informational(cx));
            timeout(PATIENCE, interim).await.unwrap().unwrap().unwrap()
        };
        let hints = interim(&mut sent).await;
        assert_eq!((hints.status().as_u16(), &hints.headers()["link"]), (103, &"<a>".parse().unwrap()));
        assert!(!hints.headers().contains_key("x"), "{hints:?}");
        if is_wanted {
            far.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
            assert_eq!(interim(&mut sent).await.status(), 100);
            sent.body.send_data(Bytes::from_static(b"hello"), true).unwrap();
            received(&mut far, "hello").await;
        }
        far.write_all(b"HTTP/1.1 307 Elsewhere\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        if !is_wanted {
            let next =
                timeout(PATIENCE, std::future::poll_fn(|cx| sent.response.poll_informational(cx))).await;
            assert!(next.unwrap().is_none(), "an interim answer that the target did not give");
        }
        assert_eq!(sent.answer().await.status, 307);
    }
}

/// The request of a row over HTTP/1.1 without a body, if it can be sent over HTTP/2.
fn over_http2(text: &str) -> Option<Request<()>> {
    let (line, fields) = text.split_once("\r\n")?;
    let (method, url) = line.strip_suffix(" HTTP/1.1")?.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(url);
    for field in fields.lines().filter(|line| !line.is_empty()) {
        let (name, value) = field.split_once(": ")?;
        match name.to_ascii_lowercase().as_str() {
            "content-length" | "transfer-encoding" | "expect" => return None,
            "host" | "connection" | "proxy-connection" | "x-hop" => {} // of HTTP/1.1
            name => request = request.header(name, value),
        }
    }
    request.body(()).ok().filter(|request| request.method() != Method::CONNECT)
}

/// The rows for HTTP/1.1 that have one request without a body and one answer.
#[tokio::test]
async fn what_a_proxy_owes_plain_http() {
    let gateway = Running::start().await;
    let mut client = Http2::connect(gateway.address).await;
    let mut driven = Vec::new();
    for (name, steps) in rows() {
        let is_one = |kind: fn(&Step) -> bool| steps.iter().filter(|step| kind(step)).count() == 1;
        let [Step::Send(text), ..] = &steps[..] else { continue };
        let is_of_http1 = steps.len() == 2 && !text.contains("Max-Forwards"); // refused for its Host or its spelling
        if is_of_http1
            || !is_one(|step| matches!(step, Step::Send(_)))
            || !is_one(|step| matches!(step, Step::Get(_)))
        {
            continue;
        }
        let mut target = Held::start().await;
        let at = target.address.to_string();
        let admission = format!("Proxy-Authorization: {}\r\n", ISSUER.authorization());
        let filled = |text: &str| text.replace("{target}", &at).replace("{admission}", &admission);
        let Some(request) = over_http2(&filled(text)) else { continue };
        let (mut sent, mut far, mut answer) = (Some(client.send(request, true).await), None, String::new());
        for step in &steps[1..] {
            match step {
                Step::Arrive(head) => {
                    let head = filled(head).to_ascii_lowercase();
                    let mut stream = target.next().await;
                    let got = received(&mut stream, "\r\n\r\n").await.to_ascii_lowercase();
                    assert!(head.lines().all(|line| got.lines().any(|other| other == line)), "{name}: {got}");
                    far = Some(stream);
                }
                Step::Say(said) => far.as_mut().unwrap().write_all(said.as_bytes()).await.unwrap(),
                Step::End => far = None,
                Step::Get(parts) => {
                    let got = sent.take().unwrap().answer().await;
                    let fields = got.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
                    answer = format!("HTTP/1.1 {} {}", got.status, fields.collect::<String>());
                    answer.make_ascii_lowercase();
                    for part in *parts {
                        assert!(
                            answer.contains(&part.to_ascii_lowercase()),
                            "{name}: {part:?} is not in {answer}"
                        );
                    }
                }
                Step::Lacks(part) => assert!(!answer.contains(part), "{name}: {part:?} is in {answer}"),
                Step::Send(_) | Step::Body(_) | Step::Closed => unreachable!("{name}"),
            }
        }
        driven.push(name);
    }
    assert!(driven.len() >= 17, "{driven:#?}");
}
