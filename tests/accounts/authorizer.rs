//! Users that are kept elsewhere: the issuer asks a service of the operator's whose an API key is.

use super::{add, issuer, json, mint, said};
use crate::support::accounts::token_request;
use crate::support::admin::{self, Metrics};
use crate::support::authorizer::Service;
use crate::support::daemon::{Daemon, issuer_config};
use crate::support::doctor::doctor;
use crate::support::process::run;
use crate::support::{PATIENCE, eventually};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The operator's users.
fn users(key: &str) -> (u16, String) {
    let answer = match key {
        "key-alice" | "key-alice-2" => r#"{"allow": true, "account": "alice", "quota": "3/36500d"}"#,
        "key-bert" => r#"{"allow": true, "account": "bert", "tier": "gold"}"#,
        "key-dave" => r#"{"allow": true, "account": "dave", "quota": "9/1d"}"#,
        "key-odd" => r#"{"allow": true, "account": "odd", "tier": "glod"}"#,
        "key-late" => r#"{"allow": false, "reason": "the bill is not paid"}"#,
        _ => r#"{"allow": false}"#,
    };
    (200, answer.to_owned())
}

fn answers(answer: &str) -> String {
    format!("postern_issuer_authorizer_answers_total{{answer=\"{answer}\"}}")
}

