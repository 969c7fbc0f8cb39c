//! A gateway with a shared store: real memcached, every transport and every timing of the check.

use crate::support::client::{Client, connect, connect_with};
use crate::support::target::Echo;
use crate::support::{ISSUER, PATIENCE, Running, directory, home_with_keys};
use postern_config::ConfigDuration;
use postern_daemon::exit;
use postern_gateway::config::{CheckTiming, Config, MemcachedConfig, StoreKind, StoreTls, TransportKind};
use postern_testkit::memcached::Server;
use postern_testkit::ports;
use postern_token::Token;
use postern_token::header::format_authorization;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) fn shared(config: &mut Config, server: &Server, change: impl FnOnce(&mut MemcachedConfig)) {
    config.store.kind = StoreKind::Memcached;
    config.store.memcached.addresses = vec![server.address()];
    // A busy machine is not an outage.
    config.store.memcached.timeout = ConfigDuration::secs(5);
    change(&mut config.store.memcached);
}

#[tokio::test]
async fn a_token_opens_one_tunnel_whatever_the_transport_and_the_hint() {
    let (server, echo) = (Server::tcp(&[]), Echo::start().await);
    let mut opened = 0;
    for transport in [TransportKind::Pipelined, TransportKind::Pooled] {
        for hint in [CheckTiming::Before, CheckTiming::Beside, CheckTiming::Off] {
            let gateways = [(); 2].map(|()| {
                Running::start_with(|config| {
                    shared(config, &server, |store| {
                        store.transport = transport;
                        store.hint = hint;
                    });
                })
            });
            let [first, second] = gateways;
            let (first, second) = (first.await, second.await);
            let request = connect_with(echo.address, &[&ISSUER.authorization()]);
            Client::ask(first.address, &request).await.assert_opened();
            opened += 1;
            for gateway in [&second, &first, &second] {
                let answer = Client::ask(gateway.address, &request).await;
                answer.assert_refused(407, "http_request_denied", "token already spent");
            }
            let mut forged = ISSUER.token().as_bytes().to_vec();
            forged[200] ^= 1;
            let forged = format_authorization(&Token::parse(&forged).unwrap());
            let answer = Client::ask(first.address, connect_with(echo.address, &[&forged])).await;
            answer.assert_refused(407, "http_request_denied", "signature is not valid");
        }
    }
    assert_eq!(echo.came().await, opened);
}

/// More checks at once than the pool has connections, at a store that is slow for a moment.
#[tokio::test]
async fn a_check_may_wait_for_a_pooled_connection_as_long_as_for_the_answer() {
    let (server, echo) = (Server::tcp(&[]), Echo::start().await);
    let gateway = Running::start_with(|config| {
        config.listen.workers = 1;
        shared(config, &server, |store| {
            store.transport = TransportKind::Pooled;
            store.pool_size = 1;
        });
    })
    .await;
    let requests = [(); 4].map(|()| connect_with(echo.address, &[&ISSUER.authorization()]));
    server.signal("STOP");
    let answers = requests.map(|request| tokio::spawn(Client::ask(gateway.address, request)));
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.signal("CONT");
    for answer in answers {
        answer.await.unwrap().assert_opened();
    }
}

#[tokio::test]
async fn a_store_that_is_down_is_503_until_it_is_back() {
    let (port, echo) = (ports::free(), Echo::start().await);
    let gateway = Running::start_in(home_with_keys(), |config| {
        config.store.kind = StoreKind::Memcached;
        config.store.memcached.addresses = vec![format!("127.0.0.1:{port}")];
        config.listen.patience = ConfigDuration::millis(0);
    })
    .unwrap();
    // Its only reason: before the keys are read, there is another.
    gateway.readiness_is(|reasons| matches!(reasons, [only] if only.contains("connection refused"))).await;
    let answer = Client::ask(gateway.address, connect(echo.address)).await;
    answer.assert_refused(503, "proxy_internal_error", "the double-spend store");
    assert_eq!(answer.value("retry-after"), "1");
    let _server = Server::tcp_on(port);
    gateway.ready().await;
    Client::ask(gateway.address, connect(echo.address)).await.assert_opened();
}

