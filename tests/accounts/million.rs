//! Cost of a million accounts. Measured, not judged:
//! `cargo test --workspace --test across -- --ignored --nocapture accounts::million`

use crate::support::accounts::token_request;
use crate::support::daemon::{Daemon, issuer_config};
use crate::support::postgres::{Postgres, issuer_in};
use crate::support::process::{command, cpu, resident};
use postern_issuer::control::{AccountRequest, Line, Terms, ask};
use reqwest::RequestBuilder;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The issuer's folder.
const ISSUER: &str = "one";
const ACCOUNTS: u32 = 1_000_000;
/// Accounts that request tokens.
const ACTIVE: usize = 500;
const TOKENS: usize = 5_000;

/// Accounts with a key each and a row of usage, as if all had requested tokens today.
fn fill(path: &Path) {
    let mut database = rusqlite::Connection::open(path).unwrap();
    let transaction = database.transaction().unwrap();
    let fill = format!(
        "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {ACCOUNTS})
         INSERT INTO accounts (name, quota_tokens, quota_period_seconds, tier)
         SELECT format('customer-%07d', n), 10000, 86400, 'standard' FROM number;
         INSERT INTO api_keys (account_id, key_hmac_sha256) SELECT id, randomblob(32) FROM accounts;
         INSERT INTO usage SELECT unixepoch() / 86400 * 86400, 86400, name, 100 FROM accounts;"
    );
    transaction.execute_batch(&fill).unwrap();
    transaction.commit().unwrap();
    database.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
}

fn api_keys(config: &Path) -> Vec<String> {
    let config = postern_config::open::<postern_issuer::Config>(config, Default::default()).unwrap().0;
    let add = |number: usize| {
        let terms = Terms { quota: "10000/1d".parse().ok(), burst: None, tier: None, expires_at: None };
        let request =
            AccountRequest::Add { name: format!("active-{number}"), terms, certificates: Vec::new() }.into();
        let mut key = None;
        ask(&config, &request, &mut |line| {
            if let Line::ApiKey(made) = line {
                key = Some(made);
            }
            Ok(())
        })
        .unwrap();
        key.unwrap()
    };
    (0..ACTIVE).map(add).collect()
}

/// Sends `count` requests over 16 connections, those given in turn; each is answered `status`.
async fn request_all(requests: &Arc<Vec<RequestBuilder>>, count: usize, status: u16) -> Duration {
    let (began, next) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let clients = (0..16).map(|_| {
        let (requests, next) = (requests.clone(), next.clone());
        tokio::spawn(async move {
            loop {
                let number = next.fetch_add(1, SeqCst);
                if number >= count {
                    return;
                }
                let answer = requests[number % requests.len()].try_clone().unwrap().send().await.unwrap();
                assert_eq!(answer.status().as_u16(), status);
                answer.bytes().await.unwrap();
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    began.elapsed()
}

async fn requests(issuer: &Daemon, keys: &[String]) -> Arc<Vec<RequestBuilder>> {
    let mut requests = Vec::new();
    for key in keys {
        requests.push(token_request(issuer, key).await);
    }
    Arc::new(requests)
}

async fn report(issuer: &Daemon, what: &str, requests: &Arc<Vec<RequestBuilder>>, count: usize, status: u16) {
    let before = cpu(issuer.process.id());
    let took = request_all(requests, count, status).await;
    let each = (cpu(issuer.process.id()) - before).as_secs_f64() * 1e6 / count as f64;
    println!("  {what}: {each:.0} µs of CPU, {:.0} a second", count as f64 / took.as_secs_f64());
}

async fn measure(name: &str, config: &Path) {
    let began = Instant::now();
    let issuer = Daemon::ready("issuer", config).await;
    println!("{name}: ready after {:?}, resident {} KiB", began.elapsed(), resident(issuer.process.id()));
    let began = Instant::now();
    let keys = api_keys(config);
    println!("  an account added: {:?}", began.elapsed() / u32::try_from(ACTIVE).unwrap());
    let good = requests(&issuer, &keys).await;
    println!("  resident then {} KiB", resident(issuer.process.id()));
    for (what, count) in [("first token of each account", ACTIVE), ("token", TOKENS)] {
        report(&issuer, what, &good, count, 200).await;
    }
    let guesses: Vec<_> = (0..ACTIVE).map(|number| format!("guess-{number}")).collect();
    report(&issuer, "guessed key", &requests(&issuer, &guesses).await, TOKENS, 401).await;
    // Made here once, so that the disk is asked about them, each time.
    let settings = postern_config::open::<postern_issuer::Config>(config, Default::default()).unwrap().0;
    for number in 0..ACTIVE {
        let name = format!("active-{number}");
        ask(&settings, &AccountRequest::Remove { name }.into(), &mut |_| Ok(())).unwrap();
    }
    report(&issuer, "key of a removed account", &good, TOKENS, 401).await;
    println!("  resident after it {} KiB", resident(issuer.process.id()));
    issuer.process.terminate().assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement of a minute"]
async fn a_million_accounts_are_measured_against_a_few() {
    for is_full in [false, true] {
        let home = TempDir::new().unwrap();
        let folder = home.path().join(ISSUER);
        std::fs::create_dir(&folder).unwrap();
        let config = issuer_config(&folder, "");
        super::add(&config, "first", "1/1d");
        let path = folder.join("issuer/accounts.sqlite");
        if is_full {
            fill(&path);
            println!("{} MB on the disk", std::fs::metadata(&path).unwrap().len() / 1_000_000);
        }
        measure(if is_full { "a million accounts" } else { "one account" }, &config).await;
        if is_full {
            let began = Instant::now();
            let usage = super::said(&config, &["usage"]);
            println!("  usage of {} accounts exported in {:?}", usage.lines().count() - 1, began.elapsed());
            let began = Instant::now();
            super::said(&config, &["backup", home.path().join("copy").to_str().unwrap()]);
            println!("  a backup: {:?}", began.elapsed());
            moved_to_postgres_and_back(home.path()).await;
        }
    }
}

async fn moved_to_postgres_and_back(home: &Path) {
    let server = Postgres::start(&[]);
    let config = issuer_in(&server, home, ISSUER, "");
    let migrate = |to: &str| {
        let began = Instant::now();
        let words = ["issuer", "migrate", "--to", to, "--config"].map(OsStr::new);
        let ended = command(words.into_iter().chain([config.as_os_str()])).output().unwrap(); // may take minutes
        println!("{ended:?}\n  to {to}: {:?}", began.elapsed());
        assert!(ended.status.success());
    };
    migrate("postgres");
    println!("{} bytes in PostgreSQL", server.sql("SELECT pg_database_size(current_database())").concat());
    measure("a million accounts in PostgreSQL", &config).await;
    migrate("sqlite");
}
