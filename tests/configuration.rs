//! SIGHUP makes a daemon read its configuration again: what changes at once does, what does not is named, and a file that
//! cannot be used changes nothing.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use postern_token::ChallengeDigest;
use std::path::Path;
use support::daemon::{Daemon, client_config, gateway_config, issuer_config};
use support::process::{Ended, run};
use support::{admin, eventually};
use tempfile::TempDir;

const KEYS: [&str; 2] = ["the-first-key-4e1f7a", "the-second-key-9c02d1"];

/// SHA-256, by the name at hand.
fn hash(key: &str) -> String {
    hex::encode(ChallengeDigest::of(key.as_bytes()).0)
}

fn account(name: &str, key: &str, quota: &str) -> String {
    format!("[[accounts]]\nname = \"{name}\"\nkey_sha256 = \"{}\"\nquota = \"{quota}\"\n", hash(key))
}

fn mint(issuer: &Daemon, key: &str) -> Ended {
    run(["token", "mint", "--issuer", &issuer.http(), "--api-key", key])
}

/// Adds a section that no daemon knows.
fn spoil(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, format!("{text}[nonsense]\nkey = 1\n")).unwrap();
}

/// Sends SIGHUP and waits until the log has `phrase` once more than before.
fn reload(daemon: &Daemon, phrase: &str) -> String {
    let count = |text: &str| text.matches(phrase).count();
    let before = count(&daemon.process.written().1);
    daemon.process.signal("HUP");
    daemon.process.says(phrase, |_, stderr| (count(stderr) > before).then(|| stderr.to_owned()))
}

async fn readyz(daemon: &Daemon) -> String {
    admin::get(daemon.admin, "/readyz").await.unwrap().1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accounts_come_and_go_without_a_restart_and_keep_their_counts() {
    let home = TempDir::new().unwrap();
    let write = |more: &str| issuer_config(home.path(), more);
    let first = account("first", KEYS[0], "2/3650d");
    let issuer = Daemon::ready("issuer", &write(&first)).await;
    mint(&issuer, KEYS[0]).assert_stopped();
    mint(&issuer, KEYS[1]).assert_failed(70, &["not one of this issuer's"]);

    write(&format!("{first}{}", account("second", KEYS[1], "5/3650d")));
    let said = reload(&issuer, "is in force from now on");
    assert!(said.contains("accounts: added \"second\""), "{said}");
    assert!(!said.contains(&hash(KEYS[1])), "{said}");
    mint(&issuer, KEYS[1]).assert_stopped();
    mint(&issuer, KEYS[0]).assert_stopped();
    mint(&issuer, KEYS[0]).assert_failed(70, &["quota"]);

    // A second reading of the same file, and then another quota: three of three are two that were used, and one more.
    reload(&issuer, "nothing in it has changed");
    write(&account("first", KEYS[0], "3/3650d"));
    let said = reload(&issuer, "removed \"second\"");
    assert!(said.contains("changed \"first\" (quota)"), "{said}");
    mint(&issuer, KEYS[0]).assert_stopped();
    mint(&issuer, KEYS[0]).assert_failed(70, &["quota"]);
    mint(&issuer, KEYS[1]).assert_failed(70, &["not one of this issuer's"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_file_is_refused_whole_and_seen_at_readyz_until_it_is_mended() {
    let home = TempDir::new().unwrap();
    let good = account("first", KEYS[0], "100/1d");
    let config = issuer_config(home.path(), &good);
    let issuer = Daemon::ready("issuer", &config).await;

    let twice = account("second", KEYS[0], "100/1d");
    issuer_config(home.path(), &format!("{good}{twice}[drain]\ndeadline = \"3s\"\n"));
    let said = reload(&issuer, "cannot be used, and what was read before stays in force");
    assert!(said.contains("has the same key_sha256 as another account"), "{said}");
    let ready = readyz(&issuer).await;
    assert!(ready.starts_with("ready\n"), "{ready}");
    assert!(
        ready.contains("degraded: configuration: the configuration file cannot be used since 2"),
        "{ready}"
    );
    mint(&issuer, KEYS[0]).assert_stopped();

    issuer_config(home.path(), &format!("{good}[drain]\ndeadline = \"3s\"\n"));
    let said = reload(&issuer, "these changes wait for a restart");
    assert!(said.contains("drain.deadline = \"3s\" (was \"10s\")"), "{said}");
    assert_eq!(readyz(&issuer).await, "ready\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_and_agent_read_their_files_again_too() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let gateway_file = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let gateway = Daemon::ready("gateway", &gateway_file).await;
    let agent_file = client_config(home.path(), &gateway.http(), &issuer.http(), None);
    let agent = Daemon::ready("client", &agent_file).await;
    for (daemon, file) in [(&gateway, &gateway_file), (&agent, &agent_file)] {
        reload(daemon, "nothing in it has changed");
        spoil(file);
        let said = reload(daemon, "cannot be used, and what was read before stays in force");
        assert!(said.contains("unknown key \"nonsense\""), "{said}");
        degraded(daemon, file).await;
    }
}

async fn degraded(daemon: &Daemon, file: &Path) {
    eventually(&format!("{}: readiness says so", file.display()), || async {
        readyz(daemon).await.contains("degraded: configuration: ").then_some(())
    })
    .await;
}
