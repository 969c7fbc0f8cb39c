//! An operator's view of a gateway: the live page's data, and that no check goes unrecorded.

use crate::chains::until;
use crate::shared::shared;
use crate::support::client::{Client, connect_with};
use crate::support::target::Echo;
use crate::support::{ISSUER, PATIENCE, Running};
use postern_config::ConfigDuration;
use postern_gateway::catalogue;
use postern_telemetry::metrics;
use postern_testkit::alone::is_alone;
use postern_testkit::memcached::Server;
use serde_json::Value;
use std::time::Duration;

/// The page's data as soon as `wanted` holds for it.
async fn page_when(gateway: &Running, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let looking = async {
        loop {
            let page: Value = serde_json::from_slice(&gateway.live.latest()).unwrap();
            if wanted(&page) {
                return page;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, looking).await {
        Ok(page) => page,
        Err(_) => panic!("{what}: {}", String::from_utf8_lossy(&gateway.live.latest())),
    }
}

fn section<'a>(page: &'a Value, id: &str) -> &'a Value {
    let sections = page["sections"].as_array();
    sections.and_then(|all| all.iter().find(|section| section["id"] == id)).unwrap_or(&Value::Null)
}

fn tile(section: &Value, label: &str) -> Option<f64> {
    section["tiles"].as_array()?.iter().find(|tile| tile["label"] == label)?["value"].as_f64()
}

fn row<'a>(section: &'a Value, first: &str) -> &'a Value {
    let rows = section["tables"][0]["rows"].as_array();
    rows.and_then(|rows| rows.iter().find(|row| row[0] == first)).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn the_live_page_shows_checks_refusals_store_keys_tunnels_and_links() {
    let (server, echo) = (Server::tcp(&[]), Echo::start().await);
    let gateway = Running::start_with(|config| shared(config, &server, |_| {})).await;
    gateway.live.start(gateway.readiness.clone(), gateway.shutdown.clone()).unwrap();

    let mut open = Vec::new();
    for _ in 0..5 {
        let request = connect_with(echo.address, &[&ISSUER.authorization()]);
        let mut client = Client::connect(gateway.address).await;
        client.send(&request).await;
        client.answer().await.assert_opened();
        client.send("12345678").await;
        client.take(8).await;
        open.push(client);
        let replay = Client::ask(gateway.address, &request).await;
        replay.assert_refused(407, "http_request_denied", "token already spent");
    }
    // As agents fetch a challenge.
    let probe = connect_with("postern-challenge.invalid:443", &[]);
    assert_eq!(Client::ask(gateway.address, &probe).await.status, 407);
    let page = page_when(&gateway, "five admitted, five replays, a probe", |page| {
        let checks = section(page, "checks");
        tile(checks, "Asked for a challenge").is_some_and(|asked| asked >= 1.0)
            && row(checks, "already spent")[2] == 5
            && checks["latency"]["rows"][0]["windows"][0]["count"] == 10
            && tile(section(page, "tunnels"), "Down").is_some_and(|rate| rate > 0.0)
    })
    .await;

    let checks = section(&page, "checks");
    let labels: Vec<&str> = checks["latency"]["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["label"].as_str().unwrap())
        .collect();
    assert_eq!(
        labels,
        [
            "the whole check",
            "record as spent",
            "verify the signature",
            "look for the record",
            "wait for a connection"
        ]
    );
    assert!(tile(checks, "p99 of a check, 1 min").is_some_and(|seconds| seconds > 0.0), "{checks}");
    assert_eq!(checks["heat"]["column"].as_array().unwrap().len(), catalogue::CHECK_BUCKETS.len() + 1);
    for word in ["Admitted", "Refused"] {
        assert_eq!(tile(checks, word), Some(5.0), "a number, since the start: {checks}");
        assert!(tile(checks, &format!("{word} a second")).unwrap() > 0.0, "{checks}");
    }
    assert_eq!(tile(section(&page, "tunnels"), "Open"), Some(5.0));

    let address: String = server.address();
    let endpoint = row(section(&page, "store"), &address);
    assert_eq!((&endpoint[1], &endpoint[4], &endpoint[5]), (&"ok".into(), &0.into(), &0.0.into()), "{page}");
    assert!(endpoint[2].as_f64().is_some_and(|share| (0.0..0.1).contains(&share)), "its memory: {page}");
    assert_eq!(endpoint[3], 2, "a pipelined connection for each worker: {page}");
    let store = |label| tile(section(&page, "store"), label);
    assert_eq!(store("Marks planted"), Some(1.0), "one key, and no loss: {page}");
    assert_eq!(store("Buckets torn"), Some(0.0), "{page}");

    let key = &section(&page, "keys")["tables"][0]["rows"][0];
    assert_eq!(key[1], "newest", "{page}");
    assert!(key[3].as_u64().unwrap() > 86_000, "{page}");

    let link = &section(&page, "links")["tables"][0]["rows"][0];
    assert_eq!(
        (&link[0], &link[1], &link[3]),
        (&"store".into(), &address.clone().into(), &0.into()),
        "{page}"
    );
    // Five `add`s and ten `get`s, less the replays that the gateway knew by itself.
    assert!((10..=15).contains(&link[2].as_u64().unwrap()), "{page}");

    // The store dies: the page shows it, and the link counts losses.
    drop(server);
    let request = connect_with(echo.address, &[&ISSUER.authorization()]);
    Client::ask(gateway.address, &request).await.assert_refused(503, "proxy_internal_error", "");
    let page = page_when(&gateway, "the store is away", |page| {
        page["state"] == "not_ready" && section(page, "links")["tables"][0]["rows"][0][3] != 0
    })
    .await;
    let endpoint = row(section(&page, "store"), &address);
    assert!(endpoint[1].as_str().unwrap().starts_with("bad: "), "{page}");
}

#[tokio::test]
async fn a_check_whose_client_is_cut_off_is_recorded_as_abandoned() {
    if !is_alone("telemetry::a_check_whose_client_is_cut_off_is_recorded_as_abandoned") {
        return;
    }
    let exporter =
        metrics::install(&[postern_daemon::admin::catalogue::METRICS, postern_gateway::catalogue::METRICS])
            .unwrap();
    let (server, echo) = (Server::tcp(&[]), Echo::start().await);
    let gateway = Running::start_with(|config| {
        shared(config, &server, |store| store.timeout = ConfigDuration::minutes(1));
    })
    .await;
    // The epoch is known to the store now, so that the next check waits for its own commands.
    let request = connect_with(echo.address, &[&ISSUER.authorization()]);
    Client::ask(gateway.address, &request).await.assert_opened();
    server.signal("STOP");
    let mut client = Client::connect(gateway.address).await;
    client.send(connect_with(echo.address, &[&ISSUER.authorization()])).await;
    let abandoned = "postern_check_duration_seconds_count{stage=\"total\",result=\"abandoned\"} 1";
    // Before it has begun, a stop refuses it, which is counted as that.
    let waits = |line: &str| line.starts_with("postern_store_outstanding_commands{") && line.ends_with(" 1");
    until("its command waits for the store", || exporter.render().lines().any(waits)).await;
    assert!(!exporter.render().contains(abandoned));
    gateway.stop().await;
    let text = exporter.render();
    assert!(text.lines().any(|line| line == abandoned), "{text}");
    server.signal("CONT");
}
