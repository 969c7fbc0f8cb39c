//! `/metrics` and the rules in deploy/prometheus, as a real Prometheus reads them.

use crate::init;
use crate::support::memcached::Memcached;
use crate::support::prometheus::{Programs, Prometheus};
use crate::support::up::{Ports, Up};
use crate::support::{admin, eventually, proxy, target, tokens};
use postern_testkit::ports;
use postern_token::encode_base64url;
use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Evaluations of the rules after which an alert counts as silent: rates need two scrapes.
const EVALUATIONS: f64 = 5.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Prometheus: POSTERN_PROMETHEUS names the folder with prometheus and promtool"]
async fn promtool_finds_no_fault_with_the_metrics_page() {
    let programs = Programs::find();
    let home = TempDir::new().unwrap();
    let system = Up::start(home.path());
    honest(system.ports).await;
    dishonest(system.ports).await;
    let page = admin::page(system.ports.admin, "/metrics").await;
    // Every metric is on the page, so the check covers a full page. Where a mark binds tokens, another digest may be that of an
    // older mark, so that its signature decides.
    for outcome in ["opened", "no_token", "other_scheme", "malformed_token", "unknown_key"].iter().chain(&[
        "bad_signature",
        "already_spent",
        "dial_refused",
        "bad_request",
    ]) {
        let series = format!("postern_requests_total{{outcome=\"{outcome}\"}} ");
        let count = page.lines().find_map(|line| line.strip_prefix(&series));
        assert!(count.is_some_and(|count| count != "0"), "{outcome}: {count:?}");
    }
    let output = programs.check_metrics(&page);
    assert!(output.status.success() && output.stderr.is_empty() && output.stdout.is_empty(), "{output:?}");
    // It reports a fault: a counter must not have such a name.
    let bad = "# HELP postern_bad A counter.\n# TYPE postern_bad counter\npostern_bad 1\n";
    assert!(!programs.check_metrics(bad).status.success());
    system.terminate().assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Prometheus: POSTERN_PROMETHEUS names the folder with prometheus and promtool"]
async fn the_rules_work_and_no_alert_is_raised_by_a_healthy_system() {
    let programs = Programs::find();
    let home = TempDir::new().unwrap();
    let system = Up::start(home.path());
    let prometheus = Prometheus::start(&programs, system.ports.admin).await;
    prometheus.value_is("up", 1.0).await;
    // During the scrapes, because a rate is the growth between two scrapes.
    let mut checks = 0;
    for scrapes in 1..=10 {
        checks += honest(system.ports).await;
        eventually("another scrape", || async {
            (prometheus.value("count_over_time(up[5m])").await? >= f64::from(scrapes)).then_some(())
        })
        .await;
    }
    let made = "sum(postern_check_duration_seconds_count{stage=\"total\"})";
    prometheus.value_is(made, f64::from(checks)).await;
    evaluated(&prometheus).await;
    // The series that a dashboard shows are there, and show no fault.
    let rate = prometheus.value("instance_stage:checks:rate5m{stage=\"total\"}").await;
    assert!(rate.is_some_and(|rate| rate > 0.0), "{rate:?}");
    for series in [
        "instance:failed_closed_per_presentations:ratio_rate5m",
        "instance:replays_per_presentations:ratio_rate5m",
    ] {
        assert_eq!(prometheus.value(series).await, Some(0.0), "{series}");
    }
    assert_eq!(prometheus.alerts().await, [""; 0], "nothing is wrong");

    // Alerts do fire: replays raise the alert for replays, and no other.
    checks += replays(system.ports, 30).await;
    eventually("replays raise an alert", || async {
        let alerts = prometheus.alerts().await;
        alerts.contains(&"PosternReplays".to_owned()).then_some(alerts)
    })
    .await;
    evaluated(&prometheus).await;
    assert_eq!(prometheus.alerts().await, ["PosternReplays"]);
    prometheus.value_is(made, f64::from(checks)).await;
    let unhealthy: Vec<_> =
        prometheus.rules().await.into_iter().filter(|(_, health, _)| health != "ok").collect();
    assert!(unhealthy.is_empty(), "{unhealthy:#?}");
    prometheus.terminate();
    system.terminate().assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Prometheus: POSTERN_PROMETHEUS names the folder with prometheus and promtool"]
async fn a_fleet_of_init_is_watched_by_the_printed_commands() {
    let home = TempDir::new().unwrap();
    let memcacheds: [Memcached; 3] = std::array::from_fn(|_| Memcached::start());
    let mut options = init::addresses(true);
    options.push("--fleet".into());
    options.extend(memcacheds.iter().flat_map(|memcached| ["--memcached".to_owned(), memcached.address()]));
    let folder = home.path().join("fleet");
    let said = init::init(&folder, &options.iter().map(String::as_str).collect::<Vec<_>>());
    said.assert_stopped();
    let _daemons = init::start(&said).await;

    let command = |program: &str| {
        let begins = format!("    {program} ");
        let line = said.stdout.lines().find_map(|line| line.strip_prefix(&begins)).unwrap();
        line.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    // Its port is the test's own.
    let typed = command("prometheus");
    let (address, arguments) = typed.split_last().unwrap();
    assert_eq!(arguments.last().unwrap(), "--web.listen-address");
    let arguments = arguments[..arguments.len() - 1].iter().map(OsStr::new);
    let prometheus = Prometheus::with(&Programs::find(), arguments, TempDir::new().unwrap()).await;
    prometheus.value_is("sum(up)", 4.0).await;
    prometheus.value_is("count(up)", 4.0).await;
    assert!(!prometheus.rules().await.is_empty());
    prometheus.terminate();

    // Grafana, which is not here, finds the dashboards, and that Prometheus.
    let typed = command("/usr/share/grafana/bin/grafana");
    let provisioning = typed.iter().find_map(|word| word.strip_prefix("cfg:default.paths.provisioning="));
    let provisioning = Path::new(provisioning.unwrap());
    let read = |name: &str| std::fs::read_to_string(provisioning.join(name)).unwrap();
    assert!(read("datasources/prometheus.yaml").contains(&format!("url: http://{address}\n")));
    let providers = read("dashboards/postern.yaml");
    let dashboards = providers.lines().find_map(|line| line.trim().strip_prefix("path: ")).unwrap();
    assert_eq!(init::contents(Path::new(dashboards.trim_matches('"'))).len(), 3);
}

/// Waits until every rule was evaluated a few more times, each without an error.
async fn evaluated(prometheus: &Prometheus) {
    let scrapes = "count_over_time(up[5m])";
    let before = prometheus.value(scrapes).await.unwrap();
    eventually("rules are evaluated", || async {
        let rules = prometheus.rules().await;
        assert!(rules.iter().all(|(_, _, error)| error.is_empty()), "{rules:#?}");
        let all = rules.iter().all(|(_, health, _)| health == "ok");
        (all && prometheus.value(scrapes).await? >= before + EVALUATIONS).then_some(())
    })
    .await;
}

/// A tunnel by every way in; how many checks that were.
async fn honest(ports: Ports) -> u32 {
    let (echo, web) = (target::echo().await, target::web(Ipv4Addr::LOCALHOST).await);
    let mut stream = proxy::dial(ports.client).await.unwrap();
    assert_eq!(proxy::connect(&mut stream, &echo.to_string(), None).await.unwrap().status, 200);
    proxy::echoes(&mut stream, b"CONNECT").await.unwrap();
    let mut stream = proxy::dial(ports.client).await.unwrap();
    assert_eq!(proxy::get(&mut stream, &web.to_string(), None).await.unwrap().body, target::PAGE);
    let mut stream = proxy::dial(ports.client).await.unwrap();
    assert_eq!(proxy::socks(&mut stream, &echo.ip().to_string(), echo.port()).await.unwrap(), 0);
    3
}

fn mint(ports: Ports) -> String {
    tokens::mint(&format!("http://{}", ports.issuer), &format!("http://{}", ports.gateway), 1).remove(0)
}

async fn answer(gateway: SocketAddr, target: SocketAddr, authorization: Option<&str>) -> u16 {
    let mut stream = proxy::dial(gateway).await.unwrap();
    proxy::connect(&mut stream, &target.to_string(), authorization).await.unwrap().status
}

/// One token again and again; how many checks that were.
async fn replays(ports: Ports, number: u32) -> u32 {
    let (value, echo) = (mint(ports), target::echo().await);
    assert_eq!(answer(ports.gateway, echo, Some(&value)).await, 200);
    for _ in 0..number {
        assert_eq!(answer(ports.gateway, echo, Some(&value)).await, 407);
    }
    number + 1
}

/// Whatever is refused.
async fn dishonest(ports: Ports) {
    let (echo, closed) = (target::echo().await, ports::closed());
    replays(ports, 1).await;
    let value = mint(ports);
    let token = tokens::token_of(&value);
    // The last byte of the signature; a byte of the challenge's digest, of the key's id; a token that is cut off.
    let bytes = token.as_bytes();
    let changed = |at: usize| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 1;
        bytes
    };
    for forged in [changed(bytes.len() - 1), changed(40), changed(70), bytes[..300].to_vec()] {
        let value = format!("PrivateToken token=\"{}\"", encode_base64url(&forged));
        assert_eq!(answer(ports.gateway, echo, Some(&value)).await, 407);
    }
    assert_eq!(answer(ports.gateway, echo, None).await, 407);
    assert_eq!(answer(ports.gateway, echo, Some("Basic QTpC")).await, 407);
    assert_eq!(answer(ports.gateway, closed, Some(&value)).await, 502);
    let mut stream = proxy::dial(ports.gateway).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").await.unwrap();
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 400");
    for path in ["/", "/token-request", "/metrics"] {
        admin::get(ports.issuer, path).await.unwrap();
    }
}
