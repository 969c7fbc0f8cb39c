#![allow(clippy::unwrap_used, reason = "a test may panic")]
//! The gateway's log: a line for a class of refusals, and the access log as far as the operator switched it on. A
//! separate binary, since it captures the process's logs.

#[allow(dead_code, reason = "the other binary uses the rest")]
mod support;

use postern_daemon::proxy_protocol::Balancers;
use postern_gateway::config::AccessLog;
use std::time::{Duration, Instant};
use support::client::{Client, connect_with};
use support::log::Log;
use support::target::Echo;
use support::{ISSUER, Running};

/// A tunnel that was used, a replay, a refusal for its form, and one that could not be parsed; where it came from.
async fn traffic(gateway: &Running, echo: &Echo) -> String {
    let request = connect_with(echo.address, &[&ISSUER.authorization()]);
    let mut client = Client::connect(gateway.address).await;
    let own = client.stream.local_addr().unwrap().to_string();
    client.send(&request).await;
    client.answer().await.assert_opened();
    client.send("12345678").await;
    client.take(8).await;
    drop(client);
    assert_eq!(Client::ask(gateway.address, &request).await.status, 407);
    let credentials = "CONNECT bob:hunter2@secret.example:443 HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(Client::ask(gateway.address, credentials).await.status, 400);
    assert_eq!(Client::ask(gateway.address, "\0\0\r\n\r\n").await.status, 400);
    gateway.emptied().await;
    own
}

/// Connections from a load balancer without its header, and one with it.
async fn behind_balancer(log: &Log, echo: &Echo) {
    let gateway = Running::start_with(|config| {
        config.listen.proxy_protocol = Balancers(vec!["127.0.0.0/8".parse().unwrap()]);
        config.log.access = AccessLog::Full;
    })
    .await;
    let began = Instant::now();
    for _ in 0..50 {
        let mut without = Client::connect(gateway.address).await;
        without.send(connect_with(echo.address, &[])).await;
        assert!(without.is_ended().await);
    }
    let most = began.elapsed().as_secs() + 1;
    let lines = log.taken("sends no header").len() as u64;
    assert!((1..=most).contains(&lines), "{lines} lines in less than {most} s");
    for (header, client) in [
        ("PROXY TCP4 192.0.2.77 10.0.0.1 4000 443\r\n", "client=192.0.2.77:4000 "),
        ("PROXY TCP6 2001:db8::7 fd00::1 4000 443\r\n", "client=[2001:db8::7]:4000 "),
        ("PROXY UNKNOWN\r\n", "client=127.0.0.1:"),
    ] {
        let request = connect_with(echo.address, &[&ISSUER.authorization()]);
        Client::ask(gateway.address, format!("{header}{request}")).await.assert_opened();
        gateway.emptied().await;
        let accesses = log.taken("postern::access");
        let [access] = &accesses[..] else { panic!("{accesses:#?}") };
        assert!(access.contains(client), "{access}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn refusals_are_logged_by_class_and_accesses_as_far_as_the_operator_wants() {
    let log = Log::default();
    log.install("warn,postern=info");
    let echo = Echo::start().await;

    let gateway = Running::start().await;
    for _ in 0..500 {
        assert_eq!(Client::ask(gateway.address, connect_with(echo.address, &[])).await.status, 407);
    }
    traffic(&gateway, &echo).await;
    let lines = log.taken("requests refused");
    let of =
        |outcome: &str| lines.iter().filter(|line| line.contains(&format!("outcome=\"{outcome}\""))).count();
    // The first is logged at once; on a slow machine, the interval of ten seconds may pass a few times.
    assert!((1..=5).contains(&of("no_token")), "{lines:#?}");
    assert_eq!((of("already_spent"), of("bad_request")), (1, 1), "{lines:#?}");
    assert!(lines.iter().all(|line| line.contains("number=")), "{lines:#?}");
    gateway.stop().await;

    let gateway = Running::start_with(|config| config.log.access = AccessLog::Off).await;
    traffic(&gateway, &echo).await;
    assert_eq!(log.taken("postern::access"), Vec::<String>::new());
    gateway.stop().await;

    let gateway = Running::start_with(|config| config.log.access = AccessLog::Anonymous).await;
    let own = traffic(&gateway, &echo).await;
    let lines = log.taken("postern::access");
    assert_eq!(lines.len(), 4, "{lines:#?}");
    let tunnel = lines.iter().find(|line| line.contains("outcome=\"opened\"")).unwrap();
    for field in ["check_us=", "dial_us=", "ended=\"finished\"", "lasted_ms=", "up=8", "down=8"] {
        assert!(tunnel.contains(field), "{field}: {tunnel}");
    }
    // A tunnel that the drain's deadline cuts off is logged, too.
    let mut client = Client::connect(gateway.address).await;
    client.send(connect_with(echo.address, &[&ISSUER.authorization()])).await;
    client.answer().await.assert_opened();
    client.send("1234").await;
    client.take(4).await;
    gateway.shutdown.drain();
    gateway.shutdown.wait(Duration::from_millis(1)).await;
    client.is_reset().await;
    gateway.stop().await;
    let cut = log.taken("postern::access");
    let [cut] = &cut[..] else { panic!("{cut:#?}") };
    for field in ["ended=\"cut\"", "lasted_ms=", "up=4", "down=4"] {
        assert!(cut.contains(field), "{field}: {cut}");
    }
    for private in
        [&own, &echo.address.to_string(), "secret.example", "hunter2", "bob", "client", "destination"]
    {
        assert!(!lines.iter().any(|line| line.contains(private)), "{private}: {lines:#?}");
    }

    let gateway = Running::start_with(|config| config.log.access = AccessLog::Full).await;
    let own = traffic(&gateway, &echo).await;
    let lines = log.taken("postern::access");
    let tunnel = lines.iter().find(|line| line.contains("outcome=\"opened\"")).unwrap();
    assert!(tunnel.contains(&format!("client={own}")), "{tunnel}");
    assert!(tunnel.contains(&format!("destination={}", echo.address)), "{tunnel}");
    assert!(lines.iter().any(|line| line.contains("destination=secret.example:443")), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("hunter2") || line.contains("bob")), "{lines:#?}");
    gateway.stop().await;

    behind_balancer(&log, &echo).await;
}
