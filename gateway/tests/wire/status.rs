//! The rows of the status table that are not about the token itself.

use crate::support::client::{Client, NO_TOKEN, connect, connect_with};
use crate::support::target::Echo;
use crate::support::{ISSUER, Running, directory};
use postern_config::ConfigDuration;
use postern_gateway::config::{Config, Ports, Rule};
use postern_testkit::ports;
use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[tokio::test]
async fn without_a_token_the_answer_is_the_challenge() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let answer = Client::ask(gateway.address, connect_with(echo.address, &[])).await;
    answer.assert_refused(407, "http_request_denied", "no token was presented");
    assert!(answer.value("proxy-authenticate").starts_with("PrivateToken challenge=\""));
    assert!(std::str::from_utf8(&answer.body).unwrap().contains("Proxy-Authorization: PrivateToken token="));
    assert_eq!(echo.came().await, 0);
}

/// A gateway that reaches little, such as the first of two hops.
#[tokio::test]
async fn rules_decide_before_the_token_and_the_challenge_is_to_be_had_whatever_they_are() {
    let (echo, other) = (Echo::start().await, Echo::start().await);
    let gateway = Running::start_with(|config| {
        let reached = Rule::allow(echo.address.to_string().parse().unwrap());
        config.egress.rules = vec![reached, Rule::deny("*".parse().unwrap())];
        config.egress.ports = Ports::List(vec![80]);
    })
    .await;
    let probe = Client::ask(gateway.address, connect_with("challenge.invalid:443", &[])).await;
    probe.assert_refused(407, "http_request_denied", "no token was presented");
    let authorization = ISSUER.authorization();
    for target in [&other.address.to_string(), "name.example:80"] {
        let answer = Client::ask(gateway.address, connect_with(target, &[&authorization])).await;
        answer.assert_refused(403, "http_request_denied", "to this target");
    }
    let answer = Client::ask(gateway.address, connect_with(echo.address, &[&authorization])).await;
    assert_eq!(answer.status, 200, "the token is as good as new");
}

#[tokio::test]
async fn what_the_policy_forbids_is_refused_before_the_token_is_spent() {
    let echo = Echo::start().await;
    let open = echo.address.port();
    let gateway = Running::start_with(|config| {
        config.egress.private = false;
        config.egress.ports = Ports::List(vec![80, 443]);
    })
    .await;
    let authorization = ISSUER.authorization();
    for (target, error, details) in [
        ("10.0.0.1:443", "destination_ip_prohibited", "private, local or otherwise special"),
        ("127.0.0.1:80", "destination_ip_prohibited", "private"),
        ("[::1]:443", "destination_ip_prohibited", "private"),
        ("[::ffff:127.0.0.1]:443", "destination_ip_prohibited", "private"),
        ("[64:ff9b::a9fe:a9fe]:80", "destination_ip_prohibited", "private"),
        ("169.254.169.254:80", "destination_ip_prohibited", "private"),
        ("100.100.100.200:80", "destination_ip_prohibited", "private"),
        ("0.0.0.0:80", "destination_ip_prohibited", "private"),
        ("example.com:22", "http_request_denied", "this port"),
        ("192.168.1.1:25", "http_request_denied", "this port"),
    ] {
        let answer = Client::ask(gateway.address, connect_with(target, &[&authorization])).await;
        println!("{target}");
        answer.assert_refused(403, error, details);
    }
    // The same store, another policy: the token is as good as new.
    let home = gateway.stop().await;
    let gateway = Running::start_in(home, |config| config.egress.ports = Ports::List(vec![open])).unwrap();
    gateway.ready().await;
    Client::ask(gateway.address, connect_with(echo.address, &[&authorization])).await.assert_opened();
}

#[tokio::test]
async fn a_name_that_leads_to_a_private_address_is_refused() {
    let gateway = Running::start_with(|config| config.egress.private = false).await;
    let answer = Client::ask(gateway.address, connect("localhost:443")).await;
    answer.assert_refused(403, "destination_ip_prohibited", "private");
}

#[tokio::test]
async fn networks_on_the_list_of_denied_ones_are_refused_even_where_private_ones_are_open() {
    let gateway =
        Running::start_with(|config| config.egress.deny = vec!["127.0.0.0/8".parse().unwrap()]).await;
    let answer = Client::ask(gateway.address, connect("127.0.0.1:80")).await;
    answer.assert_refused(403, "destination_ip_prohibited", "");
}

