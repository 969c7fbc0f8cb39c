//! Requests that are wrong as HTTP: each gets an answer of the gateway, or is closed without one if no request was
//! sent.

use crate::support::client::{Client, NO_TOKEN, connect, connect_with};
use crate::support::target::Echo;
use crate::support::{ISSUER, Running};
use postern_config::ConfigDuration;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::sleep;

const NOT_HTTP: &str = "not valid HTTP/1.1";

#[tokio::test]
async fn what_is_not_http_1_is_400_in_our_own_words() {
    let gateway = Running::start().await;
    let value = ISSUER.authorization();
    let folded =
        format!("CONNECT a.example:443 HTTP/1.1\r\nProxy-Authorization: PrivateToken\r\n {value}\r\n\r\n");
    let nul = format!("CONNECT a.example:443 HTTP/1.1\r\nX: a\0b\r\nProxy-Authorization: {value}\r\n\r\n");
    let bare_cr = format!("CONNECT a.example:443 HTTP/1.1\r\nX: a\rProxy-Authorization: {value}\r\n\r\n");
    let space_before_colon =
        format!("CONNECT a.example:443 HTTP/1.1\r\nProxy-Authorization : {value}\r\n\r\n");
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS ClientHello";
    for (case, request) in [
        ("garbage", &b"\x00\x01\x02\x03\r\n\r\n"[..]),
        ("a TLS ClientHello", hello),
        ("no version", b"CONNECT a.example:443\r\n\r\n"),
        ("a version to come", b"CONNECT a.example:443 HTTP/3.0\r\n\r\n"),
        ("a byte beyond ASCII in a URL", b"GET http://a.example/\xe9 HTTP/1.1\r\nHost: a.example\r\n\r\n"),
        ("a space in the target", b"CONNECT a.example :443 HTTP/1.1\r\n\r\n"),
        ("two spaces", b"CONNECT  a.example:443 HTTP/1.1\r\n\r\n"),
        ("CR in the target", b"CONNECT a.example:443\rX HTTP/1.1\r\n\r\n"),
        ("NUL in the target", b"CONNECT a.example:443\0 HTTP/1.1\r\n\r\n"),
        ("an absolute form that is none", b"GET http:///nowhere HTTP/1.1\r\n\r\n"),
        ("obs-fold", folded.as_bytes()),
        ("NUL in a value", nul.as_bytes()),
        ("CR in a value", bare_cr.as_bytes()),
        ("a space before the colon", space_before_colon.as_bytes()),
    ] {
        let mut client = Client::connect(gateway.address).await;
        client.send(request).await;
        let answer = client.answer().await;
        println!("{case}");
        answer.assert_refused(400, "http_request_error", NOT_HTTP);
        assert_eq!(answer.value("connection"), "close");
        client.closed_silently().await;
    }
}

/// RFC 9112, section 3.2. HTTP/1.0 had no Host field.
#[tokio::test]
async fn a_request_without_host_is_400_unless_the_operator_lets_old_clients_in() {
    let echo = Echo::start().await;
    let request = |version| {
        let token = ISSUER.authorization();
        format!("CONNECT {} HTTP/{version}\r\nProxy-Authorization: {token}\r\n\r\n", echo.address)
    };
    let strict = Running::start().await;
    let refused = Client::ask(strict.address, request("1.1")).await;
    refused.assert_refused(400, "http_request_error", "Host field");
    Client::ask(strict.address, request("1.0")).await.assert_opened();
    let lenient = Running::start_with(|config| config.listen.require_host = false).await;
    Client::ask(lenient.address, request("1.1")).await.assert_opened();
}

#[tokio::test]
async fn a_target_that_is_none_is_400() {
    let gateway = Running::start().await;
    for (target, details) in [
        ("a.example", "port from 1 to 65535"),
        ("a.example:0", "port from 1 to 65535"),
        ("a.example:65536", "port from 1 to 65535"),
        ("a..b:443", "DNS name"),
        ("127.1:443", "DNS name"),
        ("0x7f000001:443", "DNS name"),
        ("2130706433:443", "DNS name"),
        ("user@a.example:443", "user name"),
        ("a.example:443%0d%0aX-Injected:1", ""),
        ("http://a.example:443", ""),
        ("/", ""),
        ("*", ""),
    ] {
        let answer = Client::ask(gateway.address, connect(target)).await;
        println!("{target}");
        answer.assert_refused(400, "http_request_error", details);
        assert!(answer.all("x-injected").is_empty());
    }
}

#[tokio::test]
async fn two_host_fields_are_400_and_another_one_does_not_matter() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let request = |hosts: &str| {
        format!(
            "CONNECT {} HTTP/1.1\r\n{hosts}Proxy-Authorization: {}\r\n\r\n",
            echo.address,
            ISSUER.authorization()
        )
    };
    let twice = Client::ask(gateway.address, request("Host: a.example\r\nHost: a.example\r\n")).await;
    twice.assert_refused(400, "http_request_error", "more than one Host");
    // The request line alone names the target (RFC 9112, section 3.2.3).
    Client::ask(gateway.address, request("Host: elsewhere.example\r\n")).await.assert_opened();
}

