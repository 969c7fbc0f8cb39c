#![allow(clippy::unwrap_used, reason = "a test may panic")]
//! Privacy is the product: after traffic of every kind, nothing of it is in a log line, a metric or a file. A binary of
//! its own, since it takes the process's logs and metrics for itself.

#[allow(dead_code, reason = "the other binary uses the rest")]
mod support;

use postern_gateway::config::{Config, Ports, PortsWord};
use postern_testkit::ports;
use postern_token::header::format_authorization;
use postern_token::{Token, encode_base64url};
use std::fmt::Write as _;
use std::path::Path;
use support::client::{Client, connect_with, find};
use support::log::Log;
use support::target::Echo;
use support::{ISSUER, Running, directory};
use tokio::net::UdpSocket;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

/// Returns a token's identifying bytes, in all likely spellings: its nonce and its signature, whole or the first bytes.
fn traces_of(token: &Token) -> Vec<Vec<u8>> {
    let bytes = token.as_bytes();
    let text = encode_base64url(bytes);
    let mut traces = Vec::new();
    for part in [&bytes[2..10], &bytes[98..106], &token.spent_key().as_bytes()[..8]] {
        traces.push(hex(part).into_bytes());
        traces.push(hex(part).to_uppercase().into_bytes());
        traces.push(part.to_vec());
        let list: Vec<String> = part.iter().map(u8::to_string).collect();
        traces.push(list.join(", ").into_bytes()); // a derived Debug
    }
    traces.push(text.as_bytes()[4..16].to_vec());
    traces.push(text.as_bytes()[140..152].to_vec());
    traces
}

/// Every file under `path`, as one.
fn files(path: &Path, all: &mut Vec<u8>) {
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        all.extend_from_slice(path.to_str().unwrap().as_bytes());
        if path.is_dir() { files(&path, all) } else { all.extend(std::fs::read(&path).unwrap()) }
    }
}

#[tokio::test]
async fn nothing_of_a_client_a_target_or_a_token_is_in_logs_metrics_or_files() {
    let log = Log::default();
    log.install("warn,postern=trace");
    let exporter = postern_telemetry::metrics::install(&[
        postern_daemon::admin::catalogue::METRICS,
        postern_gateway::catalogue::METRICS,
    ])
    .unwrap();
    let any_port = |config: &mut Config| config.egress.udp = Ports::Word(PortsWord::Any);
    let (gateway, echo, closed) = (Running::start_with(any_port).await, Echo::start().await, ports::closed());

    let mut traces: Vec<Vec<u8>> = Vec::new();
    let echo_address = echo.address.to_string();
    let targets = [
        echo_address.as_str(),
        &closed.to_string(),
        "secret-name.invalid:443",
        "localhost:1",
        "no-port.secret-name.invalid",
    ];
    for target in targets.iter().cycle().take(100) {
        let token = ISSUER.token();
        let value = format_authorization(&token);
        traces.extend(traces_of(&token));
        for request in [
            connect_with(target, &[&value]),
            connect_with(target, &[&value]), // a replay
            connect_with(target, &[&value[..400]]),
            connect_with(target, &[&value, &value]),
            format!("GET http://{target}/secret-path HTTP/1.1\r\nProxy-Authorization: {value}\r\n\r\n"),
            format!("CONNECT {target} secret-nonsense HTTP/1.1\r\nProxy-Authorization: {value}\r\n\r\n"),
        ] {
            let mut client = Client::connect(gateway.address).await;
            let own = client.stream.local_addr().unwrap();
            traces.push(own.to_string().into_bytes());
            client.send(request).await;
            if client.head().await.status == 200 {
                client.send("secret-content").await;
                client.take(14).await;
            }
        }
    }
    let (udp, silent) = (UdpSocket::bind("127.0.0.1:0").await.unwrap(), ports::closed());
    let udp_address = udp.local_addr().unwrap();
    for target in
        [udp_address.to_string(), silent.to_string(), "secret-name.invalid:443".into(), "a..secret:1".into()]
    {
        let token = ISSUER.token();
        let value = format_authorization(&token);
        traces.extend(traces_of(&token));
        let path = format!("/.well-known/masque/udp/{}/", target.replace(':', "/"));
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: secret-host\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\n"
        );
        let mut client = Client::connect(gateway.address).await;
        traces.push(client.stream.local_addr().unwrap().to_string().into_bytes());
        client.send(format!("{head}Authorization: {value}\r\n\r\n")).await;
        if client.head().await.status == 101 {
            client.send(b"\x00\x0f\x00secret-content\x00\x00").await; // the second ends it: it has no context
            client.is_ended().await;
        }
    }
    let (_, gateways) = udp.recv_from(&mut [0; 64]).await.unwrap();
    traces
        .extend([udp_address.to_string(), silent.to_string(), gateways.to_string()].map(String::into_bytes));
    // Logs of failures, too.
    std::fs::write(gateway.home().join("keys.json"), "{").unwrap();
    gateway.shutdown.reload();
    let warned = async {
        while find(&log.0.lock(), b"keys could not be refreshed").is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(support::PATIENCE, warned).await.unwrap();
    std::fs::write(gateway.home().join("keys.json"), directory(vec![ISSUER.entry(None, None)])).unwrap();
    gateway.emptied().await;

    traces.extend([echo.address.to_string(), closed.to_string()].map(String::into_bytes));
    traces.extend(["secret", "localhost:1", "PrivateToken"].map(|text| text.as_bytes().to_vec()));
    let mut stored = Vec::new();
    files(&gateway.stop().await.path().join("spent"), &mut stored);
    let (logged, metrics) = (log.0.lock().clone(), exporter.render());
    assert!(metrics.contains("postern_requests_total{outcome=\"opened\"}"), "{metrics}");
    assert!(stored.len() > 20 * 32, "the records were not found");
    for (place, content) in
        [("the log", &logged[..]), ("the metrics", metrics.as_bytes()), ("the store", &stored)]
    {
        for trace in &traces {
            let found = find(content, trace);
            // A record of the store is made of its spent key: that is what the store is for.
            let found = found.filter(|_| place != "the store" || trace.len() != 8);
            assert!(found.is_none(), "{place}: {:?}", String::from_utf8_lossy(trace));
        }
    }
}
