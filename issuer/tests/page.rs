//! The operator's view: metrics and the live page, over real sockets.

use crate::support::{REQUEST_TYPE, Running, account, bearer, config, declare, post, request};
use postern_issuer::catalogue::{
    ACCOUNT_TOKENS, ISSUANCES, ISSUER_QUEUE, ISSUER_QUEUE_LIMIT, ISSUER_REQUESTS, ISSUER_SIGN_DURATION,
    IssuerOutcome, TOKENS_ISSUED, TokenTypeAsked,
};
use postern_issuer::config::Signing;
use postern_telemetry::metrics;
use postern_testkit::alone::is_alone;
use postern_token::{ChallengeDigest, DIRECTORY_PATH, TokenType};
use serde_json::Value;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;

/// The value of one series, `None` when there is no such series.
fn value(series: &str) -> Option<f64> {
    let text = metrics::install(&[postern_issuer::catalogue::METRICS]).unwrap().render();
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

fn requests(outcome: IssuerOutcome) -> f64 {
    value(&format!("{ISSUER_REQUESTS}{{outcome=\"{}\"}}", outcome.as_str())).unwrap()
}

fn issuances(asked: TokenTypeAsked, outcome: IssuerOutcome) -> Option<f64> {
    value(&format!("{ISSUANCES}{{type=\"{}\",outcome=\"{}\"}}", asked.as_str(), outcome.as_str()))
}

fn tokens() -> f64 {
    let of_type = |code: u16| value(&format!("{TOKENS_ISSUED}{{type=\"{code}\"}}")).unwrap();
    TokenType::ISSUED.map(|token_type| of_type(token_type.code())).iter().sum()
}

/// Every series of requests and of token requests.
fn counts() -> BTreeMap<String, u64> {
    let text = metrics::install(&[postern_issuer::catalogue::METRICS]).unwrap().render();
    let counters =
        text.lines().filter(|line| line.starts_with(ISSUER_REQUESTS) || line.starts_with(ISSUANCES));
    let split = counters.map(|line| line.rsplit_once(' ').unwrap());
    split.map(|(series, value)| (series.to_owned(), value.parse().unwrap())).collect()
}

#[tokio::test]
async fn every_series_is_there_before_the_first_request() {
    if !is_alone("page::every_series_is_there_before_the_first_request") {
        return;
    }
    metrics::install(&[postern_issuer::catalogue::METRICS]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.signing = Signing { threads: NonZeroUsize::new(2), queue: 5 };
    let _issuer = Running::start(config).await;
    for outcome in IssuerOutcome::ALL {
        requests(*outcome);
        for asked in TokenTypeAsked::ALL {
            let never_of_tokens = matches!(
                outcome,
                IssuerOutcome::Directory
                    | IssuerOutcome::Description
                    | IssuerOutcome::NotModified
                    | IssuerOutcome::SourceLimit
                    | IssuerOutcome::SourceHandshakes
                    | IssuerOutcome::Displaced
            );
            assert_eq!(issuances(*asked, *outcome).is_none(), never_of_tokens, "{asked:?} {outcome:?}");
        }
    }
    tokens();
    assert!(value(&format!("{ISSUER_SIGN_DURATION}_count")).is_some());
    assert_eq!((value(ISSUER_QUEUE), value(ISSUER_QUEUE_LIMIT)), (Some(0.0), Some(7.0)));
}

#[tokio::test]
async fn each_request_is_counted_once_by_outcome_and_a_token_request_by_type_too() {
    use IssuerOutcome::{
        BadMediaType, BadRequest, BadTokenRequest, Description, Directory, Issued, NotModified, QuotaSpent,
        Unauthorized,
    };
    use TokenTypeAsked::{BlindRsa2048, Other, Unread};
    if !is_alone("page::each_request_is_counted_once_by_outcome_and_a_token_request_by_type_too") {
        return;
    }
    metrics::install(&[postern_issuer::catalogue::METRICS]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    declare(&config, &[account("one", "k1", "1/36500d")]);
    let issuer = Running::start(config).await;
    let (k1, good) = (bearer("k1"), issuer.good().await);
    let other_type = [&[0xda, 0x7a][..], &good[2..]].concat();
    let typed = |media: &str, body: &[u8]| {
        let fields = format!("content-type: {media}\r\ncontent-length: {}\r\n{k1}", body.len());
        request("POST", "/token-request", &fields, body)
    };
    let two_hosts =
        format!("POST /token-request HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: close\r\n{k1}\r\n");
    let cases = [
        (request("GET", DIRECTORY_PATH, "", b""), None, Directory),
        (request("GET", DIRECTORY_PATH, "if-none-match: *\r\n", b""), None, NotModified),
        (request("POST", DIRECTORY_PATH, "", b""), None, BadRequest),
        (request("GET", "/openapi.json", "", b""), None, Description),
        (request("HEAD", "/openapi.json", "", b""), None, Description),
        (request("GET", "/openapi.json", "if-none-match: *\r\n", b""), None, NotModified),
        (request("POST", "/token-requests", "", b""), None, BadRequest),
        (request("GET", "/token-request", "", b""), Some(Unread), BadRequest),
        (two_hosts.into_bytes(), Some(Unread), BadRequest),
        (typed(REQUEST_TYPE, &[0; 1_025]), Some(Unread), BadRequest),
        (post(&k1, b""), Some(Unread), BadTokenRequest),
        (post(&k1, b"\0"), Some(Unread), BadTokenRequest),
        (post(&k1, b"\0\x02"), Some(BlindRsa2048), BadTokenRequest),
        (post(&k1, &other_type), Some(Other), BadTokenRequest),
        (post("", &other_type), Some(Other), Unauthorized),
        (post(&bearer("k2"), &good), Some(BlindRsa2048), Unauthorized),
        (typed("text/plain", &good), Some(BlindRsa2048), BadMediaType),
        (post(&k1, &good), Some(BlindRsa2048), Issued),
        (post(&k1, &good), Some(BlindRsa2048), QuotaSpent),
    ];
    let (tokens_before, signed) = (tokens(), format!("{ISSUER_SIGN_DURATION}_count"));
    let signed_before = value(&signed).unwrap();
    for (bytes, asked, outcome) in cases {
        let before = counts();
        issuer.exchange(&bytes).await;
        let after = counts().into_iter();
        let risen: Vec<_> = after.filter(|(series, now)| *now != before[series]).collect();
        let (outcome, asked) = (outcome.as_str(), asked.map(TokenTypeAsked::as_str));
        let issuance = asked.map(|asked| format!("{ISSUANCES}{{type=\"{asked}\",outcome=\"{outcome}\"}}"));
        let request = format!("{ISSUER_REQUESTS}{{outcome=\"{outcome}\"}}");
        let series = issuance.into_iter().chain([request]);
        let expected: Vec<_> = series.map(|series| (series.clone(), before[&series] + 1)).collect();
        assert_eq!(risen, expected);
    }
    assert_eq!((tokens() - tokens_before, value(&signed).unwrap() - signed_before), (1.0, 1.0));
}

/// Sends all requests at once, without waiting for an answer.
#[tokio::test]
async fn the_queue_is_empty_again_after_hang_ups() {
    const CLIENTS: usize = 200;
    if !is_alone("page::the_queue_is_empty_again_after_hang_ups") {
        return;
    }
    metrics::install(&[postern_issuer::catalogue::METRICS]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.signing = Signing { threads: NonZeroUsize::new(1), queue: CLIENTS };
    config.keys.types = vec![1]; // milliseconds each, so that the queue can be seen
    let issuer = Running::start(config).await;
    let key = issuer.key_of(TokenType::VoprfP384).await;
    let whole = post("", &key.request(ChallengeDigest::of(b"challenge")).unwrap().0.serialize());
    let (last, rest) = whole.split_last().unwrap();
    let mut streams = Vec::new();
    for _ in 0..CLIENTS {
        let mut stream = issuer.connect().await;
        stream.write_all(rest).await.unwrap();
        streams.push(stream);
    }
    let (is_over, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (begun, begins) = std::sync::mpsc::channel();
    let watching = std::thread::spawn({
        let (is_over, most) = (is_over.clone(), most.clone());
        move || {
            most.store(value(ISSUER_QUEUE).unwrap() as usize, Ordering::SeqCst);
            begun.send(()).unwrap();
            while !is_over.load(Ordering::SeqCst) {
                most.fetch_max(value(ISSUER_QUEUE).unwrap() as usize, Ordering::SeqCst);
            }
        }
    });
    begins.recv().unwrap();
    let before = tokens();
    for stream in &mut streams {
        stream.write_all(&[*last]).await.unwrap();
    }
    let started = Instant::now();
    // Requests whose client is gone before they are read are not queued.
    while most.load(Ordering::SeqCst) == 0 {
        assert!(started.elapsed() < Duration::from_secs(20), "nothing was queued");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(streams);
    // One more is answered after all that went before it.
    assert_eq!(issuer.exchange(&whole).await.status, 200);
    while value(ISSUER_QUEUE) != Some(0.0) {
        assert!(started.elapsed() < Duration::from_secs(20), "{:?} are left", value(ISSUER_QUEUE));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    is_over.store(true, Ordering::SeqCst);
    watching.join().unwrap();
    let signed = tokens() - before;
    let most = most.load(Ordering::SeqCst);
    assert!(most <= CLIENTS + 1, "{most}");
    assert!((1.0..=CLIENTS as f64 + 1.0).contains(&signed), "{signed} signed");
}

/// The issuer's section, once `is_wanted` holds of it.
async fn section(issuer: &Running, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let page: Value = serde_json::from_slice(&issuer.process.live.latest()).unwrap();
        let mut sections = page["sections"].as_array().into_iter().flatten();
        if let Some(section) = sections.find(|section| section["id"] == "issuer")
            && is_wanted(section)
        {
            return section.clone();
        }
        assert!(started.elapsed() < Duration::from_secs(20), "it never came: {page}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn tile<'a>(section: &'a Value, label: &str) -> &'a Value {
    let tiles = section["tiles"].as_array().unwrap();
    &tiles.iter().find(|tile| tile["label"] == label).unwrap()["value"]
}

/// The number of answers with this outcome, `None` when it has no row.
fn total(section: &Value, outcome: &str) -> Option<Value> {
    let mut rows = section["tables"][0]["rows"].as_array().unwrap().iter();
    rows.find(|row| row[0] == outcome).map(|row| row[2].clone())
}

#[tokio::test]
async fn the_page_shows_rates_latencies_outcomes_and_keys() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.signing = Signing { threads: NonZeroUsize::new(1), queue: 3 };
    declare(&config, &[account("the account", "the api key", "10/36500d")]);
    let issuer = Running::start(config).await;
    issuer.process.live.start(issuer.process.readiness.clone(), issuer.process.shutdown.clone()).unwrap();
    let idle = section(&issuer, |_| true).await;
    assert_eq!(idle["title"], "Issuer");
    assert_eq!((tile(&idle, "Queue"), tile(&idle, "Queue limit")), (&0.0.into(), &4.0.into()));

    let good = issuer.good().await;
    for _ in 0..3 {
        assert_eq!(issuer.post(&bearer("the api key"), &good).await.status, 200);
    }
    assert_eq!(issuer.post("", &good).await.status, 401);
    let busy = section(&issuer, |section| total(section, "unauthorized") == Some(1.into())).await;
    assert_eq!(total(&busy, "issued"), Some(3.into()));
    assert_eq!(total(&busy, "directory"), Some(1.into()));
    assert_eq!(total(&busy, "failed"), None, "what never came is no row");
    let rate = |label| tile(&busy, label).as_f64().unwrap();
    assert!(rate("Tokens") > 0.0 && rate("Requests") > rate("Tokens"), "{busy}");
    for (part, count) in
        [("receive the request", 4), ("wait for a thread", 3), ("sign a token", 3), ("answer a request", 3)]
    {
        let rows = busy["latency"]["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["label"] == part).unwrap();
        assert_eq!(row["windows"][2]["count"], count, "{part}: {row}");
    }
    let longest = |part: usize| busy["latency"]["rows"][part]["windows"][2]["p50"].as_f64().unwrap();
    assert!(longest(2) > 0.000_01 && longest(3) >= longest(2), "{}", busy["latency"]);

    let key = issuer.key().await.id().to_hex();
    let keys = &busy["tables"][1]["rows"];
    assert_eq!(keys.as_array().unwrap().len(), 1);
    assert_eq!(keys[0][0], format!("{}…", &key[..8]));
    assert_eq!((&keys[0][1], &keys[0][2], &keys[0][3]), (&"2".into(), &"newest".into(), &Value::Null));
    let (days, in_days) = (86_400.0, |cell: &Value| cell.as_f64().unwrap() / 86_400.0);
    assert!(
        (60.0..120.0).contains(&(in_days(&keys[0][4]) * days)),
        "made a minute ago, for slow clocks: {keys}"
    );
    assert!((29.9..=30.0).contains(&in_days(&keys[0][5])) && (36.9..=37.0).contains(&in_days(&keys[0][6])));

    let whole = issuer.process.live.latest();
    let whole = String::from_utf8_lossy(&whole);
    for private in ["the account", "the api key", "127.0.0.1"] {
        assert!(!whole.contains(private), "{private:?} is on the page: {whole}");
    }
}

/// Only where the operator asks for it, and only while.
#[tokio::test]
async fn accounts_are_named_where_the_operator_asks_for_it() {
    metrics::install(&[postern_issuer::catalogue::METRICS]).unwrap();
    let series = |name: &str| format!("{ACCOUNT_TOKENS}{{account=\"{name}\"}}");
    for (name_accounts, name) in [(true, "shown"), (false, "hidden")] {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path());
        config.usage.name_accounts = name_accounts;
        declare(&config, &[account(name, "k", "10/36500d"), account("idle", "other", "10/36500d")]);
        let issuer = Running::start(config).await;
        issuer.process.live.start(issuer.process.readiness.clone(), issuer.process.shutdown.clone()).unwrap();
        let good = issuer.good().await;
        for _ in 0..3 {
            assert_eq!(issuer.post(&bearer("k"), &good).await.status, 200);
        }
        assert_eq!(value(&series(name)), name_accounts.then_some(3.0));
        assert_eq!(value(&series("idle")), None);
        // A snapshot may lie between two of the requests.
        let shown = section(&issuer, |section| total(section, "issued") == Some(3.into())).await;
        let table = &shown["tables"][2];
        if name_accounts {
            assert_eq!(table["rows"], serde_json::json!([[name, 3, 10, "36500d"]]), "{shown}");
        } else {
            assert!(table.is_null() && !shown.to_string().contains(name), "{shown}");
        }
    }
}
