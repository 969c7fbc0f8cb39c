//! Requests for UDP: what one must have and must not have, and answers without a stream (RFC 9298, section 3; RFC 9297).

use crate::support::client::Client;
use crate::support::http2::Http2;
use crate::support::udp::{any_port, ask, ask_for, capsule, echo, open, paid, path, upgrade};
use crate::support::{ISSUER, Running};

#[tokio::test]
async fn a_request_that_is_not_for_udp_is_refused() {
    let gateway = Running::start_with(any_port).await;
    let mut client = Http2::connect(gateway.address).await;
    let token = ISSUER.authorization();
    let fields = [("proxy-authorization", token.as_str())];
    for (protocol, path, status, details) in [
        ("websocket", "/", 501, "no protocol but connect-udp"),
        ("connect-ip", "/.well-known/masque/ip/*/*/", 501, "no protocol but connect-udp"),
        ("connect-udp", "/", 400, "names no target"),
        ("connect-udp", "/.well-known/masque/udp/example.com/443", 400, "names no target"),
        ("connect-udp", "/.well-known/masque/udp/example.com/0/", 400, "port"),
        ("connect-udp", "/.well-known/masque/udp/a..b/443/", 400, "host"),
        ("connect-udp", "/.well-known/masque/udp/127.1/443/", 400, "host"),
    ] {
        let answer = ask_for(&mut client, protocol, path, &fields).await.answer().await;
        answer.assert_refused(status, "http_request_error", details);
    }
    for (name, value) in
        [("content-length", "0"), ("content-type", "text/plain"), ("transfer-encoding", "chunked")]
    {
        let lines = format!("{name}: {value}\r\nProxy-Authorization: {token}\r\n");
        let answer = Client::ask(gateway.address, upgrade("192.0.2.1:443", &lines));
        answer.await.assert_refused(400, "http_request_error", "a request for UDP has no");
        if name != "transfer-encoding" {
            // RFC 9113, section 8.2.2: the library refuses that field itself.
            let fields = [("proxy-authorization", token.as_str()), (name, value)];
            let answer = ask(&mut client, &path("192.0.2.1:443"), &fields).await.answer().await;
            answer.assert_refused(400, "http_request_error", "a request for UDP has no");
        }
    }
    let unspent = ask(&mut client, &path(echo().await), &[("proxy-authorization", &token)]).await;
    unspent.opened().await.0.assert_opened();
}

/// Without one of these it is no upgrade, or no request.
#[tokio::test]
async fn an_incomplete_upgrade_is_refused_and_spends_no_token() {
    let (gateway, target) = (Running::start_with(any_port).await, echo().await);
    let line = paid();
    let whole = upgrade(target, &line);
    for (from, to) in [
        ("GET ", "POST "),
        ("GET ", "CONNECT "),
        ("HTTP/1.1", "HTTP/1.0"),
        ("Connection: Upgrade\r\n", ""),
        ("Connection: Upgrade", "Connection: close"),
        ("Upgrade: connect-udp\r\n", ""),
        ("Upgrade: connect-udp", "Upgrade: websocket"),
        ("Host: proxy.example\r\n", ""),
        ("Host: proxy.example\r\n", "Host: proxy.example\r\nHost: proxy.example\r\n"),
    ] {
        assert!(whole.contains(from));
        let answer = Client::ask(gateway.address, whole.replacen(from, to, 1)).await;
        println!("{from:?} {to:?}: {answer:?}");
        answer.assert_refused(400, "http_request_error", "");
    }
    let mut client = Client::connect(gateway.address).await;
    client.send(whole).await;
    assert_eq!(client.head().await.status, 101);
}

/// RFC 9297, section 3.4: a value that is no true Boolean is as none, and a request needs none.
#[tokio::test]
async fn the_capsule_field_of_a_request_decides_nothing() {
    let (gateway, target) = (Running::start_with(any_port).await, echo().await);
    for field in [
        "",
        "Capsule-Protocol: ?0\r\n",
        "Capsule-Protocol: yes, of course\r\n",
        "Capsule-Protocol: ?1\r\nCapsule-Protocol: ?0\r\n",
        "Capsule-Protocol: ?1;unknown=\"parameter\"\r\n",
    ] {
        let mut client = Client::connect(gateway.address).await;
        client.send(upgrade(target, &(paid() + field))).await;
        let answer = client.head().await;
        assert_eq!((answer.status, answer.value("capsule-protocol")), (101, "?1"), "{field:?}: {answer:?}");
        client.send(capsule(b"there")).await;
        assert_eq!(client.take(8).await, capsule(b"there"));
    }
}

/// RFC 9298, section 3.1: a name is resolved before the answer, which says that it has no address.
#[tokio::test]
async fn a_name_without_an_address_is_502() {
    let gateway = Running::start_with(any_port).await;
    let (target, token) = ("nothing-of-this-name.invalid:443", ISSUER.authorization());
    let mut client = Http2::connect(gateway.address).await;
    let answer = ask(&mut client, &path(target), &[("proxy-authorization", &token)]).await.answer().await;
    answer.assert_refused(502, "dns_error", "has no address");
    let answer = Client::ask(gateway.address, upgrade(target, &paid())).await;
    answer.assert_refused(502, "dns_error", "has no address");
}

#[tokio::test]
async fn a_template_of_the_operator_names_targets_beside_the_well_known_one() {
    let gateway = Running::start_with(|config| {
        any_port(config);
        config.egress.udp_template = Some("/udp?h={target_host}&p={target_port}".parse().unwrap());
    });
    let (gateway, target) = (gateway.await, echo().await);
    let mut client = Http2::connect(gateway.address).await;
    let own = format!("/udp?h={}&p={}", target.ip(), target.port());
    let token = ISSUER.authorization();
    let fields = [("proxy-authorization", token.as_str())];
    for (path, details) in [("/udp?h=a.example&q=443", "names no target"), ("/udp?h=a..b&p=443", "host")] {
        let answer = ask(&mut client, path, &fields).await.answer().await;
        answer.assert_refused(400, "http_request_error", details);
    }
    ask(&mut client, &own, &fields).await.opened().await.0.assert_opened();
    open(&mut client, target).await.echo(b"at the well-known one").await;
    // Elsewhere it is a path without a target.
    let other = Running::start_with(any_port).await;
    let mut client = Http2::connect(other.address).await;
    let answer =
        ask(&mut client, &own, &[("proxy-authorization", &ISSUER.authorization())]).await.answer().await;
    answer.assert_refused(400, "http_request_error", "names no target");
}
