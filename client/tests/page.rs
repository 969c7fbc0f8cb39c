//! The operator's view: metrics, links and the live page, over real sockets.

use crate::support::gateway::{Gateway, Step};
use crate::support::issuer::Issuer;
use crate::support::*;
use postern_client::Urls;
use postern_client::catalogue::{AGENT_REQUESTS, AgentOutcome, WALLET_TOKENS};
use postern_daemon::admin::catalogue::{LINK_ATTEMPTS, LINK_LOST, LinkKind};
use postern_daemon::admin::live::Link;
use postern_telemetry::metrics;
use postern_testkit::alone::is_alone;
use postern_testkit::ports;
use postern_token::{TokenChallenge, TokenType};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The value of one series, `None` when there is no such series.
fn value(series: &str) -> Option<f64> {
    let text =
        metrics::install(&[postern_daemon::admin::catalogue::METRICS, postern_client::catalogue::METRICS])
            .unwrap()
            .render();
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// The level of the wallet.
fn level() -> Option<f64> {
    value(&format!("{WALLET_TOKENS}{{hop=\"last\"}}"))
}

/// Returns the numbers of the agent's answers so far, by outcome.
fn answers() -> BTreeMap<&'static str, u64> {
    let series = |outcome: &str| value(&format!("{AGENT_REQUESTS}{{outcome=\"{outcome}\"}}"));
    let count = |outcome: &AgentOutcome| (outcome.as_str(), series(outcome.as_str()).unwrap() as u64);
    AgentOutcome::ALL.iter().map(count).collect()
}

fn gateway_link(agent: &RunningAgent, gateway: &Gateway) -> Link {
    agent.process.live.link(LinkKind::Gateway, &gateway.address.to_string())
}

fn show(agent: &RunningAgent) {
    agent.process.live.start(agent.process.readiness.clone(), agent.process.shutdown.clone()).unwrap();
}