async fn readiness(running: &Daemon, what: &str, wanted: impl Fn(&str) -> bool) {
    eventually(what, || async {
        let (status, body) = admin::get(running.admin, "/readyz").await?;
        (status == 200 && wanted(&body)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_the_service_knows_are_accounts_with_exact_quotas() {
    let service = Service::start(users).await;
    let home = TempDir::new().unwrap();
    let tier = "[[tiers]]\nname = \"gold\"\nquota = \"1/36500d\"\n";
    let config = issuer_config(home.path(), &(service.section("cache = \"1h\"\n") + tier));
    doctor(&config).assert_can_start();
    let own = add(&config, "carol", "9/1d");
    add(&config, "dave", "9/1d");
    said(&config, &["account", "disable", "dave"]);
    let running = Daemon::ready("issuer", &config).await;
    mint(&running, "key-alice").assert_stopped();
    mint(&running, "key-alice-2").assert_stopped();
    mint(&running, "key-alice").assert_stopped();
    mint(&running, "key-alice").assert_failed(70, &["429", "quota is spent"]);
    mint(&running, "key-bert").assert_stopped();
    mint(&running, "key-bert").assert_failed(70, &["429"]);
    mint(&running, "key-late").assert_failed(70, &["401", "the bill is not paid"]);
    mint(&running, "key-wrong").assert_failed(70, &["401", "refuses this API key"]);
    mint(&running, "key-wrong").assert_failed(70, &["401"]);
    mint(&running, "key-odd").assert_failed(70, &["503", "cannot find out"]);
    mint(&running, "key-dave").assert_failed(70, &["403", "disabled"]);
    mint(&running, &own).assert_stopped();
    mint(&running, "postern_damaged").assert_failed(70, &["401", "damaged"]);
    let asked = ["key-alice", "key-alice-2", "key-bert", "key-late", "key-wrong", "key-odd", "key-dave"]
        .map(str::to_owned);
    assert_eq!(service.asked(), asked, "once each, and not about the issuer's own");
    running.reread("was read again");
    mint(&running, "key-late").assert_failed(70, &["401"]);
    assert_eq!(service.asked(), ["key-late"], "a reload forgets, though nothing has changed");
    let metrics = Metrics::of(running.admin).await;
    for (answer, times) in [("allowed", 4), ("denied", 3), ("absurd", 1), ("failed", 0), ("withheld", 0)] {
        assert_eq!(metrics.value(&answers(answer)), times, "{answer}");
    }
    let shown = &json(&config, &["account", "show", "alice"])[0];
    assert_eq!((&shown["kept_in"], &shown["usage"][0]["tokens"]), (&"elsewhere".into(), &3.into()));
    let log = running.process.terminate().stderr;
    assert!(log.contains("the authorizer's answers make no sense: one has a tier"), "{log}");
    for secret in asked.iter().map(String::as_str).chain(["alice", "bert", "carol", "dave", "glod", &own]) {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_fails_is_a_503_for_its_users_alone_until_it_answers_again() {
    let service = Service::start(users).await;
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), &service.section("timeout = \"2s\"\ncache = \"1h\"\n"));
    let own = add(&config, "carol", "99/1d");
    let running = Daemon::ready("issuer", &config).await;
    mint(&running, "key-alice").assert_stopped();
    for (delay, status, body, said) in [
        (Duration::ZERO, 502, "{}", "it answers 502"),
        (Duration::ZERO, 500, "{}", "it answers 500"),
        (Duration::ZERO, 302, "{}", "it answers 302"),
        (Duration::from_secs(5), 200, "{}", "gives no answer"),
        (Duration::ZERO, 200, "key-secret", "make no sense"),
    ] {
        service.set(delay, move |_| (status, body.to_owned()));
        // Another key each time: an answer without sense is kept for a while.
        for number in 0..4 {
            mint(&running, &format!("key-secret-{status}-{number}"))
                .assert_failed(70, &["503", "cannot find out"]);
        }
        readiness(&running, said, |body| body.contains(said)).await;
        mint(&running, &own).assert_stopped();
        service.set(Duration::ZERO, users);
        eventually("it is asked again after a pause", || async {
            mint(&running, "key-late").stderr.contains("401").then_some(())
        })
        .await;
        readiness(&running, "well again", |body| !body.contains("authorizer")).await;
        running.reread("was read again"); // forgets all answers
    }
    assert!(Metrics::of(running.admin).await.value(&answers("failed")) >= 6);
    let log = running.process.terminate().stderr;
    assert!(!log.contains("key-secret") && log.contains("the authorizer answers again"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_the_service_fails_at_keeps_no_other_from_it() {
    let fails_at_one = |key: &str| if key == "key-bad" { (500, "{}".to_owned()) } else { users(key) };
    let service = Service::start(fails_at_one).await;
    let home = TempDir::new().unwrap();
    let running = Daemon::ready("issuer", &issuer_config(home.path(), &service.section(""))).await;
    let mint_badly = || async { token_request(&running, "key-bad").await.send().await.unwrap().status() };
    for _ in 0..4 {
        assert_eq!(mint_badly().await, 503);
    }
    let alice = token_request(&running, "key-alice").await.send().await.unwrap();
    assert_eq!(alice.status(), 200);
    assert_eq!(
        Metrics::of(running.admin).await.value(&answers("absurd")),
        1,
        "its answer is kept for a while"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_wrong_keys_neither_floods_the_service_nor_delays_good_keys() {
    let service = Service::start(users).await;
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), &service.section("cache = \"1s\"\ntimeout = \"1s\"\n"));
    let running = Daemon::ready("issuer", &config).await;
    mint(&running, "key-bob").assert_failed(70, &["401"]);
    let known = token_request(&running, "key-alice").await;
    let status = |request: &reqwest::RequestBuilder| {
        let sending = request.try_clone().unwrap().send();
        async { sending.await.unwrap().status().as_u16() }
    };
    assert_eq!(status(&known).await, 200);

    // Many clients of one key share one question.
    service.set(Duration::from_millis(200), users);
    service.asked();
    let one = token_request(&running, "key-of-many").await;
    let clients: Vec<_> = (0..64).map(|_| tokio::spawn(status(&one))).collect();
    for client in clients {
        assert_eq!(client.await.unwrap(), 401);
    }
    assert_eq!(service.asked(), ["key-of-many"]);

    service.set(Duration::from_millis(20), users);
    let (began, next, limited) =
        (Instant::now(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let wrong = token_request(&running, "none").await.build().unwrap();
    let client = reqwest::Client::new();
    // The questions that may come of it, however long it takes.
    let most = move || 200 + 100 * (began.elapsed().as_secs() as usize + 1) + 10;
    // More than have their turns within `timeout`, and until there are many more than may be asked.
    let is_over = move |sent| began.elapsed() >= Duration::from_secs(4) && sent > most() + 200;
    let flood = (0..256).map(|_| {
        let (next, limited, client) = (next.clone(), limited.clone(), client.clone());
        let wrong = wrong.try_clone().unwrap();
        tokio::spawn(async move {
            while !is_over(next.load(SeqCst)) && began.elapsed() < PATIENCE {
                let mut request = wrong.try_clone().unwrap();
                let key = format!("Bearer wrong-{}", next.fetch_add(1, SeqCst));
                request.headers_mut().insert("authorization", key.parse().unwrap());
                match client.execute(request).await.unwrap() {
                    answer if answer.status() == 503 => {
                        assert!(answer.headers().contains_key("retry-after"));
                        limited.fetch_add(1, SeqCst);
                    }
                    answer => assert_eq!(answer.status(), 401),
                }
            }
        })
    });
    let flood: Vec<_> = flood.collect();
    // Its answer is a second old each time, and so asked for again.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(1_050)).await;
        let status = status(&known).await;
        assert!(matches!(status, 200 | 429), "it is answered {status} under the flood");
    }
    for client in flood {
        client.await.unwrap();
    }
    let (asked, sent) = (service.asked(), next.load(SeqCst));
    let most = most();
    assert!(sent > most && limited.load(SeqCst) > 0, "{sent} is no flood");
    assert!(asked.len() <= most && service.most_open() <= 32, "{} questions of {sent}", asked.len());
    assert!(asked.iter().filter(|key| *key == "key-alice").count() >= 3);
    running.process.terminate().assert_stopped();
}

/// A key that there was no turn to ask about counts against its source as one that the service refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_that_the_service_is_not_asked_about_ends_in_429() {
    const BURST: usize = 300;
    const CLIENTS: usize = 128;
    let service = Service::start(users).await;
    service.set(Duration::from_secs(1), users);
    let home = TempDir::new().unwrap();
    let limits = format!("[limits.source]\nexempt = []\nrefusals = 1\nrefusals_burst = {BURST}\n");
    let config = issuer_config(home.path(), &(service.section("timeout = \"3s\"\n") + &limits));
    let running = Daemon::ready("issuer", &config).await;
    let wrong = token_request(&running, "none").await.build().unwrap();
    let (began, client, mut flood) = (Instant::now(), reqwest::Client::new(), JoinSet::new());
    for number in 0..CLIENTS {
        let (wrong, client) = (wrong.try_clone().unwrap(), client.clone());
        flood.spawn(async move {
            let mut statuses = Vec::new();
            while statuses.last() != Some(&429) {
                let mut request = wrong.try_clone().unwrap();
                let key = format!("Bearer wrong-{number}-{}", statuses.len());
                request.headers_mut().insert("authorization", key.parse().unwrap());
                statuses.push(client.execute(request).await.unwrap().status().as_u16());
            }
            statuses
        });
    }
    let statuses: Vec<u16> = flood.join_all().await.concat();
    let of = |wanted| statuses.iter().filter(|status| **status == wanted).count();
    let refused = of(401) + of(503);
    // Those under way when the burst is used up are answered, too.
    let most = BURST + CLIENTS + began.elapsed().as_secs() as usize + 1;
    assert!((BURST..=most).contains(&refused) && of(503) > 0, "{refused}, {} of them 503", of(503));
    let withheld = Metrics::of(running.admin).await.value(&answers("withheld"));
    assert!(withheld >= of(503) as u64, "{withheld} of {}", of(503));
    running.process.terminate().assert_stopped();
}

/// Wrong keys without end from six addresses, until the value is dropped.
async fn flood(issuer: &Daemon) -> JoinSet<()> {
    let wrong = token_request(issuer, "none").await.build().unwrap();
    let (round, mut flood) = (issuer.process.id(), JoinSet::new());
    let clients = [1, 2, 3, 4, 5, 6].map(|host| client_at([127, 0, 1, host]));
    // In one line, new users would wait behind them for longer than a question may take.
    for (number, client) in clients.iter().cycle().take(360).enumerate() {
        let (wrong, client) = (wrong.try_clone().unwrap(), client.clone());
        flood.spawn(async move {
            for count in 0_u64.. {
                let mut request = wrong.try_clone().unwrap();
                let key = format!("Bearer wrong-{round}-{number}-{count}");
                request.headers_mut().insert("authorization", key.parse().unwrap());
                let _ = client.execute(request).await;
            }
        });
    }
    sleep(Duration::from_secs(4)).await; // beyond what may come at once
    flood
}

fn client_at(address: [u8; 4]) -> reqwest::Client {
    reqwest::Client::builder().local_address(std::net::IpAddr::from(address)).build().unwrap()
}

/// Returns the status for each of these keys, all presented at once from one address.
async fn statuses(issuer: &Daemon, keys: std::ops::Range<u32>) -> Vec<u16> {
    let (request, client) = (token_request(issuer, "none").await.build().unwrap(), client_at([127, 0, 2, 1]));
    let asking = keys.map(|number| {
        let (mut request, client) = (request.try_clone().unwrap(), client.clone());
        let key = format!("Bearer good-{number}");
        request.headers_mut().insert("authorization", key.parse().unwrap());
        tokio::spawn(async move { client.execute(request).await.unwrap().status().as_u16() })
    });
    let mut statuses = Vec::new();
    for asking in asking.collect::<Vec<_>>() {
        statuses.push(asking.await.unwrap());
    }
    statuses
}

/// Asserts that the users with these keys get tokens, so many at once.
async fn are_served(issuer: &Daemon, keys: std::ops::Range<u32>, at_once: usize) {
    for first in keys.step_by(at_once) {
        let statuses = statuses(issuer, first..first + at_once as u32).await;
        assert_eq!(statuses, vec![200; at_once], "from {first} on");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_of_many_addresses_shut_out_neither_new_users_nor_known_ones_after_a_restart() {
    let service = Service::start(|key| match key.strip_prefix("good-") {
        Some(number) => (200, format!(r#"{{"allow": true, "account": "user-{number}", "quota": "99/1d"}}"#)),
        None => (200, r#"{"allow": false}"#.to_owned()),
    })
    .await;
    let home = TempDir::new().unwrap();
    let limits = "[limits.source]\nexempt = []\nrefusals = 0\n";
    let config = issuer_config(home.path(), &(service.section("cache = \"1h\"\n") + limits));
    let running = Daemon::ready("issuer", &config).await;
    let strangers = flood(&running).await;
    // Far fewer than a seventh of the questions of two seconds, of which a busy machine has fewer than two hundred.
    are_served(&running, 0..30, 5).await;
    drop(strangers);
    are_served(&running, 30..90, 15).await;
    running.process.terminate().assert_stopped();
    let running = Daemon::ready("issuer", &config).await;
    let _strangers = flood(&running).await;
    are_served(&running, 0..90, 30).await; // they are known
    let database = std::fs::read(home.path().join("issuer/accounts.sqlite")).unwrap();
    assert!(!database.windows(7).any(|bytes| bytes == b"good-12"), "digests alone");
    running.process.terminate().assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_service_an_issuer_is_not_open_to_everyone() {
    let service = Service::start(users).await;
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), &service.section(""));
    let running = Daemon::ready("issuer", &config).await;
    mint(&running, "key-alice").assert_stopped();
    run(["token", "mint", "--issuer", &running.http()])
        .assert_failed(70, &["401", "Tokens are for accounts"]);
    issuer_config(home.path(), "");
    running.reread("was read again");
    mint(&running, "key-alice").assert_failed(70, &["401", "not one of this issuer's"]);
    run(["token", "mint", "--issuer", &running.http()]).assert_failed(70, &["401"]);
    running.process.terminate().assert_stopped();
    issuer(&config, &["account", "show", "nobody"]).assert_failed(2, &["there is no account"]);
}

#[test]
fn a_service_that_would_read_keys_on_the_way_is_refused_by_doctor_and_start() {
    let home = TempDir::new().unwrap();
    for (lines, code, sentence) in [
        ("url = \"http://users.example/\"", 64, "in the clear"),
        ("url = \"http://192.0.2.1:9000/\"", 64, "in the clear"),
        ("url = \"ftp://127.0.0.1/\"", 64, "neither https nor http"),
        ("url = \"https://me:secret@users.example/\"", 64, "user name or password"),
        ("url = \"https://users.example/\"\ntimeout = \"5m\"", 64, "from 10 ms to 30 s"),
        ("url = \"https://users.example/\"\ncache = \"0s\"", 64, "from one second to one hour"),
        ("url = \"https://users.example/\"\nca = \"none.pem\"", 64, "none.pem"),
    ] {
        let config = issuer_config(home.path(), &format!("[authorizer]\n{lines}\n"));
        let ended = doctor(&config);
        ended.assert_would_not_start(code, &[sentence]);
        assert!(!ended.stdout.contains("secret") && !ended.stderr.contains("secret"));
        run(["issuer", "--config", config.to_str().unwrap()]).assert_failed(code, &[sentence]);
    }
}
