//! Every panel of the dashboards, at a real Prometheus that scrapes a fleet under load: it has data, in the unit that it is
//! drawn in, and a name for each of its lines.

use super::{Facts, address, script};
use crate::monitoring::dashboards;
use crate::support::collector::Collector;
use crate::support::process::Postern;
use crate::support::prometheus::{Programs, Prometheus};
use crate::support::{proxy, target, tokens};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Panels without data in this fleet, by dashboard and title: an embedded store, pools of connections, and memcacheds
/// without a router before them, which alone can be asked.
const EMPTY: [(&str, &str); 3] = [
    ("store", "Records of the embedded store"),
    ("store", "Wait for a connection, p99"),
    ("store", "Memory in use, by memcached"),
];
/// Time under load. Rates are over [`RATE`].
const LOAD: Duration = Duration::from_secs(30);
const RATE: &str = "10s";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Prometheus: POSTERN_PROMETHEUS names the folder with prometheus and promtool"]
async fn every_panel_shows_what_a_fleet_does() {
    let (programs, home, collector) = (Programs::find(), TempDir::new().unwrap(), Collector::start().await);
    let mut command = script(home.path(), Some(env!("CARGO_BIN_EXE_postern")));
    command.args(["--without", "jaeger,prometheus,grafana"]);
    // The load below sends more tokens than one user's programs do in a minute.
    command.envs([
        ("POSTERN_TRACING_ENDPOINT", &collector.url()[..]),
        ("POSTERN_TRACING_SAMPLE_RATIO", "1.0"),
        ("POSTERN_WALLET_MOST_PER_MINUTE", "0"),
    ]);
    let fleet = Postern::start(command);
    fleet.wait_for("that it is ready", |stdout, _| stdout.contains("\nReady.").then_some(()));
    let facts = Facts::read(home.path());
    let admins: Vec<SocketAddr> = facts.all("ADMINS").into_iter().map(address).collect();
    let (issuer, agent) = (address(facts.one("ISSUER_ADMIN")), address(facts.one("AGENT_ADMIN")));
    let prometheus = Prometheus::scraping(
        &programs,
        &[("postern-gateway", &admins), ("postern-issuer", &[issuer]), ("postern-agent", &[agent])],
    )
    .await;
    let began = Instant::now();
    while began.elapsed() < LOAD {
        load(&facts).await;
    }

    let mut faults = Vec::new();
    let mut panels = 0;
    for (file, board) in dashboards() {
        for variable in board["templating"]["list"].as_array().unwrap() {
            // A data source has no metric.
            let Some(query) = variable["query"]["query"].as_str() else { continue };
            let metric =
                query.strip_prefix("label_values(").and_then(|query| query.split(',').next()).unwrap();
            let number = prometheus.value(&format!("count({metric})")).await;
            assert!(number.is_some_and(|number| number > 0.0), "{file}: no choice for {}", variable["name"]);
        }
        for panel in board["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row") {
            panels += 1;
            let title = panel["title"].as_str().unwrap();
            let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default();
            let mut has_data = false;
            for target in panel["targets"].as_array().unwrap() {
                let query = target["expr"].as_str().unwrap();
                let query = query.replace("$__rate_interval", RATE).replace("$__range", "30s");
                let query = query.replace("$instance", ".+").replace("$agent", ".+");
                let series = prometheus.range(&query, LOAD.as_secs()).await;
                for (labels, values) in &series {
                    let mut known = values.iter().copied().filter(|value| !value.is_nan()).peekable();
                    has_data |= known.peek().is_some();
                    if let Some(value) = known.find(|value| !fits(*value, unit)) {
                        faults.push(format!("{file}, {title:?}: {value} is no {unit}: {query}"));
                    }
                    let legend = target["legendFormat"].as_str().unwrap_or_default();
                    if let Some(label) = nameless(legend, labels) {
                        faults.push(format!("{file}, {title:?}: a series without {label}: {query}"));
                    }
                }
                if series.len() > 1 && target["legendFormat"].is_null() && panel["type"] != "table" {
                    faults
                        .push(format!("{file}, {title:?}: {} series without a name: {query}", series.len()));
                }
            }
            if has_data == EMPTY.contains(&(&file, title)) {
                faults.push(format!("{file}, {title:?}: has data: {has_data}"));
            }
        }
    }
    assert!(panels > 60, "{panels}: the dashboards are not read right");
    assert!(faults.is_empty(), "{faults:#?}");
    prometheus.terminate();
    fleet.terminate().assert_stopped();
}

/// Returns whether a value makes sense in a unit of Grafana's. The fleet is at most an hour old, and a key lives for years.
fn fits(value: f64, unit: &str) -> bool {
    match unit {
        "percentunit" => (0.0..=1.0 + 1e-9).contains(&value),
        "s" => (0.0..10.0 * 365.0 * 86_400.0).contains(&value),
        _ => value >= 0.0,
    }
}

/// A label of a legend that the series does not have.
fn nameless<'a>(legend: &'a str, labels: &HashMap<String, String>) -> Option<&'a str> {
    let wanted = legend.split("{{").skip(1).map(|part| part.split("}}").next().unwrap().trim());
    wanted.into_iter().find(|label| labels.get(*label).is_none_or(String::is_empty))
}

/// One of everything that clients do, within a second or so.
async fn load(facts: &Facts) {
    let (echo, web) = (target::echo().await, target::web(Ipv4Addr::LOCALHOST).await);
    for _ in 0..4 {
        let mut stream = proxy::dial(address(facts.one("AGENT"))).await.unwrap();
        let target = format!("localhost:{}", web.port());
        assert_eq!(proxy::get(&mut stream, &target, None).await.unwrap().status, 200);
    }
    let gateways = facts.all("GATEWAYS");
    for (gateway, token) in
        gateways.iter().zip(tokens::mint(facts.one("ISSUER"), gateways[0], gateways.len()))
    {
        let mut stream = proxy::dial(address(gateway)).await.unwrap();
        assert_eq!(proxy::connect(&mut stream, &echo.to_string(), Some(&token)).await.unwrap().status, 200);
        proxy::echoes(&mut stream, b"counted").await.unwrap();
        for _ in 0..2 {
            let mut stream = proxy::dial(address(gateway)).await.unwrap();
            assert!(proxy::connect(&mut stream, &echo.to_string(), Some(&token)).await.unwrap().says_spent());
        }
        let mut stream = proxy::dial(address(gateway)).await.unwrap();
        assert_eq!(proxy::connect(&mut stream, &echo.to_string(), None).await.unwrap().status, 407);
    }
}