#[tokio::test]
async fn a_target_that_refuses_is_502() {
    let gateway = Running::start().await;
    let answer = Client::ask(gateway.address, connect(ports::closed())).await;
    answer.assert_refused(502, "connection_refused", "refused the connection");
}

#[tokio::test]
async fn a_name_without_an_address_is_502() {
    let gateway = Running::start().await;
    let started = Instant::now();
    let answer = Client::ask(gateway.address, connect("nothing-of-this-name.invalid:443")).await;
    println!("answered after {:?}", started.elapsed());
    answer.assert_refused(502, "dns_error", "has no address");
}

/// A listener whose queue is full: connecting to it neither succeeds nor fails.
struct Blackhole {
    address: SocketAddr,
    _listener: Socket,
    _waiting: Vec<Socket>,
}

impl Blackhole {
    fn new() -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        loop {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            if socket.connect_timeout(&address, Duration::from_millis(200)).is_err() {
                return Self {
                    address: address.as_socket().unwrap(),
                    _listener: listener,
                    _waiting: waiting,
                };
            }
            waiting.push(socket);
            assert!(waiting.len() < 64, "the queue never fills");
        }
    }
}

#[tokio::test]
async fn a_target_that_does_not_answer_is_504_after_the_dial_timeout() {
    let hole = Blackhole::new();
    let gateway =
        Running::start_with(|config| config.limits.dial_timeout = ConfigDuration::millis(300)).await;
    let started = Instant::now();
    let answer = Client::ask(gateway.address, connect(hole.address)).await;
    answer.assert_refused(504, "connection_timeout", "did not answer in time");
    assert!(started.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn a_store_that_fails_is_503_and_opens_no_tunnel() {
    let echo = Echo::start().await;
    let change = |config: &mut Config| config.listen.patience = ConfigDuration::secs(0);
    let gateway = Running::start_in(TempDir::new().unwrap(), change).unwrap();
    // The key's records need a file, in a directory that is gone.
    std::fs::remove_dir_all(gateway.home().join("spent")).unwrap();
    std::fs::write(gateway.home().join("keys.json"), directory(vec![ISSUER.entry(None, None)])).unwrap();
    gateway.readiness_is(|reasons| reasons.iter().all(|reason| reason.contains("entity not found"))).await;
    let answer = Client::ask(gateway.address, connect(echo.address)).await;
    answer.assert_refused(503, "proxy_internal_error", "the double-spend store");
    assert_eq!(echo.came().await, 0);
}

#[tokio::test]
async fn connections_beyond_the_limit_are_503_and_a_place_that_is_given_back_is_taken_again() {
    let echo = Echo::start().await;
    let gateway = Running::start_with(|config| config.limits.connections = 2).await;
    let (mut first, mut second) =
        (Client::connect(gateway.address).await, Client::connect(gateway.address).await);
    for client in [&mut first, &mut second] {
        client.send(connect(echo.address)).await;
        client.answer().await.assert_opened();
    }
    let authorization = ISSUER.authorization();
    let mut third = Client::connect(gateway.address).await;
    third.send(connect_with(echo.address, &[&authorization])).await;
    let answer = third.answer().await;
    answer.assert_refused(503, "http_request_denied", "too many connections");
    assert_eq!(answer.value("connection"), "close");
    third.closed_silently().await;
    drop((first, second, third));
    gateway.emptied().await;
    Client::ask(gateway.address, connect_with(echo.address, &[&authorization])).await.assert_opened();
}

#[tokio::test]
async fn after_a_407_to_plain_http_the_same_connection_takes_a_token() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let mut client = Client::connect(gateway.address).await;
    for _ in 0..3 {
        client.send(NO_TOKEN).await;
        client.answer().await.assert_refused(407, "http_request_denied", "no token");
    }
    client.send(connect(echo.address)).await;
    client.answer().await.assert_opened();
    client.send("through").await;
    assert_eq!(client.take(7).await, b"through");
}

/// RFC 9931: a client may forward another party's bytes ahead of the answer, and they are no requests.
#[tokio::test]
async fn a_refused_connect_ends_the_connection() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let closed = postern_testkit::ports::closed();
    for (request, status) in [(connect_with(echo.address, &[]), 407), (connect(closed), 502)] {
        let mut client = Client::connect(gateway.address).await;
        client.send(request + &connect(echo.address)).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.value("connection")), (status, "close"));
        client.closed_silently().await;
    }
    assert_eq!(echo.came().await, 0);
}