/// A gateway that knows that its store is down answers before it reads a token, and so keeps it: from the moment on at
/// which the store is back, the same token opens a tunnel.
#[tokio::test]
async fn while_the_store_is_down_no_token_is_read_and_none_is_lost() {
    let echo = Echo::start().await;
    for transport in [TransportKind::Pipelined, TransportKind::Pooled] {
        let server = Server::tcp(&[]);
        let gateway = Running::start_with(|config| {
            shared(config, &server, |store| {
                (store.transport, store.timeout) = (transport, ConfigDuration::millis(200));
            });
        })
        .await;
        let probe = "CONNECT challenge.invalid:443 HTTP/1.1\r\nHost: challenge.invalid:443\r\n\r\n";
        let up = Client::ask(gateway.address, probe).await;
        assert!(up.value("proxy-authenticate").starts_with("PrivateToken challenge="), "{transport:?}");
        let requests: Vec<String> = (0..20).map(|_| connect(echo.address)).collect();
        server.signal("STOP");
        gateway.readiness_is(|reasons| reasons.iter().any(|reason| reason.starts_with("store: "))).await;
        for request in requests.iter().map(String::as_str).chain([probe, "CONNECT a:443 HTTP/1.0\r\n\r\n"]) {
            let answer = Client::ask(gateway.address, request).await;
            answer.assert_refused(503, "proxy_internal_error", "the double-spend store");
            assert_eq!(answer.value("retry-after"), "1");
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            assert!(body.ends_with("Try again later. No token was read, so none is lost.\n"), "{body}");
        }
        server.signal("CONT");
        gateway.ready().await;
        for request in &requests {
            Client::ask(gateway.address, request).await.assert_opened();
        }
    }
}

/// Behind a router the connection stands while every server is down. The first callers find out, all others keep
/// theirs.
#[tokio::test]
async fn a_store_that_takes_no_record_is_known_to_be_down_after_few() {
    let echo = Echo::start().await;
    let server = Server::tcp(&["-m", "4", "-M"]);
    let gateway = Running::start_with(|config| shared(config, &server, |_| {})).await;
    Client::ask(gateway.address, connect(echo.address)).await.assert_opened();
    server.fill();
    let mut read = 0;
    let down = async {
        loop {
            let answer = Client::ask(gateway.address, connect(echo.address)).await;
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            if body.contains("No token was read") {
                return;
            }
            read += u32::from(answer.status == 503);
            tokio::time::sleep(std::time::Duration::from_millis(40)).await;
        }
    };
    tokio::time::timeout(PATIENCE, down).await.unwrap();
    assert!((8..30).contains(&read), "{read} tokens were read before it was known");
    gateway
        .readiness_is(|reasons| reasons.iter().any(|reason| reason.contains("answered with an error")))
        .await;
    server.flush();
    gateway.ready().await;
    Client::ask(gateway.address, connect(echo.address)).await.assert_opened();
}

#[tokio::test]
async fn memcacheds_that_drop_records_when_they_are_full_are_not_used() {
    for replicas in [1, 3] {
        let servers: Vec<_> = (0..replicas).map(|_| Server::evicting(&[])).collect();
        let gateway = Running::start_in(home_with_keys(), |config| {
            shared(config, &servers[0], |store| {
                if replicas == 3 {
                    store.addresses.clear();
                    store.replicas = servers.iter().map(|server| vec![server.address()]).collect();
                }
            });
            config.listen.patience = ConfigDuration::secs(0);
        })
        .unwrap();
        gateway
            .readiness_is(|reasons| {
                let named = |reason: &String| {
                    servers.iter().all(|server| reason.contains(&server.address::<String>()))
                        && reason.contains("start it with -M")
                };
                // Without keys there is another answer.
                reasons.iter().any(named) && !reasons.iter().any(|reason| reason.starts_with("keys: "))
            })
            .await;
        let answer = Client::ask(gateway.address, connect("target.example:443")).await;
        answer.assert_refused(503, "proxy_internal_error", "offers no mark yet");
    }
}

