//! Never more tokens than the quota, whenever the issuer is killed and however many ask at once.

use super::{add, add_with, json, said};
use crate::support::accounts::{token_request, used};
use crate::support::authorizer::Service;
use crate::support::daemon::{Daemon, issuer_config};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::sleep;

const CLIENTS: usize = 64;
const KILLS: usize = 10;
const QUOTA: i64 = 6_000;

/// Asks over several clients until each is refused or has lost its issuer; `signed` counts the tokens that came.
pub(super) async fn ask_all(
    issuer: &Daemon,
    key: &str,
    clients: usize,
    signed: &Arc<AtomicI64>,
) -> Vec<tokio::task::JoinHandle<()>> {
    let request = token_request(issuer, key).await;
    let client = || {
        let (request, signed) = (request.try_clone().unwrap(), signed.clone());
        tokio::spawn(async move {
            loop {
                match request.try_clone().unwrap().send().await.map(|answer| answer.status().as_u16()) {
                    // The body may be cut off, and the token is issued all the same.
                    Ok(200) => signed.fetch_add(1, SeqCst),
                    // All signers are busy, or the database is away.
                    Ok(503) => {
                        sleep(Duration::from_millis(20)).await;
                        continue;
                    }
                    Ok(429) | Err(_) => return,
                    Ok(other) => panic!("answered {other}"),
                };
            }
        })
    };
    (0..clients).map(|_| client()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_kills_under_64_clients_give_no_token_beyond_the_quota() {
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), "");
    let key = add(&config, "alice", &format!("{QUOTA}/36500d"));
    kill_and_count(&home, &config, &key).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_kills_under_64_clients_give_no_token_beyond_the_quota_of_a_tier() {
    let tiers = format!("[[tiers]]\nname = \"gold\"\nquota = \"{QUOTA}/36500d\"\n");
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), &tiers);
    let key = add_with(&config, "alice", &["--tier", "gold"]);
    kill_and_count(&home, &config, &key).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_kills_under_64_clients_give_no_token_beyond_the_quota_of_an_authorizer() {
    let alice = format!("{{\"allow\": true, \"account\": \"alice\", \"quota\": \"{QUOTA}/36500d\"}}");
    let service = Service::start(move |_| (200, alice.clone())).await;
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), &service.section(""));
    kill_and_count(&home, &config, "a key of the operator's").await;
    let questions = service.asked().len();
    assert!(questions <= 2 * (KILLS + 1), "64 clients share a question: {questions} of {} starts", KILLS + 1);
}

/// `key` is of an account alice with a quota of `QUOTA`.
async fn kill_and_count(home: &TempDir, config: &Path, key: &str) {
    let signed = Arc::new(AtomicI64::new(0));
    for kill in 0..KILLS {
        let issuer = Daemon::ready("issuer", config).await;
        let before = signed.load(SeqCst);
        let clients = ask_all(&issuer, key, CLIENTS, &signed).await;
        // At another moment of the reservation each time.
        let wanted = before + 40 + 17 * i64::try_from(kill).unwrap();
        while signed.load(SeqCst) < wanted && !clients.iter().all(|client| client.is_finished()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        issuer.kill();
        for client in clients {
            client.await.unwrap();
        }
        let counted = used(&home.path().join("issuer"))["alice"];
        assert!(signed.load(SeqCst) <= counted, "{signed:?} tokens came, and the database says {counted}");
        assert!(counted <= QUOTA);
    }
    let before_last = signed.load(SeqCst);
    let issuer = Daemon::ready("issuer", config).await;
    for client in ask_all(&issuer, key, CLIENTS, &signed).await {
        client.await.unwrap();
    }
    let all = signed.load(SeqCst);
    assert!(all <= QUOTA, "{all} tokens of {QUOTA}");
    // A kill costs a fiftieth of the quota, and those being requested.
    let lost = i64::try_from(KILLS * (QUOTA as usize / 50 + 2 * CLIENTS)).unwrap();
    assert!(all >= QUOTA - lost && all > before_last, "{all} tokens of {QUOTA}");
    assert_eq!(json(config, &["account", "show", "alice"])[0]["usage"][0]["tokens"], QUOTA);
    issuer.process.terminate().assert_stopped();
    assert!(said(config, &["usage"]).ends_with(&format!(",{QUOTA}\r\n")));
}