#[tokio::test]
async fn a_connect_that_announces_a_body_is_400() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    for fields in [
        "Content-Length: 5\r\n",
        "Content-Length: 00\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
    ] {
        let request = connect(echo.address).replacen("\r\n", &format!("\r\n{fields}"), 1);
        let answer = Client::ask(gateway.address, request + "hello").await;
        println!("{fields}");
        answer.assert_refused(400, "http_request_error", "a CONNECT request has no body");
    }
    let answer = Client::ask(
        gateway.address,
        connect(echo.address).replacen("\r\n", "\r\nTransfer-Encoding: gzip\r\n", 1),
    );
    answer.await.assert_refused(400, "http_request_error", NOT_HTTP);
    let contradiction =
        connect(echo.address).replacen("\r\n", "\r\nContent-Length: 0\r\nContent-Length: 9\r\n", 1);
    Client::ask(gateway.address, contradiction).await.assert_refused(400, "http_request_error", NOT_HTTP);
    assert_eq!(echo.came().await, 0);
    // A length of nothing is no body.
    let mut client = Client::connect(gateway.address).await;
    client.send(connect(echo.address).replacen("\r\n", "\r\nContent-Length: 0\r\n", 1) + "early").await;
    client.answer().await.assert_opened();
    assert_eq!(client.take(5).await, b"early");
}

#[tokio::test]
async fn an_http_1_0_client_gets_its_tunnel() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let mut client = Client::connect(gateway.address).await;
    client.send(connect(echo.address).replace("HTTP/1.1", "HTTP/1.0")).await;
    client.answer().await.assert_opened();
    client.send("old but good").await;
    assert_eq!(client.take(12).await, b"old but good");
}

#[tokio::test]
async fn lines_may_end_with_a_bare_lf() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let request = connect(echo.address).replace("\r\n", "\n");
    Client::ask(gateway.address, request).await.assert_opened();
}

#[tokio::test]
async fn a_megabyte_of_header_is_431_and_the_client_that_still_sends_can_read_it() {
    let gateway = Running::start().await;
    let one_long = format!("{}X: {}\r\n\r\n", connect("a.example:443").trim_end(), "x".repeat(1 << 20));
    let many = (0..40_000).map(|n| format!("X-{n}: {:20}\r\n", "x")).collect::<String>();
    let many = format!("{}\r\n{many}\r\n", connect("a.example:443").trim_end());
    let target = format!("CONNECT {}:443 HTTP/1.1\r\n\r\n", "a".repeat(1 << 20));
    for request in [one_long, many, target] {
        let mut client = Client::connect(gateway.address).await;
        client.send(&request).await; // returns when all of it is sent: a reset would fail here
        let answer = client.answer().await;
        answer.assert_refused(431, "http_request_error", "too large");
        client.stream.shutdown().await.unwrap();
        client.closed_silently().await;
    }
}

#[tokio::test]
async fn more_fields_than_are_read_are_431() {
    let gateway = Running::start().await;
    let with = |number| {
        let fields: String = (0..number).map(|n| format!("X-{n}: 1\r\n")).collect();
        connect_with("a.example:443", &[]).replacen("\r\n", &format!("\r\n{fields}"), 1)
    };
    assert_eq!(Client::ask(gateway.address, with(250)).await.status, 407);
    Client::ask(gateway.address, with(257)).await.assert_refused(431, "http_request_error", "too large");
}

#[tokio::test]
async fn a_byte_at_a_time_is_408() {
    let gateway =
        Running::start_with(|config| config.limits.header_timeout = ConfigDuration::millis(400)).await;
    let (reader, mut writer) = Client::connect(gateway.address).await.stream.into_split();
    let slow = tokio::spawn(async move {
        for byte in connect("a.example:443").bytes() {
            if writer.write_all(&[byte]).await.is_err() {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("it was not stopped");
    });
    let mut client = Client::over(tokio::io::join(reader, tokio::io::sink()));
    let answer = client.answer().await;
    answer.assert_refused(408, "http_request_error", "did not arrive in time");
    assert_eq!(answer.value("connection"), "close");
    slow.await.unwrap();
}

#[tokio::test]
async fn a_connection_that_sends_nothing_is_closed_without_an_answer() {
    let gateway =
        Running::start_with(|config| config.limits.header_timeout = ConfigDuration::millis(200)).await;
    let mut never = Client::connect(gateway.address).await;
    never.closed_silently().await;
    let mut no_longer = Client::connect(gateway.address).await;
    no_longer.send(NO_TOKEN).await;
    no_longer.answer().await.assert_refused(407, "http_request_denied", "no token");
    no_longer.closed_silently().await;
}

#[tokio::test]
async fn half_a_second_request_that_came_with_the_first_is_408_too() {
    let gateway =
        Running::start_with(|config| config.limits.header_timeout = ConfigDuration::millis(200)).await;
    let mut client = Client::connect(gateway.address).await;
    client.send(format!("{NO_TOKEN}CONNECT a.exam")).await;
    client.answer().await.assert_refused(407, "http_request_denied", "no token");
    client.answer().await.assert_refused(408, "http_request_error", "did not arrive in time");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order_and_a_broken_one_ends_them_once() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let mut client = Client::connect(gateway.address).await;
    client.send(format!("{NO_TOKEN}{NO_TOKEN}{}through", connect(echo.address))).await;
    client.answer().await.assert_refused(407, "http_request_denied", "no token");
    client.answer().await.assert_refused(407, "http_request_denied", "no token");
    client.answer().await.assert_opened();
    assert_eq!(client.take(7).await, b"through");

    let mut client = Client::connect(gateway.address).await;
    client.send(format!("{NO_TOKEN}{NO_TOKEN}\0\0\0\r\n\r\n{NO_TOKEN}")).await;
    client.answer().await.assert_refused(407, "http_request_denied", "no token");
    client.answer().await.assert_refused(407, "http_request_denied", "no token");
    client.answer().await.assert_refused(400, "http_request_error", NOT_HTTP);
    client.closed_silently().await;
}
