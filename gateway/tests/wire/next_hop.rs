//! Tunnels that go on through a proxy, to real ones: microsocks and tinyproxy.

use crate::support::client::{Client, connect, connect_with};
use crate::support::proxies::{CREDENTIALS, Proxy, all_via, egress};
use crate::support::target::{Echo, Held};
use crate::support::{ISSUER, Running, home_with_keys};
use postern_testkit::ports;
use std::collections::HashSet;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

#[tokio::test]
async fn names_and_addresses_go_through_a_next_hop_that_resolves_the_names() {
    let echo = Echo::start().await;
    let by_name = format!("localhost:{}", echo.address.port());
    for proxy in [Proxy::socks(), Proxy::http()] {
        println!("{}", proxy.url);
        let config = all_via(&proxy.url, CREDENTIALS);
        let gateway = Running::start_with(|changed| changed.egress = config).await;
        for target in [echo.address.to_string(), by_name.clone()] {
            let mut client = Client::connect(gateway.address).await;
            client.send(connect(target)).await;
            client.head().await.assert_opened();
            client.send("through").await;
            assert_eq!(client.take(7).await, b"through");
        }
    }
    assert_eq!(echo.came().await, 4);
}

#[tokio::test]
async fn without_its_next_hop_a_tunnel_is_refused_and_never_goes_directly() {
    let (echo, proxies) = (Echo::start().await, [Proxy::socks(), Proxy::http()]);
    let wrong = "user = \"u\"\npassword = \"wrong\"";
    let closed = [format!("socks5://{}", ports::closed()), format!("http://{}", ports::closed())];
    let unusable = proxies.iter().flat_map(|proxy| [(proxy.url.clone(), wrong), (proxy.url.clone(), "")]);
    for (url, credentials) in unusable.chain(closed.map(|url| (url, ""))) {
        println!("{url} {credentials}");
        let config = all_via(&url, credentials);
        let gateway = Running::start_with(|changed| changed.egress = config).await;
        let token = ISSUER.authorization();
        let answer = Client::ask(gateway.address, connect_with(echo.address, &[&token])).await;
        answer.assert_refused(502, "destination_unavailable", "cannot be used now");
        let body = String::from_utf8(answer.body).unwrap();
        assert!(!body.contains(&url) && !body.contains("wrong"), "{body}");
        // It was spent before the next hop was tried.
        let again = Client::ask(gateway.address, connect_with(echo.address, &[&token])).await;
        again.assert_refused(407, "http_request_denied", "already spent");
    }
    assert_eq!(echo.came().await, 0);
}

#[tokio::test]
async fn a_target_that_the_next_hop_does_not_reach_is_told_from_a_next_hop_that_fails() {
    for proxy in [Proxy::socks(), Proxy::http()] {
        println!("{}", proxy.url);
        let config = all_via(&proxy.url, CREDENTIALS);
        let gateway = Running::start_with(|changed| changed.egress = config).await;
        let answer = Client::ask(gateway.address, connect(ports::closed())).await;
        let (error, details) = if proxy.url.starts_with("http") {
            ("destination_ip_unroutable", "the target cannot be reached")
        } else {
            ("connection_refused", "the target refused the connection")
        };
        answer.assert_refused(502, error, details);
    }
}

#[tokio::test]
async fn a_next_hop_that_hangs_is_waited_for_no_longer_than_a_dial() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for scheme in ["socks5", "http"] {
        let config = all_via(&format!("{scheme}://{address}"), "");
        let gateway = Running::start_with(|changed| {
            changed.egress = config;
            changed.limits.dial_timeout = postern_config::ConfigDuration::millis(300);
        })
        .await;
        let answer = Client::ask(gateway.address, connect("b.example:443")).await;
        answer.assert_refused(504, "connection_timeout", "in time");
    }
}

/// The first rule that matches decides who dials.
#[tokio::test]
async fn a_rule_without_a_next_hop_dials_itself() {
    let mut target = Held::start().await;
    let (direct, via): (SocketAddr, u16) = (target.address, target.address.port());
    let proxy = Proxy::socks();
    let rules = format!(
        "source = [\"127.0.0.3\"]\n[[next_hops]]\nname = \"a\"\nurls = [\"{}\"]\n{CREDENTIALS}\n\
         [[rules]]\nallow = [\"{direct}\"]\n[[rules]]\nallow = [\"localhost:{via}\"]\nvia = \"a\"\n",
        proxy.url
    );
    let gateway = Running::start_with(|config| config.egress = egress(&rules)).await;
    for (asked, from) in [(direct.to_string(), "127.0.0.3"), (format!("localhost:{via}"), "127.0.0.1")] {
        Client::ask(gateway.address, connect(asked)).await.assert_opened();
        assert_eq!(target.next().await.peer_addr().unwrap().ip().to_string(), from);
    }
}

/// A server that speaks first, as SSH and SMTP ones do.
#[tokio::test]
async fn what_the_target_says_first_arrives() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(b"220 ready").await.unwrap();
            let _ = stream.read(&mut [0]).await;
        }
    });
    for proxy in [Proxy::socks(), Proxy::http()] {
        let config = all_via(&proxy.url, CREDENTIALS);
        let gateway = Running::start_with(|changed| changed.egress = config).await;
        let mut client = Client::connect(gateway.address).await;
        client.send(connect(target)).await;
        client.head().await.assert_opened();
        assert_eq!(client.take(9).await, b"220 ready");
    }
}

#[tokio::test]
async fn next_hops_that_cannot_be_used_are_refused_at_start() {
    let hop =
        |name: &str| format!("[[next_hops]]\nname = \"{name}\"\nurls = [\"socks5://127.0.0.1:9050\"]\n");
    let rule = "[[rules]]\nallow = [\"*\"]\nvia = \"b\"\n";
    for (text, wanted) in [
        (format!("{}{rule}", hop("a")), "rule 1 of egress.rules goes via \"b\""),
        (rule.to_owned(), "rule 1 of egress.rules goes via \"b\""),
        (hop("a") + &hop("a"), "two [[egress.next_hops]] have the name \"a\""),
        (hop("a") + "user = \"u\"\n", "has one of user and password"),
    ] {
        let refused =
            Running::start_in(home_with_keys(), |config| config.egress = egress(&text)).err().unwrap();
        assert!(refused.to_string().contains(wanted), "{refused}");
        assert_eq!(refused.exit_code(), 64);
    }
}

/// The local addresses take turns at the next hop as at targets.
#[tokio::test]
async fn tunnels_reach_a_next_hop_from_each_of_the_local_addresses() {
    let mut hop = Held::start().await;
    let config = egress(&format!(
        "ports = \"any\"\nvia = \"exit\"\nsource = [\"127.0.0.2\", \"127.0.0.3\"]\n\
         [[next_hops]]\nname = \"exit\"\nurls = [\"http://{}\"]\ncheck_every = \"1m\"\n",
        hop.address
    ));
    let gateway = Running::start_with(|changed| changed.egress = config).await;
    let (mut seen, mut open) = (HashSet::new(), Vec::new());
    while open.len() < 4 {
        let mut client = Client::connect(gateway.address).await;
        client.send(connect("a.example:443")).await;
        loop {
            let mut far = hop.next().await;
            let mut method = [0; 7];
            far.read_exact(&mut method).await.unwrap();
            if &method == b"CONNECT" {
                seen.insert(far.peer_addr().unwrap().ip());
                far.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                client.head().await.assert_opened();
                open.push((client, far));
                break;
            }
            far.write_all(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n").await.unwrap(); // a check
        }
    }
    assert_eq!(seen.len(), 2, "{seen:?}");
}
