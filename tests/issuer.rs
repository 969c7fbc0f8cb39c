//! An issuer's reports of faults of its machine.

use crate::support::accounts::{mint, token_request};
use crate::support::daemon::{Daemon, declared, issuer_config, issuer_config_with};
use crate::support::disk::Disk;
use crate::support::process::{Ended, run};
use crate::support::{accounts, admin, eventually};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tempfile::TempDir;

const KEY: &str = "an-account-of-its-own-77c1";
const IDLE_KEY: &str = "another-account-that-rests-31e9";

/// The issuer's folder under `home` as a small file system; nothing where this user may not mount one.
fn disk(home: &Path) -> Option<Disk> {
    let mounted = Disk::mounted(&home.join("issuer"));
    if mounted.is_none() {
        let note = "a test of a full disk is skipped: it takes the right to mount a tmpfs\n";
        std::io::stderr().write_all(note.as_bytes()).unwrap(); // past libtest's capture
    }
    mounted
}

fn account() -> String {
    account_with("1000/365d")
}

fn account_with(quota: &str) -> String {
    declared("one", KEY, quota)
}

fn accounts_add(home: &Path, name: &str) -> Ended {
    let config = home.join("issuer.toml");
    run(["issuer", "account", "add", name, "--quota", "1/1d", "--config", config.to_str().unwrap()])
}

/// Asks for `count` tokens over eight connections at once. Returns how many were signed; the others were answered
/// `refused`.
async fn burst(issuer: &Daemon, count: usize, refused: u16) -> usize {
    let request = token_request(issuer, KEY).await;
    let left = Arc::new(AtomicUsize::new(count));
    let lanes = (0..8).map(|_| {
        let (request, left) = (request.try_clone().unwrap(), left.clone());
        tokio::spawn(async move {
            let mut signed = 0;
            while left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                match request.try_clone().unwrap().send().await.unwrap().status().as_u16() {
                    200 => signed += 1,
                    other => assert_eq!(other, refused),
                }
            }
            signed
        })
    });
    let mut signed = 0;
    for lane in lanes.collect::<Vec<_>>() {
        signed += lane.await.unwrap();
    }
    signed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_is_given_once_whenever_the_issuer_is_killed() {
    let home = TempDir::new().unwrap();
    let config = issuer_config_with(home.path(), &account_with("300/36500d"));
    let mut signed = Vec::new();
    for _ in 0..4 {
        let issuer = Daemon::ready("issuer", &config).await;
        signed.push(burst(&issuer, 350, 429).await);
        issuer.kill();
    }
    assert_eq!(signed, [300, 0, 0, 0]);
}

/// Six tokens are 2 % of the quota, which is what is reserved; eight more requests may have been waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_costs_an_account_a_reservation_at_most_and_a_stop_nothing() {
    let home = TempDir::new().unwrap();
    let config = issuer_config_with(home.path(), &account_with("300/36500d"));
    let first = Daemon::ready("issuer", &config).await;
    assert_eq!(burst(&first, 100, 429).await, 100);
    first.kill();
    let second = Daemon::ready("issuer", &config).await;
    assert_eq!(burst(&second, 100, 429).await, 100);
    second.process.terminate().assert_stopped();
    let third = Daemon::ready("issuer", &config).await;
    let rest = burst(&third, 150, 429).await;
    assert!((100 - 6 - 8..=100).contains(&rest), "{rest}");
    third.process.terminate().assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_ends_issuance_at_the_reservation_and_is_reported() {
    let home = TempDir::new().unwrap();
    let Some(disk) = disk(home.path()) else { return };
    let accounts = account() + &declared("idle", IDLE_KEY, "1000/365d");
    let issuer = Daemon::ready("issuer", &issuer_config_with(home.path(), &accounts)).await;
    mint(&issuer, KEY).assert_stopped();
    mint(&issuer, IDLE_KEY).assert_stopped();
    disk.fill();
    // Twenty tokens are reserved at most, a fiftieth of the quota, and the one that is minted.
    let beyond = burst(&issuer, 100, 503).await;
    assert!(beyond <= 20, "{beyond} tokens were signed that no file tells of");
    let answer = token_request(&issuer, KEY).await.send().await.unwrap();
    assert_eq!(answer.headers()["retry-after"], "5");
    let told = answer.text().await.unwrap();
    assert!(told.contains("cannot record on its disk") && told.contains("report it"), "{told}");
    let said = issuer.readyz(200, &["degraded: issuer: the quota counts cannot be written"]).await;
    assert!(said.contains("Free some space") && said.contains("beyond what was reserved"), "{said}");
    let refused = accounts_add(home.path(), "two");
    refused.assert_failed(70, &["cannot use the database", "Free some space"]);
    // Two more attempts to write, with one to give back what the account that rests has reserved.
    tokio::time::sleep(Duration::from_millis(4_200)).await;
    let lines = issuer.process.written().1.matches("the quota counts cannot be written").count();
    assert_eq!(lines, 1, "{}", issuer.process.written().1);
    disk.clear();
    eventually("it is well again", || async {
        let (status, body) = admin::get(issuer.admin, "/readyz").await?;
        (status == 200 && body == "ready\n").then_some(())
    })
    .await;
    mint(&issuer, KEY).assert_stopped();
    accounts_add(home.path(), "two").assert_stopped(); // nothing of it is there
    issuer.process.terminate().assert_stopped();
    let used: BTreeMap<String, i64> = accounts::used(&home.path().join("issuer"));
    assert_eq!((used["one"], used["idle"]), (i64::try_from(beyond).unwrap() + 2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_cannot_be_made_is_reported_before_it_is_needed() {
    let home = TempDir::new().unwrap();
    let Some(disk) = disk(home.path()) else { return };
    let times = "rotate_every = \"10s\"\npublish_ahead = \"6s\"\nredeem_for = \"4s\"\n";
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), times)).await;
    disk.fill();
    let said = issuer.readyz(200, &["degraded: issuer: the next token key cannot be made: "]).await;
    assert!(said.contains("the present key issues until 2") && said.contains("free some space"), "{said}");
    issuer
        .readyz(503, &["issuer: no token key is in use for a type that is issued, and requests for its tokens are refused"])
        .await;
    disk.clear();
    issuer.readyz(200, &["ready\n"]).await;
    let log = issuer.process.written().1;
    assert_eq!(log.matches("ERROR").count(), 2, "one for each fault: {log}");
    assert!(log.contains("made token key") && log.contains("issues until 20"), "{log}");
    mint(&issuer, KEY).assert_stopped();
    issuer.process.terminate().assert_stopped();
}
