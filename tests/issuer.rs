//! What an issuer reports when something is wrong with its machine.

use crate::support::daemon::{Daemon, issuer_config};
use crate::support::disk::Disk;
use crate::support::process::{Ended, run};
use crate::support::{admin, eventually};
use postern_token::ChallengeDigest;
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const KEY: &str = "an-account-of-its-own-77c1";

/// The issuer's folder under `home` as a small file system; nothing where this user may not mount one.
fn disk(home: &Path) -> Option<Disk> {
    let mounted = Disk::mounted(&home.join("issuer"));
    if mounted.is_none() {
        let note = "a test of a full disk is skipped: it takes the right to mount a tmpfs\n";
        std::io::stderr().write_all(note.as_bytes()).unwrap(); // past libtest's capture
    }
    mounted
}

async fn readyz_says(issuer: &Daemon, status: u16, part: &str) -> String {
    eventually(part, || async {
        let (found, body) = admin::get(issuer.admin, "/readyz").await?;
        (found == status && body.contains(part)).then_some(body)
    })
    .await
}

fn mint(issuer: &Daemon) -> Ended {
    run(["token", "mint", "--issuer", &issuer.http(), "--api-key", KEY])
}

fn account() -> String {
    let hash = hex::encode(ChallengeDigest::of(KEY.as_bytes()).0); // SHA-256, by the name at hand
    format!("[[accounts]]\nname = \"one\"\nkey_sha256 = \"{hash}\"\nquota = \"1000/365d\"\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_reported_at_readyz_and_once_in_the_log() {
    let home = TempDir::new().unwrap();
    let Some(disk) = disk(home.path()) else { return };
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), &account())).await;
    mint(&issuer).assert_stopped();
    disk.fill();
    mint(&issuer).assert_stopped();
    let said = readyz_says(&issuer, 200, "degraded: issuer: the quota counts cannot be written").await;
    assert!(said.contains("free some space"), "{said}");
    // Two more attempts to write, each with a count that has changed.
    for _ in 0..2 {
        mint(&issuer).assert_stopped();
        tokio::time::sleep(Duration::from_millis(2_100)).await;
    }
    let lines = issuer.process.written().1.matches("the quota counts cannot be written").count();
    assert_eq!(lines, 1, "{}", issuer.process.written().1);
    disk.clear();
    eventually("it is well again", || async {
        let (status, body) = admin::get(issuer.admin, "/readyz").await?;
        (status == 200 && body == "ready\n").then_some(())
    })
    .await;
    let usage = std::fs::read_to_string(home.path().join("issuer/usage.json")).unwrap();
    assert!(usage.contains("\"used\": 4"), "{usage}");
    issuer.process.terminate().assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_cannot_be_made_is_reported_before_it_is_needed() {
    let home = TempDir::new().unwrap();
    let Some(disk) = disk(home.path()) else { return };
    let times = "rotate_every = \"14s\"\npublish_ahead = \"10s\"\nredeem_for = \"8s\"\n";
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), times)).await;
    disk.fill();
    let said = readyz_says(&issuer, 200, "degraded: issuer: the next token key cannot be made: ").await;
    assert!(said.contains("the present key issues until 2") && said.contains("free some space"), "{said}");
    readyz_says(&issuer, 503, "issuer: no token key is in use, and every token request is refused").await;
    disk.clear();
    readyz_says(&issuer, 200, "ready\n").await;
    let log = issuer.process.written().1;
    assert_eq!(log.matches("ERROR").count(), 2, "one for each fault: {log}");
    assert!(log.contains("made token key") && log.contains("issues until 20"), "{log}");
    mint(&issuer).assert_stopped();
    issuer.process.terminate().assert_stopped();
}