/// A section of the page, once `is_wanted` holds of it.
async fn section(agent: &RunningAgent, id: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let coming = async {
        loop {
            let page: Value = serde_json::from_slice(&agent.process.live.latest()).unwrap();
            let sections = page["sections"].as_array().cloned().unwrap_or_default();
            if let Some(found) =
                sections.into_iter().find(|section| section["id"] == id && is_wanted(section))
            {
                return found;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let came = tokio::time::timeout(HANG, coming).await;
    came.unwrap_or_else(|_| {
        panic!("it never came: {}", String::from_utf8_lossy(&agent.process.live.latest()))
    })
}

fn tile(section: &Value, label: &str) -> f64 {
    let tiles = section["tiles"].as_array().unwrap();
    tiles.iter().find(|tile| tile["label"] == label).unwrap()["value"].as_f64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_is_counted_once_by_outcome_and_every_outcome_is_there_from_the_start() {
    use AgentOutcome::{BadRequest, GatewayFailed, Opened, TargetFailed, TokensRefused};
    if !is_alone("page::each_request_is_counted_once_by_outcome_and_every_outcome_is_there_from_the_start") {
        return;
    }
    metrics::install(&[postern_daemon::admin::catalogue::METRICS, postern_client::catalogue::METRICS])
        .unwrap();
    let world = World::new().await;
    answers(); // panics when one is missing
    let target = echo().await;
    let open = format!("CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes();
    // A target that fails is answered again without a token, so each failure has its own.
    let other = |host: &str| format!("CONNECT {host}.example:443 HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes();
    let forbidden = b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n".to_vec();
    let socks = |port: u16| [&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1][..], &port.to_be_bytes()].concat();
    let cases = [
        (vec![], open.clone(), Opened),
        (vec![Step::Spent], open.clone(), Opened),
        (vec![], socks(target.port()), Opened),
        (vec![], b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), BadRequest),
        (vec![], b"CONNECT x HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), BadRequest),
        (vec![], b"\x04\x01\x01\xbb\xc0\x00\x02\x01\x00".to_vec(), BadRequest),
        (vec![], socks(0), BadRequest),
        (vec![Step::Raw(forbidden)], other("forbidden"), TargetFailed),
        (vec![Step::Spent, Step::Spent], other("spent"), TokensRefused),
        (vec![Step::Close, Step::Close], other("closed"), GatewayFailed),
    ];
    for (steps, bytes, outcome) in cases {
        let mut expected = answers();
        *expected.get_mut(outcome.as_str()).unwrap() += 1;
        steps.into_iter().for_each(|step| world.gateway.then(step));
        let mut stream = TcpStream::connect(world.agent.address).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        // A program that says before the answer that it sends nothing has hung up. SOCKS5 has two bytes before its answer.
        stream.read_exact(&mut [0; 3]).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut end = Vec::new();
        tokio::time::timeout(HANG, stream.read_to_end(&mut end)).await.unwrap().unwrap();
        assert_eq!(answers(), expected, "{}", String::from_utf8_lossy(&bytes));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wallets_level_follows_and_the_page_shows_what_a_tunnel_took() {
    if !is_alone("page::the_wallets_level_follows_and_the_page_shows_what_a_tunnel_took") {
        return;
    }
    metrics::install(&[postern_daemon::admin::catalogue::METRICS, postern_client::catalogue::METRICS])
        .unwrap();
    for fsync in [false, true] {
        let world = World::with(|config| config.wallet.fsync = fsync).await;
        world.stocked(8).await;
        show(&world.agent);
        let full = section(&world.agent, "agent", |agent| tile(agent, "Wallet") == 8.0).await;
        assert_eq!((tile(&full, "Low water"), tile(&full, "High water")), (4.0, 8.0));
        assert_eq!((full["title"].as_str(), tile(&full, "Tunnels open")), (Some("Agent"), 0.0));
        assert_eq!((level(), tile(&full, "Requests")), (Some(8.0), 0.0));

        let target = echo().await.to_string();
        let mut answer = world.connect(&target).await;
        assert_eq!((answer.status, level()), (200, Some(7.0)));
        let has_outcome = |agent: &Value| agent["tables"][0]["rows"] != Value::Array(vec![]);
        let open = section(&world.agent, "agent", |agent| {
            tile(agent, "Tunnels open") == 1.0 && has_outcome(agent) // read one after the other
        })
        .await;
        assert_eq!(tile(&open, "Wallet"), 7.0);
        assert!(tile(&open, "Requests") > 0.0);
        let outcomes = open["tables"][0]["rows"].as_array().unwrap();
        assert_eq!((outcomes.len(), &outcomes[0][0], &outcomes[0][2]), (1, &"opened".into(), &1.into()));
        for row in open["latency"]["rows"].as_array().unwrap() {
            assert_eq!(row["windows"][2]["count"], 1, "{row}");
        }
        let longest = |part: usize| open["latency"]["rows"][part]["windows"][2]["p50"].as_f64().unwrap();
        assert!((0..3).all(|part| longest(part) <= longest(3)), "{}", open["latency"]);
        assert_eq!(open["tables"][1]["rows"], Value::Array(vec![]), "minting did not fail");
        let text = String::from_utf8(world.agent.process.live.latest().to_vec()).unwrap();
        assert!(!text.contains(&target), "the target is on the page: {text}");

        answer.stream.shutdown().await.unwrap();
        answer.stream.read_to_end(&mut Vec::new()).await.unwrap();
        section(&world.agent, "agent", |agent| tile(agent, "Tunnels open") == 0.0).await;

        // The tokens of the old key are dropped, all at once and where no request waits for it.
        world.issuer.rotate();
        assert_eq!(world.connect(&target).await.status, 200);
        let is_level = |tokens: usize| level() == Some(tokens as f64);
        world.until("the level is that of the file", || is_level(world.unspent())).await;
        assert!(world.unspent() <= 8, "{}", world.unspent());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_gateway_does_not_answer_is_lost() {
    let world = World::new().await;
    world.stocked(8).await;
    let link = gateway_link(&world.agent, &world.gateway);
    assert_eq!(link.totals(), (1, 0), "the challenge was requested");
    let target = echo().await.to_string();
    let _tunnel = world.connect(&target).await;
    assert_eq!(link.totals(), (2, 0));
    world.gateway.then(Step::Spent); // an answer, if not the one that was hoped for
    assert_eq!(world.connect(&target).await.status, 200);
    assert_eq!(link.totals(), (4, 0));
    // A dial, an exchange that broke off, the dial of a probe, and that of the second try.
    world.gateway.then(Step::Close);
    assert_eq!(world.connect(&target).await.status, 200);
    assert_eq!(link.totals(), (8, 1));
    world.gateway.then(Step::Raw(b"SSH-2.0\r\n\r\n".to_vec()));
    assert_eq!(world.connect(&target).await.status, 502);
    // From now on the agent probes. Each dial has sent a head.
    let dials = || world.gateway.heads().len() as u64;
    world.until("each dial and each broken exchange is counted", || link.totals() == (dials() + 2, 2)).await;
}

/// Attempts and lost ones of a link, as the metrics have them.
fn counted(kind: LinkKind, address: &str) -> (f64, f64) {
    let labels = format!("{{link=\"{}\",address=\"{address}\"}}", kind.as_str());
    let count = |name: &str| value(&format!("{name}{labels}")).unwrap();
    (count(LINK_ATTEMPTS), count(LINK_LOST))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_down_or_speaks_no_tls_loses_every_attempt() {
    metrics::install(&[postern_daemon::admin::catalogue::METRICS, postern_client::catalogue::METRICS])
        .unwrap();
    let plain = serve(|mut stream| async move {
        let _ = stream.write_all(b"not TLS").await;
    })
    .await;
    let closed = ports::closed();
    for (url, address) in [(format!("http://{closed}"), closed), (format!("https://{plain}"), plain)] {
        let address = address.to_string();
        let issuer = Issuer::start().await;
        let gateway = Gateway::start(&issuer).await;
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(&gateway, &issuer, directory.path());
        config.gateway.url = Urls::One(url);
        let agent = RunningAgent::start(config).await;
        show(&agent);
        assert_eq!(connect(agent.address, "target.example:443").await.status, 502);
        let is_of_gateway = |row: &Value| row[0] == "gateway" && row[1] == address.as_str();
        let rows = |links: &Value| links["tables"][0]["rows"].as_array().unwrap().clone();
        let seen = |links: &Value| rows(links).iter().any(|row| is_of_gateway(row) && row[2] != 0);
        let links = section(&agent, "links", seen).await;
        let row = rows(&links).into_iter().find(is_of_gateway).unwrap();
        assert!(row[2].as_u64() >= Some(1) && row[2] == row[3] && row[4] == 1.0, "{row}");
        assert_eq!((&row[5], &row[6]), (&Value::Null, &Value::Null), "no answer, no time: {row}");
        let page: Value = serde_json::from_slice(&agent.process.live.latest()).unwrap();
        agent.stop().await; // it tries again and again
        let (attempts, lost) = counted(LinkKind::Gateway, &address);
        assert!(attempts >= 1.0 && attempts == lost, "{attempts} {lost}");
        assert_eq!(page["state"], "not_ready");
        assert!(page["reasons"].to_string().contains("gateway: the gateway http"), "{}", page["reasons"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_to_the_issuer_is_an_attempt_and_a_refusal_is_an_answer() {
    let world = World::new().await;
    let link = world.agent.process.live.link(LinkKind::Issuer, &world.issuer.address.to_string());
    world.stocked(8).await;
    let asked = || {
        let issuer = &world.issuer;
        (issuer.directories.load(Ordering::SeqCst) + issuer.requests.load(Ordering::SeqCst)) as u64
    };
    assert_eq!((link.totals(), asked()), ((2, 0), 2));
    world.issuer.refuse(429, Some(600), "quota spent", usize::MAX);
    let target = echo().await.to_string();
    for _ in 0..5 {
        assert_eq!(world.connect(&target).await.status, 200);
    }
    world.until("the issuer refuses", || link.totals().0 > asked()).await;
    assert_eq!(link.totals().1, 0);

    let mut config = world.config();
    let World { directory, issuer: _issuer, gateway: _gateway, agent } = world;
    agent.stop().await;
    let closed = ports::closed();
    config.issuer.url = Some(format!("http://{closed}").into());
    let agent = RunningAgent::start(config).await;
    let link = agent.process.live.link(LinkKind::Issuer, &closed.to_string());
    let waiting = async {
        while link.totals().1 == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(HANG, waiting).await.unwrap();
    let (attempts, lost) = link.totals();
    assert_eq!(attempts, lost);
    drop(directory);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuer_that_only_the_challenge_names_has_no_name_in_the_links() {
    metrics::install(&[postern_daemon::admin::catalogue::METRICS, postern_client::catalogue::METRICS])
        .unwrap();
    let named = format!("localhost:{}", ports::closed().port());
    let issuer = Issuer::start().await;
    let gateway = Gateway::start(&issuer).await;
    let challenge = TokenChallenge::new(TokenType::BlindRsa2048, &named, None, &["proxy.example"]);
    gateway.ask_for(challenge.unwrap());
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&gateway, &issuer, directory.path());
    config.issuer.url = None;
    let agent = RunningAgent::start(config).await;
    show(&agent);
    let link = agent.process.live.link(LinkKind::Issuer, "by challenge");
    section(&agent, "links", |_| link.totals().1 > 0).await;
    let links = section(&agent, "links", |_| true).await.to_string();
    agent.stop().await;
    let (attempts, lost) = counted(LinkKind::Issuer, "by challenge");
    assert!(lost >= 1.0 && attempts >= lost, "{attempts} {lost}");
    assert!(links.contains("by challenge") && !links.contains(&named), "{links}");
    let text =
        metrics::install(&[postern_daemon::admin::catalogue::METRICS, postern_client::catalogue::METRICS])
            .unwrap()
            .render();
    assert!(!text.contains(&named), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_failure_to_mint_is_shown_with_the_issuers_words_until_it_is_mended() {
    let issuer = Issuer::start().await;
    issuer.refuse(503, None, "signing pool full", usize::MAX);
    let gateway = Gateway::start(&issuer).await;
    let directory = tempfile::tempdir().unwrap();
    let agent = RunningAgent::start(config(&gateway, &issuer, directory.path())).await;
    show(&agent);
    let rows = |section: &Value| section["tables"][1]["rows"].as_array().unwrap().clone();
    let failing = section(&agent, "agent", |section| !rows(section).is_empty()).await;
    let shown = rows(&failing)[0][0].as_str().unwrap().to_owned();
    assert!(shown.starts_with("bad: the issuer http://"), "{shown}");
    assert!(shown.ends_with("answered 503 Service Unavailable: \"signing pool full\""), "{shown}");
    issuer.serve_again();
    let mended = section(&agent, "agent", |section| rows(section).is_empty()).await;
    assert_eq!(mended["tables"][1]["empty"], "The last attempt did not fail.");
    section(&agent, "agent", |section| tile(section, "Wallet") == 8.0).await;
}