#[tokio::test]
async fn a_store_that_was_emptied_is_back_with_the_next_mark() {
    let (mut server, echo) = (Server::tcp(&[]), Echo::start().await);
    let gateway = Running::start_with(|config| shared(config, &server, |_| {})).await;
    let spent = connect(echo.address);
    Client::ask(gateway.address, &spent).await.assert_opened();
    server.restart();
    let opened = async {
        while Client::ask(gateway.address, connect(echo.address)).await.status != 200 {
            assert_ne!(Client::ask(gateway.address, &spent).await.status, 200);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), opened).await.unwrap();
    assert_ne!(Client::ask(gateway.address, &spent).await.status, 200);
    gateway.ready().await;
}

#[tokio::test]
async fn a_configuration_that_makes_no_store_is_refused_with_a_sentence() {
    type Change = fn(&mut MemcachedConfig);
    let cases: [(Change, &str); 9] = [
        (
            |store| store.addresses.clear(),
            "store.memcached.addresses: kind = \"memcached\" needs at least one",
        ),
        (|store| store.addresses = vec!["10.0.0.1".into()], "\"10.0.0.1\" is not an address of a memcached"),
        (|store| store.pool_size = usize::MAX / 2, "store.memcached.pool_size is"),
        (
            |store| store.timeout = ConfigDuration::millis(0),
            "store.memcached.timeout is 0s, and must be between 1ms and 1m",
        ),
        (|store| store.timeout = ConfigDuration::days(1 << 30), "and must be between 1ms and 1m"),
        (
            |store| store.replicas = vec![vec!["127.0.0.1:1".into()]; 3],
            "store.memcached.replicas needs store.memcached.addresses to be empty",
        ),
        (
            |store| {
                store.addresses.clear();
                store.replicas = vec![vec!["127.0.0.1:1".into()]; 2];
            },
            "store.memcached.replicas needs three lists of addresses, none of them empty",
        ),
        (
            |store| {
                store.addresses.clear();
                store.replicas = vec![vec!["127.0.0.1:1".into()]; 3];
                store.transport = TransportKind::Pooled;
            },
            "store.memcached.replicas needs transport = \"pipelined\"",
        ),
        (
            |store| store.tls = Some(StoreTls { key: Some("key.pem".into()), ..StoreTls::default() }),
            "certificate and key go together",
        ),
    ];
    for (change, sentence) in cases {
        let started = Running::start_in(TempDir::new().unwrap(), |config| {
            config.store.kind = StoreKind::Memcached;
            config.store.memcached.addresses = vec!["127.0.0.1:1".into()];
            change(&mut config.store.memcached);
        });
        let Err(error) = started else { panic!("{sentence}") };
        assert!(error.to_string().contains(sentence), "{error}");
        assert_eq!(error.exit_code(), exit::CONFIG);
    }
}

/// Keys that come long after the store is up: until the store has a mark for them there is nothing to present.
#[tokio::test]
async fn a_gateway_that_binds_tokens_is_ready_when_there_is_a_mark_and_not_before() {
    let server = Server::tcp(&[]);
    let change = |config: &mut Config| shared(config, &server, |_| ());
    let gateway = Running::start_in(TempDir::new().unwrap(), change).unwrap();
    gateway.readiness_is(|reasons| reasons.iter().all(|reason| !reason.contains("connect"))).await;
    tokio::time::sleep(Duration::from_secs(1)).await; // several looks at the store
    std::fs::write(gateway.home().join("keys.json"), directory(vec![ISSUER.entry(None, None)])).unwrap();
    gateway.ready().await;
    let answer = Client::ask(gateway.address, connect_with("target.example:443", &[])).await;
    assert_eq!(answer.status, 407, "{}", String::from_utf8_lossy(&answer.body));
}
